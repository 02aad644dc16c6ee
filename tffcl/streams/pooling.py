"""Streams with less of the continual or of the federated in them: cumulative replay, and the two offline forms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tffcl.streams.stream import Task, TaskStream


def cumulative(stream: TaskStream) -> TaskStream:
    """Cumulative replay: task t trains on all that its client has had in tasks 0..t.

    Labels and validation sets are united likewise. The test set and its labels stay task t's own, so that figures per
    task mean the same as for `stream`.
    """
    tasks = [
        [_united(own[: place + 1], client, place, own[place]) for place in range(len(own))]
        for client, own in enumerate(stream.tasks)
    ]
    return _made("cumulative", stream, tasks)


def federated_offline(stream: TaskStream) -> TaskStream:
    """All tasks of each client at once, as one task.

    Its test set is the union of the client's test sets. `stream` still knows which of it belongs to which task:
    for a figure per original task, score `stream.task(client, task).test` with the one model.
    """
    tasks = [[_united(own, client, 0)] for client, own in enumerate(stream.tasks)]
    return _made("federated_offline", stream, tasks)


def offline(stream: TaskStream) -> TaskStream:
    """All tasks of all clients at once, as one task of one client; on test sets see `federated_offline`."""
    everything = [task for own in stream.tasks for task in own]
    return _made("offline", stream, [[_united(everything, 0, 0)]])


def _united(tasks: Sequence[Task], client: int, place: int, tested: Task | None = None) -> Task:
    return Task(
        client,
        place,
        tuple(sorted({label for task in tasks for label in task.labels})),
        train=_union([task.train for task in tasks]),
        validation=_union([task.validation for task in tasks]),
        test=_union([task.test for task in tasks]) if tested is None else tested.test,
        test_labels=() if tested is None else tested.labels,
    )


def _union(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Ascending, each place once: tasks may share examples."""
    return np.unique(np.concatenate(parts))


def _made(how: str, stream: TaskStream, tasks: Sequence[Sequence[Task]]) -> TaskStream:
    return TaskStream(f"{how}({stream.name})", tuple(map(tuple, tasks)), stream.excluded_labels)
