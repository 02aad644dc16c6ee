"""Local training, common to all client works: from variables, a loss and phases to a compiled round.

A work declares its variables, their values at the start of a round, the losses of a step and of held-out examples, and
the result of the round. The rest is here: one permutation an epoch, one `tf.while_loop` over epochs around one over
steps, learning-rate decay and early stopping, penalties, and which rounds count. Nothing is traced again for another
number of examples, and nothing leaves the computation before the round ends.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tffcl import errors
from tffcl.client_works import randomness
from tffcl.client_works.evaluation import num_examples
from tffcl.client_works.optimizers import as_local_optimizer, decay_weights, empty_variable
from tffcl.client_works.options import LocalTraining
from tffcl.client_works.penalties import PenaltySet, StepView
from tffcl.client_works.randomness import Step
from tffcl.layers.kernels import Vector, VectorLayout
from tffcl.models.network import Tensors
from tffcl.templates import ClientWork


@dataclasses.dataclass(frozen=True)
class Trained:
    """A float32 vector that is trained.

    The million entries of FedSeIT's W_f among a client's local parameters need not be concatenated with the rest in
    every step, only where a round begins and ends: each piece is a variable with a gradient and optimizer slots of its
    own.

    Attributes:
      shape: of the vector; axes that are None are open until a round begins.
      pieces: entries of each piece; empty for the vector in one.
      scale: factor on the learning rate.
    """

    shape: tuple[Optional[int], ...]
    pieces: tuple[int, ...] = ()
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a round in which some of the variables train and the others stand still.

    Shown in docs/tutorials/own-method.md.

    Attributes:
      variables: their names; empty for all.
      num_epochs: most epochs of the phase; None for `LocalTraining.num_epochs`.
    """

    variables: tuple[str, ...] = ()
    num_epochs: Optional[int] = None


class Variables:
    """The variables of local training, allocated while a computation is traced, assigned when it runs."""

    def __init__(self, trained: Mapping[str, Trained]):
        self.trained = trained
        self._held = {
            name: [empty_variable([size]) for size in each.pieces]
            if len(each.pieces) > 1
            else [empty_variable(each.shape)]
            for name, each in trained.items()
        }

    def assign(self, values: Tensors) -> None:
        """Takes over the values with which a round begins."""
        for name, pieces in self._held.items():
            parts = tf.split(values[name], list(self.trained[name].pieces)) if len(pieces) > 1 else [values[name]]
            for variable, part in zip(pieces, parts):
                variable.assign(part)

    def read(self) -> dict[str, Vector]:
        """The values as networks take them: a tuple where a vector is held in pieces."""
        return {
            name: tuple(each.read_value() for each in pieces) if len(pieces) > 1 else pieces[0].read_value()
            for name, pieces in self._held.items()
        }

    def whole(self) -> dict[str, tf.Tensor]:
        """The values, the pieces of a vector concatenated."""
        return {name: tf.concat(value, 0) if isinstance(value, tuple) else value for name, value in self.read().items()}

    def decayed(self, layouts: Mapping[str, VectorLayout], names: Sequence[str]) -> list[tuple[tf.Variable, tf.Tensor]]:
        """Of the variables that are named, or all for none, those with kernels, and which entries are of kernels."""
        found: list[tuple[tf.Variable, tf.Tensor]] = []
        for name in [name for name in names or self._held if name in layouts]:
            pieces = self._held[name]
            sizes = [layouts[name].size] if len(pieces) == 1 else list(self.trained[name].pieces)
            has_kernels = any(len(shape) > 1 for _, shape in layouts[name].parts)
            found += zip(pieces, tf.split(layouts[name].of_kernels(), sizes)) if has_kernels else ()
        return found

    def groups(self, names: Sequence[str]) -> list[tuple[float, list[tf.Variable]]]:
        """Variables by their factor on the learning rate, those without one first."""
        by_scale: dict[float, list[tf.Variable]] = {}
        for name in names or tuple(self._held):
            by_scale.setdefault(self.trained[name].scale, []).extend(self._held[name])
        return sorted(by_scale.items(), key=lambda item: item[0] != 1.0)


