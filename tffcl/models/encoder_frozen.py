"""An encoder with weights that no longer change (FIL-VER, 3.1: theta* is fixed after pre-training)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tffcl import errors
from tffcl.models.encoder_base import Encoder
from tffcl.models.network import Tensors

BATCH = 256  # images at a time: two convolutions of 28 x 28 take 40 MiB for so many, and no more


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenEncoder:
    """An encoder and its weights, which are constants wherever `encode` is traced.

    Attributes:
      encoder: the architecture.
      values: float32 `[encoder.weights.size]`, read-only.

    Raises:
      InputError: another number of weights, another dtype, or a weight that is not finite.
    """

    encoder: Encoder
    values: np.ndarray

    def __post_init__(self) -> None:
        values, size = np.array(self.values), self.encoder.weights.size
        if values.dtype != np.float32 or values.shape != (size,):
            raise errors.InputError(
                f"values: {self.encoder!r} has weights float32[{size}], found {values.dtype}{list(values.shape)}"
            )
        wrong = np.flatnonzero(~np.isfinite(values))
        if wrong.size:
            raise errors.InputError(
                f"values: weight {wrong[0]} is {values[wrong[0]]}; expected finite weights ({wrong.size} such)"
            )
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights."""
        return self.values.nbytes

    def encode(self, context: Tensors, examples: Tensors) -> tf.Tensor:
        """As `Encoder.encode`, `BATCH` examples at a time: float32 `[N, stats_size]`, N may be 0.

        Called eagerly, it runs a compiled function that is kept with the encoder.
        """
        used = {name: tf.convert_to_tensor(examples[name]) for name in self.encoder.example_type}
        context = {name: tf.convert_to_tensor(context[name]) for name in self.encoder.context_type}
        return self._compiled(context, used) if tf.executing_eagerly() else self._encode(context, used)

    @functools.cached_property
    def _compiled(self) -> Callable[[Tensors, Tensors], tf.Tensor]:
        return tf.function(self._encode, autograph=False, reduce_retracing=True)

    def _encode(self, context: Tensors, examples: Tensors) -> tf.Tensor:
        weights, size = tf.constant(self.values), self.encoder.stats_size
        count = tf.shape(next(iter(examples.values())))[0]
        batches = -(-count // BATCH)
        rows = tf.TensorArray(tf.float32, batches, infer_shape=False, element_shape=[None, size])

        def one_batch(batch: tf.Tensor, rows: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            part = {name: values[batch * BATCH : (batch + 1) * BATCH] for name, values in examples.items()}
            return batch + 1, rows.write(batch, self.encoder.encode(weights, context, part))

        # One iteration at a time: batches do not wait for each other, and the memory of ten would be in use.
        loop = tf.while_loop(lambda batch, _: batch < batches, one_batch, (0, rows), parallel_iterations=1)
        return tf.ensure_shape(loop[1].concat(), [None, size])
