"""Streams: a sequence of tasks for each client; the forms of a stream that are pooled or have fewer tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tffcl.errors import StreamError, check_whole


# Arrays have no single truth value, so a generated `==` would raise: tasks compare by identity.
@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """One task T_c^t of one client (FedSeIT, section 2.1): its labels and its documents.

    Shown with `iid`.

    Attributes:
      client: index of the client, 0 .. C-1.
      task: index of the task in its client's sequence, 0 .. T-1.
      labels: dataset label ids in ascending order; the task's own label k is `labels[k]`.
      train: int64 [n], rows of the training set to learn from, ascending, read-only.
      validation: int64 [v], rows of the training set held out, disjoint from `train`; may be empty.
      test: int64 [m], rows of the test set; may be empty where the test set lacks these labels.
      test_labels: labels that a test example may have, ascending; `labels`, but of a task that is trained with past
        ones.
    """

    client: int
    task: int
    labels: tuple[int, ...]
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    test_labels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        where = f"task {self.task} of client {self.client}"
        object.__setattr__(self, "labels", tuple(int(label) for label in self.labels))
        object.__setattr__(self, "test_labels", tuple(map(int, self.test_labels)) or self.labels)
        if not self.labels or list(self.labels) != sorted(set(self.labels)):
            raise StreamError(f"{where}: labels must be ascending, distinct and at least one, got {self.labels}")
        for field in ("train", "validation", "test"):
            rows = np.sort(np.asarray(getattr(self, field), np.int64).reshape(-1))
            rows.setflags(write=False)
            object.__setattr__(self, field, rows)
        if np.intersect1d(self.train, self.validation).size:
            raise StreamError(f"{where}: train and validation share documents; they must be disjoint")


@dataclasses.dataclass(frozen=True, eq=False)
class TaskStream:
    """A sequence of T tasks for each of C clients.

    Shown in docs/own_parts.md.

    Attributes:
      name: how the stream was made, e.g. "non_iid".
      tasks: `tasks[client][task]`; every client has the same number of tasks.
      excluded_labels: dataset label ids that no task could pick, for want of documents; tell the user.
    """

    name: str
    tasks: tuple[tuple[Task, ...], ...]
    excluded_labels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        lengths = [len(tasks) for tasks in self.tasks]
        if len(set(lengths)) != 1 or 0 in lengths:
            raise StreamError(
                f"stream {self.name!r}: every client needs the same number of tasks, at least 1; got lengths {lengths}"
            )
        for client, tasks in enumerate(self.tasks):
            for index, task in enumerate(tasks):
                if (task.client, task.task) != (client, index):
                    raise StreamError(
                        f"stream {self.name!r}: tasks[{client}][{index}] says it is task {task.task} of "
                        f"client {task.client}; the numbers must equal the place"
                    )

    @property
    def num_clients(self) -> int:
        """C, the number of clients."""
        return len(self.tasks)

    @property
    def num_tasks(self) -> int:
        """T, the number of tasks of each client."""
        return len(self.tasks[0])

    def task(self, client: int, task: int) -> Task:
        """Task number `task` (0 .. T-1) of client number `client` (0 .. C-1).

        Raises:
          StreamError: there is no such client or task.
        """
        if not (0 <= client < self.num_clients and 0 <= task < self.num_tasks):
            raise StreamError(
                f"stream {self.name!r} has no task {task} of client {client}: clients are "
                f"0..{self.num_clients - 1}, tasks 0..{self.num_tasks - 1}"
            )
        return self.tasks[client][task]

    def named_labels(self, label_names: Sequence[str]) -> list[list[tuple[str, ...]]]:
        """`[client][task]`: names of the task's labels, given those of the data set."""
        return [[tuple(label_names[label] for label in task.labels) for task in tasks] for tasks in self.tasks]


def cumulative(stream: TaskStream) -> TaskStream:
    """Cumulative replay: task t trains on all that its client has had in tasks 0..t.

    Labels and validation sets are united likewise. The test set and its labels stay task t's own, so that figures per
    task mean the same as for `stream`.

    >>> from tffcl.streams import splits
    >>> stream = splits.iid([0, 1] * 40, [0, 1] * 5, num_clients=2, num_tasks=2)
    >>> [len(cumulative(stream).task(0, task).train) for task in range(2)]
    [17, 34]
    """
    tasks = [
        [
            dataclasses.replace(_union(own[: t + 1], client, t), test=task.test, test_labels=task.labels)
            for t, task in enumerate(own)
        ]
        for client, own in enumerate(stream.tasks)
    ]
    return _pooled("cumulative", stream, tasks)


def federated_offline(stream: TaskStream) -> TaskStream:
    """All tasks of each client at once, as one task.

    Its test set is the union of the client's test sets. `stream` still knows which of it belongs to which task:
    for a figure per original task, score `stream.task(client, task).test` with the one model.

    >>> from tffcl.streams import splits
    >>> stream = splits.iid([0, 1] * 40, [0, 1] * 5, num_clients=2, num_tasks=2)
    >>> federated_offline(stream).num_clients, federated_offline(stream).num_tasks
    (2, 1)
    """
    return _pooled("federated_offline", stream, [[_union(own, client, 0)] for client, own in enumerate(stream.tasks)])


def offline(stream: TaskStream) -> TaskStream:
    """All tasks of all clients at once, as one task of one client; on test sets see `federated_offline`.

    >>> from tffcl.streams import splits
    >>> stream = splits.iid([0, 1] * 40, [0, 1] * 5, num_clients=2, num_tasks=2)
    >>> offline(stream).num_clients, offline(stream).num_tasks
    (1, 1)
    """
    return _pooled("offline", stream, [[_union([task for own in stream.tasks for task in own], 0, 0)]])


def _union(tasks: Sequence[Task], client: int, index: int) -> Task:
    """One task with everything of several, each row once: tasks may share examples."""
    labels = tuple(sorted({label for task in tasks for label in task.labels}))
    fields = ("train", "validation", "test")
    rows = {field: np.unique(np.concatenate([getattr(task, field) for task in tasks])) for field in fields}
    return Task(client, index, labels, **rows)


def _pooled(form: str, stream: TaskStream, tasks: Sequence[Sequence[Task]]) -> TaskStream:
    return TaskStream(f"{form}({stream.name})", tuple(map(tuple, tasks)), stream.excluded_labels)


def fewer_tests(stream: TaskStream, most: int, seed: int = 42, shared: bool = False) -> TaskStream:
    """The same stream with at most `most` test documents in each task, drawn for each task anew.

    With `shared`, clients that have the same test set keep the same one.

    `non_iid` and its like give every task all test documents of its labels. With 200 clients x 10 tasks of Tag My News
    that is 4 million documents to score at the end; a hundred for each task say as much of the mean over all tasks.

    >>> from tffcl.streams import splits
    >>> stream = splits.iid([0, 1] * 40, [0, 1] * 5, num_clients=2, num_tasks=2)
    >>> len(fewer_tests(stream, most=4).task(0, 0).test)
    4

    Raises:
      StreamError: `most` is no whole number, 1 or more.
    """
    check_whole("most", most, 1, StreamError)

    def cut(task: Task) -> Task:
        if len(task.test) <= most:
            return task
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0 if shared else task.client, task.task)))
        return dataclasses.replace(task, test=rng.choice(task.test, most, replace=False))

    return dataclasses.replace(stream, tasks=tuple(tuple(map(cut, tasks)) for tasks in stream.tasks))
