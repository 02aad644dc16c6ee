"""SIT's decision as a TFF computation: clients send centroids, the server scores them against every entry."""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_federated as tff

DECIMALS = 1e9  # scores are compared to nine digits: what differs by rounding only is a tie


@functools.cache
def build_sit_decision(dimension: int, k: int, similarity: str, include_own: bool = False) -> tff.Computation:
    """Builds `(<entries=E@SERVER, queries={Q}@CLIENTS> -> R@SERVER)`, for any number of entries and clients.

    E is `<rows=float32[?,D],sizes=int32[?],client=int32[?]>`: the centroids of all entries laid end to end,
    how many each entry has, and whose it is, ordered by (client, task). Q is
    `<rows=float32[?,D],client=int32>`, the centroids of one client. R is
    `<client=int32[C],chosen=int32[C,K],scores=float32[C,K],count=int32[C]>`: for each client the places of
    the entries with the highest scores, ties to the lower place; past `count` they are -1, with score -inf.
    An entry without a centroid that has a direction is never chosen, and a client without one gets none.

    Centroids go to the server only, never to other clients; nor do clients learn any score.

    Args:
      dimension: D.
      k: K, entries for a client.
      similarity: one of `tffcl.transfers.similarity.SIMILARITIES`.
      include_own: whether a client may be given its own entries.
    """
    import numpy as np
    import tensorflow as tf
    import tensorflow_federated as tff

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
    import tensorflow as tf

    return OrderedDict((name, tf.concat([first[name], second[name]], 0)) for name in first)


def _decide(entries: OrderedDict, queries: OrderedDict, k: int, similarity: str, include_own: bool) -> OrderedDict:
    """R out of the entries and the collected queries."""
    import tensorflow as tf

    from tffcl.transfers import similarity as measures

    asking, asked = _with_direction(queries), _with_direction(entries)
    raw = measures.SIMILARITIES[similarity](asking, asked)
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
    import tensorflow as tf

    from tffcl.transfers import similarity as measures

    rows = tf.cast(tasks["rows"], tf.float64)
    keep = tf.reduce_any(tf.not_equal(rows, 0), axis=1)  # `!=` compares objects in a computation
    number = tf.shape(tasks["sizes"])[0]
    owner = tf.repeat(tf.range(number), tasks["sizes"])
    return measures.Centroids(tf.boolean_mask(rows, keep), tf.boolean_mask(owner, keep), number)


def _has_rows(centroids: Any) -> tf.Tensor:
    import tensorflow as tf

    return tf.math.bincount(centroids.owner, minlength=centroids.tasks, maxlength=centroids.tasks) > 0
