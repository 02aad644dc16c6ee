"""The client of TARGET: it trains on its own examples, and on those that the server made it keeps to the last model.

Zhang, Chen, Zhuang, Lyu: TARGET: Federated Class-Continual Learning via Exemplar-Free Distillation, ICCV 2023.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works import randomness
from tffcl.client_works.local_training import Round, StepLoss, Values
from tffcl.client_works.options import LocalTraining
from tffcl.client_works.penalties import divergence
from tffcl.client_works.plain import PlainWork
from tffcl.client_works.randomness import Step
from tffcl.models.generator import InputForm
from tffcl.models.network import KNOWN, Classifier, Tensors


class SyntheticWork(PlainWork):
    """A plain work that distills the last task's model on examples which the server made of it.

    To the loss of a step comes weight T^2 KL(softmax(z* / T) || softmax(z / T)), its mean over a batch of synthetic
    examples drawn for the step: z are the scores of the classes that came before the task, z* those of the server's
    model as the task began, which the client computes once. Nothing before the server has made any.

    Shown in docs/methods.md.

    Args:
      network: a classifier of one growing head, without places for foreign adaptives.
      training: epochs, batches, learning rate; a step has as many synthetic examples as its batch at most.
      form: of the synthetic examples.
      count: synthetic examples that the server hands out.
      weight: alpha, of the distillation.
      temperature: T.
      seed: of the server's first kernels.
      **options: see `PlainWork`.

    Raises:
      InputError: a number out of its range, or contexts that do not say which classes came before.
    """

    handed = ("synthetic",)

    @errors.checked_arguments
    def __init__(
        self,
        network: Classifier,
        training: LocalTraining,
        form: InputForm,
        *,
        count: int,
        weight: float,
        temperature: float = 2.0,
        seed: int = 0,
        **options: Any,
    ):
        super().__init__(network, training, seed, **options)
        errors.check_whole("count", count, 1)
        errors.check_above_zero("weight", weight)
        errors.check_above_zero("temperature", temperature)
        if KNOWN not in network.context_type:
            raise errors.InputError(
                "network: its contexts should say which classes came before; see with_label_mask(..., growing=True)"
            )
        self.form, self.count, self.weight, self.temperature = form, count, weight, temperature
        self.state_type = OrderedDict(
            self.state_type,
            synthetic=tff.TensorType(np.float32, [count, *form.shape]),
            synthetic_scores=tff.TensorType(np.float32, [count, network.max_classes]),
        )
        self.train_reads = (*self.train_reads, "synthetic", "synthetic_scores")

    def begin_task(self, state: Tensors, shared: tf.Tensor, foreign: tf.Tensor) -> Tensors:
        begun = super().begin_task(state, shared, foreign)
        values = {"base": self.penalties.kernels(shared), "local": begun["local"]}
        scores = self._scores(values, state["synthetic"], state, {})
        return dict(begun, synthetic_scores=tf.ensure_shape(scores, [self.count, self.network.max_classes]))

    def _scores(self, values: Values, x: tf.Tensor, state: Tensors, context: Tensors) -> tf.Tensor:
        """Class scores of synthetic examples, float32 `[n, *form.shape]`, without dropout."""
        more, examples = self.form.examples(x)
        return self.model(values, state).logits({**context, **more}, examples)

    def step_loss(self, values: Values, rows: tf.Tensor, step: Step, here: Round) -> StepLoss:
        own = super().step_loss(values, rows, step, here)
        order = tf.random.experimental.stateless_shuffle(
            tf.range(self.count), randomness.fold(step.key, randomness.SYNTHETIC)
        )
        drawn, context = order[: self.training.batch_size], here.data["context"]
        every = here.state["synthetic"]
        old = tf.gather(here.state["synthetic_scores"], drawn)
        new = self._scores(values, tf.gather(every, drawn), here.state, context)
        each = divergence(old, new, context[KNOWN], self.temperature)
        there = tf.cast(tf.reduce_any(tf.not_equal(every, 0.0)), tf.float32)  # the server begins with zeros
        distillation = there * self.weight * self.temperature**2 * tf.reduce_mean(each)
        return own._replace(objective=own.objective + distillation)
