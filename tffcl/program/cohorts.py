"""Calls of a process over cohorts: prepare a task of every client, once; a round of some of them; the scores of all.

A classifier is told which task an example is of. A density need not be: p(x) of a client is the uniform mixture over
the tasks that it has learned, log p(x) = logsumexp_t log p_t(x) - log T, at most log T nats below the best task.
That is `nll`; beside it stand `nll_task_known`, each task with its own parameters, and `nll_newest`, every task
with the parameters of the newest. Of a classifier after `tffcl.templates.with_task_inference` the task is inferred by
the lowest entropy (`inferred_scores`).
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
from scipy import special

from tffcl import runtime
from tffcl.archive import Shelf
from tffcl.models.network import CLASSES
from tffcl.program.client_data import SPLITS, AnyTask, ClientTask, StoredTask, Tensors, label_mask
from tffcl.program.client_files import HandleProcess
from tffcl.program.events import Event
from tffcl.program.state import ClientStore, RunState
from tffcl.program.task_data import flat, grouped, num_examples, ordered
from tffcl.templates import ContinualProcess, admission, tff_types
from tffcl.transfers import KnowledgeBase, NoTransfer, Transfer

# A call's message holds the data of its whole cohort, and stands several times in memory on its way.
MESSAGE_BYTES = 2**28
_SHARE = MESSAGE_BYTES // 16  # of an element whose data its client keeps: so many of them in a call

Rows = list[list[Optional[float]]]  # for each client its scores on tasks 0, 1, ...


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A client's task after `prepare`, with all that is frozen for the whole task.

    `training_data` gives what `next` and `end_task` take, `test_data` what `evaluate` takes.
    """

    num_test: int
    training_bytes: int
    test_bytes: int
    training_data: Callable[[], OrderedDict]
    test_data: Callable[[], OrderedDict]
    forget_training_data: Callable[[], None]


def _on_shelf(shelf: Shelf, contexts: Mapping[str, Tensors], prepared: Mapping[str, Tensors]) -> Prepared:
    """Contexts and prepared examples by split, of which a shelf keeps only so many in memory."""
    training, test = object(), object()
    train = {"context": contexts["train"], "train": prepared["train"], "validation": prepared["validation"]}
    shelf[training] = flat(train)
    shelf[test] = flat({"context": contexts["test"], "examples": prepared["test"]})
    return Prepared(
        num_examples(prepared["test"]),
        shelf.num_bytes(training),
        shelf.num_bytes(test),
        lambda: grouped(shelf[training], ("context", "train", "validation")),
        lambda: grouped(shelf[test], ("context", "examples")),
        lambda: shelf.__delitem__(training),
    )


def _at_client(task: int, num_test: int) -> Prepared:
    """What a client keeps in files: the run's number of the task is enough."""

    def data() -> OrderedDict:
        return OrderedDict(task=np.int32(task))

    # What the client's worker holds meanwhile is not known here.
    return Prepared(num_test, _SHARE, _SHARE, data, data, lambda: None)


def prepare_task(
    process: ContinualProcess,
    state: RunState,
    transfer: Transfer,
    tasks: Mapping[int, AnyTask],
    number: int,
    shelf: Shelf,
) -> dict[int, Prepared]:
    """Prepares the train, validation and test examples of a task of some clients; `number` is the run's number of it.

    Each (client, split) is an element of one cohort, with that client's state and the entries chosen for it; a cohort
    whose raw and prepared examples have more than `MESSAGE_BYTES` bytes goes in several calls.
    """
    _, state_kind, _, raw_kind = process.prepare.type_signature.parameter
    selections = state.selections[number]
    kept = isinstance(process, HandleProcess)
    pairs = [(client, split) for client in tasks for split in SPLITS]
    raws = []
    for client, split in pairs:
        raw = raw_data(tasks[client], split)
        if kept:  # the client is told what its files are to be called
            raw.update(task=np.int32(number), split=np.int32(SPLITS.index(split)))
        raws.append(ordered(raw, raw_kind.member, f"client {client}, task {number}, {split}"))
    sizes = [
        num_bytes(raw) + (_SHARE if kept else prepared_bytes(process, raw["examples"], len(selections[client])))
        for (client, _), raw in zip(pairs, raws)
    ]
    prepared: list[Tensors] = []
    for part in parts_below(sizes, MESSAGE_BYTES):
        clients = [client for client, _ in pairs[part]]
        incoming = transfer.transfer_in(state.base, [selections[client] for client in clients], len(state.store))
        prepared += process.prepare(state.server, state.store.project(clients, state_kind), incoming, raws[part])
    made: dict[int, Prepared] = {}
    for start, client in zip(range(0, len(pairs), len(SPLITS)), tasks):
        part = slice(start, start + len(SPLITS))
        of_split = dict(zip(SPLITS, prepared[part]))
        if kept:
            made[client] = _at_client(number, int(of_split["test"]["count"]))
        else:
            contexts = {split: raw["context"] for split, raw in zip(SPLITS, raws[part])}
            made[client] = _on_shelf(shelf, contexts, of_split)
    return made


