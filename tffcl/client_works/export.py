"""export_keras_model: a client's model of one task as a plain Keras model, without TFF and without this library."""

from __future__ import annotations

from collections.abc import Mapping
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

    Args:
      work: the client work of a TextCNN.
      client_state: the client's state (numpy), as the client store keeps it.
      task: which of the client's tasks, from 0.
      vectors: float32 `[V, D]`, the word vectors; row 0 is padding and zero.
      foreign: float32 `[k, knowledge_size]`, the foreign adaptives of the task, for FedSeIT.

    Returns:
      A model from int32 `[N, L]` word ids (0 is padding) to logits `[N, classes]`; save it as any Keras model.

    Raises:
      InputError: no such task, the network is no TextCNN, or FedSeIT's foreign adaptives are missing.
    """
    network = work.network
    if not isinstance(network, (TextCNN, AlignedTextCNN)):
        raise errors.InputError(f"export: expected the work of a TextCNN, found {type(network).__name__}")
    if not 0 <= task <= int(client_state["task"]):
        raise errors.InputError(f"task: expected 0 to {int(client_state['task'])}, found {task}")
    view = {name: tf.convert_to_tensor(v) for name, v in work.task_view(client_state, task).items()}
    kernels = network.kernels.split(work.evaluated_kernel(view))
    local = {name: v.numpy() for name, v in network.local.split(view["local"]).items()}
    builder = _Builder(network, vectors)
    own = builder.features(
        [k.numpy() for k in kernels.values()], [local[f"bias_{k}"] for k in network.config.kernel_sizes]
    )
    if isinstance(network, AlignedTextCNN):
        aligned = builder.aligned(view["attention"].numpy(), _checked(foreign, work), local)
        own = builder.dense(
            tf.keras.layers.Concatenate()([own, aligned]),
            local["augment_projection"],
            local["augment_bias"],
            "relu",
            "augment",
        )
    logits = builder.dense(own, local["head_kernel"], local["head_bias"], None, "head")
    return builder.finish(logits)


def _checked(foreign: np.ndarray | None, work: DecomposedWork) -> np.ndarray:
    wanted = f"float32 [k, {work.knowledge_size}] with k at most {work.num_foreign}"
    shape = None if foreign is None else np.shape(foreign)
    if shape is None or len(shape) != 2 or shape[1] != work.knowledge_size or shape[0] > work.num_foreign:
        raise errors.InputError(f"foreign: expected {wanted}, found {'nothing' if shape is None else shape}")
    return np.asarray(foreign, np.float32)


class _Builder:
    """Lays the layers over one input of word ids; weights are set once the model is whole."""

    def __init__(self, network, vectors: np.ndarray):
        config = network.config
        self._sizes, self._filters, self._layout = config.kernel_sizes, config.num_filters, network.kernels
        self._weights: list[tuple[tf.keras.layers.Layer, list[np.ndarray]]] = []
        self._tokens = tf.keras.Input([None], dtype=tf.int32, name="tokens")
        embedding = tf.keras.layers.Embedding(*vectors.shape, trainable=False, name="word_vectors")
        widest = max(self._sizes)
        # A document counts as at least as long as the widest filter, and what pads it is the zero vector of id 0.
        padded = tf.pad(self._tokens, [[0, 0], [0, widest - 1]])
        self._words = embedding(padded)
        self._weights.append((embedding, [np.asarray(vectors, np.float32)]))
        self._length = tf.maximum(tf.math.count_nonzero(self._tokens, axis=1, dtype=tf.int32), widest)
        self._width = tf.shape(padded)[1]

    def _pooled(self, kernel, bias, name):
        """relu(conv + bias) over the windows inside the document; it is never negative, so 0 hides the others."""
        layer = tf.keras.layers.Conv1D(
            kernel.shape[2], kernel.shape[0], activation="relu", use_bias=bias is not None, name=name
        )
        response = layer(self._words)
        self._weights.append((layer, [kernel] if bias is None else [kernel, bias]))
        reach = kernel.shape[0] - 1
        inside = tf.sequence_mask(self._length - reach, self._width - reach, dtype=tf.float32)
        return tf.keras.layers.GlobalMaxPooling1D(name=f"{name}_pool")(response * inside[:, :, tf.newaxis])

    def features(self, kernels, biases):
        """The client's own features of all kernel sizes."""
        pooled = [self._pooled(k, b, f"conv_{size}") for k, b, size in zip(kernels, biases, self._sizes)]
        return tf.keras.layers.Concatenate()(pooled) if len(pooled) > 1 else pooled[0]

    def aligned(self, attention, foreign, local):
        """W_f over the features of all foreign adaptives (FedSeIT eq. 2 and 3)."""
        aligned = []
        for index, size in enumerate(self._sizes):
            rows = len(foreign) * self._filters
            projection = local[f"foreign_projection_{size}"][:rows]
            if not len(foreign):
                aligned.append(tf.zeros_like(self._words[:, 0, :1]) * tf.zeros([1, self._filters]))
                continue
            pooled = []
            for entry, row in enumerate(foreign):
                kernel = list(self._layout.split(tf.constant(row)).values())[index].numpy()
                pooled.append(self._pooled(attention[entry, index] * kernel, None, f"foreign_{entry}_{size}"))
            joined = tf.keras.layers.Concatenate()(pooled) if len(pooled) > 1 else pooled[0]
            aligned.append(self.dense(joined, projection, None, None, f"align_{size}"))
        return tf.keras.layers.Concatenate()(aligned) if len(aligned) > 1 else aligned[0]

    def dense(self, inputs, kernel, bias, activation, name):
        """A Dense layer with these weights."""
        layer = tf.keras.layers.Dense(kernel.shape[1], activation, use_bias=bias is not None, name=name)
        self._weights.append((layer, [kernel] if bias is None else [kernel, bias]))
        return layer(inputs)

    def finish(self, logits) -> tf.keras.Model:
        """The model, with all weights in place."""
        model = tf.keras.Model(self._tokens, logits)
        for layer, weights in self._weights:
            layer.set_weights(weights)
        return model
