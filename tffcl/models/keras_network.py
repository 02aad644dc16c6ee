"""KerasNetwork: any Keras classifier of Dense and Conv layers as the network of a client work."""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.layers.kernels import KernelLayout, VectorLayout
from tffcl.models.decomposition import clone, is_decomposable, leaf_layers
from tffcl.models.keras_checks import checked_head, is_plain_dropout
from tffcl.models.network import Classifier, Tensors, dropout

logger = logging.getLogger(__name__)


class KeyedDropout(tf.keras.layers.Layer):
    """Dropout that depends on a key alone; Keras's own is not reproducible inside a federated computation."""

    def __init__(self, rate: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.rate, self.key = rate, None

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Drops a share `rate` of the inputs while `key` (int32 `[2]`) is set."""
        return dropout(inputs, self.rate, self.key)


class KerasNetwork(Classifier):
    """Applies a Keras model with weights that come as flat vectors; the model's own variables stay as they are.

    The kernels of all Dense, Conv1D and Conv2D layers except the head are shared and decomposed; biases, the head
    and the weights of other layers (recurrent, embeddings, normalisation) belong to a task: each task starts from the
    model's own. Weights that are not trainable stay as they are. `weights_by_role` lists which are which, and a line of
    the log says so where layers other than the head are not shared.

    Args:
      model: a built functional or sequential model of one input, whose last layer is a Dense head giving logits.
      num_foreign: K, places for foreign adaptives; they are added into the kernels (FedSeIT eq. 4).

    Raises:
      InputError: the model has another form; the message says which.
    """

    def __init__(self, model: tf.keras.Model, num_foreign: int = 0):
        if num_foreign < 0:
            raise errors.InputError(f"num_foreign: expected at least 0, found {num_foreign}")
        head = checked_head(model)
        self._model = clone(model, _with_keyed_dropout)
        self._model.set_weights(model.get_weights())
        self._first = [np.array(w) for w in self._model.get_weights()]
        self._places = _places(self._model)
        self.num_foreign, self.max_classes = num_foreign, head.units
        self._set_layouts(self._model.get_layer(head.name))
        self.shareable = tuple(name for name, _ in self.local.parts)
        self._log_roles(head.name)
        shape = [None, *model.inputs[0].shape[1:]]
        dtype = model.inputs[0].dtype.as_numpy_dtype
        self.context_type = OrderedDict()
        self.example_type = OrderedDict(features=tff.TensorType(dtype, shape), label=tff.TensorType(np.int32, [None]))
        self.prepared_type = self.example_type

    def _set_layouts(self, head: tf.keras.layers.Layer) -> None:
        weights = self._model.weights
        below = [layer for layer in leaf_layers(self._model) if layer is not head]
        shared = {id(layer.kernel) for layer in below if is_decomposable(layer)}
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
        """Says what starts anew with every task, as a warning where whole layers below the head do."""
        sizes = {role: sum(weights.values()) for role, weights in self.weights_by_role.items()}
        trained = sizes["shared"] + sizes["local"]
        whole = [
            f"{layer.name} ({layer.count_params():,})"
            for layer in leaf_layers(self._model)
            if layer.trainable_weights and layer.name != head and not is_decomposable(layer)
        ]
        logger.log(
            logging.WARNING if whole else logging.INFO,
            "KerasNetwork: %s of %s trained weights are shared, the kernels of Dense, Conv1D and Conv2D layers below "
            "the head; %s start anew with every task: biases, the head%s",
            f"{sizes['shared']:,}",
            f"{trained:,}",
            f"{sizes['local']:,}",
            "".join(f", {one}" for one in whole),
        )

    def initial_kernels(self, key: tf.Tensor) -> tf.Tensor:
        """The kernels that the model was built with: the first base is the model's own."""
        del key
        return self.kernels.join(dict(zip(self._names, self._first)))

    def initial_local(self, key: tf.Tensor) -> tf.Tensor:
        """The other weights that the model was built with: every task starts from them."""
        del key
        return self.local.join(dict(zip(self._names, self._first)))

    def initial_attention(self, key: tf.Tensor) -> tf.Tensor:
        del key
        return tf.zeros(self.attention_shape)

    def logits(
        self,
        kernels: tf.Tensor,
        local: tf.Tensor,
        attention: tf.Tensor,
        context: Tensors,
        examples: Tensors,
        dropout_key: tf.Tensor | None,
    ) -> tf.Tensor:
        del attention, context
        given = {**self.kernels.split(kernels), **self.local.split(local)}
        # What is frozen enters as a constant: a federated computation cannot reach the model's own variables.
        values = [given[name] if name in given else tf.constant(first) for name, first in zip(self._names, self._first)]
        with self._standing_in(values, dropout_key):
            return self._model(examples["features"], training=False)

    @contextlib.contextmanager
    def _standing_in(self, values: Sequence[tf.Tensor], key: tf.Tensor | None) -> Iterator[None]:
        """While it is open, every weight of the model is the given tensor, and dropout draws from `key`."""
        replaced = []

        def replace(layer: tf.Module, name: str, value: Any) -> None:
            replaced.append((layer, name, vars(layer)[name]))
            vars(layer)[name] = value  # Keras's __setattr__ would begin to track the tensor.

        try:
            for layer, name, index in self._places:
                replace(layer, name, values[index])
            for index, layer in enumerate(leaf_layers(self._model)):
                if isinstance(layer, KeyedDropout) and key is not None:
                    replace(layer, "key", tf.random.experimental.stateless_fold_in(key, index))
            yield
        finally:
            for layer, name, value in replaced:
                vars(layer)[name] = value


def _places(model: tf.keras.Model) -> list[tuple[tf.Module, str, int]]:
    """Every attribute that holds a weight: the layer, its name, and which of `model.weights` it is.

    Raises:
      InputError: a weight is no attribute of its layer, so that nothing can stand in for it.
    """
    numbers = {id(weight): index for index, weight in enumerate(model.weights)}
    places = [
        (layer, name, numbers[id(value)])
        for layer in model.submodules
        for name, value in vars(layer).items()
        if id(value) in numbers
    ]
    reached = {index for *_, index in places}
    hidden = [weight.name for index, weight in enumerate(model.weights) if index not in reached]
    if hidden:
        raise errors.InputError(f"model: weight {hidden[0]} is no attribute of its layer; make it one")
    return places


def _with_keyed_dropout(layer: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
    if is_plain_dropout(layer):
        return KeyedDropout(layer.rate, name=layer.name)
    return layer.__class__.from_config(layer.get_config())
