"""Cluster centres with differential privacy of each document: k-means that sees sums and counts through noise only.

Blum, Dwork, McSherry, Nissim: Practical Privacy: the SuLQ Framework, 2005, section 5.1 (k-means), with Gaussian noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tffcl import errors

_NOISE = 2  # keeps these draws apart from all others that hang from (seed, client, task)


@dataclasses.dataclass(frozen=True)
class CentroidPrivacy:
    """Bounded documents, and noise on the sum and the count of every cluster, in every step of k-means.

    Noise on the centres of an ordinary k-means would guarantee nothing: one document moves the borders between all
    clusters. Here the first centres are drawn without looking at any document, each document belongs to the centre
    nearest to it, and the next centres follow from noised sums and counts alone.

    What is told: one document, clipped to the norm `clip`, in a step adds to one sum and to one count. Replaced by
    another it moves sums and counts, each in units of its own noise, by at most 2 / noise_multiplier together (two
    clips of one sum; or a clip and a count of two clusters each), so the whole is as many Gaussian mechanisms as there
    are steps. The number of documents counts as known. A document belongs to one task of one client, and is told of
    once.

    The noise follows from `seed` alone, for which a run takes a secret of the client (`tffcl.program.state`), so that
    the same is told at every call: the guarantee holds against whoever does not know that secret. It needs few
    clusters: noise hides what fewer than about noise_multiplier sqrt(D) documents have in common.

    Attributes:
      clip: the largest norm of a document's vector.
      noise_multiplier: standard deviation of the noise, in units of `clip` on sums and of 1 on counts.
      steps: of k-means.
      delta: at which epsilon is told.

    Raises:
      InputError: a number out of its range.
    """

    clip: float
    noise_multiplier: float
    steps: int = 3
    delta: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("clip", "noise_multiplier", "steps"):
            errors.check_above_zero(name, getattr(self, name))
        errors.check_between_0_and_1("delta", self.delta)

    def centres(self, vectors: np.ndarray, num_clusters: int, min_size: int, seed: int | Sequence[int]) -> np.ndarray:
        """Centres of the clusters whose noised count is at least `min_size`.

        Args:
          vectors: float32 `[N, D]`; a zero vector (a document without a known word) belongs to no cluster.
          num_clusters: at the start.
          min_size: fewest documents of a cluster, by its noised count.
          seed: a number or several, 0 or more, known to the client alone.

        Returns:
          float32 `[Q', D]` of norm `clip` at most.

        Raises:
          InputError: vectors that are not finite or not `[N, D]`.
        """
        if vectors.ndim != 2 or not np.isfinite(vectors).all():
            raise errors.InputError(f"clustering: expected finite vectors [N, D], found shape {vectors.shape} or NaN")
        points = clipped(vectors[np.any(vectors != 0, axis=1)].astype(np.float64), self.clip)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_NOISE,)))
        drawn = rng.normal(size=[num_clusters, vectors.shape[1]])
        centres = 0.5 * self.clip * drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
        for _ in range(self.steps):
            sums, counts = self.noised(*sums_and_counts(points, centres), rng)
            centres = clipped(sums / np.maximum(counts, 1.0)[:, None], self.clip)
        return centres[counts >= min_size].astype(np.float32)

    def noised(self, sums: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Sums float64 `[Q, D]` and counts float64 `[Q]` with noise on each entry."""
        return (
            sums + rng.normal(scale=self.noise_multiplier * self.clip, size=sums.shape),
            counts + rng.normal(scale=self.noise_multiplier, size=counts.shape),
        )

    def account(self) -> dict[str, float | int | str]:
        """Epsilon of what a client tells of a task, for each of its documents, with what that rests on."""
        from tffcl import metrics

        # Of vectors with sensitivity two clips, each step one of them: see the class.
        epsilon = metrics.embedding_epsilon(self.noise_multiplier, self.delta, times=self.steps)
        return {
            "epsilon": epsilon,
            "delta": self.delta,
            "neighbouring": "one document is replaced",
            "steps": self.steps,
            "noise_multiplier": self.noise_multiplier,
            "clip": self.clip,
        }


def clipped(vectors: np.ndarray, clip: float) -> np.ndarray:
    """Rows float64 `[N, D]`, those with a norm above `clip` scaled down to it."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors * np.minimum(1.0, clip / np.maximum(norms, np.finfo(np.float64).tiny))


def sums_and_counts(points: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the points nearest to each centre (the first of equals): float64 `[Q, D]` and `[Q]`."""
    # Of |p - c|^2 only what depends on c.
    nearest = np.argmin((centres**2).sum(axis=1) - 2 * points @ centres.T, axis=1)
    members = np.eye(len(centres))[nearest]
    return members.T @ points, members.sum(axis=0)
