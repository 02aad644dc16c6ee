"""How a client keeps what it knew of past tasks while its base changes (FedSeIT eq. 5, third term).

The base B serves all tasks, so training it on a new task moves the kernels theta_i = B * sigmoid(m_i) + A_i of
past ones. The paper prints dB*m - dA; ConFedMADE eq. 2 and FedWeIT have plus, and plus is right, for A must make up
for what B does. Both differences together are the drift of the kernel, which is the form coded here:

    lambda_2 sum_i || B * sigmoid(m_i) + A_i - kernel_i* ||^2,

where kernel_i* is task i's kernel as it stood when the current task began, before the server's base came in.
In closed form it is the kernel as it stood when task i itself ended: what the pull of lambda_1 takes then does not
add up from task to task.

`Gradient` takes that term, and lambda_1 |A_i|, into the objective and moves B and every past A_i by gradient
steps, as the papers write it; the cost of a step grows with the number of tasks. `ClosedForm` uses that for a fixed
B the best A_i is known,

    A_i = soft_threshold(kernel_i* - B * sigmoid(m_i), lambda_1 / (2 lambda_2)),

so no past task takes part in a step at all, and no entry of a kernel ever drifts by more than lambda_1 / (2 lambda_2).
"""

from __future__ import annotations

import abc

import tensorflow as tf

from tffcl import errors
from tffcl.layers.kernels import KernelLayout, decomposed_kernel, soft_threshold


class Retention(abc.ABC):
    """One way to solve for the past adaptives.

    Attributes:
      in_objective: past adaptives are variables of the local objective.
    """

    in_objective: bool

    @abc.abstractmethod
    def past_adaptives(
        self, layout: KernelLayout, base: tf.Tensor, mask_logits: tf.Tensor, adaptive: tf.Tensor, reference: tf.Tensor
    ) -> tf.Tensor:
        """A_i as it stands, float32 `[T, size]`.

        Args:
          layout: the kernels.
          base: B, float32 `[size]`.
          mask_logits: m_i, float32 `[T, mask_size]`.
          adaptive: what is stored of A_i, float32 `[T, size]`.
          reference: kernel_i*, float32 `[T, size]`.
        """


class Gradient(Retention):
    """The papers' form: gradient steps on the penalty."""

    in_objective = True

    def past_adaptives(
        self, layout: KernelLayout, base: tf.Tensor, mask_logits: tf.Tensor, adaptive: tf.Tensor, reference: tf.Tensor
    ) -> tf.Tensor:
        del layout, base, mask_logits, reference
        return adaptive


class ClosedForm(Retention):
    """The exact minimiser over A_i, taken when it is needed.

    Args:
      sparsity: lambda_1, at least 0; with 0 nothing is forgotten at all.
      retention: lambda_2; 0 gives past tasks up to the pull of lambda_1, which leaves nothing of A_i. With both
        0 nothing pulls, and A_i stays as it is.
    """

    in_objective = False

    def __init__(self, sparsity: float, retention: float):
        self._free = not sparsity and not retention
        self._threshold = sparsity / (2.0 * retention) if retention else float("inf")

    def past_adaptives(
        self, layout: KernelLayout, base: tf.Tensor, mask_logits: tf.Tensor, adaptive: tf.Tensor, reference: tf.Tensor
    ) -> tf.Tensor:
        if self._free:
            return adaptive
        return soft_threshold(reference - decomposed_kernel(layout, base, mask_logits, 0.0), self._threshold)


def penalty(
    layout: KernelLayout, base: tf.Tensor, mask_logits: tf.Tensor, adaptive: tf.Tensor, reference: tf.Tensor
) -> tf.Tensor:
    """sum_i ||B * sigmoid(m_i) + A_i - kernel_i*||^2, a scalar; shapes as in `Retention.past_adaptives`."""
    return tf.reduce_sum(tf.square(decomposed_kernel(layout, base, mask_logits, adaptive) - reference))


def build_retention(form: str, sparsity: float, retention: float) -> Retention:
    """`closed_form` or `gradient`.

    Raises:
      InputError: no such form, or a negative weight.
    """
    if sparsity < 0 or retention < 0:
        raise errors.InputError(f"sparsity and retention must not be negative, found {sparsity} and {retention}")
    if form == "closed_form":
        return ClosedForm(sparsity, retention)
    if form == "gradient":
        return Gradient()
    raise errors.InputError(f"retention_form: expected 'closed_form' or 'gradient', found {form!r}")
