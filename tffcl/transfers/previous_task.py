"""The previous task of every other client: FedWeIT, and FedSeIT without SIT (its algorithm 1, line 24)."""

from __future__ import annotations

from collections.abc import Sequence

from tffcl.transfers.knowledge_base import KnowledgeBase, Summary
from tffcl.transfers.transfer import Transfer, past_entries, whole_number


class PreviousTask(Transfer):
    """Each client receives A_c^(t-1) of every other client c, ordered by client.

    Args:
      include_own: also the client's own previous task, as FedSeIT's text has it (`{A_c^(t-1)}` for c = 1..C).
    """

    def __init__(self, include_own: bool = False):
        self.include_own = include_own

    def num_foreign(self, num_clients: int) -> int:
        return whole_number(num_clients, "num_clients", 1) - (0 if self.include_own else 1)

    def select(
        self, knowledge_base: KnowledgeBase, task: int, clients: Sequence[int], summaries: Sequence[Summary | None]
    ) -> list[list[int]]:
        del summaries
        entries = knowledge_base.entries
        return [
            [
                entry
                for entry in past_entries(knowledge_base, task, client, self.include_own)
                if entries[entry][1] == task - 1
            ]
            for client in clients
        ]
