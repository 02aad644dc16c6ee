"""The raw tasks of all clients, and what each client tells the server of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Optional, cast

import numpy as np

from tffcl.errors import InputError
from tffcl.program import checks
from tffcl.program.client_data import AnyClientData, AnyTask, ClientTask
from tffcl.program.state import as_seed
from tffcl.streams import Enrollment
from tffcl.transfers import Transfer
from tffcl.transfers.knowledge_base import Summary

Summarise = Callable[[ClientTask], np.ndarray]
_log = logging.getLogger(__name__)


class TaskData:
    """Gives the tasks of clients; keeps no more than the summaries of the latest task.

    `enrollment` says which clients are active in a task; None for all in all. `secrets`, int32 [C, 2], are set by the
    run where summaries have noise that must follow from nothing else (`tffcl.program.state`).
    """

    secrets: Optional[np.ndarray] = None

    def __init__(
        self,
        data: AnyClientData,
        transfer: Transfer,
        seed: int,
        summarise: Optional[Summarise] = None,
        enrollment: Optional[Enrollment] = None,
    ):
        self.num_clients, self.num_tasks = data.num_clients, data.num_tasks
        self.enrollment = enrollment or Enrollment.full(data.num_clients, data.num_tasks)
        self._data, self._transfer, self._seed = data, transfer, seed
        self._vectors = summarise or transfer.vectors
        self._summaries: tuple[int, dict[int, Optional[Summary]]] = (-1, {})
        self._refused: dict[int, str] = {}

    def active(self, task: int) -> tuple[int, ...]:
        """The clients that are active in a task, ascending."""
        return self.enrollment.active(task)

    def newcomers(self, task: int) -> list[int]:
        """Those of them whose first task it is."""
        return [client for client in self.active(task) if not self.enrollment.tasks_before(client, task)]

    def tasks(self, task: int, clients: Sequence[int]) -> list[Optional[AnyTask]]:
        """Task number `task` of some clients, in the places of all of them; None for every other one."""
        wanted = set(clients)
        return [self._data.task(client, task) if client in wanted else None for client in range(self.num_clients)]

    def summaries(self, task: int) -> dict[int, Optional[Summary]]:
        """What every active client tells of a task: the same at every call; None where nothing is wanted or taken."""
        if self._summaries[0] != task:
            self._refused = {}
            told = {client: self._told(client, task) for client in self.active(task)}
            self._summaries = (task, told)
        return self._summaries[1]

    def refused(self, task: int) -> dict[int, str]:
        """The clients whose summary of a task the server did not take, with the reasons."""
        self.summaries(task)
        return self._refused

    def _told(self, client: int, task: int) -> Optional[Summary]:
        if not self._transfer.needs_summaries:
            return None
        one = cast(ClientTask, self._data.task(client, task))
        vectors = np.asarray(self._vectors(one), np.float32)
        _check_vectors(vectors, one, f"client {client}, task {task}")
        root = (self._seed, client) if self.secrets is None else as_seed(self.secrets[client])
        summary = self._transfer.summarise(vectors, (*root, task))
        refusal = "" if summary is None else self._transfer.refusal(summary, vectors.shape[1])
        if refusal:
            self._refused[client] = refusal
            _log.warning("task %d: the summary of client %d is left out: %s", task, client, refusal)
            return None
        return summary


def _check_vectors(vectors: np.ndarray, task: ClientTask, where: str) -> None:
    num_examples = checks.num_examples(task.train)
    if vectors.ndim != 2 or len(vectors) != num_examples or not np.isfinite(vectors).all():
        raise InputError(
            f"{where}: summarise should give finite vectors [{num_examples}, D], found {list(vectors.shape)}"
        )
