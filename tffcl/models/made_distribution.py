"""MADE as a distribution of TensorFlow Probability."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Union

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tffcl import errors
from tffcl.layers.autoregressive import as_order
from tffcl.models.made import MADENetwork, draw
from tffcl.models.registry import MADEConfig


class MADE(tfp.distributions.Distribution):
    """Density of binary vectors, the uniform mixture over `num_masks` patterns of connectivity.

    Its parameters are variables, so it is trained as any distribution is:

    >>> rows = tf.constant([[0, 0, 0], [1, 1, 1]], tf.uint8)
    >>> made = MADE(input_size=3, hidden=(8,), seed=1)
    >>> optimizer = tf.keras.optimizers.Adam(0.1)
    >>> for _ in range(50):
    ...     with tf.GradientTape() as tape:
    ...         loss = -tf.reduce_mean(made.log_prob(rows))
    ...     gradients = tape.gradient(loss, made.trainable_variables)
    ...     _ = optimizer.apply_gradients(zip(gradients, made.trainable_variables))
    >>> 0.69 < float(-tf.reduce_mean(made.log_prob(rows))) < 0.75  # log 2 is the best there is
    True
    >>> made.sample(4, seed=7).shape
    TensorShape([4, 3])

    `MADE.from_task` takes parameters that were learned elsewhere. Values are float32; `log_prob` also takes
    integers and booleans. `sample` depends on its seed alone, be it an integer or an int32 `[2]` key.

    Args:
      input_size: D; the event shape is `[D]`, the batch shape `[]`.
      hidden, direct, num_masks, order_agnostic, connectivity_agnostic, order, activation, base_scale: as for
        `MADEConfig`.
      share_biases: where the parameters come from elsewhere, whether their biases are among the kernels.
      seed: of the first parameters and of the plan.
      kernels: float32 `[kernels.size]`, before connectivity; without it new variables.
      local: float32 `[local.size]`; without it new variables.
      plan: int32 `[2 + D]`, mask key and order; without it one drawn from the seed.
      observed: float32 `[D]`, 0 at dimensions that only pad: neither scored nor drawn; without it all ones.

    Raises:
      InputError: sizes, order or parameters that do not fit together.
    """

    def __init__(
        self,
        input_size: int,
        hidden: tuple[int, ...] = (500,),
        direct: bool = True,
        num_masks: int = 1,
        order_agnostic: bool = False,
        connectivity_agnostic: bool = False,
        *,
        order: Union[str, tuple[int, ...]] = "natural",
        activation: str = "relu",
        base_scale: float = 1.0,
        share_biases: bool = False,
        seed: int = 0,
        kernels: Any = None,
        local: Any = None,
        plan: Any = None,
        observed: Any = None,
        name: str = "MADE",
    ):
        parameters = dict(locals())
        config = MADEConfig(
            input_size, tuple(hidden), direct, order, order_agnostic, connectivity_agnostic, num_masks,
            activation=activation, share_biases=share_biases, base_scale=base_scale,
        )  # fmt: skip
        with tf.name_scope(name) as scope:
            self.network = network = MADENetwork(config)
            key, ones = _key(seed), np.ones(input_size)
            first_kernels, first_local = network.initial_kernels(key), network.initial_local(key)
            self.kernels = _held("kernels", network.kernels.size, kernels, first_kernels)
            self.local = _held("local", network.local.size, local, first_local)
            self.plan = network.initial_plan(key) if plan is None else _plan(plan, input_size)
            self.observed = _held("observed", input_size, ones if observed is None else observed)
            # One trace for all sizes of samples, made when the first is drawn.
            self._draw = tf.function(functools.partial(draw, network), autograph=False)
            super().__init__(
                tf.float32, tfp.distributions.NOT_REPARAMETERIZED, validate_args=False, allow_nan_stats=False,
                parameters=parameters, name=scope,
            )  # fmt: skip

    @classmethod
    def from_task(cls, network: MADENetwork, kernels: Any, local: Any, plan: Any, observed: Any = None) -> MADE:
        """The density that a client's task has learned.

        Args:
          network: the client's.
          kernels: float32 `[kernels.size]`, composed, before connectivity.
          local: float32 `[local.size]`.
          plan: int32 `[plan_size]`.
          observed: float32 `[D]`, of the task's context.

        Raises:
          InputError: a vector of another size.
        """
        known = {f.name: getattr(network.config, f.name) for f in dataclasses.fields(network.config)}
        for training_only in ("distinct_masks", "attention_start"):
            del known[training_only]
        return cls(**known, kernels=kernels, local=local, plan=plan, observed=observed)

    def log_prob_of_pattern(self, value: Any, pattern: tf.Tensor | int) -> tf.Tensor:
        """Log-probability under one pattern of connectivity, in nats, of the shape of `value` without its last axis."""
        rows, lead = self._rows(value)
        return tf.reshape(-self._losses(rows, pattern), lead)

    def _losses(self, rows: tf.Tensor, pattern: tf.Tensor | int) -> tf.Tensor:
        kernels = self.kernels * self.network.connectivity(self.plan, pattern)
        return self.network.losses(kernels, self.local, None, {"observed": self.observed}, {"x": rows}, None)

    def _log_prob(self, value: tf.Tensor) -> tf.Tensor:
        count = self.network.num_patterns
        if count == 1:
            return self.log_prob_of_pattern(value, 0)
        rows, lead = self._rows(value)
        losses = tf.map_fn(lambda j: self._losses(rows, j), tf.range(count), fn_output_signature=tf.float32)
        return tf.reshape(tf.reduce_logsumexp(-losses, axis=0) - math.log(count), lead)

    def _rows(self, value: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Values as `[N, D]`, and their leading shape."""
        value = tf.convert_to_tensor(value)
        size = self.network.config.input_size
        if value.shape.rank == 0 or value.shape[-1] != size:
            raise errors.InputError(f"value: expected a last dimension of {size}, found shape {value.shape}")
        known = tf.get_static_value(value)
        if known is not None and not np.isin(known, (0, 1)).all():
            raise errors.InputError("value: expected zeros and ones, found other values")
        return tf.reshape(tf.cast(value, tf.float32), [-1, size]), tf.shape(value)[:-1]

    def _sample_n(self, n: tf.Tensor, seed: Any = None) -> tf.Tensor:
        # TFP takes an integer for the seed of a stateful generator, whose second draw is another.
        key = _key(int(seed)) if isinstance(seed, (int, np.integer)) else tfp.random.sanitize_seed(seed)
        count = tf.convert_to_tensor(n, tf.int32)
        parameters = map(tf.convert_to_tensor, (self.kernels, self.local, self.plan, self.observed))
        return self._draw(*parameters, count, key)

    def _batch_shape(self) -> tf.TensorShape:
        return tf.TensorShape([])

    def _batch_shape_tensor(self) -> tf.Tensor:
        return tf.constant([], tf.int32)

    def _event_shape(self) -> tf.TensorShape:
        return tf.TensorShape([self.network.config.input_size])

    def _event_shape_tensor(self) -> tf.Tensor:
        return tf.constant([self.network.config.input_size])


def _key(seed: int) -> tf.Tensor:
    return tf.constant([seed & 0x7FFFFFFF, (seed >> 31) & 0x7FFFFFFF], tf.int32)


def _held(name: str, size: int, values: Any, initial: Any = None) -> Any:
    """A float32 vector of the right size; variables stay variables, and a new one stands for None."""
    if values is None:
        return tf.Variable(initial, name=name)
    vector = values if isinstance(values, tf.Variable) else tf.convert_to_tensor(values)
    if vector.shape != [size]:
        raise errors.InputError(f"{name}: expected shape [{size}], found {vector.shape}")
    return vector if vector.dtype == tf.float32 else tf.cast(vector, tf.float32)


def _plan(plan: Any, input_size: int) -> tf.Tensor:
    plan = tf.cast(tf.convert_to_tensor(plan), tf.int32)
    if plan.shape != [2 + input_size]:
        raise errors.InputError(f"plan: expected shape [{2 + input_size}], found {plan.shape}")
    return tf.concat([plan[:2], as_order(plan[2:], input_size)], 0)
