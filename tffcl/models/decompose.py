"""decompose: any Keras model of Dense and Conv layers, with its kernels decomposed (FedSeIT eq. 1, FedWeIT eq. 4)."""

from __future__ import annotations

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

    The base starts at the model's own kernels; all other layers and weights are copied as they are.

    Args:
      model: a built functional or sequential model.
      num_foreign: K, places for foreign adaptives in each decomposed layer.
      adaptive_factor: A starts at B / adaptive_factor.

    Returns:
      A Keras model of the same inputs and outputs; `layer.base`, `layer.mask_logits`, `layer.adaptive` and, with
      `num_foreign`, `layer.attention` and `layer.foreign` are its variables.

    Raises:
      InputError: the model is not built, has no layer to decompose, or normalises by batch statistics.
    """
    check_supported(model)

    def replace(layer):
        kind = _DECOMPOSED.get(type(layer))
        if kind is None:
            return layer.__class__.from_config(layer.get_config())
        return kind(num_foreign=num_foreign, adaptive_factor=adaptive_factor, **layer.get_config())

    copy = tf.keras.models.clone_model(model, clone_function=replace)
    for old, new in zip(model.layers, copy.layers):
        if type(old) not in _DECOMPOSED:
            new.set_weights(old.get_weights())
            continue
        new.base.assign(old.kernel)
        new.adaptive.assign(old.kernel / adaptive_factor)
        if old.use_bias:
            new.bias.assign(old.bias)
    return copy


def check_supported(model: tf.keras.Model) -> None:
    """Refuses what would be wrong without a word.

    Raises:
      InputError: see `decompose`.
    """
    if not isinstance(model, tf.keras.Model) or not model.built:
        raise errors.InputError("model: expected a built functional or sequential tf.keras.Model")
    kinds = [type(layer) for layer in model.layers]
    normalising = [k.__name__ for k in kinds if issubclass(k, tf.keras.layers.BatchNormalization)]
    if normalising:
        raise errors.InputError(
            f"model: {normalising[0]} keeps statistics that are neither averaged nor a task's own; use LayerNormalization"
        )
    if not any(kind in _DECOMPOSED for kind in kinds):
        raise errors.InputError(
            f"model: no Dense, Conv1D or Conv2D layer to decompose among {[k.__name__ for k in kinds]}"
        )


def is_decomposable(layer: tf.keras.layers.Layer) -> bool:
    """Whether `decompose` would replace this layer."""
    return type(layer) in _DECOMPOSED
