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
from tffcl.templates import ContinualProcess, messages
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
        if not messages.refusal(one):
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
    for name, kind in messages.entries(process.prepare.type_signature.result).items():
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
    return "accuracy" if "correct" in messages.entries(process.evaluate.type_signature.result) else "nll"


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
    own = _own_tasks(state, prepared)
    if "losses" in messages.entries(process.evaluate.type_signature.result):
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


def _own_tasks(state: RunState, prepared: Sequence[Mapping[int, Prepared]]) -> list[list[tuple[int, Prepared]]]:
    """`own[client][number]` is (the run's number, the task); a client's own numbers of its tasks are 0, 1, ..."""
    return [
        [(task, tasks[client]) for task, tasks in enumerate(prepared) if client in tasks]
        for client in range(len(state.store))
    ]


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
      process: see `tffcl.templates.with_task_inference`.
      state: of the run.
      transfer: of the run; with it `prepare` adds to examples what the foreign adaptives of another task make of them.
      prepared: `prepared[task][client]`, as for `evaluate_tasks`.
      task_of: (client, the run's number of a task) -> the raw task.
    """
    own, (raw, adds) = _own_tasks(state, prepared), _prepared_from(process)
    jobs = [  # as in `_density_scores`; what `prepare` adds for one task is of one context
        (client, view, group)
        for client, tasks in enumerate(own)
        for group in _same_context([task for _, task in tasks], alone=adds)
        for view in range(len(tasks))
    ]

    def data(part: slice) -> list[OrderedDict]:
        met = [_met(own[client], view, group, CLASSES in raw["context"]) for client, view, group in jobs[part]]
        again = [place for place, (_, view, group) in enumerate(jobs[part]) if adds and group != [view]]
        others = [(client, own[client][view][0], own[client][group[0]][0]) for client, view, group in jobs[part]]
        examples = _prepared_for(process, state, transfer, [others[place] for place in again], task_of)
        for place, one in zip(again, examples):
            met[place]["examples"] = one
        return met

    sizes = [sum(own[client][task][1].test_bytes for task in group) for client, _, group in jobs]
    found = _in_calls(process, state, process.infer, [job[:2] for job in jobs], sizes, data)
    entropies, right = (_by_view(own, jobs, found, name) for name in ("entropy", "correct"))
    scores = _no_scores(len(own), len(prepared))
    for client, tasks in enumerate(own):
        for number, (place, task) in enumerate(tasks):
            views = entropies[client][number]
            if task.num_test and len(views) == len(tasks):
                chosen = np.nan_to_num(np.stack(views), nan=np.inf).argmin(axis=0)
                scores[client][place] = float(np.mean(right[client][number][number] * (chosen == number)))
    return {scores_are(process): scores}


def _prepared_from(process: ContinualProcess) -> tuple[dict[str, Any], bool]:
    """The type of raw examples with their context, and whether `prepare` adds anything to examples."""
    raw = messages.entries(process.prepare.type_signature.parameter[3])
    examples = messages.entries(process.prepare.type_signature.result)
    return {name: messages.entries(kind) for name, kind in raw.items()}, set(examples) != set(raw["examples"])


def _met(own: Sequence[tuple[int, Prepared]], view: int, group: Sequence[int], masked: bool) -> OrderedDict:
    """The test examples of some of a client's tasks, under the labels that compete in the task number `view`."""
    mask = label_mask(own[view][1].test_data()["context"]) if masked else {}
    return _masked(_test_data([own[task][1] for task in group]), mask)


def _prepared_for(
    process: ContinualProcess,
    state: RunState,
    transfer: Transfer,
    triples: Sequence[tuple[int, int, int]],
    task_of: Callable[[int, int], AnyTask],
) -> Sequence[Tensors]:
    """The test examples of (client, task as whose they are prepared, task of which they are), by the run's numbers."""
    if not triples:
        return []
    _, state_kind, _, raw_kind = process.prepare.type_signature.parameter
    clients = [client for client, _, _ in triples]
    raws = [
        ordered(raw_data(task_of(client, task), "test"), raw_kind.member, f"client {client}, task {task}, test")
        for client, _, task in triples
    ]
    entries = [state.selections[view][client] for client, view, _ in triples]
    incoming = transfer.transfer_in(state.base, entries, len(state.store))
    return process.prepare(state.server, state.store.project(clients, state_kind), incoming, raws)


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
    losses = _by_view(own, jobs, _evaluate(process, state, [job[:2] for job in jobs], data), "losses")
    named: dict[str, Rows] = {name: _no_scores(len(own), num_tasks) for name in _DENSITY}
    for client, rows in enumerate(losses):
        for task, views in enumerate(rows):
            if views and len(views[0]):
                for name, way in _DENSITY.items():
                    named[name][client][own[client][task][0]] = float(way(np.stack(views), task).mean())
    return named


def _by_view(
    own: Sequence[Sequence[tuple[int, Prepared]]],
    jobs: Sequence[tuple[int, int, list[int]]],
    found: Sequence[Mapping[str, Any]],
    name: str,
) -> list[list[list[np.ndarray]]]:
    """`values[client][task][view]`: float64 [M] of the task's test examples under the parameters of each task.

    `jobs` are (client, task whose parameters these are, tasks whose examples these are), by the client's own numbers.
    """
    values: list[list[list[np.ndarray]]] = [[[] for _ in tasks] for tasks in own]
    for (client, _, group), one in zip(jobs, found):
        sizes = [own[client][task][1].num_test for task in group]
        if len(one[name]) != sum(sizes):  # a client that tells of another number of examples has no score
            continue
        for task, part in zip(group, np.split(np.asarray(one[name], np.float64), np.cumsum(sizes)[:-1])):
            values[client][task].append(part)
    return values


# From losses [T, M] under the parameters of each of T tasks, and the number of the task: float64 [M].
_DENSITY = {
    "nll": lambda losses, task: math.log(len(losses)) - special.logsumexp(-losses, axis=0),
    "nll_task_known": lambda losses, task: losses[task],
    "nll_newest": lambda losses, task: losses[-1],
}


def _same_context(tasks: Sequence[Prepared], alone: bool = False) -> list[list[int]]:
    """Numbers of the tasks that have test examples, in groups of equal test context, or each `alone`."""
    groups: list[tuple[Optional[Tensors], list[int]]] = []
    for number, task in enumerate(tasks):
        if not task.num_test:
            continue
        if alone:
            groups.append((None, [number]))
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
    mask = {} if newest is None else label_mask(next(iter(newest.values())).test_data()["context"])
    sizes = [sum(task.test_bytes for task in tasks) for tasks in data]

    def masked(part: slice) -> list[OrderedDict]:
        return [_masked(_test_data(tasks), mask) for tasks in data[part]]

    return _in_calls(process, state, process.evaluate, pairs, sizes, masked)


def _in_calls(
    process: ContinualProcess,
    state: RunState,
    computation: Any,
    pairs: Sequence[tuple[int, int]],
    sizes: Sequence[int],
    data: Callable[[slice], list],
) -> list[Mapping[str, Any]]:
    """What `evaluate` or `infer` says of (client, own number of a task) on data of `sizes` bytes, in several calls."""
    found: list[Mapping[str, Any]] = []
    view = num_bytes(process.task_view(state.store[pairs[0][0]], pairs[0][1])) if pairs else 0
    for part in parts_below([view + size for size in sizes], MESSAGE_BYTES):
        views = [process.task_view(state.store[client], task) for client, task in pairs[part]]
        found += computation(state.server, views, data(part))
    return found


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