def train_round(
    process: ContinualProcess, server_state: Any, store: ClientStore, clients: Sequence[int], data: Sequence[Any]
) -> tuple[Any, dict[int, Mapping[str, Any]], Mapping[str, Any]]:
    """A round of some clients, whose states it changes, except for those whose message the server refused.

    Returns:
      The server's new state; what `next` reports for each client, but for those whose worker got lost; and what the
      server measured.
    """
    states = store.project(clients, process.next.type_signature.parameter[1])
    with runtime.allow_missing_clients() as missing:
        server_state, changes, reported, measured = process.next(server_state, states, data)
    counted = [client for place, client in enumerate(clients) if place not in missing]
    for client, changed, one in zip(counted, changes, reported):
        if not admission.refusal(one):
            store.merge([client], [changed])
    return server_state, dict(zip(counted, reported)), measured


def raw_data(task: AnyTask, split: str) -> OrderedDict:
    """What `prepare` takes for one split of a task."""
    if isinstance(task, StoredTask):
        return OrderedDict(directory=task.directory)
    context = task.test_context if split == "test" else task.context
    return OrderedDict(context=context, examples=getattr(task, split))


def prepared_bytes(process: ContinualProcess, examples: Tensors, num_foreign: int) -> int:
    """Bytes that `prepare` adds to examples; an open dimension after the first is taken for the foreign one."""
    total = 0
    for name, kind in tff_types.entries(process.prepare.type_signature.result).items():
        if name not in examples:
            inner = [num_foreign if size is None else size for size in kind.shape[1:]]
            total += num_examples(examples) * int(np.prod(inner, dtype=np.int64)) * kind.dtype.itemsize
    return total


def parts_below(sizes: Sequence[int], limit: int) -> Iterator[slice]:
    """Consecutive parts of a list, each with a total size of at most `limit` or of one element alone.

    >>> list(parts_below([3, 3, 3, 9, 1], 6))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None), slice(4, 5, None)]
    """
    start, total = 0, 0
    for place, size in enumerate(sizes):
        if place > start and total + size > limit:
            yield slice(start, place)
            start, total = place, 0
        total += size
    if start < len(sizes):
        yield slice(start, len(sizes))


def num_bytes(value: Any) -> int:
    """Bytes of all arrays in nested mappings."""
    if isinstance(value, Mapping):
        return sum(map(num_bytes, value.values()))
    return int(np.asarray(value).nbytes)


def scores_are(process: ContinualProcess) -> str:
    """The name of a process's first score: "accuracy" or "nll"."""
    return "accuracy" if "correct" in tff_types.entries(process.evaluate.type_signature.result) else "nll"


