"""Differential privacy for vectors that leave a client: clip, and add Gaussian noise."""

from __future__ import annotations

import dataclasses
from typing import Optional

import tensorflow as tf

from tffcl.errors import InputError, check_above_zero


@dataclasses.dataclass(frozen=True)
class EmbeddingPrivacy:
    """Clips each vector to the Euclidean norm `clip` and adds noise N(0, (noise_multiplier clip)^2) to every entry.

    The Gaussian mechanism (Dwork, Roth: The Algorithmic Foundations of Differential Privacy, 2014, appendix A), on
    every example by itself: `tffcl.metrics.embedding_epsilon` says what it guarantees for one that is sent once,
    and what it does not protect: labels, the number of examples, the model update.

    The noise does not follow from the run's seed, which the server knows and config.json holds, but from a secret: 64
    bits of the operating system in the client's own state, drawn once (`tffcl.program`). So a run that is resumed, or a
    computation that runs again when a worker gets lost, sends the same noise again and tells nothing more; a run
    with the same seed has other noise. What is left to trust: checkpoints hold the secret, as they hold the client's
    memories; the generator (TensorFlow's Philox) is none of cryptography; the low bits of floats may tell of the
    value that the noise was added to.

    The noise's norm is about noise_multiplier clip sqrt(d), much more than the vector's own unless noise_multiplier is
    small.

    Args:
      clip: largest norm that a vector keeps.
      noise_multiplier: standard deviation of the noise / clip.
      seed: for tests: the noise then follows from this and the run's seed, and there is no guarantee at all. None for
        the client's secret.

    Raises:
      InputError: a number is not finite, or not above 0; a seed that is negative.
    """

    clip: float
    noise_multiplier: float
    seed: Optional[int] = None

    def __post_init__(self) -> None:
        for name in ("clip", "noise_multiplier"):
            check_above_zero(name, getattr(self, name))
        if self.seed is not None and not 0 <= self.seed < 2**31:
            raise InputError(f"seed: expected 0 to 2**31 - 1, found {self.seed!r}")

    def apply(self, vectors: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """What may be sent instead of `vectors`.

        A vector with NaN or an infinite entry counts as zeros: it too must leave with noise alone.

        Args:
          vectors: float32 `[N, d]`.
          key: int32 `[2]`, used nowhere else: vectors with the same noise are told apart by their difference.

        Returns:
          float32 `[N, d]`.
        """
        finite = tf.reduce_all(tf.math.is_finite(vectors), axis=1, keepdims=True)
        vectors = tf.where(finite, vectors, 0.0)
        # Squares of large entries overflow; those of entries up to 1 do not.
        largest = tf.reduce_max(tf.abs(vectors), axis=1, keepdims=True)
        scaled = tf.math.divide_no_nan(vectors, largest)
        norm = tf.norm(scaled, axis=1, keepdims=True)
        # The norm is largest * norm, compared without the product, which may overflow as well.
        kept = tf.minimum(largest, tf.math.divide_no_nan(self.clip, norm))
        noise = tf.random.stateless_normal(tf.shape(vectors), key)
        return scaled * kept + self.noise_multiplier * self.clip * noise
