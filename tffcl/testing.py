"""Tests of methods: what every process must hold, whichever parts it is made of.

def test_my_method():
    plan = tffcl.Experiment(my_method, data="digits", num_clients=2, num_tasks=2, num_epochs=1).plan()
    with tffcl.runtime.in_process():
        tffcl.testing.check_process(plan.method.process(plan), plan.data)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow_federated as tff

from tffcl.errors import InputError
from tffcl.models.network import CLASSES
from tffcl.program.client_data import ClientData
from tffcl.program.state import client_key, merge, project
from tffcl.program.task_data import check_task, num_examples, ordered
from tffcl.templates import ContinualProcess, messages
from tffcl.transfers import KnowledgeBase

CLIENTS, TASKS = 3, 2  # of the data, at most


def check_process(process: ContinualProcess, data: ClientData) -> None:
    """Checks the contract (docs/contract.md) on the first two tasks of up to three clients, in the current runtime.

    In the order of the checks:
      types: `end_task` uploads `knowledge`; `evaluate` returns sums `count`, `loss` and `correct`, or `losses`.
      no examples: a first round in which nobody has examples changes neither the shared value nor a client.
      evaluation: each task's parameters score every example once, and losses are finite.
      finite: neither the server's state nor a client's view holds NaN or an infinite value.
      learning: the history changes the shared value or the parameters with which clients are evaluated.
      repeatability: the same history again gives the same values to the bit. Noise without a seed does not; check
        such a process with its aggregator left out.
      independence: a round gives a client the same state and metrics with others and alone.
      not finite: a client whose data hold NaN keeps its state, is reported (`refused` or `non_finite`), and the server
        learns what it would learn of a client without examples.

    Args:
      process: composed, or any other `ContinualProcess`.
      data: two clients and two tasks or more, with the examples at hand.

    Raises:
      AssertionError: a check fails; one line with its name, the value that differs, and the way out.
      InputError: data that the process does not take.
    """
    if data.num_clients < 2 or data.num_tasks < TASKS:
        raise InputError(
            f"data: the contract is checked on 2 clients and {TASKS} tasks or more; found {data.num_clients} clients, "
            f"{data.num_tasks} tasks"
        )
    _check_types(process)
    _check_round_without_examples(process, data)
    history = History(process, data)
    first_shared = history.server["shared"]
    untrained = history.play()
    _require(
        bool(_difference(first_shared, history.server["shared"]) or _difference(untrained, history.views(TASKS - 1))),
        "learning",
        "training changed neither the shared value nor what clients are evaluated with; "
        "return the trained values from `train`",
    )
    again = History(process, data)
    again.play()
    where = _difference(history.values(), again.values())
    _require(
        not where,
        "repeatability",
        f"{where} differs when the same history is played again; draw every random number from the keys, the seed and "
        "the round number",
    )
    _check_rounds_beside_others(history)


class History:
    """A history of a process: three clients learn two tasks in two rounds each, then evaluate all tasks so far.

    In the second round of a task the first and the last client take part, and the last has no examples. A task begins
    with 0, 1, ... K entries of the knowledge base, another number for each client.

    Attributes:
      server: the server's state.
      states: of each client.
      reported: what the computations returned beside states, with the name of each step.
    """

    def __init__(self, process: ContinualProcess, data: ClientData):
        self.process, self.data = process, data
        self.clients = range(min(CLIENTS, data.num_clients))
        self.server = process.initialize()
        first = process.initialize_clients(self.server, [client_key(0, client) for client in self.clients])
        # A run draws secrets from the operating system, and no two runs are alike.
        secret = {"secret": np.array([1, 2], np.int32)}
        self.states = [merge(state, secret if "secret" in state else {}) for state in first]
        self.reported: list[tuple[str, Any]] = []
        self._base = KnowledgeBase(process.knowledge_size)
        self._prepared: list[list[Mapping[str, Any]]] = []  # [task][client], by split

    def play(self) -> list[Any]:
        """Plays all tasks; returns each client's view of the last task before it trained."""
        views: list[Any] = []
        for task in range(TASKS):
            self.begin(task)
            views = self.views(task)
            self.round(f"task {task}, round 0", self.clients)
            self.round(f"task {task}, round 1", [0, len(self.clients) - 1], without=[len(self.clients) - 1])
            self.evaluate(task)
            self.end(task)
            for path, leaf in leaves({"server": self.server, "view of client": self.views(task)}):
                holds = leaf.dtype.kind != "f" or bool(np.isfinite(leaf).all())
                _require(holds, "finite", f"{path} holds a value that is not finite after task {task}")
        return views

    def values(self) -> dict[str, Any]:
        """All that came out so far: states and what was reported."""
        return {"server": self.server, "client": self.states, **dict(self.reported)}

    def begin(self, task: int) -> None:
        """Begins a task at every client, and prepares its examples."""
        process, most = self.process, self.process.num_foreign
        owners = [owner for owner, _ in self._base.entries]
        others = [[entry for entry, owner in enumerate(owners) if owner != client] for client in self.clients]
        incoming = self._base.transfer_in([ids[: min(most, c)] for c, ids in enumerate(others)], most)
        number = {"run_task": np.int32(task)}
        states = [merge(state, number if "run_task" in state else {}) for state in self.states]
        self.states = list(map(merge, states, process.begin_task(self.server, states, incoming)))
        by_split = {}
        for split in ("train", "validation", "test"):
            raw = [self._raw(client, task, split) for client in self.clients]
            reads = [project(state, _reads(process, "prepare")) for state in self.states]
            examples = process.prepare(self.server, reads, incoming, raw)
            by_split[split] = [dict(part, examples=one) for part, one in zip(raw, examples)]
        self._prepared.append([{split: rows[client] for split, rows in by_split.items()} for client in self.clients])

    def _raw(self, client: int, task: int, split: str) -> Any:
        one, where = self.data.task(client, task), f"client {client}, task {task}"
        check_task(self.process, one, where)
        context = one.test_context if split == "test" else one.context
        raw = OrderedDict(context=context, examples=getattr(one, split))
        return ordered(raw, self.process.prepare.type_signature.parameter[3].member, f"{where}, {split}")

    def training_data(self, client: int, count: Optional[int] = None) -> OrderedDict:
        """What `next` and `end_task` take for the newest task: its first `count` training examples; None for all."""
        own = self._prepared[-1][client]
        train = OrderedDict((name, values[:count]) for name, values in own["train"]["examples"].items())
        return OrderedDict(
            context=own["train"]["context"], train=train, validation=OrderedDict(own["validation"]["examples"])
        )

    def next(self, clients: Sequence[int], data: Sequence[Any]) -> tuple[Any, list[Any], list[Any]]:
        """A round that changes nothing here: the server's state, and the clients' changes and metrics."""
        reads = [project(self.states[client], _reads(self.process, "next")) for client in clients]
        server, changes, metrics, _ = self.process.next(self.server, reads, data)
        return server, list(changes), [OrderedDict(one) for one in metrics]

    def round(self, name: str, clients: Sequence[int], without: Sequence[int] = ()) -> None:
        """A round of some clients, of whom those in `without` have no examples."""
        data = [self.training_data(client, 0 if client in without else None) for client in clients]
        self.server, changes, metrics = self.next(clients, data)
        for client, changed, one in zip(clients, changes, metrics):
            if not messages.refusal(one):
                self.states[client] = merge(self.states[client], changed)
        self.reported.append((f"metrics of {name}", metrics))

    def end(self, task: int) -> None:
        """Ends the task at every client and at the server; what clients upload enters the knowledge base."""
        data = [self.training_data(client) for client in self.clients]
        states, uploads = self.process.end_task(self.server, self.states, data)
        self.states = list(map(merge, self.states, states))
        for client, upload in enumerate(uploads):
            self._base.add(client, task, upload["knowledge"])
        self.reported.append((f"uploads of task {task}", uploads))
        if self.process.consolidate is not None:
            seen = self._prepared[-1][0]["test"]["context"][CLASSES]
            self.server, measured = self.process.consolidate(self.server, seen)
            self.reported.append((f"consolidation of task {task}", measured))

    def views(self, task: int) -> list[Any]:
        """What each client is evaluated with on a task."""
        return [self.process.task_view(state, task) for state in self.states]

    def evaluate(self, newest: int) -> None:
        """Scores all tasks so far on their test examples."""
        pairs = [(client, task) for task in range(newest + 1) for client in self.clients]
        views = [self.process.task_view(self.states[client], task) for client, task in pairs]
        tests = [OrderedDict(self._prepared[task][client]["test"]) for client, task in pairs]
        scores = list(self.process.evaluate(self.server, views, tests))
        for (client, task), test, score in zip(pairs, tests, scores):
            where = f"client {client}, task {task} after task {newest}"
            wanted = num_examples(test["examples"])
            count = len(score["losses"]) if "losses" in score else int(score["count"])
            loss = np.asarray(score["losses" if "losses" in score else "loss"])
            _require(count == wanted, "evaluation", f"{where}: {count} examples counted, {wanted} given")
            _require(bool(np.isfinite(loss).all()), "evaluation", f"{where}: the loss is not finite, {loss}")
        self.reported.append((f"scores after task {newest}", scores))


