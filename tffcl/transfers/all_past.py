"""Everything that the others have learned: ConFedMADE's transfer."""

from __future__ import annotations

from collections.abc import Sequence

from tffcl.transfers.knowledge_base import KnowledgeBase, Summary
from tffcl.transfers.transfer import Transfer, past_entries, whole_number


class AllPast(Transfer):
    """Each client receives every past task of every other client, the latest task first, then by client.

    Args:
      max_tasks: tasks in a client's whole sequence; K is (clients - 1) * (max_tasks - 1).
    """

    def __init__(self, max_tasks: int):
        self.max_tasks = whole_number(max_tasks, "max_tasks", 1)

    def num_foreign(self, num_clients: int) -> int:
        return (whole_number(num_clients, "num_clients", 1) - 1) * (self.max_tasks - 1)

    def select(
        self, knowledge_base: KnowledgeBase, task: int, clients: Sequence[int], summaries: Sequence[Summary | None]
    ) -> list[list[int]]:
        del summaries
        entries = knowledge_base.entries
        # Sorting is stable: among entries of one task the order by client stays.
        return [
            sorted(past_entries(knowledge_base, task, client), key=lambda entry: -entries[entry][1])
            for client in clients
        ]
