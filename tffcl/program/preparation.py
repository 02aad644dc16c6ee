"""Calls of a process over cohorts: prepare a task of every client, once; a round of some of them."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import tensorflow_federated as tff

from tffcl import runtime
from tffcl.archive import Shelf
from tffcl.program import checks
from tffcl.program.client_data import AnyTask, StoredTask, Tensors
from tffcl.program.client_folders import SPLITS
from tffcl.program.client_store import ClientStore
from tffcl.program.grouped import flat, grouped, ordered
from tffcl.program.handles import HandleProcess
from tffcl.templates import ContinualProcess, admission, tff_types
from tffcl.transfers import KnowledgeBase, Transfer

# A call's message holds the data of its whole cohort, and stands several times in memory on its way.
MESSAGE_BYTES = 2**28
_SHARE = MESSAGE_BYTES // 16  # of an element whose data its client keeps: so many of them in a call


class PreparedTask:
    """A client's task after `prepare`: examples with all that is frozen for the whole task.

    The arrays stand on a shelf, which keeps only so many of them in memory.

    Attributes:
      num_test: number of test examples.
    """

    def __init__(self, shelf: Shelf, contexts: Mapping[str, Tensors], prepared: Mapping[str, Tensors]):
        """Both by split."""
        self._shelf, self._key = shelf, object()
        self.num_test = checks.num_examples(prepared["test"])
        training = {split: prepared[split] for split in ("train", "validation")}
        shelf[self._key, "train"] = flat({"context": contexts["train"], **training})
        shelf[self._key, "test"] = flat({"context": contexts["test"], "examples": prepared["test"]})

    def training_data(self) -> OrderedDict:
        """What `next` and `end_task` take."""
        return grouped(self._shelf[self._key, "train"], ("context", "train", "validation"))

    def training_bytes(self) -> int:
        """Bytes of the training data."""
        return self._shelf.num_bytes((self._key, "train"))

    def test_data(self) -> OrderedDict:
        """What `evaluate` takes."""
        return grouped(self._shelf[self._key, "test"], ("context", "examples"))

    def test_bytes(self) -> int:
        """Bytes of the test data."""
        return self._shelf.num_bytes((self._key, "test"))

    def forget_training_data(self) -> None:
        """Frees the training data of a task that has ended, which may be large."""
        del self._shelf[self._key, "train"]


@dataclasses.dataclass(frozen=True)
class KeptTask:
    """A client's task after `prepare` where the client keeps it in files: the number of the task is enough.

    Attributes:
      task: the run's number of the task.
      num_test: number of test examples.
    """

    task: int
    num_test: int

    def training_data(self) -> OrderedDict:
        """What `next` and `end_task` take."""
        return OrderedDict(task=np.int32(self.task))

    def training_bytes(self) -> int:
        """A share of a call; what the client's worker holds meanwhile is not known here."""
        return _SHARE

    def test_data(self) -> OrderedDict:
        """What `evaluate` takes."""
        return self.training_data()

    def test_bytes(self) -> int:
        """As for training."""
        return _SHARE

    def forget_training_data(self) -> None:
        """Nothing: it is not here."""


AnyPrepared = Union[PreparedTask, KeptTask]


def prepare_task(
    process: ContinualProcess,
    server_state: Any,
    store: ClientStore,
    knowledge: tuple[Transfer, KnowledgeBase],
    tasks: Sequence[Optional[AnyTask]],
    selections: Sequence[Sequence[int]],
    number: int,
    shelf: Shelf,
    limit: int = MESSAGE_BYTES,
) -> list[Optional[AnyPrepared]]:
    """Prepares the train, validation and test examples of one task of every client.

    Each (client, split) is an element of one cohort, with that client's state and the entries chosen for it;
    a cohort whose message would be larger than `limit` bytes goes in several calls.

    Args:
      process: the process.
      server_state: its state.
      store: the states of all C clients.
      knowledge: the transfer, and the knowledge base that `selections` refer to.
      tasks: the raw task of each client; None for one that is not enrolled, for whom nothing is prepared.
      selections: for each client the ids of its foreign entries.
      number: the run's number of the task.
      shelf: where what is prepared is kept.
      limit: bytes of raw and prepared examples in a call.

    Returns:
      For each client its prepared task, or None.
    """
    transfer, base = knowledge
    _, state_kind, _, raw_kind = process.prepare.type_signature.parameter
    enrolled = [(client, task) for client, task in enumerate(tasks) if task is not None]
    pairs = [(client, split) for client, _ in enrolled for split in SPLITS]
    raws = [raw_data(task, split) for _, task in enrolled for split in SPLITS]
    kept = isinstance(process, HandleProcess)
    if kept:  # the client is told what its files are to be called
        raws = [
            OrderedDict(raw, task=np.int32(number), split=np.int32(SPLITS.index(split)))
            for raw, (_, split) in zip(raws, pairs)
        ]
    raws = [
        ordered(raw, raw_kind.member, f"client {client}, task {number}, {split}")
        for raw, (client, split) in zip(raws, pairs)
    ]
    sizes = [
        num_bytes(raw) + (_SHARE if kept else prepared_bytes(process, raw["examples"], len(selections[client])))
        for (client, _), raw in zip(pairs, raws)
    ]
    prepared: list[Tensors] = []
    for part in parts_below(sizes, limit):
        clients = [client for client, _ in pairs[part]]
        incoming = transfer.transfer_in(base, [selections[client] for client in clients], len(store))
        prepared += process.prepare(server_state, store.project(clients, state_kind), incoming, raws[part])
    made: list[Optional[AnyPrepared]] = [None] * len(tasks)
    for start, (client, _) in zip(range(0, len(pairs), len(SPLITS)), enrolled):
        part = slice(start, start + len(SPLITS))
        of_split = dict(zip(SPLITS, prepared[part]))
        if kept:
            made[client] = KeptTask(number, int(of_split["test"]["count"]))
        else:
            contexts = {split: raw["context"] for split, raw in zip(SPLITS, raws[part])}
            made[client] = PreparedTask(shelf, contexts, of_split)
    return made


def train_round(
    process: ContinualProcess, server_state: Any, store: ClientStore, clients: Sequence[int], data: Sequence[Any]
) -> tuple[Any, dict[int, Mapping[str, Any]], Mapping[str, Any]]:
    """A round of some clients, whose states it changes, except for those whose message the server refused.

    Args:
      process: the process.
      server_state: its state.
      store: the states of all clients.
      clients: that take part.
      data: of each of them, what `next` takes.

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
    kind = tff_types.entries(process.prepare.type_signature.result)
    return sum(
        _tensor_bytes(entry, checks.num_examples(examples), num_foreign)
        for name, entry in kind.items()
        if name not in examples
    )


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


def _tensor_bytes(kind: tff.TensorType, num_examples: int, num_foreign: int) -> int:
    inner = [num_foreign if size is None else size for size in kind.shape[1:]]
    return num_examples * int(np.prod(inner, dtype=np.int64)) * kind.dtype.itemsize


def num_bytes(value: Any) -> int:
    """Bytes of all arrays in nested mappings."""
    if isinstance(value, Mapping):
        return sum(map(num_bytes, value.values()))
    return int(np.asarray(value).nbytes)