def _check_types(process: ContinualProcess) -> None:
    uploads = messages.entries(process.end_task.type_signature.result[1])
    row, found = tff.TensorType(np.float32, [process.knowledge_size]), uploads.get("knowledge")
    _require(found == row, "types", f"end_task uploads should hold 'knowledge' of {row}, found {found}")
    scores = messages.entries(process.evaluate.type_signature.result)
    _require(
        "losses" in scores or {"count", "loss", "correct"} <= set(scores),
        "types",
        f"evaluate should return count, loss and correct, or losses of a density; found {sorted(scores)}",
    )


def _check_round_without_examples(process: ContinualProcess, data: ClientData) -> None:
    history = History(process, data)
    history.begin(0)
    before = history.server["shared"]
    server, changes, metrics = history.next(
        history.clients, [history.training_data(client, 0) for client in history.clients]
    )
    where = _difference(before, server["shared"])
    _require(
        not where, "no examples", "a round without any examples changes the shared value; give its update weight 0"
    )
    for client, (changed, reported) in enumerate(zip(changes, metrics)):
        where = "" if messages.refusal(reported) else _changed(history.states[client], changed)
        _require(not where, "no examples", f"a client without examples changes its state, {where}; return it as it was")


def _check_rounds_beside_others(history: History) -> None:
    """A round of the first client alone, beside another, and beside one without or with unusable data."""
    whole, other = history.training_data(0), history.training_data(1)
    alone = history.next([0], [whole])
    beside = history.next([0, 1], [whole, other])
    where = _difference([alone[1][0], alone[2][0]], [beside[1][0], beside[2][0]])
    _require(not where, "independence", f"client 0 differs beside another client, at {where}")
    spoiled = _with_nan(other)
    if spoiled is None:
        return
    empty = history.next([0, 1], [whole, history.training_data(1, 0)])
    mixed = history.next([0, 1], [whole, spoiled])
    refusal = messages.refusal(mixed[2][1])
    where = "" if refusal else _changed(history.states[1], mixed[1][1])
    _require(not where, "not finite", f"a client whose data hold NaN changes its state, {where}; return it as it was")
    reported = bool(refusal) or bool(np.any(mixed[2][1].get("non_finite", 0)))
    _require(reported, "not finite", "a client whose data hold NaN is not reported; return the metric `non_finite`")
    where = _difference([mixed[0], mixed[1][0], mixed[2][0]], [empty[0], empty[1][0], empty[2][0]])
    _require(
        not where, "not finite", f"NaN of one client reaches the server or another client, at {where}; give it weight 0"
    )


