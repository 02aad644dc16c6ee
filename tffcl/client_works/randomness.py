"""Keys: everything random follows from one seed by fold-in of (seed, client, task, round, step).

Keys are int32 `[2]` tensors for TensorFlow's stateless operations, so a draw depends on its key alone: not on the
order of execution, the number of clients, or how they are spread over workers.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

# A key is folded with one of these, so that no two uses draw the same numbers; rounds count upwards from `ROUNDS`.
BASE, LOCAL, ATTENTION, PLAN, EXAMPLES, ROUNDS = 1, 2, 3, 4, 6, 1000
SAMPLES, PRIORITIES, PRIVACY, SERVER, SYNTHETIC = 7, 8, 9, 10, 11


class Step(NamedTuple):
    """A step of training.

    Attributes:
      key: int32 `[2]`, of this step of this client.
      epoch: int32, number of the epoch in the round, from 0.
      number: int32, number of the step in the epoch, from 0.
    """

    key: tf.Tensor
    epoch: tf.Tensor
    number: tf.Tensor


def root_key(seed: int) -> tf.Tensor:
    """The key of a seed, for what the server draws."""
    return tf.constant([seed & 0x7FFFFFFF, (seed >> 31) & 0x7FFFFFFF], tf.int32)


def fold(key: tf.Tensor, data: tf.Tensor | int) -> tf.Tensor:
    """A key that depends on `key` and on the int32 scalar `data`."""
    return tf.random.experimental.stateless_fold_in(key, data)


def round_key(key: tf.Tensor, task: tf.Tensor, round_num: tf.Tensor) -> tf.Tensor:
    """The key of one round of a client's task, from the client's key, the task's number and the server's round."""
    return fold(fold(key, task), ROUNDS + round_num)
