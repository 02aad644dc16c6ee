"""The compiled loop of local training: epochs, batches, learning-rate decay and early stopping.

Dense examples `[N, ...]`, one permutation drawn an epoch, one `tf.while_loop` over epochs around one over steps:
nothing is traced again for another number of examples, and nothing leaves the computation before the round ends.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tffcl.client_works.optimizers import LocalOptimizer, as_local_optimizer
from tffcl.client_works.options import LocalTraining


class Step(NamedTuple):
    """Where training stands.

    Attributes:
      key: int32 `[2]`, of this step of this client.
      epoch: int32, number of the epoch in the round, from 0.
      number: int32, number of the step in the epoch, from 0.
    """

    key: tf.Tensor
    epoch: tf.Tensor
    number: tf.Tensor


# From the numbers of a step's examples, int32 `[n]`, to (objective, task loss).
LossFn = Callable[[tf.Tensor, Step], "tuple[tf.Tensor, tf.Tensor]"]


def fresh_schedule(training: LocalTraining) -> tf.Tensor:
    """The schedule of a new task: learning rate, best validation loss, epochs since, decays: float32 `[4]`."""
    return tf.constant([training.learning_rate, float("inf"), 0.0, 0.0], tf.float32)


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
    """Variables that share an optimizer and a factor on the learning rate."""

    variables: Sequence[tf.Variable]
    scale: float = 1.0


class TrainingLoop:
    """Trains variables on a client's examples; built once while a computation is traced, then run in it."""

    def __init__(self, config: LocalTraining, groups: Sequence[ParameterGroup]):
        self._config = config
        self._groups = groups
        self._optimizer: LocalOptimizer = as_local_optimizer(config.optimizer)
        self._slots = [self._optimizer.allocate(group.variables) for group in groups]

    def run(
        self,
        loss_fn: LossFn,
        validation_fn: Callable[[], tf.Tensor],
        count: tf.Tensor,
        schedule: tf.Tensor,
        key: tf.Tensor,
    ) -> tuple[tf.Tensor, OrderedDict]:
        """Runs up to `num_epochs` epochs.

        Args:
          loss_fn: `(rows, step) -> (objective, task loss)`, scalars, for examples number `rows`; reads the variables.
          validation_fn: `() -> loss`, a scalar that is not finite when there is no validation set.
          count: N, int32, examples; may be 0.
          schedule: float32 `[4]`, see `fresh_schedule`.
          key: int32 `[2]`.

        Returns:
          The schedule after the round; metrics `loss` (mean task loss of the last epoch), `validation_loss`,
          `epochs` and `examples`.
        """
        steps = -(-count // self._config.batch_size)
        states = tuple(
            self._optimizer.begin(slots, group.variables) for slots, group in zip(self._slots, self._groups)
        )
        epochs = tf.where(count > 0, self._config.num_epochs, 0)

        def keep_on(epoch: tf.Tensor, running: tf.Tensor, *_: Any) -> tf.Tensor:
            return tf.logical_and(epoch < epochs, running)

        def one_epoch(
            epoch: tf.Tensor, _: tf.Tensor, schedule: tf.Tensor, states: Any, loss: Any, validation: Any
        ) -> tuple:
            epoch_key = tf.random.experimental.stateless_fold_in(key, epoch)
            start = Step(epoch_key, epoch, tf.constant(0))
            states, loss = self._epoch(loss_fn, count, steps, states, schedule[0], start)
            validation = validation_fn()
            schedule, running = self._reschedule(schedule, validation)
            return epoch + 1, running, schedule, states, loss, validation

        nan = tf.constant(float("nan"))
        first = (tf.constant(0), tf.constant(True), schedule, states, nan, nan)
        epoch, _, schedule, _, loss, validation = tf.while_loop(keep_on, one_epoch, first)
        metrics = OrderedDict(loss=loss, validation_loss=validation, epochs=epoch, examples=count)
        return schedule, metrics

    def _epoch(
        self,
        loss_fn: LossFn,
        count: tf.Tensor,
        steps: tf.Tensor,
        states: Any,
        learning_rate: tf.Tensor,
        first: Step,
    ) -> tuple[Any, tf.Tensor]:
        """One pass over the examples in a new order: the optimizer's states, and the mean task loss."""
        order = tf.random.experimental.stateless_shuffle(tf.range(count), first.key)
        size = self._config.batch_size

        def one_step(step: tf.Tensor, states: Any, total: tf.Tensor) -> tuple[tf.Tensor, Any, tf.Tensor]:
            rows = order[step * size : (step + 1) * size]
            here = Step(tf.random.experimental.stateless_fold_in(first.key, step + 1), first.epoch, step)
            variables = [v for group in self._groups for v in group.variables]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(variables)
                objective, task_loss = loss_fn(rows, here)
            gradients = tape.gradient(
                objective, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            states = self._apply(states, gradients, learning_rate)
            return step + 1, states, total + task_loss * tf.cast(tf.size(rows), tf.float32)

        start = (tf.constant(0), states, tf.constant(0.0))
        _, states, total = tf.while_loop(lambda step, *_: step < steps, one_step, start)
        return states, total / tf.cast(count, tf.float32)

    def _apply(
        self, states: Any, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor
    ) -> tuple[Any, ...]:
        new_states, start = [], 0
        for group, slots, state in zip(self._groups, self._slots, states):
            own = gradients[start : start + len(group.variables)]
            start += len(group.variables)
            rate = learning_rate * group.scale
            new_states.append(self._optimizer.step(slots, state, group.variables, own, rate))
        return tuple(new_states)

    def _reschedule(self, schedule: tf.Tensor, validation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Divides the learning rate when patience runs out; says whether the round goes on."""
        rate, best, waited, decays = tf.unstack(schedule)
        if not self._config.patience:
            return schedule, tf.constant(True)
        known = tf.math.is_finite(validation)
        better = validation < best
        waited = tf.where(tf.logical_or(better, tf.logical_not(known)), 0.0, waited + 1.0)
        out = waited >= self._config.patience
        last = tf.logical_and(out, decays >= self._config.max_decays)
        divide = tf.logical_and(out, tf.logical_not(last))
        rate = tf.where(divide, rate / self._config.decay, rate)
        decays = tf.where(divide, decays + 1.0, decays)
        waited = tf.where(out, 0.0, waited)
        best = tf.where(better, validation, best)
        return tf.stack([rate, best, waited, decays]), tf.logical_not(last)


def num_examples(examples: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """N, int32, of a mapping of tensors `[N, ...]`."""
    return tf.shape(next(iter(examples.values())))[0]


def in_batches(
    function: Callable[[Mapping[str, tf.Tensor]], Sequence[tf.Tensor]],
    examples: Mapping[str, tf.Tensor],
    batch_size: int,
    outputs: int,
) -> tuple[tf.Tensor, ...]:
    """Sums a function's scalar float32 `outputs` over consecutive batches, in bounded memory."""
    count = num_examples(examples)

    def one_batch(start: tf.Tensor, *totals: tf.Tensor) -> tuple[tf.Tensor, ...]:
        batch = {name: values[start : start + batch_size] for name, values in examples.items()}
        return (start + batch_size, *[t + v for t, v in zip(totals, function(batch))])

    start = (tf.constant(0), *[tf.constant(0.0)] * outputs)
    return tf.while_loop(lambda start, *_: start < count, one_batch, start)[1:]
