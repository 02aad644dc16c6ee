"""A random sample of what the others have learned: what SIT's choice has to beat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tffcl.transfers.knowledge_base import KnowledgeBase, Summary
from tffcl.transfers.transfer import Transfer, past_entries, whole_number


class Sampled(Transfer):
    """Each client receives at most K entries, drawn without replacement from all past tasks of the others.

    Args:
      k: K, 1 or more.
      seed: the draw is a function of (seed, task, client) and of what the knowledge base holds.
    """

    def __init__(self, k: int, seed: int = 0):
        self.k = whole_number(k, "k", 1)
        self.seed = whole_number(seed, "seed", 0)

    def num_foreign(self, num_clients: int) -> int:
        del num_clients
        return self.k

    def select(
        self, knowledge_base: KnowledgeBase, task: int, clients: Sequence[int], summaries: Sequence[Summary | None]
    ) -> list[list[int]]:
        del summaries
        selections = []
        for client in clients:
            pool = past_entries(knowledge_base, task, client)
            order = np.random.default_rng([self.seed, task, client]).permutation(len(pool))
            selections.append([pool[place] for place in order[: self.k]])
        return selections