def evaluate_tasks(
    process: ContinualProcess, state: RunState, prepared: Sequence[Mapping[int, Prepared]], growing: bool = False
) -> dict[str, Rows]:
    """Scores of every client on every task so far, in cohorts of (client, parameters of one task) pairs.

    With one `growing` head, the server's model is scored, once on the test set of each task, and all clients have that
    score; the classes that compete are those of the newest task, for past tasks as well.

    `prepared[task][client]` are of the clients enrolled in a task. One that has left is scored on its tasks all the
    same: this is measurement. A cohort of more than `MESSAGE_BYTES` bytes of states and examples goes in several calls.

    Returns:
      By name, `rows[client][task]`: accuracy or NLL as a mean over the task's test examples, with the two other scores
      of a density; None for a task without test examples.
    """
    # A client's own numbers of its tasks are 0, 1, ...: own[client][number] is (the run's number, the task).
    own = [
        [(task, tasks[client]) for task, tasks in enumerate(prepared) if client in tasks]
        for client in range(len(state.store))
    ]
    if "losses" in tff_types.entries(process.evaluate.type_signature.result):
        return _density_scores(process, state, own, len(prepared))
    scores = _no_scores(len(own), len(prepared))
    pairs = [
        (client, number) for client, tasks in enumerate(own) for number, (_, task) in enumerate(tasks) if task.num_test
    ]
    if growing:  # of each task the first client that has its test set
        pairs = list({own[client][number][0]: (client, number) for client, number in reversed(pairs)}.values())
    data = [[own[client][number][1]] for client, number in pairs]
    newest = prepared[-1] if growing else None
    for (client, number), sums in zip(pairs, _evaluate(process, state, pairs, data, newest)):
        place, task = own[client][number]
        for scored in range(len(own)) if growing else [client]:
            scores[scored][place] = _mean_score(sums, task.num_test)
    return {scores_are(process): scores}


def inferred_scores(
    process: ContinualProcess,
    state: RunState,
    transfer: Transfer,
    prepared: Sequence[Mapping[int, Prepared]],
    task_of: Callable[[int, int], AnyTask],
) -> dict[str, Rows]:
    """As `evaluate_tasks`, of a process with `infer`: nobody knows of which of a client's tasks an example is.

    Each task's parameters meet the test examples of all tasks that the client has had, under the labels that compete in
    that task; the lowest entropy decides, of equal ones the first task's. An example is right if its own task is chosen
    and its label the most probable there. NaN is no low entropy.

    Args:
      task_of: (client, the run's number of a task) -> the raw task, of which examples are prepared anew for the foreign
        adaptives of other tasks where `prepare` adds anything.
    """
    own = [
        [(task, tasks[client]) for task, tasks in enumerate(prepared) if client in tasks]
        for client in range(len(state.store))
    ]
    raw_type = process.prepare.type_signature.parameter[3].member
    adds = tff_types.entries(process.prepare.type_signature.result) != tff_types.entries(raw_type["examples"])
    masked = CLASSES in tff_types.entries(raw_type["context"])
    jobs = [  # as in `_density_scores`
        (client, view, group)
        for client, tasks in enumerate(own)
        for group in (
            [[number] for number, (_, task) in enumerate(tasks) if task.num_test]
            if adds
            else _same_context([task for _, task in tasks])
        )
        for view in range(len(tasks))
    ]

    def prepared_for(part: Sequence[tuple[int, int, list[int]]]) -> list[OrderedDict]:
        """The test examples of jobs, as the parameters of their views take them."""
        found = []
        for client, view, group in part:
            mask = label_mask(own[client][view][1].test_data()["context"]) if masked else {}
            found.append(_masked(_test_data([own[client][task][1] for task in group]), mask))
        again = [place for place, (_, view, group) in enumerate(part) if adds and group != [view]]
        if again:
            clients = [part[place][0] for place in again]
            numbers = [(own[client][part[place][1]][0], client) for place, client in zip(again, clients)]
            raws = [
                ordered(raw_data(task_of(client, own[client][part[place][2][0]][0]), "test"), raw_type, f"client {client}")
                for place, client in zip(again, clients)
            ]
            incoming = transfer.transfer_in(
                state.base, [state.selections[task][client] for task, client in numbers], len(state.store)
            )
            states = state.store.project(clients, process.prepare.type_signature.parameter[1])
            for place, examples in zip(again, process.prepare(state.server, states, incoming, raws)):
                found[place]["examples"] = examples
        return found

    # told[client][task]: for each view the entropies, float32 [M], and which labels are right, bool [M]
    told: list[list[list[tuple[np.ndarray, np.ndarray]]]] = [[[] for _ in tasks] for tasks in own]
    sizes = [sum(own[client][task][1].test_bytes for task in group) for client, _, group in jobs]
    if jobs:
        view_bytes = num_bytes(process.task_view(state.store[jobs[0][0]], jobs[0][1]))
        sizes = [view_bytes + size for size in sizes]
    for part in parts_below(sizes, MESSAGE_BYTES):
        views = [process.task_view(state.store[client], view) for client, view, _ in jobs[part]]
        for (client, _, group), one in zip(jobs[part], process.infer(state.server, views, prepared_for(jobs[part]))):
            counts = [own[client][task][1].num_test for task in group]
            if len(one["entropy"]) != sum(counts):  # a client that tells of another number of examples has no score
                continue
            cuts = np.cumsum(counts)[:-1]
            for task, *both in zip(group, np.split(one["entropy"], cuts), np.split(one["correct"], cuts)):
                told[client][task].append(tuple(both))
    scores = _no_scores(len(own), len(prepared))
    for client, tasks in enumerate(told):
        for number, of_views in enumerate(tasks):
            if of_views and len(of_views) == len(tasks):
                entropy = np.stack([np.nan_to_num(one, nan=np.inf) for one, _ in of_views])
                right = of_views[number][1] & (entropy.argmin(axis=0) == number)
                scores[client][own[client][number][0]] = float(right.mean())
    return {scores_are(process): scores}


