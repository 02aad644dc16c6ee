"""What a round at a client comes to: whether it counts, and what is reported of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import tensorflow as tf


def all_finite(values: Iterable[tf.Tensor]) -> tf.Tensor:
    """Whether no entry of any tensor is NaN or infinite: a bool scalar."""
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values])


def base_metrics(
    training: Mapping[str, tf.Tensor], sent: tf.Tensor, finite: tf.Tensor, schedule: tf.Tensor
) -> OrderedDict:
    """The metrics of the training loop and, beside them, entries sent, whether the client was left out, and its
    learning rate.

    Args:
      training: metrics of `TrainingLoop.run`.
      sent: bool, the entries that go to the server.
      finite: bool scalar.
      schedule: float32 `[4]`, see `LocalTraining.fresh_schedule`.
    """
    return OrderedDict(
        training,
        sent=tf.math.count_nonzero(sent, dtype=tf.int32),
        non_finite=tf.cast(tf.logical_not(finite), tf.int32),
        learning_rate=schedule[0],
    )
