"""Penalties, terms that any client work adds to the objective of a step, and the Fisher information that weighs them.

FedProx (Li et al., 2020): mu / 2 ||theta - theta_server||^2.
EWC (Kirkpatrick et al., 2017): lambda / 2 sum_i sum_j F_ij (theta_j - theta_ij)^2 over past tasks i. The sum over tasks
is kept as one quadratic: its curvature U = sum_i F_i, its centre and a constant.
FedCurv (Shoham et al., 2019): lambda sum_{s != c} (theta - theta_s)^T diag(F_s) (theta - theta_s) at client c.
LwF (Li, Hoiem, 2016): lambda T^2 KL(softmax(z_teacher / T) || softmax(z / T)) over the classes that came before.
GLFC (Dong et al., 2022): lambda KL(y' || softmax(z)), y' the label beside what the teacher says of those classes.

theta are the parameters that the server shares: all kernels of a plain work, the base of a decomposed one, the
classifier of a rehearsing one.

F is the diagonal of the empirical Fisher information, F_j = (1/n) sum_i (d loss_i / d theta_j)^2 over n examples i: the
mean of squared gradients of single examples. The square of a batch's mean gradient is something else, near zero where
training has converged.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Optional, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works.evaluation import Model, connected, num_examples
from tffcl.models.network import CLASSES, KNOWN, NEVER, Tensors, masks_of

# From the most examples that are to be drawn to F, float32 `[size]`.
Measure = Callable[[int], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class StepView:
    """A step of training, as penalties see it.

    Attributes:
      kernels: theta as it stands, float32 `[size]`.
      batch: the step's examples, as the network takes them.
      logits: `logits()`: class scores of these examples, float32 `[n, classes]`, of which the loss came;
        `logits(**values)`: with other values for some of the trained variables, without dropout.
      context: of these examples; `classes` and `known` are among it where one head grows.
      teacher: the scores of these examples under each entry of the state that is some penalty's `Penalty.teacher`.
    """

    kernels: tf.Tensor
    batch: Tensors
    logits: Callable[..., tf.Tensor]
    context: Tensors = dataclasses.field(default_factory=dict)
    teacher: Tensors = dataclasses.field(default_factory=dict)


# From a step to the penalty, a float32 scalar.
Term = Callable[[StepView], tf.Tensor]


class Penalty(abc.ABC):
    """A term of the objective of a step, with the state and the uploads that it needs.

    Shown with `EWC`.

    Attributes:
      shared_vectors: how many vectors of the kernels' size it adds to those of the server, each the sum of the clients'
        uploads. An upload is 0 outside the network's support, whose entries are not sent.
      changes_in_round: names of the entries of the state that a round changes.
      teacher: name of an entry of the state, float32 `[size]`: kernels with which the training examples are scored once
        a round, for distillation; empty without any.
    """

    shared_vectors: int = 0
    changes_in_round: tuple[str, ...] = ()
    teacher: str = ""

    def state_type(self, size: int) -> OrderedDict:
        """Types of a client's entries, for kernels of `size` entries, without unknown axes; zeros at first."""
        del size
        return OrderedDict()

    def begin_task(self, kernels: tf.Tensor) -> Tensors:
        """Entries of the state that a task's start sets; `kernels`, float32 `[size]`, are the server's."""
        del kernels
        return {}

    @abc.abstractmethod
    def term(self, state: Tensors, shared: tf.Tensor, incoming: tf.Tensor) -> Term:
        """The penalty of a round as a function of a step; called once, before the first step.

        Args:
          state: of the client.
          shared: float32 `[shared_vectors, size]`, of the server.
          incoming: float32 `[size]`, theta as the round begins.
        """

    def end_round(self, state: Tensors, kernels: tf.Tensor, fisher: Measure) -> tuple[Tensors, tf.Tensor]:
        """The entries `changes_in_round`, and the upload, float32 `[shared_vectors, size]`, after local training.

        Args:
          state: of the client, as the round found it.
          kernels: float32 `[size]`, as the client trained them.
          fisher: F there.
        """
        del state, fisher
        return {}, tf.zeros([0, tf.size(kernels)])

    def end_task(self, state: Tensors, kernels: tf.Tensor, fisher: Measure) -> Tensors:
        """Entries of the state that a task's end changes; `kernels`, float32 `[size]`, are the server's newest."""
        del state, kernels, fisher
        return {}


