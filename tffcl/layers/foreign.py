"""Foreign adaptives as feature extractors: FedSeIT eq. 2 and 3.

Foreign adaptives and word vectors are frozen during a task. For any attention alpha, max-pooling
relu(conv(x, alpha A_k)) over time equals relu(max(alpha c_max, alpha c_min)), where c_max and c_min are the largest
and smallest response of conv(x, A_k). These two are computed once for a document and task (`foreign_extremes`);
a training step costs only `attended` and `align`, however many foreign adaptives there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tffcl.layers import windows
from tffcl.layers.kernels import KernelLayout


def foreign_extremes(
    layout: KernelLayout, foreign: tf.Tensor, tokens: tf.Tensor, vectors: tf.Tensor, batch_size: int = 64
) -> tuple[tf.Tensor, tf.Tensor]:
    """Largest and smallest response of every document to every foreign kernel.

    Args:
      layout: convolution kernels `[width, D, F]`.
      foreign: A_k, float32 `[k, layout.size]`; k may be 0.
      tokens: int32 `[N, L]`.
      vectors: float32 `[V, D]`.
      batch_size: documents at a time, which bounds memory.

    Returns:
      c_max and c_min, float32 `[N, k, features]` each; features = filters of all kernels.
    """
    documents, entries, features = tf.shape(tokens)[0], tf.shape(foreign)[0], layout.mask_size
    kernels = _side_by_side(layout, foreign)
    chunks = tf.where(entries > 0, -(-documents // batch_size), 0)

    def one_chunk(index: tf.Tensor, *written: tf.TensorArray) -> tuple:
        rows = tokens[index * batch_size : (index + 1) * batch_size]
        extremes = windows.pooled_extremes(rows, vectors, kernels)
        split = [_by_entry(layout, values, entries) for values in extremes]
        return (index + 1, *[array.write(index, values) for array, values in zip(written, split)])

    arrays = [
        tf.TensorArray(tf.float32, chunks, element_shape=[None, None, features], infer_shape=False)
        for _ in range(2)
    ]
    written = tf.while_loop(lambda index, *_: index < chunks, one_chunk, (tf.constant(0), *arrays))[1:]
    nothing = tf.zeros([documents, entries, features])
    largest, smallest = (
        tf.cond(chunks > 0, lambda a=array: tf.ensure_shape(a.concat(), nothing.shape), lambda: nothing)
        for array in written
    )
    return largest, smallest


def _side_by_side(layout: KernelLayout, foreign: tf.Tensor) -> list[tf.Tensor]:
    """The kernels of all entries as one wide kernel `[width, D, k * F]` each, so that one product serves them all."""
    entries = tf.shape(foreign)[0]
    wide = []
    for piece, (_, (width, size, filters)) in zip(
        tf.split(foreign, list(layout.sizes), axis=1), layout.parts
    ):
        kernel = tf.transpose(tf.reshape(piece, [entries, width * size, filters]), [1, 0, 2])
        kernel = tf.reshape(kernel, [width, size, entries * filters])
        wide.append(tf.ensure_shape(kernel, [width, size, None]))
    return wide


def _by_entry(layout: KernelLayout, values: tf.Tensor, entries: tf.Tensor) -> tf.Tensor:
    """Responses `[N, sum of k * F]` to wide kernels as `[N, k, features]`."""
    rows = tf.shape(values)[0]
    pieces = tf.split(values, [entries * units for units in layout.units], axis=1)
    return tf.concat(
        [tf.reshape(p, tf.stack([rows, entries, units])) for p, units in zip(pieces, layout.units)], axis=2
    )


def attended(attention: tf.Tensor, largest: tf.Tensor, smallest: tf.Tensor) -> list[tf.Tensor]:
    """relu(max(alpha c_max, alpha c_min)): the foreign dense vectors of FedSeIT eq. 2, end to end.

    Args:
      attention: alpha, float32 `[K, kernels]`.
      largest: c_max, float32 `[N, k, features]`, k <= K; features divide evenly among kernels.
      smallest: c_min, like `largest`.

    Returns:
      For each kernel float32 `[N, k * features / kernels]`: the k entries in order.
    """
    kernels = attention.shape[1]
    filters = largest.shape[-1] // kernels
    rows, used = tf.shape(largest)[0], tf.shape(largest)[1]
    joined = []
    for index in range(kernels):
        own = slice(index * filters, (index + 1) * filters)
        alpha = attention[:used, index, tf.newaxis]
        # For alpha >= 0 the maximum is alpha c_max, else alpha c_min: one choice of operand instead of two products.
        extreme = tf.where(alpha >= 0, largest[:, :, own], smallest[:, :, own])
        joined.append(tf.reshape(tf.nn.relu(alpha * extreme), tf.stack([rows, used * filters])))
    return joined


def align(responses: Sequence[tf.Tensor], projections: Sequence[tf.Tensor]) -> tf.Tensor:
    """z_f = W_f {z_1 + ... + z_K} (FedSeIT eq. 3), with one W_f for each kernel size.

    Args:
      responses: float32 `[N, k * F]` for each kernel, see `attended`; places beyond k count as zero.
      projections: W_f, float32 `[K * F, F]` for each kernel.

    Returns:
      float32 `[N, kernels * F]`.
    """
    pairs = zip(responses, projections)
    return tf.concat([tf.matmul(joined, whole[: tf.shape(joined)[1]]) for joined, whole in pairs], axis=1)
