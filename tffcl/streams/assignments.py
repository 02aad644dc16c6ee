"""Tasks that a user assigns to clients by hand: checked before anything is divided."""

from __future__ import annotations

import numbers
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from tffcl.errors import StreamError
from tffcl.streams.request import Request

Sequences = list[list[tuple[int, ...]]]


def checked_assignments(assignments: Sequence[Sequence[int | Sequence[int]]]) -> Sequences:
    """`assignments[client][task]` as ascending tuples of label ids.

    Raises:
      StreamError: no clients or tasks, clients with different numbers of tasks, or a task that is no label ids.
    """
    for client, tasks in enumerate(assignments):
        if not isinstance(tasks, (Sequence, np.ndarray)):
            raise StreamError(f"assignments[{client}]: expected a client's tasks, found {tasks!r}")
    if not len(assignments) or len({len(tasks) for tasks in assignments}) != 1 or not len(assignments[0]):
        raise StreamError(
            "assignments: every client needs the same number of tasks, at least 1; got lengths "
            f"{[len(tasks) for tasks in assignments]}"
        )
    return [
        [label_ids(labels, f"assignments[{client}][{task}]") for task, labels in enumerate(tasks)]
        for client, tasks in enumerate(assignments)
    ]


def require_examples(request: Request, sequences: Sequences) -> None:
    """Checks that every assigned label exists, and has examples for all the tasks that hold it.

    Raises:
      StreamError: names the first label that lacks them, and a task that holds it.
    """
    known = set(request.label_ids())
    first: dict[int, str] = {}
    held: Counter[int] = Counter()
    for client, tasks in enumerate(sequences):
        for task, labels in enumerate(tasks):
            held.update(labels)
            for label in labels:
                first.setdefault(label, f"assignments[{client}][{task}]")
    for label, count in sorted(held.items()):
        if label not in known:
            raise StreamError(
                f"{first[label]}: {label} is no label of the dataset, which has {min(known)}..{max(known)}"
            )
        found = int(np.count_nonzero(request.train_labels == label))
        needed = count * max(1, request.min_documents)
        if found < needed:
            raise StreamError(
                f"{first[label]}: {request.describe(label)} has {found} training examples; the {count} tasks that "
                f"hold it need {needed}"
            )
        if request.require_test and not np.any(request.test_labels == label):
            raise StreamError(
                f"{first[label]}: {request.describe(label)} has no test example; assign another, or ask for "
                "require_test=False"
            )


def label_ids(labels: object, where: str) -> tuple[int, ...]:
    """One label id, or several different ones, in ascending order.

    Raises:
      StreamError: anything else; `where` is how the message names it.
    """
    several = list(labels) if isinstance(labels, Iterable) and not isinstance(labels, str) else [labels]
    for label in several:
        if isinstance(label, bool) or not isinstance(label, numbers.Integral):
            raise StreamError(f"{where}: expected a label id, or several; got {labels!r}")
    if not several or len(set(several)) < len(several):
        raise StreamError(f"{where}: expected at least one label, each once; got {labels!r}")
    return tuple(sorted(int(label) for label in several))