def without_parameters(scores: Mapping[str, Rows], prepared: Sequence[Mapping[int, Prepared]]) -> dict[str, Rows]:
    """Scores on test sets that are every client's: a client that has had no part in a task gets nothing right there."""
    return {
        name: [
            [0.0 if score is None and client not in prepared[task] else score for task, score in enumerate(row)]
            for client, row in enumerate(rows)
        ]
        for name, rows in scores.items()
    }


def unchanged_scores(events: Sequence[Event], name: str, num_clients: int) -> dict[str, Rows]:
    """Scores, of names that start with `name`, in a task with nobody enrolled: those of the task before."""
    ends = [event for event in events if event["event"] == "task_end"]
    if not ends:
        return {name: _no_scores(num_clients, 1)}
    return {key: [[*row, None] for row in rows] for key, rows in ends[-1].items() if key.startswith(name)}


def _density_scores(
    process: ContinualProcess, state: RunState, own: Sequence[Sequence[tuple[int, Prepared]]], num_tasks: int
) -> dict[str, Rows]:
    """Each task's parameters meet the test examples of all tasks; the losses are put together afterwards."""
    jobs = [  # (client, task whose parameters these are, tasks whose examples these are), by the client's own numbers
        (client, view, group)
        for client, tasks in enumerate(own)
        for group in _same_context([task for _, task in tasks])
        for view in range(len(tasks))
    ]
    data = [[own[client][task][1] for task in group] for client, _, group in jobs]
    found = _evaluate(process, state, [job[:2] for job in jobs], data)
    # losses[client][task][view]: float64 [M] of the task's test examples under that view
    losses: list[list[list[np.ndarray]]] = [[[] for _ in tasks] for tasks in own]
    for (client, _, group), one in zip(jobs, found):
        sizes = [own[client][task][1].num_test for task in group]
        if len(one["losses"]) != sum(sizes):  # a client that tells of another number of examples has no score
            continue
        for task, part in zip(group, np.split(np.asarray(one["losses"], np.float64), np.cumsum(sizes)[:-1])):
            losses[client][task].append(part)
    named: dict[str, Rows] = {name: _no_scores(len(own), num_tasks) for name in _DENSITY}
    for client, rows in enumerate(losses):
        for task, views in enumerate(rows):
            if views and len(views[0]):
                for name, way in _DENSITY.items():
                    named[name][client][own[client][task][0]] = float(way(np.stack(views), task).mean())
    return named


