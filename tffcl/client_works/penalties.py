"""Penalties on the kernels of a client: EWC (against forgetting) and FedCurv (against drifting apart).

Both are sums of quadratics around kernels theta_i that served another task or another client, weighed with the
diagonal F_i of the Fisher information there. Two vectors hold such a sum, whatever the number of its terms:

  sum_i F_i (theta - theta_i)^2 = U theta^2 - 2 V theta + const = U (theta - V / U)^2 + const',
  U = sum_i F_i,  V = sum_i F_i theta_i.

EWC keeps U and the centre V / U: in the second form the gradient at the centre is exactly 0, where the rounding of the
first would be a gradient to Adam like any other. FedCurv must add and subtract, and keeps U and V.

Sources: Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", PNAS 2017, eq. 3; Shoham et
al., "Overcoming Forgetting in Federated Learning on Non-IID Data", arXiv 1910.07796, 2019, section 3.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works.fisher import Measure

Tensors = Mapping[str, tf.Tensor]

# From the kernels, float32 `[size]`, to the penalty, a float32 scalar.
Term = Callable[[tf.Tensor], tf.Tensor]


class Penalty(abc.ABC):
    """What a client work adds to the objective of a step, and what it keeps and uploads to know it.

    Attributes:
      shared_vectors: so many vectors of the kernels' size it adds to what the server holds, each the sum of all that
        clients upload of it. An upload is 0 outside the network's support, whose entries are not sent.
      changes_in_round: names of the entries of the state that a round changes.
    """

    shared_vectors: int = 0
    changes_in_round: tuple[str, ...] = ()

    @abc.abstractmethod
    def state_type(self, size: int) -> OrderedDict:
        """Types of what a client keeps, for kernels of `size` entries, without unknown axes; zeros at first."""

    @abc.abstractmethod
    def term(self, state: Tensors, shared: tf.Tensor) -> Term:
        """The penalty of a round, a function of the kernels; called once, before the first step.

        Args:
          state: of the client.
          shared: float32 `[shared_vectors, size]`, what the server holds.
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

    def term(self, state: Tensors, shared: tf.Tensor) -> Term:
        total, centre, constant = state["ewc_fisher"], state["ewc_centre"], state["ewc_constant"]
        return lambda kernels: (
            0.5 * self.weight * (tf.reduce_sum(total * tf.square(kernels - centre)) + constant)
        )

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

    def term(self, state: Tensors, shared: tf.Tensor) -> Term:
        # Sums of differences are exact up to rounding: what that leaves where nobody else has a say must not push.
        others = tf.maximum(shared[0] - state["curv_fisher"], 0.0)
        pull = tf.where(others > 0.0, shared[1] - state["curv_pull"], 0.0)
        return lambda kernels: self.weight * tf.reduce_sum(kernels * (others * kernels - 2.0 * pull))

    def end_round(self, state: Tensors, kernels: tf.Tensor, fisher: Measure) -> tuple[Tensors, tf.Tensor]:
        importance = fisher(self.fisher_examples)
        pull = importance * kernels
        upload = tf.stack([importance - state["curv_fisher"], pull - state["curv_pull"]])
        return {"curv_fisher": importance, "curv_pull": pull}, upload


def _check(weight: float, fisher_examples: int) -> None:
    if not (weight >= 0 and math.isfinite(weight)):
        raise errors.InputError(f"weight: expected a number that is not negative, found {weight}")
    if fisher_examples < 1:
        raise errors.InputError(f"fisher_examples: expected at least 1, found {fisher_examples}")
