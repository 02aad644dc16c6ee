"""Sums over labelled examples, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tensorflow as tf

from tffcl.client_works.training import in_batches


def mean_cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Mean cross-entropy in nats of `[N, classes]` logits and int32 `[N]` labels."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def classification_sums(
    scores: Callable[[Mapping[str, tf.Tensor]], tf.Tensor],
    examples: Mapping[str, tf.Tensor],
    batch_size: int = 256,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Examples, sum of their cross-entropies in nats, and how many are right: float32 scalars.

    Args:
      scores: a batch to its logits `[n, classes]`.
      examples: tensors `[N, ...]` with int32 `label`.
      batch_size: examples at a time.
    """

    def one_batch(batch: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        logits, labels = scores(batch), batch["label"]
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        right = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels)
        return (
            tf.cast(tf.size(labels), tf.float32),
            tf.reduce_sum(loss),
            tf.reduce_sum(tf.cast(right, tf.float32)),
        )

    return in_batches(one_batch, examples, batch_size, outputs=3)
