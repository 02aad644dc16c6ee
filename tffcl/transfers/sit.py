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
from tffcl.transfers import clustering as clusterings
from tffcl.transfers.knowledge_base import KnowledgeBase, Summary
from tffcl.transfers.private_centroids import CentroidPrivacy
from tffcl.transfers.sit_decision import build_sit_decision
from tffcl.transfers.transfer import Transfer, past_entries, whole_number

logger = logging.getLogger(__name__)

SIMILARITY_NAMES = ("mean_cosine", "centred_cosine", "best_match", "mmd")


class SIT(Transfer):
    """Clients send cluster centres of their documents; the server picks the most similar past tasks.

    What is sent: at most `q` centres, of clusters with at least `min_cluster_size` different documents.
    With Q = 200 as in the paper and a task of N different documents there are thus at most N /
    `min_cluster_size` clusters, and many of these come out too small and are not sent; q at or above the
    number of documents is no way to read them. A centre that is sent is a mean of documents, except for
    k-medoids, where it is by definition the vector of one document: that choice tells the server more, and
    says so.

    A client with fewer than `min_cluster_size` different documents sends nothing, and receives nothing for
    this task; a task of which nothing was sent is never chosen. Both are logged as warnings.

    Args:
      k: K, entries that a client receives.
      q: Q, the most cluster centres of a task.
      clustering: "kmeans", "kmedoids" or "gmm".
      min_cluster_size: fewest different documents of a cluster whose centre is sent.
      similarity: the paper's "mean_cosine" measures how tight a task is rather than overlap;
        "centred_cosine", "best_match" and "mmd" put a near-duplicate first (see
        `tffcl.transfers.similarity`).
      include_own: whether a client's own past tasks may fill its places, as the paper's text lets them.
      privacy: what the centres are made with in the place of `clustering`; None for no noise. The size of a cluster is
        then its noised count, and `q` the number of clusters at the start, whatever the task has.

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
        self.k = whole_number(k, "k", 1)
        self.q = whole_number(q, "q", 1)
        self.min_cluster_size = whole_number(min_cluster_size, "min_cluster_size", 1)
        self.clustering = _one_of(clustering, "clustering", tuple(clusterings.CLUSTERINGS))
        self.similarity = _one_of(similarity, "similarity", SIMILARITY_NAMES)
        self.include_own = include_own
        self.privacy, self.noised = privacy, privacy is not None
        if privacy is not None and clustering != "kmeans":
            raise errors.InputError(f"clustering: noise on centroids goes with kmeans; found {clustering!r}")
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
            centroids = clusterings.cluster_centres(vectors, self.clustering, self.q, self.min_cluster_size, seed)
        return {"centroids": centroids} if len(centroids) else None

    def faults(self, summary: Summary, dimension: int) -> list[tuple[bool, str]]:
        """More than Q centroids, or none, or of another dimension than documents have."""
        rows = np.asarray(summary.get("centroids"))
        right = rows.ndim == 2 and 1 <= len(rows) <= self.q and rows.shape[1] == dimension
        wanted = f"float32 [1..{self.q}, {dimension}]"
        whole = list(summary) == ["centroids"] and rows.dtype == np.float32 and right
        return [(not whole, f"summary: should be `centroids`, {wanted}")]

    def account(self) -> dict[str, Any] | None:
        return None if self.privacy is None else self.privacy.account()

    def select(
        self, knowledge_base: KnowledgeBase, task: int, clients: Sequence[int], summaries: Sequence[Summary | None]
    ) -> list[list[int]]:
        if len(set(clients)) != len(clients) or len(summaries) != len(clients):
            raise errors.InputError(f"SIT: expected different clients with a summary each, found {list(clients)}")
        past = past_entries(knowledge_base, task, client=-1)  # of everybody
        entries = [entry for entry in past if knowledge_base.has_summary(entry)]
        asking = [place for place, summary in enumerate(summaries) if summary is not None]
        self._tell_what_is_missing(knowledge_base, task, clients, summaries, past)
        selections: list[list[int]] = [[] for _ in clients]
        if not entries or not asking:
            return selections
        told = [_centroids(knowledge_base.summary(entry)) for entry in entries]
        asked = [_centroids(summaries[place]) for place in asking]
        _same_dimension([*told, *asked])
        queries = [OrderedDict(rows=rows, client=np.int32(clients[place])) for rows, place in zip(asked, asking)]
        pairs = knowledge_base.entries
        owners = [pairs[entry][0] for entry in entries]
        decision = build_sit_decision(told[0].shape[1], self.k, self.similarity, self.include_own)
        decided = decision(_stacked(told, owners), queries)
        place_of = {clients[place]: place for place in asking}
        for client, chosen, count in zip(decided["client"], decided["chosen"], decided["count"]):
            selections[place_of[int(client)]] = [entries[number] for number in chosen[:count]]
        return selections

    def _tell_what_is_missing(
        self,
        knowledge_base: KnowledgeBase,
        task: int,
        clients: Sequence[int],
        summaries: Sequence[Summary | None],
        past: Sequence[int],
    ) -> None:
        silent = [client for client, summary in zip(clients, summaries) if summary is None]
        if silent:
            what = f"no cluster of {self.min_cluster_size} different documents in task {task}"
            logger.warning("SIT: clients %s have %s; they receive nothing for it", silent, what)
        pairs = knowledge_base.entries
        mute = [pairs[entry] for entry in past if not knowledge_base.has_summary(entry)]
        if mute:
            logger.warning("SIT: no centroids stand for (client, task) %s; they are never chosen", mute)


def _centroids(summary: Summary | None) -> np.ndarray:
    """`centroids` of a summary, which must be float32 `[Q, D]` and finite."""
    found = None if summary is None else summary.get("centroids")
    if found is None or found.ndim != 2 or not np.isfinite(found).all():
        raise errors.InputError("SIT: a summary should hold `centroids`, finite float32 [Q, D]")
    return found.astype(np.float32)


def _same_dimension(centroids: Sequence[np.ndarray]) -> None:
    dimensions = sorted({rows.shape[1] for rows in centroids})
    if len(dimensions) > 1:
        raise errors.InputError(f"SIT: all centroids should have one dimension, found {dimensions}")


def _stacked(centroids: Sequence[np.ndarray], clients: Sequence[int]) -> OrderedDict:
    sizes = np.array([len(rows) for rows in centroids], np.int32)
    return OrderedDict(rows=np.concatenate(centroids), sizes=sizes, client=np.array(clients, np.int32))


def _one_of(value: str, name: str, known: Sequence[str]) -> str:
    if value not in known:
        raise errors.InputError(f"{name} should be one of {', '.join(known)}; found {value!r}")
    return value
