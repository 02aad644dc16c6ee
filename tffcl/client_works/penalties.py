"""Penalties: what is added to the objective of a step, whatever the client work.

FedProx (Li et al., 2020): mu / 2 ||theta - theta_server||^2.
EWC (Kirkpatrick et al., 2017): lambda / 2 sum_i sum_j F_ij (theta_j - theta_ij)^2 over past tasks i. The sum over tasks
is kept as one quadratic: its curvature U = sum_i F_i, its centre and what is left over.
FedCurv (Shoham et al., 2019): lambda sum_{s != c} (theta - theta_s)^T diag(F_s) (theta - theta_s) at client c.

theta are the parameters that the server shares: all kernels of a plain work, the base of a decomposed one, the
classifier of a rehearsing one.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works.fisher import Measure

Tensors = Mapping[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class StepView:
    """What a penalty sees of a step.

    Attributes:
      kernels: theta as it stands, float32 `[size]`.
      batch: the step's examples, as the network takes them.
      logits: `logits(**values)`: class scores of these examples, float32 `[n, classes]`, with other values for some of
        the trained variables (`base=` the kernels of before, for distillation).
    """

    kernels: tf.Tensor
    batch: Tensors
    logits: Callable[..., tf.Tensor]


# From a step to the penalty, a float32 scalar.
Term = Callable[[StepView], tf.Tensor]


class Penalty(abc.ABC):
    """What a client work adds to the objective of a step, and what it keeps and uploads to know it.

    Attributes:
      shared_vectors: so many vectors of the kernels' size it adds to what the server holds, each the sum of all that
        clients upload of it. An upload is 0 outside the network's support, whose entries are not sent.
      changes_in_round: names of the entries of the state that a round changes.
    """

    shared_vectors: int = 0
    changes_in_round: tuple[str, ...] = ()

    def state_type(self, size: int) -> OrderedDict:
        """Types of what a client keeps, for kernels of `size` entries, without unknown axes; zeros at first."""
        del size
        return OrderedDict()

    @abc.abstractmethod
    def term(self, state: Tensors, shared: tf.Tensor, incoming: tf.Tensor) -> Term:
        """The penalty of a round as a function of a step; called once, before the first step.

        Args:
          state: of the client.
          shared: float32 `[shared_vectors, size]`, what the server holds.
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

    Args:
      weight: mu.

    Raises:
      InputError: mu is negative or not finite.
    """

    weight: float

    def __post_init__(self) -> None:
        _check(self.weight)

    def term(self, state: Tensors, shared: tf.Tensor, incoming: tf.Tensor) -> Term:
        return lambda step: 0.5 * self.weight * tf.reduce_sum(tf.square(step.kernels - incoming))


@dataclasses.dataclass(frozen=True)
class EWC(Penalty):
    """Elastic weight consolidation: weight / 2 sum_i sum_j F_ij (theta_j - theta_ij)^2 over the client's past tasks i.

    theta_i are the server's kernels at the end of task i, F_i the Fisher information of the client's examples there.

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
        total, centre, constant = state["ewc_fisher"], state["ewc_centre"], state["ewc_constant"]
        return lambda step: 0.5 * self.weight * (tf.reduce_sum(total * tf.square(step.kernels - centre)) + constant)

    def end_task(self, state: Tensors, kernels: tf.Tensor, fisher: Measure) -> Tensors:
        """One more term: the centre moves by its share of U, and what is left over goes into the constant."""
        importance = fisher(self.fisher_examples)
        total = state["ewc_fisher"] + importance
        share, offset = tf.math.divide_no_nan(importance, total), kernels - state["ewc_centre"]
        left = tf.reduce_sum(state["ewc_fisher"] * share * tf.square(offset))
        return {
            "ewc_fisher": total,
            "ewc_centre": state["ewc_centre"] + share * offset,
            "ewc_constant": state["ewc_constant"] + left,
        }


