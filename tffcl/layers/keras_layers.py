"""Keras layers: decomposed kernels, kernels under a fixed mask, FedSeIT's alignment, and FIL-VER's posterior.

Base, mask and adaptive: FedSeIT eq. 1, FedWeIT eq. 4; alignment: FedSeIT eq. 3; connectivity: ConFedMADE eq. 3 and 5.

The Gaussian posterior of a variational embedding is N(mu, diag(sigma)^2), given as log sigma (Park, Kumatani,
Dimitriadis: Tackling Dynamics in Federated Incremental Learning with Variational Embedding Rehearsal, 2021, eq. 4 and
5). exp of a raw log sigma overflows above 88 and is 0 below -104; here log sigma is held in [`LOWEST`, `HIGHEST`], so
that sigma is never 0 nor infinite. NaN stays NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tffcl import errors
from tffcl.layers.kernels import KernelLayout, decomposed_kernel, foreign_sum


class _Composed(tf.keras.layers.Layer):
    """A layer whose kernel is computed at each call."""

    @property
    def theta(self) -> tf.Tensor:
        """The kernel that the layer multiplies by, in the kernel's shape."""
        raise NotImplementedError

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        # Keras's own call multiplies by self.kernel; theta stands there while it runs. Set past Keras's __setattr__,
        # which keeps count of every variable that an attribute holds.
        kernel = self.kernel
        self.__dict__["kernel"] = self.theta
        try:
            return super().call(inputs)
        finally:
            self.__dict__["kernel"] = kernel


