"""Who learns what, and when: the stream of an experiment. No TensorFlow here."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Sequence
from typing import Any, Optional

from tffcl import datasets, streams
from tffcl.datasets import raw_files
from tffcl.errors import DatasetError, InputError, StreamError
from tffcl.experiment.experiment import Experiment
from tffcl.experiment.groups import ENROLLMENTS, SCENARIOS
from tffcl.options import OptionError

logger = logging.getLogger(__name__)

_MOST_TABLE_BYTES = 1 << 22  # 1,000 clients in 2,000 tasks
_MOST_CLIENTS = 10  # whose tasks or enrolment are printed


def label_stream(experiment: Experiment, dataset: Any, num_clients: int) -> streams.TaskStream:
    """Tasks of a few labels each.

    Args:
      experiment: scenario and sizes.
      dataset: has `train_labels`, `test_labels` and `label_names`.
      num_clients: clients to divide the data over.

    Raises:
      StreamError: the labels or examples do not allow what is asked for.
    """
    labels = (dataset.train_labels, dataset.test_labels)
    if SCENARIOS.is_own(experiment.scenario):
        stream = _own(experiment, dataset, num_clients)
    elif experiment.scenario in ("non-iid", "mixed"):
        split: Any = streams.mixed if experiment.scenario == "mixed" else streams.non_iid
        stream = split(
            *labels,
            num_clients=num_clients,
            num_tasks=experiment.num_tasks,
            labels_per_task=experiment.labels_per_task,
            seed=experiment.split_seed,
            order_seed=experiment.seed,
            label_names=dataset.label_names,
        )
        if stream.excluded_labels:
            names = ", ".join(dataset.label_names[label] for label in stream.excluded_labels)
            logger.info("data: too few documents, or none to test with, for the labels %s; no task has them", names)
    else:
        stream = _sequence(experiment, dataset, labels, num_clients)
    if experiment.max_train_documents is not None:
        rows = (dataset.train_labels, experiment.max_train_documents, experiment.split_seed)
        stream = streams.fewer_training(stream, *rows)
    if experiment.max_test_documents is not None:
        stream = streams.fewer_tests(stream, experiment.max_test_documents, experiment.split_seed)
    return stream


def _own(experiment: Experiment, dataset: Any, num_clients: int) -> streams.TaskStream:
    supplied = {
        "train_labels": dataset.train_labels,
        "test_labels": dataset.test_labels,
        "num_clients": num_clients,
        "num_tasks": experiment.num_tasks,
        "seed": experiment.split_seed,
        "label_names": dataset.label_names,
    }
    options = experiment.groups[experiment.own["stream"]] if "stream" in experiment.own else None
    stream = SCENARIOS.make(experiment.scenario, supplied, options)
    if not isinstance(stream, streams.TaskStream):
        raise InputError(
            f"scenario: {experiment.scenario} makes a {type(stream).__name__}, expected a tffcl.streams.TaskStream"
        )
    if (stream.num_clients, stream.num_tasks) != (num_clients, experiment.num_tasks):
        raise InputError(
            f"scenario: {experiment.scenario} makes {stream.num_clients} clients with {stream.num_tasks} tasks; "
            f"--num-clients {num_clients} and --num-tasks {experiment.num_tasks} were asked for"
        )
    return stream


def _sequence(experiment: Experiment, dataset: Any, labels: Sequence[Any], num_clients: int) -> streams.TaskStream:
    common: dict[str, Any] = {
        "seed": experiment.split_seed,
        "label_names": dataset.label_names,
        "overlap": experiment.overlap,
    }
    if experiment.assign:
        assigned = _ids(experiment.assign, dataset)[:num_clients]
        stream = streams.assigned_sequence(labels[0], labels[1], assigned, **common)
    else:
        stream = streams.label_sequence(
            labels[0],
            labels[1],
            num_clients=num_clients,
            num_tasks=experiment.num_tasks,
            labels_per_task=experiment.labels_per_task,
            pools=_pools(experiment, dataset),
            same_order=experiment.same_order,
            **common,
        )
    for client, tasks in enumerate(task_names(stream, dataset.label_names)[:_MOST_CLIENTS]):
        logger.info("tasks of client %d: %s", client + 1, ", ".join(tasks))
    return stream


def _ids(assigned: Sequence[Any], dataset: Any) -> list[list[list[int]]]:
    """`--assign` with label ids in the place of names."""
    known = {name: label for label, name in enumerate(dataset.label_names)}
    for name in (name for tasks in assigned for task in tasks for name in task if name not in known):
        raise OptionError("assign", f"{dataset.name} has no label {name!r}; its labels are {', '.join(known)}")
    return [[[known[name] for name in task] for task in tasks] for tasks in assigned]


def _pools(experiment: Experiment, dataset: Any) -> Optional[list[range]]:
    """Of digits and letters: first tasks of digits, then as many of letters (the odd one is of digits)."""
    if experiment.data != "mnist+letters":
        return None
    num_tasks, num_digits = experiment.num_tasks, 10
    first = (num_tasks + 1) // 2
    return [range(num_digits)] * first + [range(num_digits, len(dataset.label_names))] * (num_tasks - first)


def task_names(stream: streams.TaskStream, label_names: Sequence[str]) -> list[list[str]]:
    """What each client learns in each task, by the names of labels."""
    return [["+".join(labels) for labels in tasks] for tasks in stream.named_labels(label_names)]


def pooled(stream: streams.TaskStream, pool: str) -> streams.TaskStream:
    """The stream as a method meets it: cumulative for replay, one task for the offline ones."""
    makers = {"cumulative": streams.cumulative, "clients": streams.federated_offline, "all": streams.offline}
    return makers[pool](stream) if pool in makers else stream


def domain_stream(
    experiment: Experiment, domains: datasets.Domains, enrollment: streams.Enrollment
) -> streams.TaskStream:
    """Which examples each client has of each domain.

    Raises:
      StreamError: the domains have too few.
    """
    return streams.domain_sequence(
        domains.train_labels,
        domains.test_labels,
        num_clients=experiment.num_clients,
        examples_per_task=experiment.examples_per_task,
        enrollment=enrollment,
        test_examples=experiment.test_examples,
        seed=experiment.split_seed,
        shared_base=domains.shared_base,
    )


def enrollment_of(experiment: Experiment) -> streams.Enrollment:
    """Who is enrolled when: a scenario of FIL-VER's section 4, or the table in a file.

    Raises:
      StreamError: a table of another size, or with a cell that is no state or cannot follow the one before it.
      OptionError: no such scenario or file.
    """
    clients, tasks, given = experiment.num_clients, experiment.num_tasks, experiment.enrollment
    if given in ENROLLMENTS:
        return getattr(streams.Enrollment, given)(clients, tasks)
    path = pathlib.Path(given)
    try:
        lines = raw_files.read_lines(path, max_bytes=_MOST_TABLE_BYTES)
    except DatasetError as error:
        raise OptionError(
            "enrollment", f"{given} is neither one of {', '.join(ENROLLMENTS)} nor a table in a file ({error})"
        ) from error
    try:
        rows = [_cells(line.strip()) for line in lines if line.strip()]
        found = streams.Enrollment.from_table(rows, num_clients=clients, num_tasks=tasks, name=path.stem)
    except StreamError as error:
        raise StreamError(f"{path}: {error}") from error
    for client, row in enumerate(found.table()[:_MOST_CLIENTS]):
        logger.info("enrolment of client %d: %s", client + 1, row)
    return found


def _cells(line: str) -> list[str]:
    """The cells of a line: separated by tabs or commas, or signs one after the other."""
    separator = next((sign for sign in "\t,;" if sign in line), None)
    return list(line) if separator is None else [cell.strip() for cell in line.split(separator)]
