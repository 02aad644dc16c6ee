"""Keras layers whose kernel is decomposed into base, mask and adaptive (FedSeIT eq. 1, FedWeIT eq. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tffcl import errors
from tffcl.layers.kernels import KernelLayout, decomposed_kernel, foreign_sum


class _Decomposed(tf.keras.layers.Layer):
    """What the layers below share: `kernel` is computed from its parts at each call.

    Variables: `base` (trainable, the kernel's shape), `mask_logits` (`[units]`), `adaptive` (the kernel's shape),
    and with `num_foreign` places `attention` (`[num_foreign]`) and `foreign` (frozen, `[num_foreign, *kernel]`).
    """

    num_foreign: int
    adaptive_factor: float

    def _set_up(self, num_foreign: int, adaptive_factor: float) -> None:
        if num_foreign < 0:
            raise errors.InputError(f"num_foreign: expected at least 0, found {num_foreign}")
        if adaptive_factor == 0:
            raise errors.InputError("adaptive_factor: expected a number other than 0")
        self.num_foreign, self.adaptive_factor = num_foreign, adaptive_factor

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        shape, base = self.kernel.shape, self.kernel
        self.base = base
        self.mask_logits = self.add_weight("mask_logits", [shape[-1]], initializer="zeros")
        self.adaptive = self.add_weight("adaptive", shape, initializer="zeros")
        self.adaptive.assign(_uncast(base) / self.adaptive_factor)
        if self.num_foreign:
            self.attention = self.add_weight("attention", [self.num_foreign], initializer="zeros")
            self.foreign = self.add_weight("foreign", [self.num_foreign, *shape], trainable=False, initializer="zeros")

    @property
    def theta(self) -> tf.Tensor:
        """B * sigmoid(m) + A + sum_k alpha_k A_k, in the kernel's shape."""
        layout = KernelLayout((("kernel", tuple(self.base.shape)),))
        adaptive = tf.reshape(self.adaptive, [-1])
        if self.num_foreign:
            rows = tf.reshape(self.foreign, [self.num_foreign, -1])
            adaptive += foreign_sum(layout, self.attention[:, None], rows)
        mask_logits = tf.convert_to_tensor(self.mask_logits)
        flat = decomposed_kernel(layout, tf.reshape(self.base, [-1]), mask_logits, adaptive)
        return tf.reshape(flat, self.base.shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        # Keras's own call multiplies by self.kernel; the composed kernel stands there while it runs. Set past
        # Keras's __setattr__, which keeps count of every variable that an attribute holds.
        self.__dict__["kernel"] = self.theta
        try:
            return super().call(inputs)
        finally:
            self.__dict__["kernel"] = self.base

    def get_config(self) -> dict[str, Any]:
        return dict(super().get_config(), num_foreign=self.num_foreign, adaptive_factor=self.adaptive_factor)


def _uncast(variable: tf.Variable) -> tf.Tensor:
    """A variable's value as it is: Keras reads it in the precision of the call that builds the layer."""
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


@tf.keras.utils.register_keras_serializable("tffcl")
class DecomposedDense(_Decomposed, tf.keras.layers.Dense):
    """`Dense` with kernel B * sigmoid(m) + A + sum_k alpha_k A_k; bias as in Keras.

    A kernel regularizer or constraint acts on the base alone.

    Args:
      units: output units.
      num_foreign: K, places for foreign adaptives, which are added into the kernel.
      adaptive_factor: A starts at B / adaptive_factor.
      **kwargs: as for `tf.keras.layers.Dense`.
    """

    def __init__(self, units: int, num_foreign: int = 0, adaptive_factor: float = 5.0, **kwargs: Any):
        super().__init__(units, **kwargs)
        self._set_up(num_foreign, adaptive_factor)


@tf.keras.utils.register_keras_serializable("tffcl")
class DecomposedConv1D(_Decomposed, tf.keras.layers.Conv1D):
    """`Conv1D` with a decomposed kernel; arguments as for `DecomposedDense` and `tf.keras.layers.Conv1D`."""

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        num_foreign: int = 0,
        adaptive_factor: float = 5.0,
        **kwargs: Any,
    ):
        super().__init__(filters, kernel_size, **kwargs)
        self._set_up(num_foreign, adaptive_factor)


@tf.keras.utils.register_keras_serializable("tffcl")
class DecomposedConv2D(_Decomposed, tf.keras.layers.Conv2D):
    """`Conv2D` with a decomposed kernel; arguments as for `DecomposedDense` and `tf.keras.layers.Conv2D`."""

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        num_foreign: int = 0,
        adaptive_factor: float = 5.0,
        **kwargs: Any,
    ):
        super().__init__(filters, kernel_size, **kwargs)
        self._set_up(num_foreign, adaptive_factor)
