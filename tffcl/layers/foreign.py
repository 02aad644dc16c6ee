"""Foreign adaptives as feature extractors: FedSeIT eq. 2 and 3.

Foreign adaptives and word vectors are frozen during a task. For any attention alpha, max-pooling
relu(conv(x, alpha A_k)) over time gives |alpha| relu(c_max) where alpha >= 0 and |alpha| relu(-c_min) elsewhere; c_max
and c_min are the largest and smallest response of conv(x, A_k). These two sides are computed once for a document and
task (`foreign_responses`). A training step (`aligned`) looks up one of them and multiplies it by W_f once forward and
once backward: nothing behind it is trained, so it needs no gradient of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tffcl.layers import windows
from tffcl.layers.kernels import KernelLayout


def foreign_responses(
    layout: KernelLayout,
    foreign: tf.Tensor,
    tokens: tf.Tensor,
    start: tf.Tensor,
    length: tf.Tensor,
    vectors: tf.Tensor,
    batch_size: int = 64,
) -> tf.Tensor:
    """What every document makes of every foreign kernel, for either sign of its attention.

    Args:
      layout: convolution kernels `[width, D, F]`.
      foreign: A_k, float32 `[k, layout.size]`; k may be 0.
      tokens: int32 `[W]`, the words of N documents, as `windows.padded` takes them.
      start: int32 `[N]`.
      length: int32 `[N]`.
      vectors: float32 `[V, D]`.
      batch_size: documents at a time, which bounds memory.

    Returns:
      relu(c_max) and relu(-c_min), float32 `[N, k, 2, features]`; features = filters of all kernels.
    """
    documents, entries, features = tf.shape(start)[0], tf.shape(foreign)[0], layout.mask_size
    kernels = _side_by_side(layout, foreign)
    chunks = tf.where(entries > 0, -(-documents // batch_size), 0)

    def one_chunk(index: tf.Tensor, written: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        part = slice(index * batch_size, (index + 1) * batch_size)
        rows = windows.padded(tokens, start[part], length[part])
        largest, smallest = windows.pooled_extremes(rows, vectors, kernels)
        sides = [_by_entry(layout, tf.nn.relu(side), entries) for side in (largest, -smallest)]
        return index + 1, written.write(index, tf.stack(sides, axis=2))

    array = tf.TensorArray(tf.float32, chunks, element_shape=[None, None, 2, features], infer_shape=False)
    _, array = tf.while_loop(lambda index, _: index < chunks, one_chunk, (tf.constant(0), array))
    nothing = tf.zeros([documents, entries, 2, features])
    return tf.cond(chunks > 0, lambda: tf.ensure_shape(array.concat(), nothing.shape), lambda: nothing)


def _side_by_side(layout: KernelLayout, foreign: tf.Tensor) -> list[tf.Tensor]:
    """The kernels of all entries as one wide kernel `[width, D, k * F]` each, so that one product serves them all."""
    entries = tf.shape(foreign)[0]
    wide = []
    for piece, (_, (width, size, filters)) in zip(tf.split(foreign, list(layout.sizes), axis=1), layout.parts):
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


def aligned(
    attention: tf.Tensor, responses: tf.Tensor, projections: tf.Tensor, rows: tf.Tensor | None = None
) -> tf.Tensor:
    """z_f = W_f {z_1 + ... + z_K} with z_k = relu(conv(x, alpha_k A_k)), max-pooled (FedSeIT eq. 2 and 3).

    The gradient with respect to an alpha_k of exactly 0 is that of its positive side, so that attention which has
    reached 0 can leave it. `responses` get no gradient: what they are made of is frozen.

    Args:
      attention: alpha, float32 `[K, kernels]`.
      responses: of `foreign_responses`, float32 `[N, k, 2, kernels * F]`, k <= K; places beyond k count as zero.
      projections: W_f of each kernel size, float32 `[kernels, K, F, F]`.
      rows: documents among the N, int32 `[n]`; all without it.

    Returns:
      float32 `[n, kernels * F]`.
    """
    kernels, _, filters, _ = projections.shape
    alpha = tf.transpose(attention[: tf.shape(responses)[1]])
    chosen = chosen_responses(alpha, responses, rows)
    # Not tf.abs, whose gradient at 0 is 0.
    total = _weighed_product(tf.where(alpha >= 0, alpha, -alpha), chosen, projections)
    return tf.reshape(tf.transpose(total, [1, 0, 2]), tf.stack([tf.shape(chosen)[2], kernels * filters]))


def chosen_responses(alpha: tf.Tensor, responses: tf.Tensor, rows: tf.Tensor | None = None) -> tf.Tensor:
    """The side of `responses` that belongs to the sign of alpha: relu(conv(x, alpha A)) / |alpha|.

    Looking up blocks of F numbers one by one chooses, shuffles and transposes in a single copy.

    Args:
      alpha: float32 `[kernels, k]`.
      responses: float32 `[N, k, 2, kernels * F]`.
      rows: documents among the N, int32 `[n]`; all without it.

    Returns:
      float32 `[kernels, k, n, F]`.
    """
    kernels, entries = alpha.shape[0], tf.shape(alpha)[1]
    rows = tf.range(tf.shape(responses)[0]) if rows is None else rows
    side = tf.cast(alpha < 0, tf.int32)[:, :, tf.newaxis]
    place = (rows * entries + tf.range(entries)[:, tf.newaxis]) * 2 + side
    place = place * kernels + tf.range(kernels)[:, tf.newaxis, tf.newaxis]
    return tf.gather(tf.reshape(responses, [-1, responses.shape[3] // kernels]), place)


@tf.custom_gradient
def _weighed_product(strength: tf.Tensor, chosen: tf.Tensor, projections: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """sum_k strength_k chosen_k W_k: float32 `[kernels, n, F]`.

    Weighing the products, not what goes in, leaves `strength` a gradient that needs no third product: that of a
    strength is the inner product of what it weighs with the upstream gradient.

    Args:
      strength: |alpha|, float32 `[kernels, k]`.
      chosen: float32 `[kernels, k, n, F]`; gets no gradient.
      projections: float32 `[kernels, K, F, F]`, of which the first k places count.
    """
    kernels, places, filters, _ = projections.shape
    entries, size = tf.shape(chosen)[1], tf.shape(chosen)[2] * filters
    products = tf.matmul(chosen, projections[:, :entries])
    products = tf.reshape(products, tf.stack([kernels, entries, size]))
    total = tf.matmul(strength[:, tf.newaxis], products)

    def grad(upstream: tf.Tensor) -> tuple[tf.Tensor, None, tf.Tensor]:
        of_strength = tf.matmul(products, tf.reshape(upstream, tf.stack([kernels, size, 1])))[:, :, 0]
        weighed = strength[:, :, tf.newaxis, tf.newaxis] * upstream[:, tf.newaxis]
        of_projections = tf.matmul(chosen, weighed, transpose_a=True)
        # Both the slice above and this padding are free where k = K; the gradient of a slice never is.
        missing = [[0, 0], [0, places - entries], [0, 0], [0, 0]]
        return of_strength, None, tf.pad(of_projections, missing)

    return tf.reshape(total, tf.stack([kernels, tf.shape(chosen)[2], filters])), grad
