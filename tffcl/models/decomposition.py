"""decompose: any Keras model of Dense and Conv layers, with its kernels decomposed (FedSeIT eq. 1, FedWeIT eq. 4)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Callable

import tensorflow as tf

from tffcl import errors
from tffcl.layers.decomposed import DecomposedConv1D, DecomposedConv2D, DecomposedDense

# Exact classes: a subclass (a transposed or depthwise convolution) has a kernel of another meaning.
_DECOMPOSED = {
    tf.keras.layers.Dense: DecomposedDense,
    tf.keras.layers.Conv1D: DecomposedConv1D,
    tf.keras.layers.Conv2D: DecomposedConv2D,
}


def decompose(model: tf.keras.Model, num_foreign: int = 0, adaptive_factor: float = 5.0) -> tf.keras.Model:
    """A copy of a Keras model whose Dense and Conv layers compute B * sigmoid(m) + A + sum_k alpha_k A_k.

    The base starts at the model's own kernels; all other layers and weights are copied as they are, layers inside
    a wrapper such as `TimeDistributed` among them.

    Args:
      model: a built functional or sequential model; models inside it are decomposed too.
      num_foreign: K, places for foreign adaptives in each decomposed layer.
      adaptive_factor: A starts at B / adaptive_factor.

    Returns:
      A Keras model of the same inputs and outputs; `layer.base`, `layer.mask_logits`, `layer.adaptive` and, with
      `num_foreign`, `layer.attention` and `layer.foreign` are its variables. Save it as any Keras model; a program that
      loads it imports `tffcl.layers` first, which registers these layers with Keras.

    Raises:
      InputError: the model is not built, has no layer to decompose, or has one that changes weights of its own.
    """
    check_supported(model)

    def replace(layer: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
        kind = _DECOMPOSED.get(type(layer))
        if kind is None:
            return layer.__class__.from_config(layer.get_config())
        return kind(num_foreign=num_foreign, adaptive_factor=adaptive_factor, **layer.get_config())

    copy = clone(model, replace)
    for old, new in zip(leaf_layers(model), leaf_layers(copy)):
        if not is_decomposable(old):
            new.set_weights(old.get_weights())
            continue
        new.base.assign(old.kernel)
        new.adaptive.assign(old.kernel / adaptive_factor)
        if old.use_bias:
            new.bias.assign(old.bias)
    return copy


def clone(model: tf.keras.Model, replace: Callable[[tf.keras.layers.Layer], tf.keras.layers.Layer]) -> tf.keras.Model:
    """The model with `replace` applied to each of its layers, those of models inside it included."""

    def replace_or_enter(layer: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
        return clone(layer, replace) if isinstance(layer, tf.keras.Model) else replace(layer)

    copy = tf.keras.models.clone_model(model, clone_function=replace_or_enter)
    if not copy.built:  # a sequential model that was built by its first call
        copy.build(model.input_shape)
    return copy


def leaf_layers(model: tf.keras.Model) -> Iterator[tf.keras.layers.Layer]:
    """The layers of a model in Keras's order, with the layers of a model inside it in that model's place."""
    for layer in model.layers:
        if isinstance(layer, tf.keras.Model):
            yield from leaf_layers(layer)
        else:
            yield layer


def is_decomposable(layer: tf.keras.layers.Layer) -> bool:
    """Whether `decompose` would replace this layer."""
    return type(layer) in _DECOMPOSED


def check_supported(model: tf.keras.Model) -> None:
    """Refuses what would be wrong without a word.

    Raises:
      InputError: see `decompose`.
    """
    if not isinstance(model, tf.keras.Model) or not model.built:
        raise errors.InputError("model: expected a built functional or sequential tf.keras.Model")
    parts = [model, *model.submodules]
    subclassed = [part.name for part in parts if isinstance(part, tf.keras.Model) and not _has_graph(part)]
    if subclassed:
        raise errors.InputError(
            f"model: {subclassed[0]} is neither functional nor sequential, so its layers cannot be replaced"
        )
    _check_updates(model)
    kinds = [type(layer) for layer in leaf_layers(model)]
    if not any(kind in _DECOMPOSED for kind in kinds):
        raise errors.InputError(
            f"model: no Dense, Conv1D or Conv2D layer to decompose among {[k.__name__ for k in kinds]}"
        )


def _has_graph(model: tf.keras.Model) -> bool:
    """Whether Keras knows how the layers of a model are connected."""
    return bool(getattr(model, "inputs", None)) and hasattr(model, "output_names")


def _check_updates(model: tf.keras.Model) -> None:
    """Refuses what a training step changes past the gradients: statistics of batches, power iterations, states."""
    inputs = [one.type_spec for one in model.inputs]
    traced = tf.function(lambda *given: model(given if len(given) > 1 else given[0], training=True))
    try:
        graph = traced.get_concrete_function(*inputs).graph.as_graph_def()
    except Exception as error:  # whatever a layer raises
        where = re.search(r"layer '.*?' \(type \w+\)", str(error))
        raise errors.InputError(
            f"model: {where[0] if where else 'a layer'} cannot be compiled for training ({type(error).__name__})"
        ) from error
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    scopes = [node.name.split("/") for node in nodes if node.op.startswith(("Assign", "ResourceScatter"))]
    if scopes:
        changed = [layer for layer in leaf_layers(model) if any(layer.name in scope for scope in scopes)]
        named = f"{type(changed[0]).__name__} {changed[0].name!r}" if changed else "a layer"
        raise errors.InputError(
            f"model: {named} changes what it keeps while it trains, which is neither averaged nor a task's own; "
            "freeze it (trainable=False, stateful=False), or take LayerNormalization for BatchNormalization"
        )
