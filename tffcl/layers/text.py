"""Convolution over documents of unequal length (Kim, 2014), and FedSeIT's foreign adaptives as feature extractors.

Documents stand in memory one after the other, as a ragged tensor has them; `padded` makes a batch of them dense,
`[N, L]` word ids, 0 where there is no word. Only the windows that lie inside a document are gathered, so the work
grows with the words that are there and not with the longest document. A document shorter than the widest filter is
lengthened with the zero vector; nothing beyond it can win the max-pool, so a document scores the same alone and in
any batch.

Foreign adaptives and word vectors are frozen during a task. For any attention alpha, max-pooling
relu(conv(x, alpha A_k)) over time (FedSeIT eq. 2) gives |alpha| relu(c_max) where alpha >= 0 and |alpha| relu(-c_min)
elsewhere; c_max and c_min are the largest and smallest response of conv(x, A_k). These two sides are computed once for
a document and task (`foreign_responses`). A training step (`aligned`) looks up one of them and multiplies it by W_f
(eq. 3) once forward and once backward: nothing behind it is trained, so it needs no gradient of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tffcl.layers.kernels import KernelLayout


class Windows(NamedTuple):
    """All windows of one width in a batch of documents.

    Attributes:
      vectors: float32 `[P, width * D]`, the words of a window end to end.
      document: int32 `[P]`, the (sorted) row of the document of each window.
    """

    vectors: tf.Tensor
    document: tf.Tensor


def padded(tokens: tf.Tensor, start: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
    """A batch of documents, int32 `[N, L]`, right-padded with 0 to its longest one.

    Args:
      tokens: int32 `[W]`, word ids of any documents.
      start: int32 `[N]`.
      length: int32 `[N]`; document n is `tokens[start[n] : start[n] + length[n]]`.
    """
    place = tf.range(tf.maximum(tf.reduce_max(length), 0))  # the maximum of nothing is the least number
    inside = place < length[:, None]
    return tf.where(inside, tf.gather(tokens, tf.where(inside, start[:, None] + place, 0)), 0)


def pad_tokens(tokens: tf.Tensor, widest: int) -> tf.Tensor:
    """Word ids, int32 `[N, L]`, with room for at least `widest` words."""
    return tf.pad(tokens, [[0, 0], [0, tf.maximum(widest - tf.shape(tokens)[1], 0)]])


def gather_windows(tokens: tf.Tensor, vectors: tf.Tensor, widths: Sequence[int]) -> list[Windows]:
    """The windows of each width inside each document; every document counts as at least as long as the widest.

    Args:
      tokens: int32 `[N, L]`, L >= the widest, right-padded with 0.
      vectors: float32 `[V, D]`; row 0 is the zero vector of padding.
      widths: words in a window.
    """
    rows, longest = tf.unstack(tf.shape(tokens))
    lengths = tf.maximum(tf.math.count_nonzero(tokens, axis=1, dtype=tf.int32), max(widths))
    # A row for each width, and all windows one after the other: a handful of operations for all widths.
    counts = lengths - tf.constant([[width - 1] for width in widths])
    ends = tf.cumsum(tf.reshape(counts, [-1]))
    every = tf.range(tf.concat([[0], ends], 0)[-1])
    entry = tf.raw_ops.UpperBound(sorted_inputs=ends[None], values=every[None])[0]  # of `counts`, for each window
    begin = tf.range(rows) * longest - (tf.reshape(ends, tf.shape(counts)) - counts)
    first = every + tf.gather(tf.reshape(begin, [-1]), entry)
    sizes, flat, found = tf.reduce_sum(counts, axis=1), tf.reshape(tokens, [-1]), []
    parts = (tf.split(each, sizes, num=len(widths)) for each in (first, entry))
    for place, (width, firsts, entries) in enumerate(zip(widths, *parts)):
        ids = tf.gather(flat, firsts[:, None] + tf.range(width))
        words = tf.reshape(tf.gather(vectors, ids), [-1, width * vectors.shape[1]])
        found.append(Windows(words, entries - place * rows))
    return found


@tf.custom_gradient
def max_over_time(values: tf.Tensor, document: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """The maximum of `[P, F]` values over the windows of each document: `[N, F]`.

    The gradient is divided among the windows that reach the maximum, as TensorFlow does for `reduce_max`: a phrase
    that occurs twice in a document ties with itself and counts once. Dividing `[N, F]` values before they are
    spread over the windows is cheaper than TensorFlow's gradient of `segment_max`.
    """
    largest = tf.math.segment_max(values, document)

    def grad(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        hit = tf.equal(values, tf.gather(largest, document))
        ties = tf.math.segment_sum(tf.cast(hit, values.dtype), document)
        return tf.where(hit, tf.gather(upstream / ties, document), 0.0), None

    return largest, grad


def _responses(tokens: tf.Tensor, vectors: tf.Tensor, kernels: list[tf.Tensor]) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """For each kernel `[width, D, F]` its response to every window, float32 `[P, F]`, and the windows' documents."""
    widths, responses = [kernel.shape[0] for kernel in kernels], []
    tokens = pad_tokens(tokens, max(widths))
    for kernel, windows in zip(kernels, gather_windows(tokens, vectors, widths)):
        width, size, _ = kernel.shape
        matrix = tf.reshape(kernel, tf.stack([width * size, tf.shape(kernel)[2]]))
        responses.append((tf.matmul(windows.vectors, matrix), windows.document))
    return responses


