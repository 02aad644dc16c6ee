"""Scores of every client on every task so far: accuracy, or the NLL of a density in three ways.

A classifier is told which task an example is of. A density need not be: p(x) of a client is the uniform mixture over
the tasks that it has learned, log p(x) = logsumexp_t log p_t(x) - log T, at most log T nats below the best task.
That is `nll`; beside it stand `nll_task_known`, each task with its own parameters, and `nll_newest`, every task
with the parameters of the newest.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
from scipy import special

from tffcl.program.client_data import ClientTask, Tensors
from tffcl.program.client_store import ClientStore
from tffcl.program.history import Event
from tffcl.program.preparation import MESSAGE_BYTES, AnyPrepared, num_bytes, parts_below
from tffcl.templates import ContinualProcess, tff_types
from tffcl.transfers import KnowledgeBase, NoTransfer

Rows = list[list[Optional[float]]]  # for each client its scores on tasks 0, 1, ...


def scores_are(process: ContinualProcess) -> str:
    """The name of a process's first score: "accuracy" or "nll"."""
    return "accuracy" if "correct" in tff_types.entries(process.evaluate.type_signature.result) else "nll"


def evaluate_tasks(
    process: ContinualProcess,
    server_state: Any,
    store: ClientStore,
    prepared: Sequence[Sequence[Optional[AnyPrepared]]],
    limit: int = MESSAGE_BYTES,
) -> dict[str, Rows]:
    """Scores of every client on every task so far, in cohorts of (client, parameters of one task) pairs.

    Args:
      process: the process.
      server_state: its state.
      store: the states of all C clients.
      prepared: `prepared[task][client]` for the tasks so far; None where a client was not enrolled. A client that has
        left is scored on its tasks all the same: this is measurement.
      limit: bytes of states and examples in a call; a larger cohort goes in several calls.

    Returns:
      The scores by name; for each client the score on tasks 0, 1, ...: "accuracy", or "nll" (mean loss) where the
      process counts no correct answers, with the two others for a density; None for a task without test examples.
    """
    own = [_own_tasks([one[client] for one in prepared]) for client in range(len(store))]
    if "losses" in tff_types.entries(process.evaluate.type_signature.result):
        return _density_scores(process, server_state, store, own, len(prepared), limit)
    scores = _no_scores(len(store), len(prepared))
    pairs = [
        (client, place) for client, (_, tasks) in enumerate(own) for place, task in enumerate(tasks) if task.num_test
    ]
    data = [_Data([own[client][1][place]]) for client, place in pairs]
    for (client, place), one in zip(pairs, _evaluate(process, server_state, store, pairs, data, limit)):
        scores[client][own[client][0][place]] = _score(one, own[client][1][place].num_test)
    return {scores_are(process): scores}


def unchanged_scores(events: Sequence[Event], name: str, num_clients: int) -> dict[str, Rows]:
    """The scores in a task in which nobody is enrolled: those at the end of the task before, and none for its own.

    Args:
      events: of the run so far.
      name: "accuracy" or "nll", with which the names of all scores start.
      num_clients: C.
    """
    ends = [event for event in events if event["event"] == "task_end"]
    if not ends:
        return {name: _no_scores(num_clients, 1)}
    return {key: [[*row, None] for row in rows] for key, rows in ends[-1].items() if key.startswith(name)}


def _own_tasks(prepared: Sequence[Optional[AnyPrepared]]) -> tuple[list[int], list[AnyPrepared]]:
    """The numbers of the tasks that a client was enrolled in, and these; its own numbers for them are 0, 1, ..."""
    own = [(number, task) for number, task in enumerate(prepared) if task is not None]
    return [number for number, _ in own], [task for _, task in own]


def _density_scores(
    process: ContinualProcess,
    server_state: Any,
    store: ClientStore,
    own: Sequence[tuple[Sequence[int], Sequence[AnyPrepared]]],
    num_tasks: int,
    limit: int,
) -> dict[str, Rows]:
    """Each task's parameters meet the test examples of all tasks; what came out is put together afterwards.

    Tasks go by the client's own numbers, `own[client]` has those of the run and the tasks.
    """
    jobs = [  # (client, task whose parameters these are, tasks whose examples these are)
        (client, view, group)
        for client, (_, tasks) in enumerate(own)
        for group in _same_context(tasks)
        for view in range(len(tasks))
    ]
    data = [_Data([own[client][1][task] for task in group]) for client, _, group in jobs]
    found = _evaluate(process, server_state, store, [job[:2] for job in jobs], data, limit)
    # losses[client][task][view]: float64 [M] of the task's test examples under that view
    losses: list[list[list[np.ndarray]]] = [[[] for _ in tasks] for _, tasks in own]
    for (client, _, group), one in zip(jobs, found):
        sizes = [own[client][1][task].num_test for task in group]
        if len(one["losses"]) != sum(sizes):  # a client that tells of another number of examples has no score
            continue
        for task, part in zip(group, np.split(np.asarray(one["losses"], np.float64), np.cumsum(sizes)[:-1])):
            losses[client][task].append(part)
    named: dict[str, Rows] = {name: _no_scores(len(store), num_tasks) for name in _DENSITY}
    for client, rows in enumerate(losses):
        for task, views in enumerate(rows):
            if views and len(views[0]):
                for name, way in _DENSITY.items():
                    named[name][client][own[client][0][task]] = float(way(np.stack(views), task).mean())
    return named


