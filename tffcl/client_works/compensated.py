"""The client of GLFC: examples of old and of new classes count by what is still to be learned of each.

Dong, Wang, Fang, Sun, Xu, Wang, Zhu: Federated Class-Incremental Learning, CVPR 2022.
"""

from __future__ import annotations

import tensorflow as tf

from tffcl.client_works.local_training import Round, StepLoss, Values
from tffcl.client_works.plain import PlainWork
from tffcl.client_works.randomness import Step
from tffcl.models.network import KNOWN


def compensated(losses: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    """The class-aware gradient compensation loss (eq. 2 to 4) of each example in nats, float32 `[n]`.

    The cross-entropy of an example, times |p - 1|, the gradient at the score of its class, p the probability of that
    class, over the mean of |p - 1| among the examples of old classes, or among those of new ones: both kinds weigh as
    much as they have examples, however much larger the gradients of one are. The weights have no gradient.

    >>> one, two = tf.math.log(2.0), tf.math.log(4.0)
    >>> found = compensated(tf.stack([one, two, one]), tf.constant([True, True, False]))
    >>> [round(float(each), 3) for each in found]
    [0.555, 1.664, 0.693]

    Args:
      losses: cross-entropies, float32 `[n]`.
      old: which examples are of a class that came before the task, bool `[n]`.
    """
    size = 1.0 - tf.exp(-tf.stop_gradient(losses))
    kinds = [tf.cast(kind, tf.float32) for kind in (old, tf.logical_not(old))]
    means = [tf.math.divide_no_nan(tf.reduce_sum(kind * size), tf.reduce_sum(kind)) for kind in kinds]
    return losses * tf.math.divide_no_nan(size, tf.add_n([kind * mean for kind, mean in zip(kinds, means)]))


class CompensatedWork(PlainWork):
    """A plain work that trains on the class-aware gradient compensation loss (`compensated`).

    Contexts say which classes came before (`tffcl.models.with_label_mask(network, growing=True)`). Losses that are
    reported are plain cross-entropies. Arguments are those of `PlainWork`.

    Shown in docs/methods.md.
    """

    def step_loss(self, values: Values, rows: tf.Tensor, step: Step, here: Round) -> StepLoss:
        batch, context = self.network.batch(here.data["train"], rows), here.data["context"]
        losses, logits = self.model(values, here.state).losses_and_logits(context, batch, here.extra(step), step.key)
        old = tf.gather(context[KNOWN], batch["label"])
        return StepLoss(tf.reduce_mean(compensated(losses, old)), tf.reduce_mean(losses), batch, logits)