def pooled_convolution(
    tokens: tf.Tensor, vectors: tf.Tensor, kernels: list[tf.Tensor], biases: list[tf.Tensor]
) -> tf.Tensor:
    """relu(conv + bias), max-pooled over time, for each kernel: float32 `[N, sum of F]`.

    Args:
      tokens: int32 `[N, L]`.
      vectors: float32 `[V, D]`, row 0 zero.
      kernels: float32 `[width, D, F]` each.
      biases: float32 `[F]` each.
    """
    # ReLU and the bias are monotone, so they commute with the maximum and run on [N, F] instead of [P, F].
    responses = _responses(tokens, vectors, kernels)
    pooled = [tf.nn.relu(max_over_time(*response) + bias) for response, bias in zip(responses, biases)]
    return tf.concat(pooled, axis=1)


def pooled_extremes(tokens: tf.Tensor, vectors: tf.Tensor, kernels: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """c_max and c_min, the largest and smallest response of each filter to each document: `[N, sum of F]` each."""
    responses = _responses(tokens, vectors, kernels)
    largest = [tf.math.segment_max(*response) for response in responses]
    smallest = [tf.math.segment_min(*response) for response in responses]
    return tf.concat(largest, axis=1), tf.concat(smallest, axis=1)


# -- FedSeIT eq. 2 and 3 ------------------------------------------------------------------------------------------


def foreign_responses(
    layout: KernelLayout,
    foreign: tf.Tensor,
    tokens: tf.Tensor,
    start: tf.Tensor,
    length: tf.Tensor,
    vectors: tf.Tensor,
    batch_size: int = 64,
) -> tf.Tensor:
    """The pooled response of every document to every foreign kernel, for either sign of its attention.

    Args:
      layout: convolution kernels `[width, D, F]`.
      foreign: A_k, float32 `[k, layout.size]`; k may be 0.
      tokens: int32 `[W]`, the words of N documents, as `padded` takes them.
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
        largest, smallest = pooled_extremes(padded(tokens, start[part], length[part]), vectors, kernels)
        sides = [_by_entry(layout, tf.nn.relu(side), entries) for side in (largest, -smallest)]
        return index + 1, written.write(index, tf.stack(sides, axis=2))

    array = tf.TensorArray(tf.float32, chunks, element_shape=[None, None, 2, features], infer_shape=False)
    _, array = tf.while_loop(lambda index, _: index < chunks, one_chunk, (tf.constant(0), array))
    nothing = tf.zeros([documents, entries, 2, features])
    return tf.cond(chunks > 0, lambda: tf.ensure_shape(array.concat(), nothing.shape), lambda: nothing)


def _side_by_side(layout: KernelLayout, foreign: tf.Tensor) -> list[tf.Tensor]:
    """The kernels of all entries as one wide kernel `[width, D, k * F]` each, so that one product serves them all."""
    entries, wide = tf.shape(foreign)[0], []
    for rows, (_, (width, size, filters)) in zip(layout.columns(foreign), layout.parts):
        kernel = tf.transpose(tf.reshape(rows, [entries, width * size, filters]), [1, 0, 2])
        kernel = tf.reshape(kernel, [width, size, entries * filters])
        wide.append(tf.ensure_shape(kernel, [width, size, None]))
    return wide


def _by_entry(layout: KernelLayout, values: tf.Tensor, entries: tf.Tensor) -> tf.Tensor:
    """Responses `[N, sum of k * F]` to wide kernels as `[N, k, features]`."""
    rows = tf.shape(values)[0]
    split = tf.split(values, [entries * units for units in layout.units], axis=1)
    return tf.concat([tf.reshape(v, tf.stack([rows, entries, units])) for v, units in zip(split, layout.units)], axis=2)


def aligned(
    attention: tf.Tensor, responses: tf.Tensor, projections: tf.Tensor, rows: tf.Tensor | None = None
) -> tf.Tensor:
    """z_f = W_f {z_1 + ... + z_K} with z_k = relu(conv(x, alpha_k A_k)), max-pooled (FedSeIT eq. 2 and 3).

    + is concatenation, and W_f has a block for each z_k. With a single block, no part of the paper, that aligns their
    mean: z_f = W_f (z_1 + ... + z_k) / k. There W_f has 1/K of the weights, and a step 1/K of the products.

    The gradient with respect to an alpha_k of exactly 0 is that of its positive side, so that attention which has
    reached 0 can leave it. `responses` get no gradient: they are frozen.

    Args:
      attention: alpha, float32 `[K, kernels]`.
      responses: of `foreign_responses`, float32 `[N, k, 2, kernels * F]`, k <= K; places beyond k count as zero.
      projections: W_f of each kernel size, float32 `[kernels, K, F, F]`, or `[kernels, 1, F, F]`.
      rows: documents among the N, int32 `[n]`; all without it.

    Returns:
      float32 `[n, kernels * F]`.
    """
    kernels, blocks, filters, _ = projections.shape
    alpha = tf.transpose(attention[: tf.shape(responses)[1]])
    chosen = chosen_responses(alpha, responses, rows)
    strength = tf.where(alpha >= 0, alpha, -alpha)  # not tf.abs, whose gradient at 0 is 0
    if blocks == 1 and attention.shape[0] != 1:
        total = tf.matmul(_mean(strength, chosen), projections[:, 0])
    else:
        total = _weighed_product(strength, chosen, projections)
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
    block = (rows * entries + tf.range(entries)[:, tf.newaxis]) * 2 + side
    block = block * kernels + tf.range(kernels)[:, tf.newaxis, tf.newaxis]
    return tf.gather(tf.reshape(responses, [-1, responses.shape[3] // kernels]), block)


def _mean(strength: tf.Tensor, chosen: tf.Tensor) -> tf.Tensor:
    """sum_k strength_k chosen_k / k, float32 `[kernels, n, F]`; 0 for k = 0. Shapes as in `_weighed_product`."""
    kernels, entries, documents, filters = tf.unstack(tf.shape(chosen))
    weights = strength / tf.cast(tf.maximum(entries, 1), tf.float32)
    total = tf.matmul(weights[:, tf.newaxis], tf.reshape(chosen, [kernels, entries, documents * filters]))
    return tf.reshape(total, tf.stack([strength.shape[0], documents, chosen.shape[3]]))


@tf.custom_gradient
def _weighed_product(strength: tf.Tensor, chosen: tf.Tensor, projections: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """sum_k strength_k chosen_k W_k: float32 `[kernels, n, F]`.

    Weighing the products, not their inputs, leaves `strength`, |alpha| `[kernels, k]`, a gradient that needs no third
    product: the inner product of what it weighs with the upstream gradient. `chosen`, `[kernels, k, n, F]`, gets no
    gradient; of `projections`, `[kernels, K, F, F]`, the first k places count.
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
