"""Raw tasks on their way into a process: checked, in the order of its types, and what clients tell of them.

TFF matches the entries of a mapping to those of a type by position, whatever they are called, and its message for a bad
label is an opaque error of a worker: what comes from outside is checked and put into the type's order first.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional, cast

import numpy as np
import tensorflow_federated as tff

from tffcl.errors import InputError
from tffcl.program.client_data import SPLITS, AnyClientData, AnyTask, ClientTask, StoredTask, Tensors
from tffcl.program.state import as_seed
from tffcl.streams import Enrollment, EnrollmentState
from tffcl.templates import ContinualProcess, messages
from tffcl.transfers import Transfer
from tffcl.transfers.knowledge_base import Summary

Summarise = Callable[[ClientTask], np.ndarray]
_log = logging.getLogger(__name__)


def flat(groups: Mapping[str, Mapping[str, Any]]) -> OrderedDict[str, Any]:
    """All values of some groups under `GROUP/NAME`, as files and shelves hold them.

    >>> flat({"context": {"table": 1}, "test": {"x": 2, "y": 3}})
    OrderedDict([('context/table', 1), ('test/x', 2), ('test/y', 3)])
    """
    return OrderedDict((f"{group}/{name}", value) for group, values in groups.items() for name, value in values.items())


def grouped(values: Mapping[str, Any], groups: Iterable[str]) -> OrderedDict[str, OrderedDict[str, Any]]:
    """What `flat` was made of: the groups that are named, an empty one included.

    >>> grouped({"test/x": 2, "test/y": 3}, ["context", "test"])
    OrderedDict([('context', OrderedDict()), ('test', OrderedDict([('x', 2), ('y', 3)]))])
    """
    found: OrderedDict[str, OrderedDict[str, Any]] = OrderedDict((group, OrderedDict()) for group in groups)
    for path, value in values.items():
        group, _, name = path.partition("/")
        found[group][name] = value
    return found


def ordered(value: Any, kind: tff.Type, where: str) -> Any:
    """A value whose mappings have their entries in the order of a type, at every level; `where` is for the message.

    Raises:
      InputError: a mapping has other entries than its type.
    """
    if not isinstance(kind, tff.StructType) or not isinstance(value, Mapping):
        return value
    entries = messages.entries(kind)
    if set(value) != set(entries):
        raise InputError(f"{where}: expected the entries {list(entries)}, found {list(value)}")
    return OrderedDict((name, ordered(value[name], entry, f"{where}, {name}")) for name, entry in entries.items())


def num_examples(examples: Tensors) -> int:
    """N, from the first of tensors `[N, ...]`."""
    return len(next(iter(examples.values()))) if examples else 0


def check_data(
    process: ContinualProcess, data: AnyClientData, enrollment: Optional[Enrollment] = None, first: int = 0
) -> None:
    """Checks every task of every client, from the task number `first` on.

    Clients must have training examples in the tasks in which they are active, and no examples at all in others; without
    an enrollment all are active in all.

    Raises:
      InputError: names the client, the task, the set and what is wrong with it; or an enrollment for other numbers of
        clients and tasks.
    """
    if data.num_clients < 1 or data.num_tasks < 1:
        raise InputError(
            f"data: need at least one client and one task; found {data.num_clients} clients, {data.num_tasks} tasks"
        )
    if enrollment is not None:
        if not isinstance(enrollment, Enrollment):
            raise InputError(f"enrollment must be an Enrollment, found {type(enrollment).__name__}")
        if (enrollment.num_clients, enrollment.num_tasks) != (data.num_clients, data.num_tasks):
            raise InputError(
                f"enrollment {enrollment.name!r} is for {enrollment.num_clients} clients x {enrollment.num_tasks} "
                f"tasks, but the data has {data.num_clients} clients x {data.num_tasks} tasks"
            )
    for client in range(data.num_clients):
        for number in range(first, data.num_tasks):
            task, where = data.task(client, number), f"client {client}, task {number}"
            state = EnrollmentState.ACTIVE if enrollment is None else enrollment.state(client, number)
            if state is EnrollmentState.ACTIVE:
                check_task(process, task, where)
                continue
            for split in SPLITS:
                found = task.counts[split] if isinstance(task, StoredTask) else num_examples(getattr(task, split))
                if found:
                    raise InputError(
                        f"{where}: the client is {state.value} enrolled, but has {found} {split} examples; leave its "
                        "data empty there, or make it active in the enrollment"
                    )


def check_task(process: ContinualProcess, task: AnyTask, where: str) -> None:
    """Checks one task of one client, of examples in files only their numbers; `where` is how messages name it.

    Raises:
      InputError: no training example, a label out of range, a value that is not finite, or a tensor of
        another name, dtype or shape than the process takes.
    """
    raw = process.prepare.type_signature.parameter[3].member
    most = process.max_classes
    if most is not None and (task.num_classes is None or not 1 <= task.num_classes <= most):
        raise InputError(f"{where}: has {task.num_classes} classes; the process takes 1 to {most}")
    if isinstance(task, ClientTask):
        for name, context in (("context", task.context), ("test_context", task.test_context)):
            _check_tensors(context, raw["context"], f"{where}, {name}")
            if "tokens" in context and "vectors" in context:
                # 0 is what shorter documents are lengthened with
                _check_range(
                    context["tokens"], len(context["vectors"]), f"{where}, {name}: token", "rows of its vectors", 1
                )
        for split in SPLITS:
            context = task.test_context if split == "test" else task.context
            _check_examples(getattr(task, split), context, raw["examples"], f"{where}, {split}", task.num_classes)
    if not (task.counts["train"] if isinstance(task, StoredTask) else num_examples(task.train)):
        raise InputError(
            f"{where}: no training examples; every client needs at least one in every task in which it is active: say "
            "by `enrollment` in which tasks it is not"
        )


def _check_examples(
    examples: Tensors, context: Tensors, kind: tff.StructType, where: str, num_classes: Optional[int]
) -> None:
    _check_tensors(examples, kind, where)
    sizes = {name: len(value) for name, value in examples.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"{where}: tensors with different numbers of examples: {sizes}")
    if num_classes is not None and "label" in examples:
        labels = examples["label"]
        _check_range(labels, num_classes, f"{where}: label", "the task's classes")
        if "classes" in context and not context["classes"][labels].all():
            row = int(np.flatnonzero(~context["classes"][labels])[0])
            raise InputError(f"{where}: label {labels[row]} at row {row} may not occur by the context's `classes`")
    if "tokens" in context and {"start", "length"} <= set(examples):
        start, length = (examples[name].astype(np.int64) for name in ("start", "length"))
        for name, places in (("start", start), ("length", length), ("start + length", start + length)):
            _check_range(places, len(context["tokens"]) + 1, f"{where}: {name}", "places in the tokens of its context")


def _check_range(values: np.ndarray, bound: int, what: str, meaning: str, least: int = 0) -> None:
    wrong = np.argwhere((values < least) | (values >= bound))
    if len(wrong):
        place = tuple(wrong[0])
        raise InputError(
            f"{what} {values[place]} at row {place[0]}; expected {least}..{bound - 1}, {meaning} ({len(wrong)} such)"
        )


def _check_tensors(tensors: Any, kind: tff.StructType, where: str) -> None:
    """Names, dtypes, shapes and finiteness."""
    expected = messages.entries(kind)
    if not isinstance(tensors, Mapping):
        found = type(tensors).__name__
        raise InputError(
            f"{where}: expected a mapping of the tensors {list(expected)}, found {found}; {{}} is one of none"
        )
    if set(tensors) != set(expected):
        raise InputError(f"{where}: expected the tensors {list(expected)}, found {list(tensors)}")
    for name, entry in expected.items():
        value = np.asarray(tensors[name])
        fits = value.dtype == entry.dtype and value.ndim == len(entry.shape)
        if not fits or any(want not in (None, found) for want, found in zip(entry.shape, value.shape)):
            raise InputError(f"{where}: {name} should be {entry}, found {value.dtype}{list(value.shape)}")
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            row = int(np.argwhere(~np.isfinite(value))[0][0]) if value.ndim else 0
            raise InputError(f"{where}: {name} holds a value that is not finite, at row {row}")


class TaskData:
    """The raw tasks of all clients, and what each client tells the server of its own (no more than of the latest task).

    Without an enrollment all are active in all. `secrets`, int32 [C, 2], are set by the run where summaries have noise
    that must follow from nothing else (`tffcl.program.state`).
    """

    secrets: Optional[np.ndarray] = None

    def __init__(
        self,
        data: AnyClientData,
        transfer: Transfer,
        seed: int,
        summarise: Optional[Summarise] = None,
        enrollment: Optional[Enrollment] = None,
    ):
        self.num_clients, self.num_tasks = data.num_clients, data.num_tasks
        self.enrollment = enrollment or Enrollment.full(data.num_clients, data.num_tasks)
        self.task = data.task
        self.growing = bool(getattr(data, "growing", False))  # one head over all classes seen, the same for all clients
        self.common_tests = bool(getattr(data, "common_tests", False))  # also of clients without a part in a task
        self._transfer, self._seed, self._vectors = transfer, seed, summarise or transfer.vectors
        self._summaries: tuple[int, dict[int, Optional[Summary]]] = (-1, {})
        self._refused: dict[int, str] = {}

    def active(self, task: int) -> tuple[int, ...]:
        """The clients that are active in a task, ascending."""
        return self.enrollment.active(task)

    def newcomers(self, task: int) -> list[int]:
        """Those of them whose first task it is."""
        return [client for client in self.active(task) if not self.enrollment.tasks_before(client, task)]

    def summaries(self, task: int) -> dict[int, Optional[Summary]]:
        """What every active client tells of a task: the same at every call; None where nothing is wanted or taken."""
        if self._summaries[0] != task:
            self._refused = {}
            self._summaries = (task, {client: self._summary(client, task) for client in self.active(task)})
        return self._summaries[1]

    def refused(self, task: int) -> dict[int, str]:
        """The clients whose summary of a task the server did not take, with the reasons."""
        self.summaries(task)
        return self._refused

    def _summary(self, client: int, number: int) -> Optional[Summary]:
        if not self._transfer.needs_summaries:
            return None
        task = cast(ClientTask, self.task(client, number))
        vectors, size = np.asarray(self._vectors(task), np.float32), num_examples(task.train)
        if vectors.ndim != 2 or len(vectors) != size or not np.isfinite(vectors).all():
            raise InputError(
                f"client {client}, task {number}: summarise should give finite vectors [{size}, D], found "
                f"{list(vectors.shape)}"
            )
        root = (self._seed, client) if self.secrets is None else as_seed(self.secrets[client])
        summary = self._transfer.summarise(vectors, (*root, number))
        refusal = "" if summary is None else self._transfer.refusal(summary, vectors.shape[1])
        if refusal:
            self._refused[client] = refusal
            _log.warning("task %d: the summary of client %d is left out: %s", number, client, refusal)
            return None
        return summary