# From losses [T, M] under the parameters of each of T tasks, and the number of the task: float64 [M].
_DENSITY = {
    "nll": lambda losses, task: math.log(len(losses)) - special.logsumexp(-losses, axis=0),
    "nll_task_known": lambda losses, task: losses[task],
    "nll_newest": lambda losses, task: losses[-1],
}


def _same_context(tasks: Sequence[AnyPrepared]) -> list[list[int]]:
    """Numbers of the tasks that have test examples, in groups of equal test context."""
    groups: list[tuple[Optional[Tensors], list[int]]] = []
    for number, task in enumerate(tasks):
        if not task.num_test:
            continue
        context = task.test_data().get("context")  # None where the client keeps it
        for known, group in groups:
            if known is not None and context is not None and _equal(known, context):
                group.append(number)
                break
        else:
            groups.append((context, [number]))
    return [group for _, group in groups]


def _equal(one: Tensors, other: Tensors) -> bool:
    return set(one) == set(other) and all(np.array_equal(one[name], other[name]) for name in one)


class _Data:
    """The test examples of tasks one after the other, with the context that they share; read when needed."""

    def __init__(self, tasks: Sequence[AnyPrepared]):
        self._tasks = tasks
        self.num_bytes = sum(task.test_bytes() for task in tasks)

    def read(self) -> OrderedDict:
        """What `evaluate` takes."""
        first, *others = [task.test_data() for task in self._tasks]
        if not others:
            return first
        examples = OrderedDict(
            (name, np.concatenate([array, *(one["examples"][name] for one in others)]))
            for name, array in first["examples"].items()
        )
        return OrderedDict(context=first["context"], examples=examples)


def _evaluate(
    process: ContinualProcess,
    server_state: Any,
    store: ClientStore,
    pairs: Sequence[tuple[int, int]],
    data: Sequence[_Data],
    limit: int,
) -> list[Mapping[str, Any]]:
    """What `evaluate` says of each (client, own number of the task whose parameters are taken) with its data."""
    found: list[Mapping[str, Any]] = []
    if not pairs:
        return found
    view = num_bytes(process.task_view(store[pairs[0][0]], pairs[0][1]))
    for part in parts_below([view + one.num_bytes for one in data], limit):
        views = [process.task_view(store[client], task) for client, task in pairs[part]]
        found += process.evaluate(server_state, views, [one.read() for one in data[part]])
    return found


def _no_scores(num_clients: int, num_tasks: int) -> Rows:
    return [[None] * num_tasks for _ in range(num_clients)]


def _score(sums: Mapping[str, Any], num_test: int) -> Optional[float]:
    """The mean over a task's test examples; None from a client that tells of another number of them."""
    if sums["count"] != num_test:
        return None
    return float(sums["correct"] if "correct" in sums else sums["loss"]) / num_test


def test_of(process: ContinualProcess, state: Any, client: int, task: int, data: ClientTask) -> Mapping[str, Any]:
    """What `evaluate` says of one client's parameters of one of its tasks on the test examples of any task.

    Args:
      process: the process.
      state: `RunState`, with the client's state.
      client: its number.
      task: its own number of the task whose parameters are taken.
      data: whose test examples are scored; no foreign knowledge takes part.
    """
    nothing = NoTransfer().transfer_in(KnowledgeBase(process.knowledge_size), [[]], len(state.store))
    states = state.store.project([client], process.prepare.type_signature.parameter[1])
    raw = OrderedDict(context=data.test_context, examples=data.test)
    (prepared,) = process.prepare(state.server, states, nothing, [raw])
    view = process.task_view(state.store[client], task)
    examples = OrderedDict(context=data.test_context, examples=prepared)
    return process.evaluate(state.server, [view], [examples])[0]
