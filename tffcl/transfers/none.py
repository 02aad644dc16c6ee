"""No transfer: every client for itself."""

from __future__ import annotations

from collections.abc import Sequence

from tffcl.transfers.knowledge_base import KnowledgeBase, Summary
from tffcl.transfers.transfer import Transfer


class NoTransfer(Transfer):
    """Nobody receives anything (K = 0)."""

    def num_foreign(self, num_clients: int) -> int:
        del num_clients
        return 0

    def select(
        self, knowledge_base: KnowledgeBase, task: int, clients: Sequence[int], summaries: Sequence[Summary | None]
    ) -> list[list[int]]:
        del knowledge_base, task, summaries
        return [[] for _ in clients]
