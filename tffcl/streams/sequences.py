"""Sequences of tasks for density estimation: single labels, several datasets one after the other, given tasks.

Paul, Hong, Yu, Kersting, Mundt: Masked Autoencoders are Efficient Continual Federated Learners, 2023 (ConFedMADE),
section 4.1 "Dataset sequences", figure 4 and table 5. Labels only say which examples make a task; where several
datasets follow each other, a label is a part of one of them, or a whole one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import numpy as np

from tffcl.errors import StreamError
from tffcl.streams.assignments import checked_assignments, require_examples
from tffcl.streams.building import fill_stream
from tffcl.streams.draws import draw_sequence, usable_labels
from tffcl.streams.request import PICK, Request, check_count, check_share, generator
from tffcl.streams.stream import TaskStream

_Labels = Union[Sequence[int], np.ndarray]  # row -> dataset label id, integer [n]


def label_sequence(
    train_labels: _Labels,
    test_labels: _Labels,
    *,
    num_clients: int = 3,
    num_tasks: int = 5,
    labels_per_task: int | Sequence[int] = 1,
    pools: Sequence[Sequence[int]] | None = None,
    same_order: bool = False,
    overlap: float = 0.0,
    validation_share: float = 1 / 6,
    seed: int = 42,
    label_names: Sequence[str] | None = None,
    min_documents: int = 4,
    require_test: bool = True,
) -> TaskStream:
    """Each client draws its own sequence of labels, none of them twice; clients may draw the same ones.

    The examples of a label that n (client, task) pairs hold are divided at random into n disjoint parts, sizes
    differing by at most 1. A task's test set is every test example with one of its labels, not divided.

    >>> stream = label_sequence([0, 1, 2, 3] * 9, [0, 1, 2, 3], num_clients=2, num_tasks=3)
    >>> [[task.labels for task in tasks] for tasks in stream.tasks]
    [[(1,), (2,), (3,)], [(1,), (2,), (0,)]]

    Args:
      train_labels: dataset label id of each training example, int [n].
      test_labels: the same for the test set, int [m].
      num_clients: C.
      num_tasks: T, tasks of each client.
      labels_per_task: how many labels a task has; one number, or one for each of the T tasks.
      pools: for each of the T tasks the label ids it may draw from, e.g. first digits, then letters; any two
        are equal or disjoint. None lets every task draw from all.
      same_order: every client gets the sequence that the first one draws.
      overlap: share of a label's examples that all who hold it get; 1 divides nothing, as the published code.
      validation_share: share of a task's examples held out, stratified by label; 1/6 as in the paper's table 5.
      seed: decides the labels, their order, and the examples of each task.
      label_names: names of all dataset labels, in the order of their ids; also says which ids exist.
      min_documents: only labels with that many training examples for each client are drawn; the others are
        listed in `excluded_labels`.
      require_test: draw only labels that occur in the test set.

    Raises:
      StreamError: the data cannot give this; the message says what would be possible.
    """
    request = Request(
        train_labels,
        test_labels,
        num_clients,
        num_tasks,
        None,
        validation_share,
        seed,
        0,
        label_names,
        min_documents,
        require_test,
    )
    sizes = _sizes(labels_per_task, num_tasks)
    usable = usable_labels(request)
    drawn = [
        draw_sequence(request, usable, sizes, pools, generator(seed, PICK, 0 if same_order else client))
        for client in range(num_clients)
    ]
    excluded = tuple(label for label in request.label_ids() if label not in usable)
    check_share("overlap", overlap)
    sequences = [list(enumerate(tasks)) for tasks in drawn]
    return fill_stream("label_sequence", request, sequences, excluded, overlap)


def assigned_sequence(
    train_labels: _Labels,
    test_labels: _Labels,
    assignments: Sequence[Sequence[int | Sequence[int]]],
    *,
    overlap: float = 0.0,
    validation_share: float = 1 / 6,
    seed: int = 42,
    label_names: Sequence[str] | None = None,
    min_documents: int = 1,
    require_test: bool = True,
) -> TaskStream:
    """Each client gets the tasks that it is assigned, in that order: overlap between clients on purpose.

    Figure 4 needs clients that hold the same subset at different times. Examples are divided as in
    `label_sequence`; a client may hold a label more than once, each time with other examples.

    >>> stream = assigned_sequence([0, 1, 2] * 40, [0, 1, 2], [[0, 1], [1, (0, 2)]])
    >>> [[task.labels for task in tasks] for tasks in stream.tasks]
    [[(0,), (1,)], [(1,), (0, 2)]]

    Args:
      train_labels: dataset label id of each training example, int [n].
      test_labels: the same for the test set, int [m].
      assignments: `assignments[client][task]` is a label id or several; as many tasks for every client.
      overlap: as in `label_sequence`.
      validation_share: as in `label_sequence`.
      seed: decides the examples of each task.
      label_names: as in `label_sequence`.
      min_documents: training examples (validation included) that each task gets of each of its labels, at least.
      require_test: whether a label without test examples is an error.

    Raises:
      StreamError: a label that does not exist, or that has too few examples for the tasks that hold it.
    """
    sequences = checked_assignments(assignments)
    request = Request(
        train_labels,
        test_labels,
        len(sequences),
        len(sequences[0]),
        None,
        validation_share,
        seed,
        0,
        label_names,
        min_documents,
        require_test,
    )
    require_examples(request, sequences)
    check_share("overlap", overlap)
    tasks = [list(enumerate(tasks)) for tasks in sequences]
    return fill_stream("assigned_sequence", request, tasks, overlap=overlap)


def in_turn(num_clients: int, num_tasks: int, num_labels: int) -> list[list[int]]:
    """Assignments that deal the labels out like cards: task t of client c has label (t * C + c) mod L.

    This is the published code's sequence of digits.

    >>> in_turn(3, 5, 10)
    [[0, 3, 6, 9, 2], [1, 4, 7, 0, 3], [2, 5, 8, 1, 4]]

    Raises:
      StreamError: a number below 1.
    """
    for name, value in (("num_clients", num_clients), ("num_tasks", num_tasks), ("num_labels", num_labels)):
        check_count(name, value, 1)
    return [[(t * num_clients + c) % num_labels for t in range(num_tasks)] for c in range(num_clients)]


def _sizes(labels_per_task: int | Sequence[int], num_tasks: int) -> list[int]:
    """Labels of each task."""
    sizes = [labels_per_task] * num_tasks if isinstance(labels_per_task, (int, float)) else list(labels_per_task)
    for size in sizes:
        check_count("labels_per_task", size, 1)
    if len(sizes) != num_tasks:
        raise StreamError(f"labels_per_task has {len(sizes)} numbers; expected one, or {num_tasks} (num_tasks)")
    return [int(size) for size in sizes]
