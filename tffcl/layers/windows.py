"""Convolution over documents of unequal length without computing on padding (Kim, 2014).

Documents stand in memory one after the other, as a ragged tensor has them; `padded` makes a batch of them dense,
`[N, L]` word ids, 0 where there is no word. Only the windows that lie inside a document
are gathered, so the work grows with the words that are there and not with the longest document. A document
shorter than the widest filter is lengthened with the zero vector; nothing beyond it can win the max-pool, so a
document scores the same alone and in any batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Windows:
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


def lengths(tokens: tf.Tensor, widest: int) -> tf.Tensor:
    """Words in each document, counted as at least `widest`: int32 `[N]`."""
    return tf.maximum(tf.math.count_nonzero(tokens, axis=1, dtype=tf.int32), widest)


def gather_windows(tokens: tf.Tensor, vectors: tf.Tensor, width: int, widest: int) -> Windows:
    """The windows of `width` words inside each document.

    Args:
      tokens: int32 `[N, L]`, L >= widest, right-padded with 0.
      vectors: float32 `[V, D]`; row 0 is the zero vector of padding.
      width: words in a window.
      widest: the widest filter of the model; every document counts as at least this long.
    """
    per_document = lengths(tokens, widest) - width + 1
    rows = tf.shape(tokens)[0]
    document = tf.repeat(tf.range(rows), per_document)
    shift = tf.range(rows) * tf.shape(tokens)[1] - tf.cumsum(per_document, exclusive=True)
    first = tf.range(tf.size(document)) + tf.gather(shift, document)
    ids = tf.gather(tf.reshape(tokens, [-1]), first[:, None] + tf.range(width)[None, :])
    words = tf.gather(vectors, ids)
    return Windows(tf.reshape(words, [-1, width * vectors.shape[1]]), document)


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


def pad_tokens(tokens: tf.Tensor, widest: int) -> tf.Tensor:
    """Word ids with room for at least `widest` words."""
    missing = tf.maximum(widest - tf.shape(tokens)[1], 0)
    return tf.pad(tokens, [[0, 0], [0, missing]])


def _as_matrix(kernel: tf.Tensor) -> tf.Tensor:
    """A kernel `[width, D, F]` as the matrix `[width * D, F]` that multiplies windows."""
    width, size, _ = kernel.shape
    return tf.reshape(kernel, tf.stack([width * size, tf.shape(kernel)[2]]))


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
    widest = max(kernel.shape[0] for kernel in kernels)
    tokens = pad_tokens(tokens, widest)
    pooled = []
    for kernel, bias in zip(kernels, biases):
        windows = gather_windows(tokens, vectors, kernel.shape[0], widest)
        values = tf.matmul(windows.vectors, _as_matrix(kernel))
        # ReLU and the bias are monotone, so they commute with the maximum and run on [N, F] instead of [P, F].
        pooled.append(tf.nn.relu(max_over_time(values, windows.document) + bias))
    return tf.concat(pooled, axis=1)


def pooled_extremes(tokens: tf.Tensor, vectors: tf.Tensor, kernels: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """The largest and smallest response of each filter to each document, `[N, sum of F]` each.

    What FedSeIT eq. 2 needs of a frozen kernel A whatever its attention:
    max relu(alpha * c) = relu(max(alpha * c_max, alpha * c_min)).
    """
    widest = max(kernel.shape[0] for kernel in kernels)
    tokens = pad_tokens(tokens, widest)
    largest, smallest = [], []
    for kernel in kernels:
        windows = gather_windows(tokens, vectors, kernel.shape[0], widest)
        values = tf.matmul(windows.vectors, _as_matrix(kernel))
        largest.append(tf.math.segment_max(values, windows.document))
        smallest.append(tf.math.segment_min(values, windows.document))
    return tf.concat(largest, axis=1), tf.concat(smallest, axis=1)
