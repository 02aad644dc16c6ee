"""Selective Inter-client Transfer: each client receives the entries of the tasks that are most like its own.

Source: FedSeIT (Chaudhary et al., 2022), section 2.3, eq. 6, and algorithm 1, lines 16-21.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from tffcl import errors
from tffcl.transfers.centroids import CLUSTERINGS, CentroidPrivacy, cluster_centres
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
