"""Keras models as networks: `KerasNetwork` for a client work, `decompose` for a Keras model with decomposed kernels.

`decompose` puts base, mask and adaptive into each Dense and Conv layer (FedSeIT eq. 1, FedWeIT eq. 4).
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.layers import DecomposedConv1D, DecomposedConv2D, DecomposedDense
from tffcl.layers.kernels import KernelLayout, VectorLayout
from tffcl.models.network import Layered, LinearLayer, Tensors, dropout

logger = logging.getLogger(__name__)

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

    Shown in docs/contract.md.

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
    _check_supported(model)

    def replace(layer: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
        if type(layer) not in _DECOMPOSED:
            return layer.__class__.from_config(layer.get_config())
        options = dict(layer.get_config(), num_foreign=num_foreign, adaptive_factor=adaptive_factor)
        return _DECOMPOSED[type(layer)](**options)

    copy = _clone(model, replace)
    for old, new in zip(_leaf_layers(model), _leaf_layers(copy)):
        if type(old) not in _DECOMPOSED:
            new.set_weights(old.get_weights())
            continue
        new.base.assign(old.kernel)
        new.adaptive.assign(old.kernel / adaptive_factor)
        if old.use_bias:
            new.bias.assign(old.bias)
    return copy


def _clone(model: tf.keras.Model, replace: Callable[[tf.keras.layers.Layer], tf.keras.layers.Layer]) -> tf.keras.Model:
    """The model with `replace` applied to each of its layers, those of models inside it included."""

    def replace_or_enter(layer: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
        return _clone(layer, replace) if isinstance(layer, tf.keras.Model) else replace(layer)

    copy = tf.keras.models.clone_model(model, clone_function=replace_or_enter)
    if not copy.built:  # a sequential model that was built by its first call
        copy.build(model.input_shape)
    return copy


def _leaf_layers(model: tf.keras.Model) -> Iterator[tf.keras.layers.Layer]:
    """The layers of a model in Keras's order, with the layers of a model inside it in that model's place."""
    for layer in model.layers:
        if isinstance(layer, tf.keras.Model):
            yield from _leaf_layers(layer)
        else:
            yield layer


class KeyedDropout(tf.keras.layers.Layer):
    """Dropout that depends on a key alone; Keras's own is not reproducible inside a federated computation."""

    def __init__(self, rate: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.rate, self.key = rate, None

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Drops a share `rate` of the inputs while `key` (int32 `[2]`) is set."""
        return dropout(inputs, self.rate, self.key)


class KerasNetwork(Layered):
    """Applies a Keras model with weights that come as flat vectors; the model's own variables stay as they are.

    The kernels of all Dense, Conv1D and Conv2D layers except the head are shared and decomposed; biases, the head
    and the weights of other layers (recurrent, embeddings, normalisation) belong to a task: each task starts from the
    model's own. Weights that are not trainable stay as they are. `weights_by_role` lists which are which, and a line of
    the log says so where layers other than the head are not shared.

    Shown in docs/contract.md.

    Args:
      model: a built functional or sequential model of one input, whose last layer is a Dense head giving logits.
      num_foreign: K, places for foreign adaptives; they are added into the kernels (FedSeIT eq. 4).

    Raises:
      InputError: the model has another form; the message says which.
    """

    def __init__(self, model: tf.keras.Model, num_foreign: int = 0):
        if num_foreign < 0:
            raise errors.InputError(f"num_foreign: expected at least 0, found {num_foreign}")
        head = _checked_head(model)
        self._model = _clone(model, _with_keyed_dropout)
        self._model.set_weights(model.get_weights())
        self._first = [np.array(w) for w in self._model.get_weights()]
        self._attributes = _weight_attributes(self._model)
        self.num_foreign, self.max_classes = num_foreign, head.units
        self._set_layouts(self._model.get_layer(head.name))
        self.shareable = tuple(name for name, _ in self.local.parts)
        columns = {id(weight) for weight in self._model.get_layer(head.name).trainable_weights}
        self.of_labels = tuple(n for n, weight in zip(self._names, self._model.weights) if id(weight) in columns)
        self._log_roles(head.name)
        shape = [None, *model.inputs[0].shape[1:]]
        dtype = model.inputs[0].dtype.as_numpy_dtype
        self.context_type = OrderedDict()
        self.example_type = OrderedDict(features=tff.TensorType(dtype, shape), label=tff.TensorType(np.int32, [None]))
        self.prepared_type = self.example_type

    def _set_layouts(self, head: tf.keras.layers.Layer) -> None:
        weights = self._model.weights
        below = [layer for layer in _leaf_layers(self._model) if layer is not head]
        shared = {id(layer.kernel) for layer in below if type(layer) in _DECOMPOSED}
        trainable = {id(weight) for weight in self._model.trainable_weights}
        self._names = [f"{index}/{weight.name}" for index, weight in enumerate(weights)]
        kernels: list[tuple[str, tuple[int, ...]]] = []
        local: list[tuple[str, tuple[int, ...]]] = []
        for name, weight in zip(self._names, weights):
            if id(weight) in trainable:
                (kernels if id(weight) in shared else local).append((name, tuple(weight.shape)))
        if not kernels:
            raise errors.InputError("model: no trainable Dense, Conv1D or Conv2D layer below the head to share")
        self.kernels, self.local = KernelLayout(tuple(kernels)), VectorLayout(tuple(local))
        names = {id(weight): name for name, weight in zip(self._names, weights) if id(weight) in trainable}
        linear = [
            layer
            for layer in _leaf_layers(self._model)
            if type(layer) in _DECOMPOSED and id(layer.kernel) in names and _multiplies_patches(layer)
        ]
        self._linear = tuple(linear)
        self.layers = tuple(
            LinearLayer(names[id(layer.kernel)], names.get(id(layer.bias)) if layer.use_bias else None)
            for layer in linear
        )

    @property
    def weights_by_role(self) -> dict[str, dict[str, int]]:
        """How many entries each weight has: those `shared`, those `local` to a client's task, those `frozen`.

        Names are those of `kernels` and `local`: the weight's number in `model.weights`, then Keras's name.
        """
        sizes = {name: first.size for name, first in zip(self._names, self._first)}
        shared, local = ([name for name, _ in layout.parts] for layout in (self.kernels, self.local))
        frozen = [name for name in self._names if name not in {*shared, *local}]
        roles = {"shared": shared, "local": local, "frozen": frozen}
        return {role: {name: sizes[name] for name in names} for role, names in roles.items()}

    def _log_roles(self, head: str) -> None:
        """Logs what starts anew with every task, as a warning where whole layers below the head do."""
        sizes = {role: sum(weights.values()) for role, weights in self.weights_by_role.items()}
        whole = [
            f"{layer.name} ({layer.count_params():,})"
            for layer in _leaf_layers(self._model)
            if layer.trainable_weights and layer.name != head and type(layer) not in _DECOMPOSED
        ]
        logger.log(
            logging.WARNING if whole else logging.INFO,
            "KerasNetwork: %s of %s trained weights are shared, the kernels of Dense, Conv1D and Conv2D layers below "
            "the head; %s start anew with every task: biases, %s",
            f"{sizes['shared']:,}", f"{sizes['shared'] + sizes['local']:,}", f"{sizes['local']:,}",
            ", ".join(["the head", *whole]),
        )  # fmt: skip

    def initial_kernels(self, key: tf.Tensor) -> tf.Tensor:
        """The kernels that the model was built with: the first base is the model's own."""
        del key
        return self.kernels.join(dict(zip(self._names, self._first)))

    def initial_local(self, key: tf.Tensor) -> tf.Tensor:
        """The other weights that the model was built with: every task starts from them."""
        del key
        return self.local.join(dict(zip(self._names, self._first)))

    def logits(
        self, kernels: tf.Tensor, local: tf.Tensor, attention: tf.Tensor, context: Tensors, examples: Tensors,
        dropout_key: tf.Tensor | None,
    ) -> tf.Tensor:  # fmt: skip
        del attention, context
        trained = {**self.kernels.split(kernels), **self.local.split(local)}
        # Frozen weights enter as constants: a federated computation cannot reach the model's own variables.
        values = [trained.get(name, first) for name, first in zip(self._names, self._first)]
        with self._substituted([tf.convert_to_tensor(value) for value in values], dropout_key):
            return self._model(examples["features"], training=False)

    def layer_inputs(
        self, kernels: tf.Tensor, local: tf.Tensor, attention: tf.Tensor, context: Tensors, examples: Tensors
    ) -> tuple[tf.Tensor, ...]:
        seen: list[list[tf.Tensor]] = [[] for _ in self._linear]
        with contextlib.ExitStack() as stack:
            for layer, rows in zip(self._linear, seen):
                stack.enter_context(_recorded(layer, rows))
            self.logits(kernels, local, attention, context, examples, None)
        return tuple(tf.concat(rows, 0) for rows in seen)

    def plain(self, kernels: Any = None, local: Any = None) -> tf.keras.Model:
        """A Keras model as the user's was, with Keras's own dropout; logits of `features`.

        Args:
          kernels: float32 `[kernels.size]`; the first ones without.
          local: float32 `[local.size]`; the first ones without.
        """
        model = _clone(self._model, _with_plain_dropout)
        trained: dict[str, Any] = {}
        for layout, flat in ((self.kernels, kernels), (self.local, local)):
            trained.update({} if flat is None else layout.split(tf.convert_to_tensor(flat)))
        model.set_weights([np.asarray(trained.get(name, first)) for name, first in zip(self._names, self._first)])
        return model

    @contextlib.contextmanager
    def _substituted(self, values: Sequence[tf.Tensor], key: tf.Tensor | None) -> Iterator[None]:
        """Inside, tensors stand for all weights of the model, and dropout draws from `key`."""
        replaced = []

        def replace(layer: tf.Module, name: str, value: Any) -> None:
            replaced.append((layer, name, vars(layer)[name]))
            vars(layer)[name] = value  # Keras's __setattr__ would begin to track the tensor.

        try:
            for layer, name, index in self._attributes:
                replace(layer, name, values[index])
            for index, layer in enumerate(_leaf_layers(self._model)):
                if isinstance(layer, KeyedDropout) and key is not None:
                    replace(layer, "key", tf.random.experimental.stateless_fold_in(key, index))
            yield
        finally:
            for layer, name, value in replaced:
                vars(layer)[name] = value


def _multiplies_patches(layer: tf.keras.layers.Layer) -> bool:
    """Whether a Dense or convolution layer multiplies rows of its inputs by the whole of its kernel."""
    if isinstance(layer, tf.keras.layers.Dense):
        return True
    return layer.groups == 1 and layer.data_format == "channels_last"


def _patches(layer: tf.keras.layers.Layer, inputs: tf.Tensor) -> tf.Tensor:
    """Rows that the layer multiplies by its kernel, float32 `[rows, d]`, window after window."""
    if not isinstance(layer, tf.keras.layers.Dense):
        size, strides, rates, padding = layer.kernel_size, layer.strides, layer.dilation_rate, layer.padding
        if len(size) == 1:
            if padding == "causal":
                inputs = tf.pad(inputs, [[0, 0], [rates[0] * (size[0] - 1), 0], [0, 0]])
            inputs = inputs[:, None]
            size, strides, rates = (1, *size), (1, *strides), (1, *rates)
        inputs = tf.image.extract_patches(
            inputs, [1, *size, 1], [1, *strides, 1], [1, *rates, 1], "SAME" if padding == "same" else "VALID"
        )
    return tf.reshape(inputs, [-1, inputs.shape[-1]])


@contextlib.contextmanager
def _recorded(layer: tf.keras.layers.Layer, rows: list[tf.Tensor]) -> Iterator[None]:
    """Inside, `rows` gains what the layer multiplies at each of its calls."""
    call = layer.call

    def recording(inputs: tf.Tensor, *args: Any, **kwargs: Any) -> tf.Tensor:
        rows.append(_patches(layer, inputs))
        return call(inputs, *args, **kwargs)

    vars(layer)["call"] = recording
    try:
        yield
    finally:
        del vars(layer)["call"]


def _weight_attributes(model: tf.keras.Model) -> list[tuple[tf.Module, str, int]]:
    """Every attribute that holds a weight: the layer, the attribute's name, the number in `model.weights`."""
    numbers = {id(weight): index for index, weight in enumerate(model.weights)}
    attributes = [
        (layer, name, numbers[id(value)])
        for layer in model.submodules
        for name, value in vars(layer).items()
        if id(value) in numbers
    ]
    reached = {index for *_, index in attributes}
    hidden = [weight.name for index, weight in enumerate(model.weights) if index not in reached]
    if hidden:
        raise errors.InputError(f"model: weight {hidden[0]} is no attribute of its layer; make it one")
    return attributes


def _with_keyed_dropout(layer: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
    if _is_plain_dropout(layer):
        return KeyedDropout(layer.rate, name=layer.name)
    return layer.__class__.from_config(layer.get_config())


def _with_plain_dropout(layer: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
    if isinstance(layer, KeyedDropout):
        return tf.keras.layers.Dropout(layer.rate, name=layer.name)
    return layer.__class__.from_config(layer.get_config())


# -- checks: what would be ignored or wrong without a word is refused ------------------------------------------------


def _check_supported(model: tf.keras.Model) -> None:
    """Refuses what neither `decompose` nor `KerasNetwork` can train."""
    _check_structure(model)
    _check_updates(model)


def _check_structure(model: tf.keras.Model) -> None:
    if not isinstance(model, tf.keras.Model) or not model.built:
        raise errors.InputError("model: expected a built functional or sequential tf.keras.Model")
    for part in [model, *model.submodules]:
        # Keras knows how the layers of functional and sequential models are connected.
        connected = getattr(part, "inputs", None) and hasattr(part, "output_names")
        if isinstance(part, tf.keras.Model) and not connected:
            raise errors.InputError(
                f"model: {part.name} is neither functional nor sequential, so its layers cannot be replaced"
            )
    kinds = [type(layer) for layer in _leaf_layers(model)]
    if not any(kind in _DECOMPOSED for kind in kinds):
        names = [kind.__name__ for kind in kinds]
        raise errors.InputError(f"model: no Dense, Conv1D or Conv2D layer to decompose among {names}")


def _check_updates(model: tf.keras.Model) -> None:
    """Refuses what a training step changes past the gradients: statistics of batches, power iterations, states."""
    inputs = [tensor.type_spec for tensor in model.inputs]
    traced = tf.function(lambda *tensors: model(tensors if len(tensors) > 1 else tensors[0], training=True))
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
        changed = [layer for layer in _leaf_layers(model) if any(layer.name in scope for scope in scopes)]
        named = f"{type(changed[0]).__name__} {changed[0].name!r}" if changed else "a layer"
        raise errors.InputError(
            f"model: {named} changes what it keeps while it trains, which is neither averaged nor a task's own; "
            "freeze it (trainable=False, stateful=False), or take LayerNormalization for BatchNormalization"
        )


def _checked_head(model: tf.keras.Model) -> tf.keras.layers.Layer:
    """The Dense layer that gives the logits, of a model that federated local training can train as it stands.

    Raises:
      InputError: with all that is in the way, not only the first of it.
    """
    _check_structure(model)
    for name, tensors in (("input", model.inputs), ("output", model.outputs)):
        if len(tensors) != 1:
            raise errors.InputError(f"model: expected one {name}, found {len(tensors)}")
    faults = []
    for check in (_check_updates, _check_head, _check_weights, _check_randomness, _check_losses):
        try:
            check(model)
        except errors.InputError as error:
            faults.append(error)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise errors.InputError("model: " + ". And ".join(str(fault).removeprefix("model: ") for fault in faults))
    return model.get_layer(model.output_names[0])


def _check_head(model: tf.keras.Model) -> None:
    head = model.get_layer(model.output_names[0])
    if type(head) is not tf.keras.layers.Dense or head.activation is not tf.keras.activations.linear:
        raise errors.InputError("model: expected a Dense layer without activation (logits) as the last layer")
    if len(model.outputs[0].shape) != 2:
        raise errors.InputError(f"model: expected logits [N, classes], found shape {model.outputs[0].shape}")


def _check_losses(model: tf.keras.Model) -> None:
    kinds = ("kernel", "bias", "recurrent", "embeddings", "beta", "gamma", "activity")
    regularised = [
        part.name for part in model.submodules if any(getattr(part, f"{kind}_regularizer", None) for kind in kinds)
    ]
    if regularised or model.losses:
        raise errors.InputError(
            f"model: regularizers and added losses (of {', '.join(regularised or [model.name])}) would be ignored; "
            "leave them out, and take weight_decay"
        )


def _check_weights(model: tf.keras.Model) -> None:
    for weight in model.trainable_weights:
        if weight.dtype != tf.float32:
            raise errors.InputError(f"model: expected float32 weights, found {weight.name} of {weight.dtype.name}")
        if weight.constraint is not None:
            raise errors.InputError(f"model: the constraint on {weight.name} would be ignored; leave it out")
    for layer in model.submodules:
        if isinstance(layer, tf.keras.layers.Layer) and layer.weights and layer.compute_dtype != "float32":
            raise errors.InputError(
                f"model: expected layers that compute in float32, found {layer.name} in {layer.compute_dtype}; local "
                "training scales no losses, so build the model under the policy 'float32'"
            )


def _check_randomness(model: tf.keras.Model) -> None:
    replaced = {id(layer) for layer in _leaf_layers(model) if _is_plain_dropout(layer)}
    for layer in model.submodules:
        if not isinstance(layer, tf.keras.__internal__.layers.BaseRandomLayer) or id(layer) in replaced:
            continue
        # A layer that could draw random numbers draws none without dropout, as LSTM by default.
        rates = [getattr(layer, name) for name in ("rate", "dropout", "recurrent_dropout") if hasattr(layer, name)]
        if not rates or any(rates):
            raise errors.InputError(
                f"model: {type(layer).__name__} {layer.name!r} draws random numbers that no seed of ours reaches; "
                "only a Dropout layer (without noise_shape) can"
            )


def _is_plain_dropout(layer: tf.keras.layers.Layer) -> bool:
    """Whether `KeyedDropout` can stand in for this layer."""
    return type(layer) is tf.keras.layers.Dropout and layer.noise_shape is None
