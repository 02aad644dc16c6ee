"""Who sees what when: tasks, and a stream of tasks for each client."""

from __future__ import annotations

import dataclasses

import numpy as np

from tffcl.errors import StreamError


# Arrays have no single truth value, so a generated `==` would raise: tasks compare by identity.
@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """One task T_c^t of one client (FedSeIT, section 2.1): its labels and its documents.

    Attributes:
      client: place of the client, 0 .. C-1.
      task: place of the task in its client's sequence, 0 .. T-1.
      labels: dataset label ids in ascending order; the task's own label k is `labels[k]`.
      train: int64 [n], places in the training set to learn from, ascending, read-only.
      validation: int64 [v], places in the training set held out, disjoint from `train`; may be empty.
      test: int64 [m], places in the test set; may be empty where the test set lacks these labels.
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
        object.__setattr__(self, "labels", tuple(int(label) for label in self.labels))
        object.__setattr__(self, "test_labels", tuple(map(int, self.test_labels)) or self.labels)
        if not self.labels or list(self.labels) != sorted(set(self.labels)):
            raise StreamError(
                f"task {self.task} of client {self.client}: labels must be ascending, distinct and at least "
                f"one, got {self.labels}"
            )
        for field in ("train", "validation", "test"):
            indices = np.sort(np.asarray(getattr(self, field), np.int64).reshape(-1))
            indices.setflags(write=False)
            object.__setattr__(self, field, indices)
        if np.intersect1d(self.train, self.validation).size:
            raise StreamError(
                f"task {self.task} of client {self.client}: train and validation share documents; they must be disjoint"
            )


@dataclasses.dataclass(frozen=True, eq=False)
class TaskStream:
    """A sequence of T tasks for each of C clients.

    Attributes:
      name: how the stream was made, e.g. "non_iid".
      tasks: `tasks[client][task]`; every client has the same number of tasks.
      excluded_labels: dataset label ids that no task could pick, for want of documents; tell the user.
    """

    name: str
    tasks: tuple[tuple[Task, ...], ...]
    excluded_labels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(tasks) for tasks in self.tasks}
        if len(lengths) != 1 or 0 in lengths:
            raise StreamError(
                f"stream {self.name!r}: every client needs the same number of tasks, at least 1; got lengths "
                f"{[len(tasks) for tasks in self.tasks]}"
            )
        for client, tasks in enumerate(self.tasks):
            for place, task in enumerate(tasks):
                if (task.client, task.task) != (client, place):
                    raise StreamError(
                        f"stream {self.name!r}: tasks[{client}][{place}] says it is task {task.task} of "
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