@dataclasses.dataclass(frozen=True)
class Proximal(Penalty):
    """FedProx: mu / 2 ||theta - theta_server||^2, with the parameters as the round begins for theta_server.

    Shown with `EWC`.

    Args:
      weight: mu.

    Raises:
      InputError: mu is negative or not finite.
    """

    weight: float

    def __post_init__(self) -> None:
        _check(self.weight)

    def term(self, state: Tensors, shared: tf.Tensor, incoming: tf.Tensor) -> Term:
        return lambda step: _quadratic(step.kernels, incoming, self.weight)


@dataclasses.dataclass(frozen=True)
class EWC(Penalty):
    """Elastic weight consolidation: weight / 2 sum_i sum_j F_ij (theta_j - theta_ij)^2 over the client's past tasks i.

    theta_i are the server's kernels at the end of task i, F_i the Fisher information of the client's examples there.

    Shown in docs/tutorials/own-method.md.

    Args:
      weight: lambda.
      fisher_examples: F_i is a mean over so many of the task's training examples, drawn at random.

    Raises:
      InputError: the weight is negative or not finite, or there are no examples to draw.
    """

    weight: float
    fisher_examples: int = 256

    def __post_init__(self) -> None:
        _check(self.weight, self.fisher_examples)

    def state_type(self, size: int) -> OrderedDict:
        vector = tff.TensorType(np.float32, [size])
        return OrderedDict(ewc_fisher=vector, ewc_centre=vector, ewc_constant=tff.TensorType(np.float32))

    def term(self, state: Tensors, shared: tf.Tensor, incoming: tf.Tensor) -> Term:
        curvature, centre, constant = self.weight * state["ewc_fisher"], state["ewc_centre"], state["ewc_constant"]
        return lambda step: _quadratic(step.kernels, centre, curvature) + 0.5 * self.weight * constant

    def end_task(self, state: Tensors, kernels: tf.Tensor, fisher: Measure) -> Tensors:
        """One more term: the centre moves by its share of U, and the constant takes the remainder."""
        importance = fisher(self.fisher_examples)
        total = state["ewc_fisher"] + importance
        share, offset = tf.math.divide_no_nan(importance, total), kernels - state["ewc_centre"]
        remainder = tf.reduce_sum(state["ewc_fisher"] * share * tf.square(offset))
        centre, constant = state["ewc_centre"] + share * offset, state["ewc_constant"] + remainder
        return {"ewc_fisher": total, "ewc_centre": centre, "ewc_constant": constant}


@dataclasses.dataclass(frozen=True)
class FedCurv(Penalty):
    """Federated curvature: weight sum_{s != c} (theta - theta_s)^T diag(F_s) (theta - theta_s) at client c.

    theta_s are the kernels as client s trained them in the latest round in which it took part, F_s the Fisher
    information of its examples there. The server holds U and V over the latest upload of every client, so that one
    which stays away keeps its part: a client sends the change of its F and F theta since its last upload, keeps
    them, and takes its own part off again. The constant, which moves nothing, is left out of the penalty.

    Shown with `EWC`.

    Args:
      weight: lambda.
      fisher_examples: F is a mean over so many of the client's training examples, drawn anew in each round.

    Raises:
      InputError: the weight is negative or not finite, or there are no examples to draw.
    """

    weight: float
    fisher_examples: int = 256

    shared_vectors = 2
    changes_in_round = ("curv_fisher", "curv_pull")

    def __post_init__(self) -> None:
        _check(self.weight, self.fisher_examples)

    def state_type(self, size: int) -> OrderedDict:
        vector = tff.TensorType(np.float32, [size])
        return OrderedDict(curv_fisher=vector, curv_pull=vector)

    def term(self, state: Tensors, shared: tf.Tensor, incoming: tf.Tensor) -> Term:
        # Sums of differences are exact up to rounding, which must not push where no other client has a term.
        others = tf.maximum(shared[0] - state["curv_fisher"], 0.0)
        pull = tf.where(others > 0.0, shared[1] - state["curv_pull"], 0.0)
        return lambda step: self.weight * tf.reduce_sum(step.kernels * (others * step.kernels - 2.0 * pull))

    def end_round(self, state: Tensors, kernels: tf.Tensor, fisher: Measure) -> tuple[Tensors, tf.Tensor]:
        importance = fisher(self.fisher_examples)
        pull = importance * kernels
        upload = tf.stack([importance - state["curv_fisher"], pull - state["curv_pull"]])
        return {"curv_fisher": importance, "curv_pull": pull}, upload


