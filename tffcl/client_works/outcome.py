"""What a round at a client comes to: whether it counts, and what is reported of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import tensorflow as tf

from tffcl.client_works.training import num_examples

Tensors = Mapping[str, tf.Tensor]


def all_finite(values: Iterable[tf.Tensor]) -> tf.Tensor:
    """Whether no entry of any tensor is NaN or infinite: a bool scalar."""
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values])


def chosen(condition: tf.Tensor, new: Tensors, old: Tensors) -> dict[str, tf.Tensor]:
    """The tensors of `new` where a bool scalar holds, else those of `old` by the same names.

    `tf.where` would walk through every entry of both; here one of the two is handed on as it is.
    """
    return tf.cond(condition, lambda: dict(new), lambda: {name: old[name] for name in new})


def settle(
    trained: Tensors,
    state: Tensors,
    upload: tf.Tensor,
    sent: tf.Tensor,
    shared: tf.Tensor,
    train: Tensors,
    finite: tf.Tensor,
    metrics: Tensors,
) -> tuple[Tensors, Tensors, tf.Tensor, OrderedDict]:
    """Leaves a client out that has no examples or whose parameters are not finite; what `ClientWork.train` returns.

    Args:
      trained: entries of the state as training left them, `schedule` among them.
      state: the same entries before.
      upload: the client's vector as it would be sent, float32 `[n]`.
      sent: which entries of it would be, bool `[n]`.
      shared: the server's vector, float32 `[n]`.
      train: the client's training examples.
      finite: bool scalar, whether all trained parameters are.
      metrics: of `TrainingLoop.run`.
    """
    examples = num_examples(train)
    present = tf.logical_and(finite, examples > 0)
    kept = chosen(present, trained, state)
    sent = tf.logical_and(sent, present)
    update = OrderedDict(delta=tf.where(sent, upload - shared, 0.0), sent=sent)
    weight = tf.where(present, tf.cast(examples, tf.float32), 0.0)
    reported = OrderedDict(
        metrics,
        sent=tf.reduce_sum(tf.cast(sent, tf.int32)),
        non_finite=tf.cast(tf.logical_not(finite), tf.int32),
        learning_rate=kept["schedule"][0],
    )
    return kept, update, weight, reported
