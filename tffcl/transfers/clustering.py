"""Cluster centres of a task's documents: the second half of FedSeIT's eq. 6."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tffcl import errors

# Points [N, D], number of clusters and seed -> centres [Q, D] and labels [N].
Clustering = Callable[[np.ndarray, int, int], "tuple[np.ndarray, np.ndarray]"]


def cluster_centres(
    vectors: np.ndarray, clustering: str, most: int, min_size: int, seed: int | Sequence[int]
) -> np.ndarray:
    """Centres of the clusters that have at least `min_size` different members.

    Zero vectors (documents without a known word) are left out. The number of clusters is at most `most`,
    and at most the number of different vectors over `min_size`, so that at least one cluster is always
    large enough; equal vectors count once, for the centre of equal documents is that document.

    Args:
      vectors: float32 `[N, D]`.
      clustering: one of `CLUSTERINGS`.
      most: Q, the most clusters.
      min_size: the fewest different members of a cluster whose centre is returned.
      seed: a number or several, 0 or more.

    Returns:
      float32 `[Q', D]`, ordered by their first member; Q' <= Q is 0 where there are fewer than `min_size`
      different vectors.

    Raises:
      InputError: vectors that are not finite or not `[N, D]`.
    """
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise errors.InputError(f"clustering: expected finite vectors [N, D], found shape {vectors.shape} or NaN")
    points = vectors[np.any(vectors != 0, axis=1)].astype(np.float64)
    kinds = np.unique(points, axis=0, return_inverse=True)[1].reshape(-1)
    num_kinds = int(kinds.max()) + 1 if len(points) else 0
    num_clusters = min(most, num_kinds // min_size)
    if num_clusters == 0:
        return np.zeros([0, vectors.shape[1]], np.float32)
    state = int(np.random.SeedSequence(seed).generate_state(1)[0])
    centres, labels = CLUSTERINGS[clustering](points, num_clusters, state)
    pairs = np.unique(np.stack([labels, kinds], axis=1), axis=0)
    sizes = np.bincount(pairs[:, 0], minlength=len(centres))
    present, first = np.unique(labels, return_index=True)
    kept = [label for _, label in sorted(zip(first, present)) if sizes[label] >= min_size]
    return centres[kept].astype(np.float32)


def k_means(points: np.ndarray, num_clusters: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Centres float64 `[Q, D]` and labels int `[N]` of Lloyd's k-means, started by k-means++."""
    from sklearn import cluster

    with _quiet_and_repeatable():
        fitted = cluster.KMeans(num_clusters, n_init=1, random_state=seed).fit(points)
    return fitted.cluster_centers_, fitted.labels_


def gaussian_mixture(points: np.ndarray, num_clusters: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Means float64 `[Q, D]` and most likely components int `[N]` of a mixture of Gaussians.

    Diagonal covariances, since a cluster has far fewer members than D^2.
    """
    from sklearn import mixture

    with _quiet_and_repeatable():
        model = mixture.GaussianMixture(num_clusters, covariance_type="diag", random_state=seed)
        labels = model.fit_predict(points)
    return model.means_, labels


def k_medoids(points: np.ndarray, num_clusters: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Medoids float64 `[Q, D]` and labels int `[N]`: alternating k-medoids, started from k-means.

    A medoid is the member of its cluster whose summed Euclidean distance to all members is least (the first
    of equals), and every point belongs to its nearest medoid.
    """
    from sklearn import metrics

    distances = metrics.pairwise_distances(points.astype(np.float32))  # [N, N]: the price of medoids
    medoids = _medoids_of(distances, k_means(points, num_clusters, seed)[1])
    while True:
        nearest = np.argmin(distances[:, medoids], axis=1)
        used, labels = np.unique(nearest, return_inverse=True)
        medoids = medoids[used]
        better = _medoids_of(distances, labels)
        # The summed distance falls in every pass, or this is the last one.
        if _cost(distances, better, labels) >= _cost(distances, medoids, labels):
            return points[medoids], labels
        medoids = better


def _medoids_of(distances: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """For each label that occurs, in order, the index of the member that is nearest to all members."""
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    return np.array([own[np.argmin(distances[np.ix_(own, own)].sum(axis=1))] for own in members])


def _cost(distances: np.ndarray, medoids: np.ndarray, labels: np.ndarray) -> float:
    """The summed distance of all points to the medoids of their clusters."""
    return float(distances[np.arange(len(labels)), medoids[labels]].sum(dtype=np.float64))


@contextlib.contextmanager
def _quiet_and_repeatable() -> Iterator[None]:
    """No warnings about convergence; one thread, since several sum in an order that changes the last bits."""
    import threadpoolctl
    from sklearn import exceptions

    with warnings.catch_warnings(), threadpoolctl.threadpool_limits(1):
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
        yield


CLUSTERINGS: dict[str, Clustering] = {"kmeans": k_means, "kmedoids": k_medoids, "gmm": gaussian_mixture}