def _with_nan(data: Mapping[str, Any]) -> Optional[OrderedDict]:
    """The data with NaN for every float of context and training examples; None where there are no floats."""

    def is_float(values: Any) -> bool:
        return np.asarray(values).dtype.kind == "f"

    parts = {part: data[part] for part in ("context", "train")}
    if not any(is_float(values) and np.size(values) for tensors in parts.values() for values in tensors.values()):
        return None
    spoiled = {
        part: OrderedDict((name, np.full_like(v, np.nan) if is_float(v) else v) for name, v in tensors.items())
        for part, tensors in parts.items()
    }
    return OrderedDict(data, **spoiled)


def _reads(process: ContinualProcess, name: str) -> tff.Type:
    return getattr(process, name).type_signature.parameter[1]


def _changed(state: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """The entry of the changes that differs from the state; empty where none does."""
    return _difference({name: state[name] for name in changes}, dict(changes))


def _difference(one: Any, other: Any) -> str:
    """The path of the first value that differs, "a value" for a value by itself; empty where none does."""
    left, right = list(leaves(one)), list(leaves(other))
    if [path for path, _ in left] != [path for path, _ in right]:
        return "the number of values"
    for (path, value), (_, again) in zip(left, right):
        same = value.dtype == again.dtype and np.array_equal(value, again, equal_nan=value.dtype.kind == "f")
        if not same:
            return path or "a value"
    return ""


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """The arrays in nested mappings, lists and structs, each with its path: `client/0/local`."""
    return ((place, np.asarray(leaf)) for place, leaf in messages.leaves(value, path))


def _require(holds: bool, clause: str, message: str) -> None:
    if not holds:
        raise AssertionError(f"{clause}: {message}")
