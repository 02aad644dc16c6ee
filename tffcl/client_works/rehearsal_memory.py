"""A memory for rehearsal: of constant size, with a fair share for every label of every task.

Each row carries a priority that was drawn once. A label of a task keeps its rows of the lowest priorities, so what is
kept is a random sample of all that ever came, whatever the order in which it came; what leaves never returns. Labels
and tasks take turns until the memory is full, so that none has two rows more than another that has any left to give.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.templates.admission import Fault

Rows = Mapping[str, tf.Tensor]


def rows_type(width: int) -> OrderedDict:
    """The type of rows: what is rehearsed, its label and task, and its priority in the memory."""
    return OrderedDict(
        vectors=tff.TensorType(np.float32, [None, width]),
        label=tff.TensorType(np.int32, [None]),
        task=tff.TensorType(np.int32, [None]),
        priority=tff.TensorType(np.int32, [None]),
    )


def no_rows(width: int) -> OrderedDict:
    """An empty memory."""
    return OrderedDict(
        vectors=tf.zeros([0, width]),
        label=tf.zeros([0], tf.int32),
        task=tf.zeros([0], tf.int32),
        priority=tf.zeros([0], tf.int32),
    )


def faults(rows: Rows, most: tf.Tensor, task: tf.Tensor, classes: int) -> Sequence[Fault]:
    """What may be wrong with rows that a client sends of a task, beside their values (`ClientWork.faults`).

    Args:
      rows: as sent, so not even of one length for certain.
      most: int32, rows that the client may send.
      task: int32, number of the task that it learns.
      classes: labels lie in [0, classes).
    """
    counts = tf.stack([tf.shape(values)[0] for values in rows.values()])
    label, shown = rows["label"], [tf.strings.as_string(number) for number in (most, counts[0])]
    return [
        (tf.reduce_any(tf.not_equal(counts, counts[0])), f"rehearsal: {', '.join(rows)} should be equally many"),
        (counts[0] > most, tf.strings.join(["rehearsal: should be ", shown[0], " rows at most, found ", shown[1]])),
        (tf.reduce_any((label < 0) | (label >= classes)), f"rehearsal: labels should be 0 to {classes - 1}"),
        (tf.reduce_any(tf.not_equal(rows["task"], task)), "rehearsal: rows should be of the task that is learned"),
    ]


def draw_priorities(count: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Priorities for `count` rows, int32 `[count]`; `key` is int32 `[2]`."""
    return tf.random.stateless_uniform([count], key, None, None, tf.int32)


def turns(rows: Rows) -> tf.Tensor:
    """The order in which rows have a claim to stay: every (task, label)'s first, then every one's second, ...

    Args:
      rows: of `rows_type`.

    Returns:
      int32 `[N]`, numbers of rows.
    """
    by_priority = tf.argsort(rows["priority"], stable=True)
    task, label = tf.gather(rows["task"], by_priority), tf.gather(rows["label"], by_priority)
    by_label = tf.argsort(label, stable=True)
    by_cell = tf.gather(by_label, tf.argsort(tf.gather(task, by_label), stable=True))
    places = tf.range(tf.size(by_cell))
    task, label = tf.gather(task, by_cell), tf.gather(label, by_cell)
    changes = tf.logical_or(tf.not_equal(task[1:], task[:-1]), tf.not_equal(label[1:], label[:-1]))
    new_cell = tf.concat([tf.ones([tf.minimum(tf.size(places), 1)], tf.bool), changes], 0)
    starts = tf.gather(tf.boolean_mask(places, new_cell), tf.cumsum(tf.cast(new_cell, tf.int32)) - 1)
    turn = tf.scatter_nd(by_cell[:, None], places - starts, tf.shape(by_cell))
    return tf.gather(by_priority, tf.argsort(turn, stable=True))


def remember(memory: Rows, arrived: Rows, capacity: int) -> OrderedDict:
    """The memory, at most `capacity` rows, after more rows came; of `rows_type` each."""
    rows = {name: tf.concat([memory[name], arrived[name]], 0) for name in memory}
    kept = turns(rows)[:capacity]
    return OrderedDict((name, tf.gather(rows[name], kept)) for name in rows)
