"""KerasNetwork: any Keras classifier of Dense and Conv layers as the network of a client work."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.layers.kernels import KernelLayout, VectorLayout
from tffcl.models.decompose import check_supported, is_decomposable
from tffcl.models.network import Network, dropout


class KeyedDropout(tf.keras.layers.Layer):
    """Dropout that depends on a key alone; Keras's own is not reproducible inside a federated computation."""

    def __init__(self, rate: float, **kwargs):
        super().__init__(**kwargs)
        self.rate, self.key = rate, None

    def call(self, inputs):
        """Drops a share `rate` of the inputs while `key` (int32 `[2]`) is set."""
        return dropout(inputs, self.rate, self.key)


class KerasNetwork(Network):
    """Applies a Keras model with weights that come as flat vectors; the model's own variables stay as they are.

    The kernels of all Dense, Conv1D and Conv2D layers except the head are shared and decomposed; biases, the head
    and the weights of other layers belong to a task.

    Args:
      model: a built model of one input, whose last layer is a Dense head giving logits.
      num_foreign: K, places for foreign adaptives; they are added into the kernels (FedSeIT eq. 4).

    Raises:
      InputError: the model has another form; the message says which.
    """

    def __init__(self, model: tf.keras.Model, num_foreign: int = 0):
        check_supported(model)
        head = model.layers[-1]
        if not isinstance(head, tf.keras.layers.Dense) or head.activation is not tf.keras.activations.linear:
            raise errors.InputError(
                "model: expected a Dense layer without activation (logits) as the last layer"
            )
        if len(model.inputs) != 1:
            raise errors.InputError(f"model: expected one input, found {len(model.inputs)}")
        self._model = tf.keras.models.clone_model(model, clone_function=_with_keyed_dropout)
        self._model.set_weights(model.get_weights())
        self._first = [np.array(w) for w in self._model.get_weights()]
        self.num_foreign, self.max_classes = num_foreign, head.units
        self._set_layouts()
        self.shareable = tuple(name for name, _ in self.local.parts)
        shape = [None, *model.inputs[0].shape[1:]]
        dtype = model.inputs[0].dtype.as_numpy_dtype
        self.context_type = OrderedDict()
        self.example_type = OrderedDict(
            features=tff.TensorType(dtype, shape), label=tff.TensorType(np.int32, [None])
        )
        self.prepared_type = self.example_type

    def _set_layouts(self) -> None:
        shared = {id(layer.kernel) for layer in self._model.layers[:-1] if is_decomposable(layer)}
        names = [f"{index}/{v.name}" for index, v in enumerate(self._model.weights)]
        parts = [(name, tuple(v.shape)) for name, v in zip(names, self._model.weights)]
        decomposed = [id(v) in shared for v in self._model.weights]
        if not any(decomposed):
            raise errors.InputError("model: no Dense, Conv1D or Conv2D layer below the head to share")
        self.kernels = KernelLayout(tuple(part for part, own in zip(parts, decomposed) if own))
        self.local = VectorLayout(tuple(part for part, own in zip(parts, decomposed) if not own))
        self._names = names

    def initial_kernels(self, key):
        """The kernels that the model was built with: the first base is the model's own."""
        del key
        return self.kernels.join(dict(zip(self._names, self._first)))

    def initial_local(self, key):
        del key
        return self.local.join(dict(zip(self._names, self._first)))

    def initial_attention(self, key):
        del key
        return tf.zeros(self.attention_shape)

    def logits(self, kernels, local, attention, context, examples, dropout_key):
        del attention, context
        values = {**self.kernels.split(kernels), **self.local.split(local)}
        with _standing_in(self._model, [values[name] for name in self._names], dropout_key):
            return self._model(examples["features"], training=False)


def _with_keyed_dropout(layer):
    if isinstance(layer, tf.keras.layers.Dropout):
        return KeyedDropout(layer.rate, name=layer.name)
    return layer.__class__.from_config(layer.get_config())


@contextlib.contextmanager
def _standing_in(
    model: tf.keras.Model, tensors: Sequence[tf.Tensor], key: tf.Tensor | None
) -> Iterator[None]:
    """While it is open, every weight of the model is the given tensor, and dropout draws from `key`."""
    by_variable = {id(v): tensor for v, tensor in zip(model.weights, tensors)}
    replaced = []
    for index, layer in enumerate(model._flatten_layers(include_self=False)):
        for name, value in list(vars(layer).items()):
            if id(value) in by_variable:
                replaced.append((layer, name, value))
                # Keras's __setattr__ would begin to track the tensor.
                layer.__dict__[name] = by_variable[id(value)]
        if isinstance(layer, KeyedDropout):
            folded = None if key is None else tf.random.experimental.stateless_fold_in(key, index)
            replaced.append((layer, "key", None))
            layer.__dict__["key"] = folded
    try:
        yield
    finally:
        for layer, name, value in replaced:
            layer.__dict__[name] = value
