"""Keras layers whose kernel stands under a mask that is not learned (ConFedMADE eq. 3 and 5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tffcl import errors
from tffcl.layers.decomposed import DecomposedDense


def _checked(connectivity: Any, shape: tf.TensorShape) -> np.ndarray:
    """The mask as float32 in the kernel's shape; all ones for None."""
    if connectivity is None:
        return np.ones(shape, np.float32)
    mask = np.asarray(connectivity, np.float32)
    if mask.shape != tuple(shape):
        raise errors.InputError(f"connectivity: expected shape {tuple(shape)}, found {mask.shape}")
    if not np.isin(mask, (0.0, 1.0)).all():
        raise errors.InputError("connectivity: expected zeros and ones, found other values")
    return mask


def _add_connectivity(layer: tf.keras.layers.Layer, connectivity: Any, shape: tf.TensorShape) -> tf.Variable:
    """The non-trainable variable M of a layer that is being built."""
    mask = _checked(connectivity, shape)
    variable = layer.add_weight("connectivity", mask.shape, trainable=False, initializer="ones")
    variable.assign(mask)
    return variable


@tf.keras.utils.register_keras_serializable("tffcl")
class MaskedDense(tf.keras.layers.Dense):
    """`Dense` with kernel W * M.

    M stands in the non-trainable variable `connectivity`, in the kernel's shape, and is saved with the weights.

    Args:
      units: output units.
      connectivity: M, zeros and ones `[inputs, units]`; without it all ones, until something is assigned.
      **kwargs: as for `tf.keras.layers.Dense`.

    Raises:
      InputError: when built, `connectivity` has another shape or holds other values.
    """

    def __init__(self, units: int, connectivity: Any = None, **kwargs: Any):
        super().__init__(units, **kwargs)
        self._given = None if connectivity is None else np.array(connectivity)

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        self.connectivity = _add_connectivity(self, self._given, self.kernel.shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        # As in the decomposed layers: Keras's own call multiplies by whatever stands in self.kernel.
        kernel = self.kernel
        self.__dict__["kernel"] = kernel * self.connectivity
        try:
            return super().call(inputs)
        finally:
            self.__dict__["kernel"] = kernel


@tf.keras.utils.register_keras_serializable("tffcl")
class DecomposedMaskedDense(DecomposedDense):
    """`Dense` with kernel (B * sigmoid(m) + A + sum_k alpha_k A_k) * M (ConFedMADE eq. 5).

    Args:
      units: output units.
      connectivity: M, as for `MaskedDense`.
      num_foreign: K, places for foreign adaptives.
      adaptive_factor: A starts at B / adaptive_factor.
      **kwargs: as for `tf.keras.layers.Dense`.

    Raises:
      InputError: when built, `connectivity` has another shape or holds other values.
    """

    def __init__(
        self, units: int, connectivity: Any = None, num_foreign: int = 0, adaptive_factor: float = 3.0, **kwargs: Any
    ):
        super().__init__(units, num_foreign, adaptive_factor, **kwargs)
        self._given = None if connectivity is None else np.array(connectivity)

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        self.connectivity = _add_connectivity(self, self._given, self.base.shape)

    @property
    def theta(self) -> tf.Tensor:
        """(B * sigmoid(m) + A + sum_k alpha_k A_k) * M, in the kernel's shape."""
        return super().theta * self.connectivity