Values = Mapping[str, Vector]  # of the variables


class StepLoss(NamedTuple):
    """What a step loses.

    Attributes:
      objective: without penalties, a float32 scalar.
      loss: mean task loss, a float32 scalar.
      batch: the examples, as the network takes them.
      logits: their class scores, float32 `[n, classes]`, of which the objective came; None where nobody may want them.
    """

    objective: tf.Tensor
    loss: tf.Tensor
    batch: Tensors
    logits: Optional[tf.Tensor] = None


# The result of `ClientWork.train`: changed entries of the state, update, weight, metrics.
Result = tuple[Tensors, Tensors, tf.Tensor, Tensors]
# Variables, and where weight decay acts on them.
Decayed = Sequence[tuple[tf.Variable, tf.Tensor]]
# From the numbers of a step's examples, int32 `[n]`, to (objective, task loss).
LossFn = Callable[[tf.Tensor, Step], "tuple[tf.Tensor, tf.Tensor]"]


def fresh_schedule(training: LocalTraining) -> tf.Tensor:
    """The schedule of a new task: learning rate, best validation loss, epochs since, decays: float32 `[4]`."""
    return tf.constant([training.learning_rate, float("inf"), 0.0, 0.0], tf.float32)


class TrainingLoop:
    """Trains variables on a client's examples; built once while a computation is traced, then run in it.

    Args:
      config: epochs, batches, learning rate.
      groups: factors on the learning rate, with the variables that have them.
      decayed: () -> variables that `weight_decay` acts on, and float32 tensors of their shapes: 1 where it does, else
        0. Called when the loop runs.
    """

    def __init__(
        self,
        config: LocalTraining,
        groups: Sequence[tuple[float, list[tf.Variable]]],
        decayed: Callable[[], Decayed] = tuple,
    ):
        self._config = config
        self._groups = groups
        self._decayed = decayed
        self._optimizer = as_local_optimizer(config.optimizer)
        self._slots = [self._optimizer.allocate(variables) for _, variables in groups]

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
        decayed = self._decayed() if self._config.weight_decay else ()
        states = tuple(
            self._optimizer.begin(slots, variables) for slots, (_, variables) in zip(self._slots, self._groups)
        )
        epochs = tf.where(count > 0, self._config.num_epochs, 0)

        def keep_on(epoch: tf.Tensor, running: tf.Tensor, *_: Any) -> tf.Tensor:
            return tf.logical_and(epoch < epochs, running)

        def one_epoch(
            epoch: tf.Tensor, _: tf.Tensor, schedule: tf.Tensor, states: Any, loss: Any, validation: Any
        ) -> tuple:
            epoch_key = tf.random.experimental.stateless_fold_in(key, epoch)
            start = Step(epoch_key, epoch, tf.constant(0))
            states, loss = self._epoch(loss_fn, decayed, count, steps, states, schedule[0], start)
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
        decayed: Decayed,
        count: tf.Tensor,
        steps: tf.Tensor,
        states: Any,
        learning_rate: tf.Tensor,
        first: Step,
    ) -> tuple[Any, tf.Tensor]:
        """One pass over the examples in a new order: the optimizer's states, and the mean task loss."""
        order = tf.random.experimental.stateless_shuffle(tf.range(count), first.key)
        size = self._config.batch_size
        variables = [variable for _, group in self._groups for variable in group]

        def one_step(step: tf.Tensor, states: Any, total: tf.Tensor) -> tuple[tf.Tensor, Any, tf.Tensor]:
            rows = order[step * size : (step + 1) * size]
            here = Step(tf.random.experimental.stateless_fold_in(first.key, step + 1), first.epoch, step)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(variables)
                objective, task_loss = loss_fn(rows, here)
            gradients = tape.gradient(objective, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            decay_weights(decayed, learning_rate * self._config.weight_decay)
            states = self._apply(states, gradients, learning_rate)
            return step + 1, states, total + task_loss * tf.cast(tf.size(rows), tf.float32)

        start = (tf.constant(0), states, tf.constant(0.0))
        _, states, total = tf.while_loop(lambda step, *_: step < steps, one_step, start)
        return states, total / tf.cast(count, tf.float32)

    def _apply(self, states: Any, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor) -> tuple[Any, ...]:
        new_states, start = [], 0
        for (scale, variables), slots, state in zip(self._groups, self._slots, states):
            own = gradients[start : start + len(variables)]
            start += len(variables)
            new_states.append(self._optimizer.step(slots, state, variables, own, learning_rate * scale))
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


@dataclasses.dataclass(frozen=True)
class Round:
    """A round at a client, as local training begins.

    Attributes:
      state: the entries of the client's state that a round reads.
      shared: broadcast by the server.
      data: `context`, `train` and `validation`.
      number: int32, the server's count of rounds.
      first: the values with which the variables begin.
      count: int32, rows that an epoch goes over.
      extra: values that a work computes once a round.
    """

    state: Tensors
    shared: tf.Tensor
    data: Mapping[str, Any]
    number: tf.Tensor
    first: Tensors
    count: tf.Tensor
    extra: Any = None


class LocalWork(ClientWork):
    """A client work as variables, a loss and phases.

    Shown with `PlainWork`.

    Attributes:
      training: epochs, batches, learning rate.
      penalties: terms of the objective, on the variable `penalised`.
      penalised: name of the variable that the server shares.
      phases: parts of a round; by default all variables train throughout.
      decayed: layouts of the variables whose kernels `LocalTraining.weight_decay` acts on.
    """

    training: LocalTraining
    penalties: PenaltySet
    penalised: str = "base"
    phases: tuple[Phase, ...] = (Phase(),)
    decayed: Mapping[str, VectorLayout] = {}

    def initial_state(self, key: tf.Tensor) -> dict[str, tf.Tensor]:
        """A client's first state: its key, no task yet, and zeros, or no rows, elsewhere."""
        zeros = {
            name: tf.zeros([axis or 0 for axis in entry.shape], entry.dtype) for name, entry in self.state_type.items()
        }
        return {**zeros, "key": key, "task": tf.constant(-1), "schedule": fresh_schedule(self.training)}

    def next_task(self, state: Tensors) -> dict[str, tf.Tensor]:
        """Entries of the state as another task begins: its number and a fresh schedule."""
        return {"task": state["task"] + 1, "schedule": fresh_schedule(self.training)}

    @abc.abstractmethod
    def trained(self) -> Mapping[str, Trained]:
        """The variables by name."""

    @abc.abstractmethod
    def begin_round(self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any], number: tf.Tensor) -> Round:
        """The values with which the variables begin, and those that are computed once."""

    @abc.abstractmethod
    def step_loss(self, values: Values, rows: tf.Tensor, step: Step, here: Round) -> StepLoss:
        """Losses of the rows number `rows`, int32 `[n]`."""

    @abc.abstractmethod
    def held_out_loss(self, values: Values, here: Round) -> tf.Tensor:
        """Mean loss of the held-out examples, not finite without any."""

    @abc.abstractmethod
    def end_round(self, changed: dict[str, tf.Tensor], here: Round, metrics: OrderedDict) -> Result:
        """The result of `train`; `changed` are the trained variables, and `schedule`."""

    def accept_round(
        self,
        trained: Tensors,
        here: Round,
        upload: tf.Tensor,
        sent: tf.Tensor,
        before: tf.Tensor,
        finite: tf.Tensor,
        metrics: Tensors,
    ) -> tuple[Tensors, Tensors, tf.Tensor, OrderedDict]:
        """Accepts or rejects a client's round, the result of `ClientWork.train`.

        A client without examples, or whose parameters are not finite, is left out: it has weight 0, sends nothing and
        keeps its state.

        Args:
          trained: entries of the state as training left them, `schedule` among them.
          here: the round.
          upload: the client's vector, float32 `[n]`.
          sent: which entries of it are sent, bool `[n]`.
          before: the server's vector, float32 `[n]`.
          finite: bool scalar, whether all trained parameters are.
          metrics: of `TrainingLoop.run`.
        """
        examples = num_examples(here.data["train"])
        present = tf.logical_and(finite, examples > 0)
        kept = _where(present, trained, here.state)
        sent = tf.logical_and(sent, present)
        update = OrderedDict(delta=tf.where(sent, upload - before, 0.0), sent=sent)
        weight = tf.where(present, tf.cast(examples, tf.float32), 0.0)
        reported = OrderedDict(
            metrics,
            sent=tf.reduce_sum(tf.cast(sent, tf.int32)),
            non_finite=tf.cast(tf.logical_not(finite), tf.int32),
            learning_rate=kept["schedule"][0],
        )
        return kept, update, weight, reported

    def logits(self, values: Values, batch: Tensors, here: Round) -> tf.Tensor:
        """Class scores of a step's examples under other values, for penalties that distill.

        Raises:
          NotImplementedError: the work classifies nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} has no class scores")

    def scores(self, values: Values, here: Round) -> tf.Tensor:
        """Class scores of the rows that an epoch goes over, float32 `[here.count, classes]`, for the same penalties.

        Raises:
          NotImplementedError: the work classifies nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} has no class scores")

    def train(self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any], round_num: tf.Tensor) -> Result:
        return self.trainer()(dict(state), shared, {name: dict(data[name]) for name in data}, round_num)

    def trainer(self) -> Callable[..., Result]:
        """Allocates the variables of local training and returns the compiled round, `train` without its types.

        Raises:
          InputError: there is weight decay, and the work names no kernels for it.
        """
        if self.training.weight_decay and not self.decayed:
            raise errors.InputError(f"weight_decay: {type(self).__name__} names no kernels in `decayed` to act on")
        variables = Variables(self.trained())
        loops = [
            TrainingLoop(
                dataclasses.replace(self.training, num_epochs=phase.num_epochs or self.training.num_epochs),
                variables.groups(phase.variables),
                functools.partial(variables.decayed, self.decayed, phase.variables),
            )
            for phase in self.phases
        ]

        @tf.function(autograph=False, reduce_retracing=True)
        def run(state: Tensors, shared: tf.Tensor, data: Mapping[str, Any], round_num: tf.Tensor) -> Result:
            here = self.begin_round(state, shared, data, round_num)
            variables.assign(here.first)
            penalty = self.penalties.term(state, shared, here.first[self.penalised])
            teachers = {
                name: self.scores({**here.first, self.penalised: state[name]}, here) for name in self.penalties.teachers
            }

            def loss_fn(rows: tf.Tensor, step: Step) -> tuple[tf.Tensor, tf.Tensor]:
                values = variables.read()
                objective, loss, batch, scores = StepLoss(*self.step_loss(values, rows, step, here))
                if penalty is not None:

                    def logits(**other: Vector) -> tf.Tensor:
                        known = None if other else scores
                        return self.logits({**values, **other}, batch, here) if known is None else known

                    old = {name: tf.gather(every, rows) for name, every in teachers.items()}
                    objective += penalty(StepView(values[self.penalised], batch, logits, here.data["context"], old))
                return objective, loss

            def validation_fn() -> tf.Tensor:
                return self.held_out_loss(variables.read(), here)

            schedule, epochs = state["schedule"], tf.constant(0)
            key = randomness.round_key(state["key"], state["task"], round_num)
            for number, loop in enumerate(loops):
                own = key if number == 0 else randomness.fold(key, -number)
                schedule, metrics = loop.run(loss_fn, validation_fn, here.count, schedule, own)
                epochs += metrics["epochs"]
            metrics["epochs"] = epochs
            return self.end_round({**variables.whole(), "schedule": schedule}, here, metrics)

        return run


def all_finite(values: Iterable[tf.Tensor]) -> tf.Tensor:
    """Whether no entry of any tensor is NaN or infinite: a bool scalar."""
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values])


def _where(condition: tf.Tensor, new: Tensors, old: Tensors) -> dict[str, tf.Tensor]:
    """The tensors of `new` where a bool scalar holds, else those of `old` by the same names.

    `tf.where` would walk through every entry of both; here one of the two is handed on as it is.
    """
    return tf.cond(condition, lambda: dict(new), lambda: {name: old[name] for name in new})