@dataclasses.dataclass(frozen=True)
class FedCurv(Penalty):
    """Federated curvature: weight sum_{s != c} (theta - theta_s)^T diag(F_s) (theta - theta_s) at client c.

    theta_s are the kernels as client s trained them in the latest round in which it took part, F_s the Fisher
    information of its examples there. The server holds U and V over the latest upload of every client, so that one
    which stays away keeps its part: a client sends what its F and F theta differ by from what it sent last, keeps
    them, and takes its own part off again. The constant, which moves nothing, is left out of the penalty.

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
        # Sums of differences are exact up to rounding: what that leaves where nobody else has a say must not push.
        others = tf.maximum(shared[0] - state["curv_fisher"], 0.0)
        pull = tf.where(others > 0.0, shared[1] - state["curv_pull"], 0.0)
        return lambda step: self.weight * tf.reduce_sum(step.kernels * (others * step.kernels - 2.0 * pull))

    def end_round(self, state: Tensors, kernels: tf.Tensor, fisher: Measure) -> tuple[Tensors, tf.Tensor]:
        importance = fisher(self.fisher_examples)
        pull = importance * kernels
        upload = tf.stack([importance - state["curv_fisher"], pull - state["curv_pull"]])
        return {"curv_fisher": importance, "curv_pull": pull}, upload


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
      offset: where their part of the server's vector begins; behind the kernels unless given.

    Attributes:
      state_type: types of what a client keeps for them.
      changes_in_round: names of the entries that a round changes.
      shared_size: entries that they add to the server's vector, after the kernels.

    Raises:
      InputError: something else than penalties, or two that would keep entries of the same name.
    """

    def __init__(self, penalties: Penalties, size: int, offset: Optional[int] = None):
        self._size, self._penalties = size, _as_tuple(penalties)
        self._offset = size if offset is None else offset
        self.state_type: OrderedDict = OrderedDict()
        for penalty in self._penalties:
            kept = penalty.state_type(size)
            if set(kept) & set(self.state_type):
                raise errors.InputError(f"penalty: expected each kind once, found {type(penalty).__name__} again")
            self.state_type.update(kept)
        self.changes_in_round = tuple(name for p in self._penalties for name in p.changes_in_round)
        self.shared_size = size * sum(penalty.shared_vectors for penalty in self._penalties)

    def without_server(self, work: str) -> PenaltySet:
        """The same, for a work whose server keeps nothing for penalties.

        Raises:
          InputError: a penalty that needs the server to keep something.
        """
        for penalty in self._penalties:
            if penalty.shared_vectors:
                raise errors.InputError(
                    f"penalty: {type(penalty).__name__} has the server keep sums over clients, which {work} does not; "
                    "take it with PlainWork"
                )
        return self

    def initialize(self) -> Tensors:
        """A client's first entries: zeros."""
        return {name: tf.zeros(kind.shape, kind.dtype) for name, kind in self.state_type.items()}

    def kernels(self, shared: tf.Tensor) -> tf.Tensor:
        """The kernels in the server's vector, float32 `[size]`."""
        return shared[: self._size] if self.shared_size else shared

    def extended(self, values: tf.Tensor, extra: tf.Tensor | None = None) -> tf.Tensor:
        """`values`, `[size]`, and `extra`, `[shared_size]`, zeros unless given: `[size + shared_size]`."""
        if not self.shared_size:
            return values
        return tf.concat([values, tf.zeros([self.shared_size]) if extra is None else extra], 0)

    def repeated(self, values: tf.Tensor) -> tf.Tensor:
        """What holds for entries of the kernels, `[size]`, for all entries that stand for them."""
        return tf.tile(values, [1 + self.shared_size // self._size]) if self.shared_size else values

    def term(self, state: Tensors, shared: tf.Tensor, incoming: tf.Tensor) -> Optional[Term]:
        """The sum of all penalties as a function of a step; None without any. See `Penalty.term`."""
        if not self._penalties:
            return None
        parts = tf.reshape(shared[self._offset : self._offset + self.shared_size], [-1, self._size])
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


def _as_tuple(penalties: Any) -> tuple[Penalty, ...]:
    if penalties is None:
        return ()
    found = (penalties,) if not isinstance(penalties, (list, tuple)) else tuple(penalties)
    for each in found:
        if not isinstance(each, Penalty):
            raise errors.InputError(f"penalty: expected a Penalty, found {type(each).__name__}")
    return found
