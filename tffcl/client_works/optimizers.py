"""Optimizers inside a client's compiled loop: Adam, as in the papers, or any `tff.learning.optimizers.Optimizer`."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors


class LocalOptimizer(abc.ABC):
    """Updates variables in place; its state between steps goes through the loop.

    Shown with `LocalTraining`.
    """

    @abc.abstractmethod
    def allocate(self, variables: Sequence[tf.Variable]) -> Any:
        """The optimizer's own variables (slots) for these; called once, while a computation is traced."""

    @abc.abstractmethod
    def begin(self, slots: Any, variables: Sequence[tf.Variable]) -> Any:
        """The state before the first step of a round (a nest of tensors)."""

    @abc.abstractmethod
    def step(
        self,
        slots: Any,
        state: Any,
        variables: Sequence[tf.Variable],
        gradients: Sequence[tf.Tensor],
        learning_rate: tf.Tensor,
    ) -> Any:
        """Applies one step at a learning rate, a float32 scalar, and returns the next state."""


class FusedAdam(LocalOptimizer):
    """Adam (Kingma & Ba, 2015), the update of `tff.learning.optimizers.build_adam` in one kernel a variable.

    Written in TensorFlow operations, as there, Adam costs as much as the forward and backward pass of a small text
    model, because every operation walks through all parameters.

    Shown with `LocalTraining`.

    Args:
      beta_1: decay of the first moment.
      beta_2: decay of the second moment.
      epsilon: added to the root of the second moment.
    """

    def __init__(self, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-7):
        self._beta_1, self._beta_2, self._epsilon = beta_1, beta_2, epsilon

    def allocate(self, variables: Sequence[tf.Variable]) -> Any:
        return [(empty_variable(v.shape), empty_variable(v.shape)) for v in variables]

    def begin(self, slots: Any, variables: Sequence[tf.Variable]) -> Any:
        for (first, second), variable in zip(slots, variables):
            first.assign(tf.zeros_like(variable))
            second.assign(tf.zeros_like(variable))
        return tf.constant(1.0), tf.constant(1.0)

    def step(
        self,
        slots: Any,
        state: Any,
        variables: Sequence[tf.Variable],
        gradients: Sequence[tf.Tensor],
        learning_rate: tf.Tensor,
    ) -> Any:
        power_1, power_2 = state[0] * self._beta_1, state[1] * self._beta_2
        for (first, second), variable, gradient in zip(slots, variables, gradients):
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle, m=first.handle, v=second.handle, beta1_power=power_1, beta2_power=power_2,
                lr=learning_rate, beta1=self._beta_1, beta2=self._beta_2, epsilon=self._epsilon, grad=gradient,
            )  # fmt: skip
        return power_1, power_2


def decay_weights(decayed: Sequence[tuple[tf.Variable, tf.Tensor]], share: tf.Tensor | float) -> None:
    """Takes a share of their values off variables, where the float32 tensor beside each is 1 and not 0.

    That is AdamW's decoupled decay (Loshchilov & Hutter, 2019) if the share is the learning rate times the weight decay
    and the optimizer's step, with the gradients of before, comes after it.
    """
    for variable, entries in decayed:
        variable.assign(variable * (1.0 - share * entries))


@dataclasses.dataclass(frozen=True)  # not a tuple, which optimizers would take for a structure of variables
class _Spec:
    """As `tf.TensorSpec`, with the shape that a variable has when the computation runs."""

    shape: tf.Tensor
    dtype: tf.DType


class TffOptimizer(LocalOptimizer):
    """Any `tff.learning.optimizers.Optimizer` whose learning rate is a hyperparameter of its state."""

    def __init__(self, optimizer: tff.learning.optimizers.Optimizer):
        if not isinstance(optimizer, tff.learning.optimizers.Optimizer):
            raise errors.InputError(
                f"optimizer: expected a tff.learning.optimizers.Optimizer, found {type(optimizer).__name__}"
            )
        self._optimizer = optimizer

    def allocate(self, variables: Sequence[tf.Variable]) -> Any:
        return None

    def begin(self, slots: Any, variables: Sequence[tf.Variable]) -> Any:
        return self._optimizer.initialize([_Spec(tf.shape(v), v.dtype) for v in variables])

    def step(
        self,
        slots: Any,
        state: Any,
        variables: Sequence[tf.Variable],
        gradients: Sequence[tf.Tensor],
        learning_rate: tf.Tensor,
    ) -> Any:
        state = self._optimizer.set_hparams(state, {"learning_rate": learning_rate})
        state, weights = self._optimizer.next(state, [v.read_value() for v in variables], list(gradients))
        for variable, value in zip(variables, weights):
            variable.assign(value)
        return state


def as_local_optimizer(optimizer: LocalOptimizer | tff.learning.optimizers.Optimizer | None) -> LocalOptimizer:
    """`None` is Adam; a TFF optimizer is wrapped.

    Raises:
      InputError: the argument is neither.
    """
    if optimizer is None:
        return FusedAdam()
    return optimizer if isinstance(optimizer, LocalOptimizer) else TffOptimizer(optimizer)


def empty_variable(shape: tf.TensorShape | Sequence[int | None]) -> tf.Variable:
    """A float32 variable to be assigned before use; axes that are None hold nothing until then.

    TFF optimizes its graphs as if a variable kept the shape of its first value: with a first value of 0 rows, as far as
    the graph tells, `tf.zeros_like` of whatever is assigned later is folded to 0 rows. So the graph must not tell: the
    0 comes from an operation that is never folded.
    """
    shape = tf.TensorShape(shape)
    axes: list[Any] = shape.as_list()
    if not shape.is_fully_defined():
        no_rows = tf.random.uniform([], maxval=1, dtype=tf.int32, seed=1)
        axes = [no_rows if axis is None else axis for axis in axes]
    return tf.Variable(tf.zeros(axes), shape=shape, trainable=False)