class _Decomposed(_Composed):
    """Kernel B * sigmoid(m) + A + sum_k alpha_k A_k.

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
        self.base, shape = self.kernel, self.kernel.shape
        self.mask_logits = self.add_weight("mask_logits", [shape[-1]], initializer="zeros")
        self.adaptive = self.add_weight("adaptive", shape, initializer="zeros")
        # Read past Keras, which casts a variable to the precision of the call that builds the layer.
        base = tf.raw_ops.ReadVariableOp(resource=self.base.handle, dtype=self.base.dtype)
        self.adaptive.assign(base / self.adaptive_factor)
        if self.num_foreign:
            self.attention = self.add_weight("attention", [self.num_foreign], initializer="zeros")
            self.foreign = self.add_weight("foreign", [self.num_foreign, *shape], trainable=False, initializer="zeros")

    @property
    def theta(self) -> tf.Tensor:
        layout = KernelLayout((("kernel", tuple(self.base.shape)),))
        adaptive = tf.reshape(self.adaptive, [-1])
        if self.num_foreign:
            rows = tf.reshape(self.foreign, [self.num_foreign, -1])
            adaptive += foreign_sum(layout, self.attention[:, None], rows)
        mask_logits = tf.convert_to_tensor(self.mask_logits)
        flat = decomposed_kernel(layout, tf.reshape(self.base, [-1]), mask_logits, adaptive)
        return tf.reshape(flat, self.base.shape)

    def get_config(self) -> dict[str, Any]:
        return dict(super().get_config(), num_foreign=self.num_foreign, adaptive_factor=self.adaptive_factor)


@tf.keras.utils.register_keras_serializable("tffcl")
class DecomposedDense(_Decomposed, tf.keras.layers.Dense):
    """`Dense` with kernel B * sigmoid(m) + A + sum_k alpha_k A_k; bias as in Keras.

    A kernel regularizer or constraint acts on the base alone.

    Shown with `decompose`.

    Args:
      units: output units.
      num_foreign: K, places for foreign adaptives, which are added into the kernel.
      adaptive_factor: A starts at B / adaptive_factor.
      **kwargs: as for `tf.keras.layers.Dense`.
    """

    def __init__(self, units: int, num_foreign: int = 0, adaptive_factor: float = 5.0, **kwargs: Any):
        super().__init__(units, **kwargs)
        self._set_up(num_foreign, adaptive_factor)


class _DecomposedConv(_Decomposed):
    def __init__(
        self, filters: int, kernel_size: int | Sequence[int], num_foreign: int = 0, adaptive_factor: float = 5.0,
        **kwargs: Any,
    ):  # fmt: skip
        super().__init__(filters, kernel_size, **kwargs)
        self._set_up(num_foreign, adaptive_factor)


@tf.keras.utils.register_keras_serializable("tffcl")
class DecomposedConv1D(_DecomposedConv, tf.keras.layers.Conv1D):
    """`Conv1D` with a decomposed kernel; arguments as for `DecomposedDense` and `tf.keras.layers.Conv1D`.

    Shown with `decompose`.
    """


@tf.keras.utils.register_keras_serializable("tffcl")
class DecomposedConv2D(_DecomposedConv, tf.keras.layers.Conv2D):
    """`Conv2D` with a decomposed kernel; arguments as for `DecomposedDense` and `tf.keras.layers.Conv2D`.

    Shown with `decompose`.
    """


class _Masked(_Composed):
    """A kernel under M, which stands in the non-trainable variable `connectivity` and is saved with the weights."""

    _initial_connectivity: np.ndarray | None = None

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        mask, shape = self._initial_connectivity, tuple(self.kernel.shape)
        mask = np.ones(shape) if mask is None else mask
        if mask.shape != shape:
            raise errors.InputError(f"connectivity: expected shape {shape}, found {mask.shape}")
        if not np.isin(mask, (0.0, 1.0)).all():
            raise errors.InputError("connectivity: expected zeros and ones, found other values")
        self.connectivity = self.add_weight("connectivity", shape, trainable=False, initializer="ones")
        self.connectivity.assign(mask)

    def _set_connectivity(self, connectivity: Any) -> None:
        self._initial_connectivity = None if connectivity is None else np.array(connectivity, np.float32)


@tf.keras.utils.register_keras_serializable("tffcl")
class MaskedDense(_Masked, tf.keras.layers.Dense):
    """`Dense` with kernel W * M; M is the non-trainable variable `connectivity`, saved with the weights.

    Shown with `AutoregressiveMask`.

    Args:
      units: output units.
      connectivity: M, zeros and ones `[inputs, units]`; without it all ones, until something is assigned.
      **kwargs: as for `tf.keras.layers.Dense`.

    Raises:
      InputError: when built, `connectivity` has another shape or holds other values.
    """

    def __init__(self, units: int, connectivity: Any = None, **kwargs: Any):
        super().__init__(units, **kwargs)
        self._set_connectivity(connectivity)

    @property
    def theta(self) -> tf.Tensor:
        return self.kernel * self.connectivity


@tf.keras.utils.register_keras_serializable("tffcl")
class DecomposedMaskedDense(_Masked, DecomposedDense):
    """`Dense` with kernel (B * sigmoid(m) + A + sum_k alpha_k A_k) * M (ConFedMADE eq. 5).

    Shown with `AutoregressiveMask`.

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
        self._set_connectivity(connectivity)

    @property
    def theta(self) -> tf.Tensor:
        return super().theta * self.connectivity


@tf.keras.utils.register_keras_serializable("tffcl")
class ForeignAlignment(tf.keras.layers.Layer):
    """z = W_c {z_c + W_f {z_1 + ... + z_K}} (FedSeIT eq. 3; + is concatenation).

    Inputs: the client's own dense vector, float32 `[N, F]`, and the foreign ones, float32 `[N, K, F]`.
    Output: float32 `[N, F]`. Variables: `foreign_projection` W_f `[K * F, F]` and `augment_projection` W_c
    `[2 * F, F]`, both without bias, as printed.

    Shown with `export_keras_model`.

    Raises:
      InputError: when it is built for inputs of other shapes.
    """

    def build(self, input_shape: Sequence) -> None:
        shapes = [tf.TensorShape(shape) for shape in input_shape] if isinstance(input_shape, (list, tuple)) else []
        fits = [shape.rank for shape in shapes] == [2, 3] and None not in shapes[1][1:]
        if not fits or shapes[0][1] != shapes[1][2]:
            raise errors.InputError(f"ForeignAlignment: expected inputs [N, F] and [N, K, F], found {input_shape}")
        _, places, size = shapes[1]
        self.foreign_projection = self.add_weight("foreign_projection", [places * size, size])
        self.augment_projection = self.add_weight("augment_projection", [2 * size, size])

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """Aligns the foreign vectors and augments the client's own with them."""
        own, foreign = inputs
        rows = tf.shape(foreign)[0]  # not -1, which K = 0 would leave open
        joined = tf.reshape(foreign, [rows, foreign.shape[1] * foreign.shape[2]])
        return tf.matmul(tf.concat([own, tf.matmul(joined, self.foreign_projection)], 1), self.augment_projection)


