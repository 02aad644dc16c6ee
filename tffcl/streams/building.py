"""Filling tasks with documents, once it is known which labels each task has."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from tffcl.errors import StreamError
from tffcl.streams import division
from tffcl.streams.request import ORDER, SHUFFLE, Request, generator
from tffcl.streams.stream import Task, TaskStream


@dataclasses.dataclass
class _Draft:
    """A task being filled: documents of its own (a part per label), and documents that it shares."""

    client: int
    task: int
    labels: tuple[int, ...]
    own: list[np.ndarray] = dataclasses.field(default_factory=list)
    common_train: list[np.ndarray] = dataclasses.field(default_factory=list)
    common_validation: list[np.ndarray] = dataclasses.field(default_factory=list)


def num_common(documents: int, overlap: float) -> int:
    """How many of a label's `documents` all of its tasks get."""
    return int(documents * overlap + 0.5)


def build_stream(
    name: str, request: Request, capacities: Mapping[int, int], picks: list[tuple[int, ...]], overlap: float
) -> TaskStream:
    """Divides the documents between tasks with given labels, and puts each client's tasks in order.

    Args:
      name: the stream's name.
      request: what the caller of the split asked for.
      capacities: label id -> number of tasks that the label could serve; 0 makes it an excluded label.
      picks: the labels of each of the C x T tasks, client by client, before ordering.
      overlap: share of a label's documents that all of its tasks get.

    Raises:
      StreamError: a task would have no training document of one of its labels.
    """
    sequences = []
    for client in range(request.num_clients):
        own = picks[client * request.num_tasks : (client + 1) * request.num_tasks]
        # Tasks stay in the order of their making and only get a number, so that order_seed moves no document.
        order = generator(request.order_seed, ORDER, client).permutation(request.num_tasks)
        sequences.append(list(zip(order.tolist(), own)))
    excluded = tuple(label for label, count in capacities.items() if count == 0)
    return fill_stream(name, request, sequences, excluded, overlap)


def fill_stream(
    name: str,
    request: Request,
    sequences: Sequence[Sequence[tuple[int, tuple[int, ...]]]],
    excluded_labels: tuple[int, ...] = (),
    overlap: float = 0.0,
) -> TaskStream:
    """Divides the documents between tasks whose labels and places are known.

    Args:
      name: the stream's name.
      request: what the caller of the split asked for.
      sequences: for each client its tasks as (place in the client's sequence, labels).
      excluded_labels: labels that no task could pick.
      overlap: share of a label's documents that all of its tasks get.

    Raises:
      StreamError: a task would have no training document of one of its labels.
    """
    drafts = [_Draft(client, task, labels) for client, sequence in enumerate(sequences) for task, labels in sequence]
    for label in request.label_ids():
        _fill(drafts, label, request, overlap)
    tasks = {(draft.client, draft.task): _finish(draft, request) for draft in drafts}
    return TaskStream(
        name,
        tuple(tuple(tasks[client, task] for task in range(request.num_tasks)) for client in range(request.num_clients)),
        excluded_labels,
    )


def _fill(drafts: list[_Draft], label: int, request: Request, overlap: float) -> None:
    """Gives every draft that picked `label` its documents of it."""
    loads = {place: sum(map(len, draft.own)) for place, draft in enumerate(drafts) if label in draft.labels}
    if not loads:
        return
    rng = generator(request.seed, SHUFFLE, label)
    documents = rng.permutation(np.flatnonzero(request.train_labels == label))
    common = num_common(len(documents), overlap)
    train, validation = division.hold_out([documents[:common]], request.validation_share)
    for place, part in division.divide(documents[common:], loads).items():
        draft = drafts[place]
        if not len(part) and not len(train):
            raise StreamError(
                f"task {draft.task} of client {draft.client} has no training document of "
                f"{request.describe(label)}: its {len(documents)} documents cannot serve the {len(loads)} "
                "tasks that picked it; ask for min_documents=1 or more, or fewer tasks"
            )
        draft.own.append(part)
        draft.common_train.append(train)
        draft.common_validation.append(validation)


def _finish(draft: _Draft, request: Request) -> Task:
    train, validation = division.hold_out(draft.own, request.validation_share)
    return Task(
        draft.client,
        draft.task,
        draft.labels,
        train=np.concatenate([train, *draft.common_train]),
        validation=np.concatenate([validation, *draft.common_validation]),
        test=np.flatnonzero(np.isin(request.test_labels, draft.labels)),
    )
