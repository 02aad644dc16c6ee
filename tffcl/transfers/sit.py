"""Selective Inter-client Transfer: each client receives the entries of the tasks that are most like its own.

Source: FedSeIT (Chaudhary et al., 2022), section 2.3, eq. 6, and algorithm 1, lines 16-21.

A client's summary of a task is the centroids of its documents' clusters. Those with differential privacy come of
k-means that sees sums and counts through noise only: Blum, Dwork, McSherry, Nissim: Practical Privacy: the SuLQ
Framework, 2005, section 5.1, with Gaussian noise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tffcl import errors
from tffcl.transfers.knowledge_base import KnowledgeBase, Summary
from tffcl.transfers.options import SIMILARITIES
from tffcl.transfers.transfer import Transfer, past_entries

logger = logging.getLogger(__name__)


class SIT(Transfer):
    """Clients send cluster centres of their documents; the server picks the most similar past tasks.

    A client sends at most `q` centres, of clusters with at least `min_cluster_size` different documents. With Q = 200
    as in the paper, a task of N different documents has thus at most N / `min_cluster_size` clusters, and many of
    these come out too small and are not sent: q at or above the number of documents does not reveal them. A centre is
    a mean of documents, except with k-medoids, where it is the vector of a document, which is logged as a warning.

    A client with fewer than `min_cluster_size` different documents sends nothing, and receives nothing for this task;
    a task without centres is never chosen. Both are logged as warnings.

    Shown in docs/papers.md.

    Args:
      k: K, entries that a client receives.
      q: Q, the most cluster centres of a task.
      clustering: "kmeans", "kmedoids" or "gmm".
      min_cluster_size: fewest different documents of a cluster whose centre is sent.
      similarity: the paper's "mean_cosine" measures how tight a task is rather than overlap; "centred_cosine",
        "best_match" and "mmd" put a near-duplicate first (see `tffcl.transfers.similarity`).
      include_own: whether a client's own past tasks may be selected, as the paper's text lets them.
      privacy: makes the centres in the place of `clustering`; None for no noise. The size of a cluster is then its
        noised count, and `q` the number of clusters at the start, whatever the task has.

    Raises:
      InputError: a value out of range, or an unknown name.
    """

    needs_summaries = True

    def __init__(
        self,
        k: int = 3,
        q: int = 200,
        clustering: str = "kmeans",
        min_cluster_size: int = 2,
        similarity: str = "mean_cosine",
        include_own: bool = False,
        privacy: CentroidPrivacy | None = None,
    ):
        self.k, self.q = errors.check_whole("k", k, 1), errors.check_whole("q", q, 1)
        self.min_cluster_size = errors.check_whole("min_cluster_size", min_cluster_size, 1)
        self.clustering = errors.check_choice("clustering", clustering, CLUSTERINGS)
        self.similarity = errors.check_choice("similarity", similarity, SIMILARITIES)
        self.include_own = include_own
        self.privacy, self.noised = privacy, privacy is not None
        if privacy is not None and clustering != "kmeans":
            raise errors.InputError(f"clustering: noise on centroids goes with kmeans, found {clustering!r}")
        if clustering == "kmedoids":
            logger.warning("SIT: a medoid is the vector of one document, which the server will see")
        if min_cluster_size == 1:
            logger.warning("SIT: with min_cluster_size=1 the vectors of single documents are sent")

    def num_foreign(self, num_clients: int) -> int:
        del num_clients
        return self.k

    def summarise(self, vectors: np.ndarray, seed: int | Sequence[int]) -> dict[str, np.ndarray] | None:
        """Cluster centres: `centroids` float32 `[Q', D]`, or None where no cluster is large enough."""
        vectors = np.asarray(vectors, np.float32)
        if self.privacy is not None:
            centroids = self.privacy.centres(vectors, self.q, self.min_cluster_size, seed)
        else:
            centroids = cluster_centres(vectors, self.clustering, self.q, self.min_cluster_size, seed)
        return {"centroids": centroids} if len(centroids) else None

    def faults(self, summary: Summary, dimension: int) -> list[tuple[bool, str]]:
        """More than Q centroids, or none, or of another dimension than documents have."""
        rows = np.asarray(summary.get("centroids"))
        fits = rows.ndim == 2 and 1 <= len(rows) <= self.q and rows.shape[1] == dimension
        fits = fits and list(summary) == ["centroids"] and rows.dtype == np.float32
        return [(not fits, f"summary: should be `centroids`, float32 [1..{self.q}, {dimension}]")]

    def account(self) -> dict[str, Any] | None:
        return None if self.privacy is None else self.privacy.account()

    def select(
        self, knowledge_base: KnowledgeBase, task: int, clients: Sequence[int], summaries: Sequence[Summary | None]
    ) -> list[list[int]]:
        if len(set(clients)) != len(clients) or len(summaries) != len(clients):
            raise errors.InputError(f"SIT: expected different clients with a summary each, found {list(clients)}")
        from tffcl.transfers.similarity import build_sit_decision  # imports TensorFlow

        pairs, past = knowledge_base.entries, past_entries(knowledge_base, task, client=-1)  # of all clients
        entries = [entry for entry in past if knowledge_base.has_summary(entry)]
        asking = {client: summary for client, summary in zip(clients, summaries) if summary is not None}
        if silent := [client for client in clients if client not in asking]:
            reason = f"no cluster of {self.min_cluster_size} different documents in task {task}"
            logger.warning("SIT: clients %s have %s; they receive nothing for it", silent, reason)
        if without := [pairs[entry] for entry in past if not knowledge_base.has_summary(entry)]:
            logger.warning("SIT: no centroids stand for (client, task) %s; they are never chosen", without)
        selections: dict[int, list[int]] = {client: [] for client in clients}
        if entries and asking:
            centroids = [_centroids(knowledge_base.summary(entry)) for entry in entries]
            asked = {client: _centroids(summary) for client, summary in asking.items()}
            queries = [OrderedDict(rows=rows, client=np.int32(client)) for client, rows in asked.items()]
            dimensions = sorted({rows.shape[1] for rows in (*centroids, *asked.values())})
            if len(dimensions) > 1:
                raise errors.InputError(f"SIT: all centroids should have one dimension, found {dimensions}")
            sizes, owners = map(len, centroids), (pairs[entry][0] for entry in entries)
            stacked = OrderedDict(
                rows=np.concatenate(centroids), sizes=np.fromiter(sizes, np.int32), client=np.fromiter(owners, np.int32)
            )
            decision = build_sit_decision(dimensions[0], self.k, self.similarity, self.include_own)
            decided = decision(stacked, queries)
            for client, chosen, count in zip(decided["client"], decided["chosen"], decided["count"]):
                selections[int(client)] = [entries[position] for position in chosen[:count]]
        return [selections[client] for client in clients]


def _centroids(summary: Summary | None) -> np.ndarray:
    """`centroids` of a summary, which must be float32 `[Q, D]` and finite."""
    rows = None if summary is None else summary.get("centroids")
    if rows is None or rows.ndim != 2 or not np.isfinite(rows).all():
        raise errors.InputError("SIT: a summary should hold `centroids`, finite float32 [Q, D]")
    return rows.astype(np.float32)


# Points [N, D], number of clusters and seed -> centres [Q, D] and labels [N].
Clustering = Callable[[np.ndarray, int, int], "tuple[np.ndarray, np.ndarray]"]

_NOISE = 2  # keeps these draws apart from all others that follow from (seed, client, task)


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
    points = _nonzero_vectors(vectors)
    distinct = np.unique(points, axis=0, return_inverse=True)[1].reshape(-1)
    num_distinct = int(distinct.max()) + 1 if len(points) else 0
    num_clusters = min(most, num_distinct // min_size)
    if num_clusters == 0:
        return np.zeros([0, vectors.shape[1]], np.float32)
    state = int(np.random.SeedSequence(seed).generate_state(1)[0])
    centres, labels = CLUSTERINGS[clustering](points, num_clusters, state)
    pairs = np.unique(np.stack([labels, distinct], axis=1), axis=0)
    sizes = np.bincount(pairs[:, 0], minlength=len(centres))
    present, first = np.unique(labels, return_index=True)
    kept = [label for _, label in sorted(zip(first, present)) if sizes[label] >= min_size]
    return centres[kept].astype(np.float32)


def _nonzero_vectors(vectors: np.ndarray) -> np.ndarray:
    """float64 `[N', D]`: those of documents with a known word."""
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise errors.InputError(f"clustering: expected finite vectors [N, D], found shape {vectors.shape} or NaN")
    return vectors[np.any(vectors != 0, axis=1)].astype(np.float64)


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
    """Medoids float64 `[Q, D]` and labels int `[N]` of alternating k-medoids, started from k-means.

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
        better, rows = _medoids_of(distances, labels), np.arange(len(labels))
        # The summed distance falls in every pass, or this is the last one.
        costs = [distances[rows, chosen[labels]].sum(dtype=np.float64) for chosen in (better, medoids)]
        if costs[0] >= costs[1]:
            return points[medoids], labels
        medoids = better