LOWEST, HIGHEST = -10.0, 5.0  # sigma from 4.5e-5 to 148, beside a prior of 1


@tf.custom_gradient
def safe_log_scale(log_scale: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """The log of sigma, held in [`LOWEST`, `HIGHEST`].

    The gradient of a value beyond the range passes where descent along it leads back; an ordinary clip would leave
    such a unit there for good.
    """

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        outwards = tf.logical_or(
            tf.logical_and(log_scale > HIGHEST, upstream < 0.0), tf.logical_and(log_scale < LOWEST, upstream > 0.0)
        )
        return tf.where(outwards, tf.zeros_like(upstream), upstream)

    return tf.clip_by_value(log_scale, LOWEST, HIGHEST), gradient


def safe_scale(log_scale: tf.Tensor) -> tf.Tensor:
    """sigma, in [exp(`LOWEST`), exp(`HIGHEST`)]; the shape of `log_scale`."""
    return tf.exp(safe_log_scale(log_scale))


def posterior(mean: tf.Tensor, log_scale: tf.Tensor) -> tfp.distributions.MultivariateNormalDiag:
    """q(z | x) = N(mu, diag(sigma)^2) of mu and log sigma, float32 `[..., d]` each."""
    return tfp.distributions.MultivariateNormalDiag(loc=mean, scale_diag=safe_scale(log_scale))


def divergence(mean: tf.Tensor, log_scale: tf.Tensor) -> tf.Tensor:
    """KL(N(mu, diag(sigma)^2) || N(0, I)) in nats (eq. 5, 9), float32 `[...]`, of mu and log sigma, `[..., d]`."""
    # One dimension at a time: TFP's formula for vectors takes d from a sum that is near d, and loses digits.
    own = tfp.distributions.Normal(mean, safe_scale(log_scale))
    prior = tfp.distributions.Normal(0.0, 1.0)
    return tf.reduce_sum(tfp.distributions.kl_divergence(own, prior), axis=-1)


def sample_posterior(mean: tf.Tensor, log_scale: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """A sample z = mu + sigma * epsilon (eq. 4), float32 `[..., d]`, through which gradients reach mu and log sigma.

    epsilon, a draw from N(0, I), depends on `key`, int32 `[2]`, alone.
    """
    return mean + safe_scale(log_scale) * tf.random.stateless_normal(tf.shape(mean), key)


@tf.keras.utils.register_keras_serializable("tffcl")
class GaussianHead(tf.keras.layers.Layer):
    """Two linear layers, mu and log sigma, and the posterior that they make, for Keras models.

    Its output is a `tfp.distributions.Distribution` that serves as a tensor, namely as a sample of itself.

    Shown with `build_fil_ver`.

    Args:
      units: d, dimensions of the embedding.
      initial_log_scale: the first bias of log sigma.
      **kwargs: as for `tf.keras.layers.Layer`.

    Raises:
      InputError: `units` is less than 1.
    """

    def __init__(self, units: int, initial_log_scale: float = -2.0, **kwargs: Any):
        if units < 1:
            raise errors.InputError(f"units: expected at least 1, found {units}")
        super().__init__(**kwargs)
        self.units, self.initial_log_scale = units, initial_log_scale
        start = tf.keras.initializers.Constant(initial_log_scale)
        self.mean = tf.keras.layers.Dense(units, name="mean")
        self.log_scale = tf.keras.layers.Dense(units, bias_initializer=start, name="log_scale")
        self._posterior = tfp.layers.DistributionLambda(lambda stats: posterior(*stats))

    def call(self, inputs: tf.Tensor) -> tfp.distributions.Distribution:
        return self._posterior((self.mean(inputs), self.log_scale(inputs)))

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs to make the layer again."""
        return dict(super().get_config(), units=self.units, initial_log_scale=self.initial_log_scale)
