"""Controls that show whether foreign knowledge matters, and whether the choice of it does."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from tffcl.transfers.knowledge_base import KnowledgeBase, Summary
from tffcl.transfers.transfer import Transfer, past_entries, whole_number

logger = logging.getLogger(__name__)


class _Wrapped(Transfer):
    """Does as another transfer does; what differs is overridden."""

    def __init__(self, transfer: Transfer):
        self.transfer = transfer
        self.needs_summaries, self.noised = transfer.needs_summaries, transfer.noised

    def num_foreign(self, num_clients: int) -> int:
        return self.transfer.num_foreign(num_clients)

    def vectors(self, task: Any) -> np.ndarray:
        return self.transfer.vectors(task)

    def summarise(self, vectors: np.ndarray, seed: int | Sequence[int]) -> dict[str, np.ndarray] | None:
        return self.transfer.summarise(vectors, seed)

    def faults(self, summary: Summary, dimension: int) -> list[tuple[bool, str]]:
        return self.transfer.faults(summary, dimension)

    def account(self) -> dict[str, Any] | None:
        return self.transfer.account()

    def select(
        self, knowledge_base: KnowledgeBase, task: int, clients: Sequence[int], summaries: Sequence[Summary | None]
    ) -> list[list[int]]:
        return self.transfer.select(knowledge_base, task, clients, summaries)

    def transfer_in(
        self, knowledge_base: KnowledgeBase, selections: Sequence[Sequence[int]], num_clients: int
    ) -> OrderedDict:
        return self.transfer.transfer_in(knowledge_base, selections, num_clients)


class Zeroed(_Wrapped):
    """The entries that `transfer` selects, with zeros for knowledge: the same network, nothing in it."""

    def transfer_in(
        self, knowledge_base: KnowledgeBase, selections: Sequence[Sequence[int]], num_clients: int
    ) -> OrderedDict:
        sent = super().transfer_in(knowledge_base, selections, num_clients)
        return OrderedDict(sent, rows=np.zeros_like(sent["rows"]))


class RandomTask(_Wrapped):
    """As many entries as `transfer` selects, each of another task: one drawn from those it did not select.

    Drawn without replacement from the past entries of other clients. Where fewer are left than were
    selected, the last of the selection stay as they are, which is logged: at the first tasks there may be
    nothing else to take.

    Args:
      transfer: whose selection is replaced.
      seed: the draw is a function of (seed, task, client) and of the selection.
    """

    def __init__(self, transfer: Transfer, seed: int = 0):
        super().__init__(transfer)
        self.seed = whole_number(seed, "seed", 0)

    def select(
        self, knowledge_base: KnowledgeBase, task: int, clients: Sequence[int], summaries: Sequence[Summary | None]
    ) -> list[list[int]]:
        selections = super().select(knowledge_base, task, clients, summaries)
        return [
            self._replaced(knowledge_base, task, client, selection) for client, selection in zip(clients, selections)
        ]

    def _replaced(self, knowledge_base: KnowledgeBase, task: int, client: int, selection: list[int]) -> list[int]:
        others = [e for e in past_entries(knowledge_base, task, client) if e not in set(selection)]
        order = np.random.default_rng([self.seed, task, client]).permutation(len(others))
        drawn = [others[place] for place in order[: len(selection)]]
        kept = selection[len(drawn) :]
        if kept:
            logger.info("random task: client %d keeps %d selected entries in task %d", client, len(kept), task)
        return drawn + kept
