"""export_keras_model: a client's model of one task as a plain Keras model, without TFF and without this library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tffcl import errors
from tffcl.client_works.decomposed import DecomposedWork
from tffcl.models.text_cnn import AlignedTextCNN, TextCNN


def export_keras_model(
    work: DecomposedWork,
    client_state: Mapping[str, Any],
    task: int,
    vectors: np.ndarray,
    foreign: np.ndarray | None = None,
) -> tf.keras.Model:
    """A Keras model of Embedding, Conv1D and Dense layers that predicts what the client predicts for the task.

    Shown in docs/contract.md.

    Args:
      work: the client work of a TextCNN.
      client_state: the client's state (numpy), as the client store keeps it.
      task: which of the client's tasks, from 0.
      vectors: float32 `[V, D]`, the word vectors; row 0 is padding and zero.
      foreign: float32 `[k, knowledge_size]`, the foreign adaptives of the task, for FedSeIT.

    Returns:
      A model from int32 `[N, L]` word ids (0 is padding) to logits `[N, classes]`; save it as any Keras model, or
      convert it to TensorFlow Lite, whose built-in operations suffice.

    Raises:
      InputError: no such task, the network is no TextCNN, the vectors have another size, or FedSeIT's foreign
        adaptives are missing.
    """
    network: Any = work.network
    if not isinstance(network, (TextCNN, AlignedTextCNN)):
        raise errors.InputError(f"export: expected the work of a TextCNN, found {type(network).__name__}")
    newest = int(client_state["task"])
    if newest < 0:
        raise errors.InputError("task: the client has begun no task, so there is nothing to export")
    if not 0 <= task <= newest:
        raise errors.InputError(f"task: expected 0 to {newest}, found {task}")
    size = network.config.embedding_size
    if np.ndim(vectors) != 2 or np.shape(vectors)[1] != size:
        raise errors.InputError(f"vectors: expected float32 [V, {size}], found {np.shape(vectors)}")
    view = {name: tf.convert_to_tensor(v) for name, v in work.task_view(client_state, task).items()}
    if isinstance(network, AlignedTextCNN):
        foreign = _checked(foreign, work)
    kernels, attention = work.evaluated_kernel(view).numpy(), view["attention"].numpy()
    return text_cnn_model(network, kernels, view["local"].numpy(), attention, vectors, foreign)


def text_cnn_model(
    network: TextCNN | AlignedTextCNN,
    kernels: np.ndarray,
    local: np.ndarray,
    attention: np.ndarray | None,
    vectors: np.ndarray,
    foreign: np.ndarray | None = None,
) -> tf.keras.Model:
    """From int32 `[N, L]` word ids to logits `[N, max_classes]`, out of parameters as the network takes them.

    Args:
      network: whose parameters these are.
      kernels: float32 `[kernels.size]`, composed.
      local: float32 `[local.size]`.
      attention: float32 `[K, kernels]`, of an `AlignedTextCNN`.
      vectors: float32 `[V, D]`.
      foreign: float32 `[k, kernels.size]`, of an `AlignedTextCNN`.
    """
    own_kernels = [part.numpy() for part in network.kernels.split(tf.constant(kernels)).values()]
    parts = {name: part.numpy() for name, part in network.local.split(tf.constant(local)).items()}
    builder = _Builder(network, vectors)
    own = builder.features(own_kernels, [parts[f"bias_{size}"] for size in network.config.kernel_sizes])
    if isinstance(network, AlignedTextCNN):
        if foreign is not None and len(foreign):
            aligned = builder.aligned(np.asarray(attention), foreign, parts)
            own = tf.keras.layers.Concatenate()([own, aligned])
        # With no foreign adaptives the lower half of W_c multiplies zeros and falls away.
        augment = parts["augment_projection"][: own.shape[-1]]
        own = builder.dense(own, augment, parts["augment_bias"], "relu", "augment")
    return builder.finish(builder.dense(own, parts["head_kernel"], parts["head_bias"], None, "head"))


def _checked(foreign: np.ndarray | None, work: DecomposedWork) -> np.ndarray:
    wanted = f"float32 [k, {work.knowledge_size}] with k at most {work.num_foreign}"
    shape = None if foreign is None else np.shape(foreign)
    if shape is None or len(shape) != 2 or shape[1] != work.knowledge_size or shape[0] > work.num_foreign:
        raise errors.InputError(f"foreign: expected {wanted}, found {'nothing' if shape is None else shape}")
    return np.asarray(foreign, np.float32)


class _Builder:
    """Lays the layers over one input of word ids; weights are set once the model is whole."""

    def __init__(self, network: TextCNN | AlignedTextCNN, vectors: np.ndarray):
        self._sizes, self._layout = network.config.kernel_sizes, network.kernels
        self._of_mean = network.config.foreign_projection == "mean"
        self._weights: list[tuple[tf.keras.layers.Layer, list[np.ndarray]]] = []
        self._tokens = tf.keras.Input([None], dtype=tf.int32, name="tokens")
        embedding = tf.keras.layers.Embedding(*vectors.shape, trainable=False, name="word_vectors")
        widest = max(self._sizes)
        # A document counts as at least as long as the widest filter, and what pads it is the zero vector of id 0.
        padded = tf.pad(self._tokens, [[0, 0], [0, widest]])
        self._words = embedding(padded)
        self._weights.append((embedding, [np.asarray(vectors, np.float32)]))
        # Sums, ranges and reshapes, for TensorFlow Lite has no built-in sequence_mask and no new axes in slices.
        length = tf.reduce_sum(tf.cast(tf.not_equal(self._tokens, 0), tf.int32), axis=1, keepdims=True)
        self._length = tf.maximum(length, widest)
        self._places = tf.expand_dims(tf.range(tf.shape(padded)[1]), 0)

    def _pooled(self, kernel: np.ndarray, bias: np.ndarray | None, name: str) -> tf.Tensor:
        """relu(conv + bias) over the windows inside the document; it is never negative, so 0 hides the others."""
        layer = tf.keras.layers.Conv1D(
            kernel.shape[2], kernel.shape[0], activation="relu", use_bias=bias is not None, name=name
        )
        response = layer(self._words)
        self._weights.append((layer, [kernel] if bias is None else [kernel, bias]))
        reach = kernel.shape[0] - 1
        places = self._places[:, : tf.shape(response)[1]]
        inside = tf.cast(tf.less(places, self._length - reach), tf.float32)
        return tf.keras.layers.GlobalMaxPooling1D(name=f"{name}_pool")(response * tf.expand_dims(inside, 2))

    def features(self, kernels: Sequence[np.ndarray], biases: Sequence[np.ndarray]) -> tf.Tensor:
        """The client's own features of all kernel sizes."""
        pooled = [self._pooled(k, b, f"conv_{size}") for k, b, size in zip(kernels, biases, self._sizes)]
        return tf.keras.layers.Concatenate()(pooled) if len(pooled) > 1 else pooled[0]

    def aligned(self, attention: np.ndarray, foreign: np.ndarray, local: Mapping[str, np.ndarray]) -> tf.Tensor:
        """W_f over the features of all foreign adaptives, or their mean (FedSeIT eq. 2 and 3)."""
        parts = [self._layout.split(tf.constant(row)) for row in foreign]
        aligned = []
        for index, ((name, _), size) in enumerate(zip(self._layout.parts, self._sizes)):
            # Entry by entry side by side, as W_f has them: one layer serves them all.
            wide = np.concatenate([attention[k, index] * part[name].numpy() for k, part in enumerate(parts)], -1)
            pooled = self._pooled(wide, None, f"foreign_{size}")
            projection = local[f"foreign_projection_{size}"]
            if self._of_mean:
                projection = np.tile(projection / len(foreign), [len(foreign), 1])
            projection = projection[: wide.shape[-1]]
            aligned.append(self.dense(pooled, projection, None, None, f"align_{size}"))
        return tf.keras.layers.Concatenate()(aligned) if len(aligned) > 1 else aligned[0]

    def dense(
        self, inputs: tf.Tensor, kernel: np.ndarray, bias: np.ndarray | None, activation: str | None, name: str
    ) -> tf.Tensor:
        """A Dense layer with these weights."""
        layer = tf.keras.layers.Dense(kernel.shape[1], activation, use_bias=bias is not None, name=name)
        self._weights.append((layer, [kernel] if bias is None else [kernel, bias]))
        return layer(inputs)

    def finish(self, logits: tf.Tensor) -> tf.keras.Model:
        """The model, with all weights in place."""
        model = tf.keras.Model(self._tokens, logits)
        for layer, weights in self._weights:
            layer.set_weights(weights)
        return model