# From losses [T, M] under the parameters of each of T tasks, and the number of the task: float64 [M].
_DENSITY = {
    "nll": lambda losses, task: math.log(len(losses)) - special.logsumexp(-losses, axis=0),
    "nll_task_known": lambda losses, task: losses[task],
    "nll_newest": lambda losses, task: losses[-1],
}


def _same_context(tasks: Sequence[Prepared]) -> list[list[int]]:
    """Numbers of the tasks that have test examples, in groups of equal test context."""
    groups: list[tuple[Optional[Tensors], list[int]]] = []
    for number, task in enumerate(tasks):
        if not task.num_test:
            continue
        context = task.test_data().get("context")  # None where the client keeps it
        for known, group in groups:
            if known is None or context is None or set(known) != set(context):
                continue
            if all(np.array_equal(known[name], context[name]) for name in known):
                group.append(number)
                break
        else:
            groups.append((context, [number]))
    return [group for _, group in groups]


def _evaluate(
    process: ContinualProcess,
    state: RunState,
    pairs: Sequence[tuple[int, int]],
    data: Sequence[Sequence[Prepared]],
    newest: Optional[Mapping[int, Prepared]] = None,
) -> list[Mapping[str, Any]]:
    """What `evaluate` says of each (client, own number of the task whose parameters are taken) on tasks of `data`.

    The classes that compete are those of the `newest` task where it is given.
    """
    sums: list[Mapping[str, Any]] = []
    if not pairs:
        return sums
    mask = {} if newest is None else label_mask(next(iter(newest.values())).test_data()["context"])
    view = num_bytes(process.task_view(state.store[pairs[0][0]], pairs[0][1]))
    for part in parts_below([view + sum(task.test_bytes for task in tasks) for tasks in data], MESSAGE_BYTES):
        views = [process.task_view(state.store[client], task) for client, task in pairs[part]]
        sums += process.evaluate(state.server, views, [_masked(_test_data(tasks), mask) for tasks in data[part]])
    return sums


def _masked(data: OrderedDict, mask: Mapping[str, np.ndarray]) -> OrderedDict:
    """Test data under another label mask."""
    return OrderedDict(data, context=OrderedDict(data["context"], **mask)) if mask else data


def _test_data(tasks: Sequence[Prepared]) -> OrderedDict:
    first, *others = [task.test_data() for task in tasks]
    if not others:
        return first
    examples = OrderedDict(
        (name, np.concatenate([array, *(one["examples"][name] for one in others)]))
        for name, array in first["examples"].items()
    )
    return OrderedDict(context=first["context"], examples=examples)


def _no_scores(num_clients: int, num_tasks: int) -> Rows:
    return [[None] * num_tasks for _ in range(num_clients)]


def _mean_score(sums: Mapping[str, Any], num_test: int) -> Optional[float]:
    """The mean over a task's test examples; None from a client that tells of another number of them."""
    if sums["count"] != num_test:
        return None
    return float(sums["correct"] if "correct" in sums else sums["loss"]) / num_test


def test_of(
    process: ContinualProcess,
    state: RunState,
    client: int,
    task: int,
    data: ClientTask,
    *,
    newest: Optional[ClientTask],
) -> Mapping[str, Any]:
    """What `evaluate` says of a client's parameters of its own task number `task` on the test examples of any task.

    No foreign knowledge takes part. The classes that compete are those of the `newest` task where it is given.
    """
    if newest is not None:
        data = dataclasses.replace(data, test_context={**data.test_context, **label_mask(newest.test_context)})
    nothing = NoTransfer().transfer_in(KnowledgeBase(process.knowledge_size), [[]], len(state.store))
    states = state.store.project([client], process.prepare.type_signature.parameter[1])
    raw = OrderedDict(context=data.test_context, examples=data.test)
    (prepared,) = process.prepare(state.server, states, nothing, [raw])
    view = process.task_view(state.store[client], task)
    examples = OrderedDict(context=data.test_context, examples=prepared)
    return process.evaluate(state.server, [view], [examples])[0]