@dataclasses.dataclass(frozen=True)
class LwF(Penalty):
    """Learning without forgetting (Li, Hoiem, 2016) from the server's model at the start of the task.

    weight T^2 KL(softmax(z* / T) || softmax(z / T)), the mean over the step's examples: z are the scores of the classes
    that came before the task, z* those of the server's model as the task began. T^2 keeps the size of the gradient
    (Hinton, Vinyals, Dean, 2015). Nothing in the first task, of which no class is known before. Contexts have `known`
    (`tffcl.models.with_label_mask(network, growing=True)`).

    Shown in docs/methods.md.

    Args:
      weight: lambda.
      temperature: T.

    Raises:
      InputError: the weight is negative or not finite, or the temperature not above 0.
    """

    weight: float
    temperature: float = 2.0

    def __post_init__(self) -> None:
        _check(self.weight)
        errors.check_above_zero("temperature", self.temperature)

    @property
    def teacher(self) -> str:  # type: ignore[override]
        return "lwf_teacher" if self.weight else ""

    def state_type(self, size: int) -> OrderedDict:
        return OrderedDict(lwf_teacher=tff.TensorType(np.float32, [size])) if self.weight else OrderedDict()

    def begin_task(self, kernels: tf.Tensor) -> Tensors:
        return {"lwf_teacher": kernels} if self.weight else {}

    def term(self, state: Tensors, shared: tf.Tensor, incoming: tf.Tensor) -> Term:
        if not self.weight:
            return lambda step: tf.constant(0.0)

        def of_step(step: StepView) -> tf.Tensor:
            each = self.divergences(step.teacher[self.teacher], step.logits(), step)
            return self.weight * self.temperature**2 * tf.reduce_mean(each)

        return of_step

    def divergences(self, old: tf.Tensor, new: tf.Tensor, step: StepView) -> tf.Tensor:
        """What the scores `new` of a step's examples lose against `old`, both float32 `[n, L]`, in nats: `[n]`."""
        return divergence(old, new, step.context[KNOWN], self.temperature)


@dataclasses.dataclass(frozen=True)
class RelationDistillation(LwF):
    """GLFC's class-semantic relation distillation (Dong et al., CVPR 2022, eq. 5), with LwF's teacher.

    weight KL(y' || softmax(z)), the mean over the step's examples, over classes that compete or came before. y' is the
    label as a row of zeros and a one, in which the classes that came before the task have the teacher's probabilities
    instead; its sum, 1 for an example of these classes and 2 for one of a new class, is divided out. Nothing in the
    first task.

    Shown in docs/methods.md.

    Args:
      weight: lambda_2.
      temperature: 1, as in the paper.

    Raises:
      InputError: the weight is negative or not finite, or the temperature not above 0.
    """

    temperature: float = 1.0

    def divergences(self, old: tf.Tensor, new: tf.Tensor, step: StepView) -> tf.Tensor:
        known = step.context[KNOWN]
        among = tf.logical_or(known, step.context[CLASSES])
        told = tf.nn.softmax(tf.where(known, old / self.temperature, NEVER))
        target = tf.where(known, told, tf.one_hot(step.batch["label"], tf.shape(known)[0]))
        target /= tf.reduce_sum(target, axis=1, keepdims=True)
        log_new = tf.nn.log_softmax(tf.where(among, new / self.temperature, NEVER))
        each = tf.reduce_sum(tf.math.xlogy(target, target) - target * log_new, axis=1)
        return tf.where(tf.reduce_any(known), each, 0.0)


def divergence(teacher: tf.Tensor, student: tf.Tensor, among: tf.Tensor, temperature: float = 1.0) -> tf.Tensor:
    """KL(softmax(z* / T) || softmax(z / T)) of each example in nats, float32 `[n]`.

    Args:
      teacher: z*, float32 `[n, L]`.
      student: z, the same.
      among: bool `[L]`, the classes that it is about; 0 where it is about none.
      temperature: T.
    """
    log_teacher, log_student = (tf.nn.log_softmax(tf.where(among, z / temperature, NEVER)) for z in (teacher, student))
    return tf.reduce_sum(tf.where(among, tf.exp(log_teacher) * (log_teacher - log_student), 0.0), axis=1)