def _medoids_of(distances: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """For each label that occurs, in order, the index of the member that is nearest to all members."""
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    return np.array([own[np.argmin(distances[np.ix_(own, own)].sum(axis=1))] for own in members])


@contextlib.contextmanager
def _quiet_and_repeatable() -> Iterator[None]:
    """No warnings about convergence; one thread, since several sum in an order that changes the last bits."""
    import threadpoolctl
    from sklearn import exceptions

    with warnings.catch_warnings(), threadpoolctl.threadpool_limits(1):
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
        yield


CLUSTERINGS: dict[str, Clustering] = {"kmeans": k_means, "kmedoids": k_medoids, "gmm": gaussian_mixture}


@dataclasses.dataclass(frozen=True)
class CentroidPrivacy:
    """Bounded documents, and noise on the sum and the count of every cluster, in every step of k-means.

    Noise on the centres of an ordinary k-means would guarantee nothing: one document moves the borders between all
    clusters. Here the first centres are drawn without looking at any document, each document belongs to the centre
    nearest to it, and the next centres follow from noised sums and counts alone.

    Sensitivity: in a step, a document clipped to the norm `clip` adds to one sum and to one count. Replaced by another
    it moves sums and counts, each in units of its own noise, by at most 2 / noise_multiplier together (two clips of
    one sum; or a clip and a count of two clusters each), so a summary is as many Gaussian mechanisms as there are
    steps. The number of documents counts as known. A document belongs to one task of one client, and enters one
    summary.

    The noise follows from `seed` alone, for which a run takes a secret of the client (`tffcl.program.state`), so that
    every call returns the same summary: the guarantee holds against anyone who does not know that secret. It needs few
    clusters: noise hides what fewer than about noise_multiplier sqrt(D) documents have in common.

    Shown with `SIT`.

    Attributes:
      clip: the largest norm of a document's vector.
      noise_multiplier: standard deviation of the noise, in units of `clip` on sums and of 1 on counts.
      steps: of k-means.
      delta: at which epsilon is reported.

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
        points = clipped(_nonzero_vectors(vectors), self.clip)
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
        """Epsilon of a summary for each of its documents, with its assumptions."""
        from tffcl import metrics

        # Each step is a vector with a sensitivity of two clips: see the class.
        epsilon = metrics.embedding_epsilon(self.noise_multiplier, self.delta, times=self.steps)
        numbers = {"steps": self.steps, "noise_multiplier": self.noise_multiplier, "clip": self.clip}
        return {"epsilon": epsilon, "delta": self.delta, "neighbouring": "one document is replaced", **numbers}


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
