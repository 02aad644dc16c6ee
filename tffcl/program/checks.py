"""Data checked before TFF sees them: its own message for a bad label is an opaque error of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
import tensorflow_federated as tff

from tffcl.errors import InputError
from tffcl.program.client_data import AnyClientData, AnyTask, StoredTask
from tffcl.streams import Enrollment, EnrollmentState
from tffcl.templates import ContinualProcess, tff_types


def check_data(process: ContinualProcess, data: AnyClientData, enrollment: Optional[Enrollment] = None) -> None:
    """Checks every task of every client.

    Args:
      process: what takes the data.
      data: the data.
      enrollment: which clients are active in which tasks, and so must have training examples there; the others must
        have no examples at all. None for all in all.

    Raises:
      InputError: names the client, the task, the set and what is wrong with it; or an enrollment for other numbers of
        clients and tasks.
    """
    if data.num_clients < 1 or data.num_tasks < 1:
        raise InputError(
            f"data: need at least one client and one task; found {data.num_clients} clients, {data.num_tasks} tasks"
        )
    if enrollment is not None:
        _check_enrollment(enrollment, data)
    for client in range(data.num_clients):
        for task in range(data.num_tasks):
            one, where = data.task(client, task), f"client {client}, task {task}"
            state = EnrollmentState.ACTIVE if enrollment is None else enrollment.state(client, task)
            if state is EnrollmentState.ACTIVE:
                check_task(process, one, where)
            else:
                _check_absent(one, state, where)


def check_task(process: ContinualProcess, task: AnyTask, where: str) -> None:
    """Checks one task of one client; `where` is how messages name it.

    Of a task whose examples are in files at the client only the numbers are known.

    Raises:
      InputError: no training example, a label out of range, a value that is not finite, or a tensor of
        another name, dtype or shape than the process takes.
    """
    raw = process.prepare.type_signature.parameter[3].member
    most = process.max_classes
    if most is not None and (task.num_classes is None or not 1 <= task.num_classes <= most):
        raise InputError(f"{where}: has {task.num_classes} classes; the process takes 1 to {most}")
    if isinstance(task, StoredTask):
        _check_num_examples(task.counts["train"], where)
        return
    for name, context in (("context", task.context), ("test_context", task.test_context)):
        _check_tensors(context, raw["context"], f"{where}, {name}")
        if "tokens" in context and "vectors" in context:
            # 0 is what shorter documents are lengthened with
            _check_range(
                context["tokens"], len(context["vectors"]), f"{where}, {name}: token", "rows of its vectors", 1
            )
    for name, examples, context in (
        ("train", task.train, task.context),
        ("validation", task.validation, task.context),
        ("test", task.test, task.test_context),
    ):
        _check_examples(examples, context, raw["examples"], f"{where}, {name}", task.num_classes)
    _check_num_examples(num_examples(task.train), where)


def _check_num_examples(count: int, where: str) -> None:
    if count == 0:
        raise InputError(
            f"{where}: no training examples; every client needs at least one in every task in which it is active: say "
            "by `enrollment` in which tasks it is not"
        )


def _check_enrollment(enrollment: Enrollment, data: AnyClientData) -> None:
    if not isinstance(enrollment, Enrollment):
        raise InputError(f"enrollment must be an Enrollment, found {type(enrollment).__name__}")
    if (enrollment.num_clients, enrollment.num_tasks) != (data.num_clients, data.num_tasks):
        raise InputError(
            f"enrollment {enrollment.name!r} is for {enrollment.num_clients} clients x {enrollment.num_tasks} tasks, "
            f"but the data has {data.num_clients} clients x {data.num_tasks} tasks"
        )


def _check_absent(task: AnyTask, state: EnrollmentState, where: str) -> None:
    """Raises InputError where a client has examples of a task that it is not enrolled in."""
    for name in ("train", "validation", "test"):
        found = task.counts[name] if isinstance(task, StoredTask) else num_examples(getattr(task, name))
        if found:
            raise InputError(
                f"{where}: the client is {state.value} enrolled, but has {found} {name} examples; leave its data empty "
                "there, or make it active in the enrollment"
            )


def num_examples(examples: Mapping[str, np.ndarray]) -> int:
    """N, from the first of tensors `[N, ...]`."""
    return len(next(iter(examples.values()))) if examples else 0


def _check_examples(
    examples: Mapping[str, np.ndarray],
    context: Mapping[str, np.ndarray],
    kind: tff.StructType,
    where: str,
    num_classes: Optional[int],
) -> None:
    _check_tensors(examples, kind, where)
    sizes = {name: len(value) for name, value in examples.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"{where}: tensors with different numbers of examples: {sizes}")
    if num_classes is not None and "label" in examples:
        _check_range(examples["label"], num_classes, f"{where}: label", "the task's classes")
    if "tokens" in context and {"start", "length"} <= set(examples):
        start, length = (examples[name].astype(np.int64) for name in ("start", "length"))
        for name, places in (("start", start), ("length", length), ("start + length", start + length)):
            bound = len(context["tokens"]) + 1
            _check_range(places, bound, f"{where}: {name}", "places in the tokens of its context")


def _check_range(values: np.ndarray, bound: int, what: str, meaning: str, least: int = 0) -> None:
    wrong = np.argwhere((values < least) | (values >= bound))
    if len(wrong):
        place = tuple(wrong[0])
        raise InputError(
            f"{what} {values[place]} at row {place[0]}; expected {least}..{bound - 1}, {meaning} ({len(wrong)} such)"
        )


def _check_tensors(tensors: Any, kind: tff.StructType, where: str) -> None:
    """Names, dtypes, shapes and finiteness."""
    expected = tff_types.entries(kind)
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