def _quadratic(kernels: tf.Tensor, centre: tf.Tensor, curvature: tf.Tensor | float) -> tf.Tensor:
    """1/2 sum_i curvature_i (kernels_i - centre_i)^2; its gradient takes one pass where the rules of TF take three."""

    @tf.custom_gradient
    def of(values: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        offset = values - centre
        slope = curvature * offset
        return 0.5 * tf.reduce_sum(slope * offset), lambda upstream: upstream * slope

    return of(kernels)


def _check(weight: float, fisher_examples: int = 1) -> None:
    if not (weight >= 0 and math.isfinite(weight)):
        raise errors.InputError(f"weight: expected a number that is not negative, found {weight}")
    if fisher_examples < 1:
        raise errors.InputError(f"fisher_examples: expected at least 1, found {fisher_examples}")


# None, one penalty, or several.
Penalties = Union[Penalty, Sequence[Penalty], None]


class PenaltySet:
    """Zero or more penalties on kernels of `size` entries.

    Args:
      penalties: which.
      size: entries of the kernels.

    Attributes:
      state_type: types of a client's entries for them.
      changes_in_round: names of the entries that a round changes.
      teachers: names of the entries with which examples are scored once a round.
      shared_size: entries that they add to the server's vector, after the kernels.

    Raises:
      InputError: something else than penalties, or two that would keep entries of the same name.
    """

    def __init__(self, penalties: Penalties, size: int):
        several = penalties if isinstance(penalties, (list, tuple)) else [] if penalties is None else [penalties]
        self._penalties: tuple[Penalty, ...] = tuple(several)
        self._size = size
        self.state_type: OrderedDict = OrderedDict()
        for penalty in self._penalties:
            if not isinstance(penalty, Penalty):
                raise errors.InputError(f"penalty: expected a Penalty, found {type(penalty).__name__}")
            own = penalty.state_type(size)
            if set(own) & set(self.state_type):
                raise errors.InputError(f"penalty: expected each kind once, found {type(penalty).__name__} again")
            self.state_type.update(own)
        self.changes_in_round = tuple(name for p in self._penalties for name in p.changes_in_round)
        self.teachers = tuple(dict.fromkeys(p.teacher for p in self._penalties if p.teacher))
        self.shared_size = size * sum(penalty.shared_vectors for penalty in self._penalties)

    def __bool__(self) -> bool:
        return bool(self._penalties)

    def without_server(self, work: str) -> PenaltySet:
        """The same, for a work whose server keeps nothing for penalties; InputError for a penalty that needs it to."""
        for penalty in self._penalties:
            if penalty.shared_vectors:
                raise errors.InputError(
                    f"penalty: {type(penalty).__name__} has the server keep sums over clients, which {work} does not; "
                    "take it with PlainWork"
                )
        return self

    def kernels(self, shared: tf.Tensor) -> tf.Tensor:
        """The kernels in the server's vector, float32 `[size]`."""
        return shared[: self._size] if self.shared_size else shared

    def extended(self, values: tf.Tensor, extra: tf.Tensor | None = None) -> tf.Tensor:
        """`values`, `[size]`, and `extra`, `[shared_size]`, zeros unless given: `[size + shared_size]`."""
        if not self.shared_size:
            return values
        return tf.concat([values, tf.zeros([self.shared_size]) if extra is None else extra], 0)

    def repeated(self, values: tf.Tensor) -> tf.Tensor:
        """Values of the kernels' entries, `[size]`, repeated for each shared vector: `[size + shared_size]`."""
        return tf.tile(values, [1 + self.shared_size // self._size]) if self.shared_size else values

    def term(self, state: Tensors, shared: tf.Tensor, incoming: tf.Tensor) -> Optional[Term]:
        """The sum of all penalties as a function of a step, see `Penalty.term`; None without any."""
        if not self._penalties:
            return None
        parts = tf.reshape(shared[self._size : self._size + self.shared_size], [-1, self._size])
        terms, start = [], 0
        for penalty in self._penalties:
            stop = start + penalty.shared_vectors
            terms.append(penalty.term(state, parts[start:stop], incoming))
            start = stop
        return lambda step: tf.add_n([term(step) for term in terms])

    def end_round(self, state: Tensors, kernels: tf.Tensor, fisher: Measure) -> tuple[Tensors, tf.Tensor]:
        """Entries `changes_in_round`, and all uploads, float32 `[shared_size]`."""
        changed: dict[str, tf.Tensor] = {}
        uploads = [tf.zeros([0])]
        for penalty in self._penalties:
            entries, upload = penalty.end_round(state, kernels, fisher)
            changed.update(entries)
            uploads.append(tf.reshape(upload, [-1]))
        return changed, tf.concat(uploads, 0)

    def begin_task(self, kernels: tf.Tensor) -> Tensors:
        """Entries that a task's start sets, given the server's kernels."""
        return {name: value for penalty in self._penalties for name, value in penalty.begin_task(kernels).items()}

    def end_task(self, state: Tensors, kernels: tf.Tensor, fisher: Measure) -> Tensors:
        """Entries that the task's end changes; those of a penalty that are not all finite stay as they are."""
        changed: dict[str, tf.Tensor] = {}
        for penalty in self._penalties:
            new = penalty.end_task(state, kernels, fisher)
            if new:
                finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in new.values()])
                old = {name: state[name] for name in new}
                changed.update(tf.cond(finite, lambda new=new: dict(new), lambda old=old: old))
        return changed


# -- Fisher information -------------------------------------------------------------------------------------------


def diagonal_fisher(model: Model, data: Mapping[str, Tensors], key: tf.Tensor, most_examples: int) -> tf.Tensor:
    """F of the kernels, in the memory of one gradient; nothing is dropped out.

    With J patterns of connectivity every J-th example stands under the same one, so that F is that of the loss which
    training sees.

    Args:
      model: kernels before connectivity: what is masked out has F = 0.
      data: `context` and `train`.
      key: int32 `[2]`, decides which examples are drawn.
      most_examples: so many are drawn without replacement, or all where there are fewer.

    Returns:
      float32 `[kernels.size]`, zeros without any examples.
    """
    network, context, examples = model.network, data["context"], data["train"]
    masks, drawn = masks_of(network), _drawn(examples, key, most_examples)

    def under(pattern: tf.Tensor | int, rows: tf.Tensor) -> tf.Tensor:
        mask = masks.connectivity(model.plan, pattern)
        weights = connected(model.network.kernels, model.kernels, mask)
        batch = {name: tf.gather(values, rows) for name, values in examples.items()}
        squares = masks.squared_gradients(weights, model.local, context, batch)
        if squares is None:

            def losses(weights: tf.Tensor, batch: Tensors) -> tf.Tensor:
                return network.losses(weights, model.local, model.attention, context, batch, None)

            squares = _sum_of_squares(losses, weights, examples, rows)
        return connected(model.network.kernels, squares, mask)  # d/d kernels = M d/d weights, and M^2 = M

    if masks.num_patterns == 1:
        total = under(0, drawn)
    else:
        total = tf.while_loop(
            lambda pattern, _: pattern < masks.num_patterns,
            lambda pattern, total: (pattern + 1, total + under(pattern, drawn[pattern :: masks.num_patterns])),
            (tf.constant(0), tf.zeros_like(model.kernels)),
            parallel_iterations=1,
        )[1]
    return total / tf.cast(tf.maximum(tf.size(drawn), 1), tf.float32)


def mean_of_squares(
    losses: Callable[[tf.Tensor, Tensors], tf.Tensor],
    weights: tf.Tensor,
    examples: Tensors,
    key: tf.Tensor,
    most_examples: int,
) -> tf.Tensor:
    """F of any weights, float32 `[size]`, given `losses`, from them and a batch to `[n]`; see `diagonal_fisher`."""
    drawn = _drawn(examples, key, most_examples)
    return _sum_of_squares(losses, weights, examples, drawn) / tf.cast(tf.maximum(tf.size(drawn), 1), tf.float32)


def _drawn(examples: Tensors, key: tf.Tensor, most_examples: int) -> tf.Tensor:
    return tf.random.experimental.stateless_shuffle(tf.range(num_examples(examples)), key)[:most_examples]


def _sum_of_squares(
    losses: Callable[[tf.Tensor, Tensors], tf.Tensor], weights: tf.Tensor, examples: Tensors, rows: tf.Tensor
) -> tf.Tensor:
    """sum_i (d loss_i / d weights)^2 over the examples in `rows`, int32 `[n]`: float32 of the weights' size.

    One example after the other: where kernels are large, passing through them is the cost, and a batch of gradients
    would not pass through fewer entries.
    """

    def one_example(index: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        example = {name: tf.gather(values, rows[index : index + 1]) for name, values in examples.items()}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            loss = losses(weights, example)
        gradient = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return index + 1, total + tf.square(gradient)

    # One iteration at a time, or the gradients of several would be held at once.
    start = (tf.constant(0), tf.zeros_like(weights))
    return tf.while_loop(lambda index, _: index < tf.size(rows), one_example, start, parallel_iterations=1)[1]
