"""How alike two tasks are, judged by the centroids of their documents (FedSeIT section 2.3), in TensorFlow.

Every measure takes the centroids of all queries and all entries, laid end to end, and returns float64
`[queries, entries]`, larger for what is more alike. A centroid of zero has no direction and is left out by
the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

_AT_ONCE = 32  # entries whose pairs with all queries stand in memory together


class Centroids(NamedTuple):
    """The centroids of several tasks.

    Attributes:
      rows: float64 `[S, D]`, those of the first task first.
      owner: int32 `[S]`, the number of the task that a row belongs to, rising.
      tasks: int32, the number of tasks; a task may have no row.
    """

    rows: tf.Tensor
    owner: tf.Tensor
    tasks: tf.Tensor


def mean_cosine(queries: Centroids, entries: Centroids) -> tf.Tensor:
    """The paper's measure: the mean of all pairwise cosines.

    It is large for a tight entry near the common mean, whether or not the query has much to do with it, and
    a task need not be most similar to itself. The mean over pairs is the product of the mean unit vectors.
    """
    return tf.matmul(_mean_direction(queries), _mean_direction(entries), transpose_b=True)


def centred_cosine(queries: Centroids, entries: Centroids) -> tf.Tensor:
    """The mean pairwise cosine without what all tasks have in common, and without the bonus for tight tasks.

    The common mean of all centroids is removed first, and s(a, b) is divided by sqrt(s(a, a) s(b, b)): a
    task is most similar to itself, with 1, and to its near-duplicates.
    """
    common = tf.reduce_mean(tf.concat([queries.rows, entries.rows], 0), 0)
    centred = [c._replace(rows=c.rows - common) for c in (queries, entries)]
    left, right = (tf.math.l2_normalize(_mean_direction(c), 1, epsilon=1e-24) for c in centred)
    return tf.matmul(left, right, transpose_b=True)


def best_match(queries: Centroids, entries: Centroids) -> tf.Tensor:
    """The mean cosine of centroids with the nearest one of the other task, averaged over both directions."""
    left = queries._replace(rows=_directions(queries.rows))

    def one_entry(rows: tf.Tensor) -> tf.Tensor:
        cosines = tf.matmul(left.rows, _directions(rows), transpose_b=True)
        forth = tf.math.unsorted_segment_mean(tf.reduce_max(cosines, 1), left.owner, left.tasks)
        back = tf.reduce_mean(tf.math.unsorted_segment_max(cosines, left.owner, left.tasks), 1)
        return (forth + back) / 2

    return _over_entries(one_entry, entries)


def mmd(queries: Centroids, entries: Centroids) -> tf.Tensor:
    """Minus the squared maximum mean discrepancy (Gretton et al., 2012) between two tasks' centroids.

    The kernel is exp(-d^2 / w), with w the mean squared distance of all centroids; 0 is a task compared
    with itself.
    """
    together = tf.concat([queries.rows, entries.rows], 0)
    spread = 2 * tf.reduce_sum(tf.math.reduce_variance(together, 0))
    scale = tf.sqrt(2 / tf.where(spread > 0, spread, tf.ones_like(spread)))
    left, _ = _halves(queries.rows * scale)
    _, right = _halves(entries.rows * scale)

    def some_entries(first: tf.Tensor) -> tf.Tensor:
        start, end = tf.unstack(tf.searchsorted(entries.owner, tf.stack([first, first + _AT_ONCE]), side="left"))
        kernel = _kernel(left, right[start:end])
        of_queries = tf.math.unsorted_segment_mean(kernel, queries.owner, queries.tasks)
        return tf.math.unsorted_segment_mean(tf.transpose(of_queries), entries.owner[start:end] - first, _AT_ONCE)

    firsts = tf.range(0, entries.tasks, _AT_ONCE)
    blocks = tf.map_fn(some_entries, firsts, fn_output_signature=tf.float64)  # [blocks, entries of one, queries]
    across = tf.transpose(tf.reshape(blocks, [-1, queries.tasks])[: entries.tasks])

    def to_itself(rows: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(_kernel(*_halves(rows * scale)))

    return 2 * across - _over_entries(to_itself, entries) - _over_entries(to_itself, queries)[:, None]


def _halves(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Two forms of rows, whose products are -d^2 / 2: one multiplication in the place of four passes over all pairs."""
    half = -tf.reduce_sum(rows**2, 1, keepdims=True) / 2
    one = tf.ones_like(half)
    return tf.concat([rows, half, one], 1), tf.concat([rows, one, half], 1)


def _kernel(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    return tf.exp(tf.minimum(tf.matmul(left, right, transpose_b=True), 0))


Measure = Callable[[Centroids, Centroids], tf.Tensor]
SIMILARITIES: dict[str, Measure] = {
    "mean_cosine": mean_cosine,
    "centred_cosine": centred_cosine,
    "best_match": best_match,
    "mmd": mmd,
}


def _directions(rows: tf.Tensor) -> tf.Tensor:
    return tf.math.l2_normalize(rows, 1, epsilon=1e-24)


def _mean_direction(centroids: Centroids) -> tf.Tensor:
    """The mean of each task's unit vectors: float64 `[tasks, D]`."""
    return tf.math.unsorted_segment_mean(_directions(centroids.rows), centroids.owner, centroids.tasks)


def _over_entries(function: Callable[[tf.Tensor], tf.Tensor], tasks: Centroids) -> tf.Tensor:
    """Applies a function to the rows of one task after the other, and puts the tasks in the last axis."""
    ends = tf.searchsorted(tasks.owner, tf.range(tasks.tasks), side="right")
    starts = tf.searchsorted(tasks.owner, tf.range(tasks.tasks), side="left")
    results = tf.map_fn(
        lambda span: function(tasks.rows[span[0] : span[1]]), (starts, ends), fn_output_signature=tf.float64
    )
    return tf.transpose(results)
