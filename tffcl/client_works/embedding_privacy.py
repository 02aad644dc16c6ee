"""Clipping and Gaussian noise on each vector that a client sends."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tffcl import errors


@dataclasses.dataclass(frozen=True)
class EmbeddingPrivacy:
    """The Gaussian mechanism on each vector by itself."""

    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        for name in ("clip", "noise_multiplier"):
            if not getattr(self, name) > 0:
                raise errors.InputError(f"{name}: expected a positive number, found {getattr(self, name)}")

    def apply(self, vectors: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Vectors of norm `clip` at most, with noise; float32 `[N, d]`."""
        clipped = tf.clip_by_norm(vectors, self.clip, axes=[1])
        noise = tf.random.stateless_normal(tf.shape(vectors), key)
        return clipped + self.noise_multiplier * self.clip * noise
