"""SIT's decision as a TFF computation, and its measures of similarity between tasks (FedSeIT section 2.3).

Every measure takes the centroids of all queries and all entries, laid end to end, and returns float64
`[queries, entries]`, larger for what is more alike. Centroids of zero, which have no direction, are left out before.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

DECIMALS = 1e9  # scores are compared to nine digits: what differs by rounding only is a tie
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
    """Two forms of rows, whose products are -d^2 / 2: a single multiplication instead of four passes over all pairs."""
    half = -tf.reduce_sum(rows**2, 1, keepdims=True) / 2
    ones = tf.ones_like(half)
    return tf.concat([rows, half, ones], 1), tf.concat([rows, ones, half], 1)


def _kernel(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    return tf.exp(tf.minimum(tf.matmul(left, right, transpose_b=True), 0))


SIMILARITIES: dict[str, Callable[[Centroids, Centroids], tf.Tensor]] = {
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
    """A function of the rows of each task, with the tasks in the last axis."""
    spans = tuple(tf.searchsorted(tasks.owner, tf.range(tasks.tasks), side=side) for side in ("left", "right"))
    return tf.transpose(
        tf.map_fn(lambda span: function(tasks.rows[span[0] : span[1]]), spans, fn_output_signature=tf.float64)
    )


@functools.cache
def build_sit_decision(dimension: int, k: int, similarity: str, include_own: bool = False) -> tff.Computation:
    """Builds `(<entries=E@SERVER, queries={Q}@CLIENTS> -> R@SERVER)`, for any number of entries and clients.

    E is `<rows=float32[?,D],sizes=int32[?],client=int32[?]>`: the centroids of all entries laid end to end,
    how many each entry has, and its owner, ordered by (client, task). Q is
    `<rows=float32[?,D],client=int32>`, the centroids of one client. R is
    `<client=int32[C],chosen=int32[C,K],scores=float32[C,K],count=int32[C]>`: for each client the positions of
    the entries with the highest scores, ties to the lower position; past `count` they are -1, with score -inf.
    An entry without a centroid that has a direction is never chosen, and a client without one gets none.

    Centroids go to the server only, never to other clients; nor do clients learn any score.

    Shown with `SIT`.

    Args:
      dimension: D.
      k: K, entries for a client.
      similarity: one of `SIMILARITIES`.
      include_own: whether a client may be given its own entries.
    """
    rows_type = tff.TensorType(np.float32, [None, dimension])
    ids_type = tff.TensorType(np.int32, [None])
    tasks_type = tff.to_type(OrderedDict(rows=rows_type, sizes=ids_type, client=ids_type))
    query_type = tff.to_type(OrderedDict(rows=rows_type, client=np.int32))

    @tff.tensorflow.computation
    def nobody() -> OrderedDict:
        no_ids = tf.zeros([0], tf.int32)
        return OrderedDict(rows=tf.zeros([0, dimension]), sizes=no_ids, client=no_ids)

    @tff.tensorflow.computation(tasks_type, query_type)
    def one_more(tasks: OrderedDict, query: OrderedDict) -> OrderedDict:
        size = tf.shape(query["rows"])[:1]
        return _joined(tasks, OrderedDict(rows=query["rows"], sizes=size, client=query["client"][None]))

    joined = tff.tensorflow.computation(_joined, [tasks_type, tasks_type])
    unchanged = tff.tensorflow.computation(lambda tasks: tasks, tasks_type)

    @tff.tensorflow.computation(tasks_type, tasks_type)
    def decide(entries: OrderedDict, queries: OrderedDict) -> OrderedDict:
        return _decide(entries, queries, k, similarity, include_own)

    at_server = tff.FederatedType(tasks_type, tff.SERVER, all_equal=True)

    @tff.federated_computation(at_server, tff.FederatedType(query_type, tff.CLIENTS))
    def decision(entries: Any, queries: Any) -> Any:
        collected = tff.federated_aggregate(queries, nobody(), one_more, joined, unchanged)
        return tff.federated_map(decide, (entries, collected))

    return decision


def _joined(first: OrderedDict, second: OrderedDict) -> OrderedDict:
    return OrderedDict((name, tf.concat([first[name], second[name]], 0)) for name in first)


def _decide(entries: OrderedDict, queries: OrderedDict, k: int, similarity: str, include_own: bool) -> OrderedDict:
    """R out of the entries and the collected queries."""
    asking, asked = _with_direction(queries), _with_direction(entries)
    raw = SIMILARITIES[similarity](asking, asked)
    scores = tf.round(raw * DECIMALS) / DECIMALS
    allowed = _has_rows(asking)[:, None] & _has_rows(asked)[None, :]
    if not include_own:
        allowed &= tf.not_equal(queries["client"][:, None], entries["client"][None, :])
    scores = tf.where(allowed, scores, tf.constant(float("-inf"), tf.float64))
    # Of equal scores top_k puts the lower number first.
    best, chosen = tf.math.top_k(scores, tf.minimum(k, tf.shape(scores)[1]))
    room = [[0, 0], [0, k - tf.shape(best)[1]]]
    best = tf.pad(best, room, constant_values=float("-inf"))
    chosen = tf.where(tf.math.is_finite(best), tf.pad(chosen, room), -1)
    return OrderedDict(
        client=queries["client"],
        chosen=tf.ensure_shape(chosen, [None, k]),
        scores=tf.ensure_shape(tf.cast(best, tf.float32), [None, k]),
        count=tf.reduce_sum(tf.cast(chosen >= 0, tf.int32), 1),
    )


def _with_direction(tasks: OrderedDict) -> Any:
    """The centroids that have a direction, as float64: single precision would decide ties by chance."""
    rows = tf.cast(tasks["rows"], tf.float64)
    keep = tf.reduce_any(tf.not_equal(rows, 0), axis=1)  # `!=` compares objects in a computation
    number = tf.shape(tasks["sizes"])[0]
    owner = tf.repeat(tf.range(number), tasks["sizes"])
    return Centroids(tf.boolean_mask(rows, keep), tf.boolean_mask(owner, keep), number)


def _has_rows(centroids: Any) -> tf.Tensor:
    return tf.math.bincount(centroids.owner, minlength=centroids.tasks, maxlength=centroids.tasks) > 0
