"""The Gaussian posterior of a variational embedding (FIL-VER eq. 4, 5): N(mu, diag(sigma)^2), given as log sigma.

exp of a raw log sigma overflows above 88 and is 0 below -104; here log sigma is held in [`LOWEST`, `HIGHEST`], so
that sigma is never 0 nor infinite. NaN stays NaN.

Source: Park, Kumatani, Dimitriadis: Tackling Dynamics in Federated Incremental Learning with Variational Embedding
Rehearsal, 2021 (FIL-VER).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from tffcl import errors

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
