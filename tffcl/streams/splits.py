"""Splits of one labelled data set over clients and tasks, by labels that tasks pick, draw or are assigned.

`non_iid`, `overlapping`, `iid`: Chaudhary, Rai, Schubert, Schuetze, Gupta: Federated Continual Learning for Text
Classification via Selective Inter-client Transfer, 2022 (FedSeIT), section 3 "Experimental setup" and table 4.

`label_sequence`, `assigned_sequence`: Paul, Hong, Yu, Kersting, Mundt: Masked Autoencoders are Efficient Continual
Federated Learners, 2023 (ConFedMADE), section 4.1 "Dataset sequences", figure 4 and table 5. Labels only say which
examples make a task; where several data sets follow each other, a label is a part of one of them, or a whole one.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Union

import numpy as np

from tffcl.errors import StreamError, check_whole
from tffcl.streams.division import PICK, Request, divide, generator, num_shared, ordered, pick_labels, validation_counts
from tffcl.streams.stream import Task, TaskStream

_Labels = Union[Sequence[int], np.ndarray]  # row -> dataset label id, integer [n]


def non_iid(
    train_labels: _Labels,
    test_labels: _Labels,
    *,
    num_clients: int = 3,
    num_tasks: int = 5,
    labels_per_task: int = 4,
    overlap: float = 0.0,
    validation_share: float = 1 / 8,
    seed: int = 42,
    order_seed: int = 1,
    label_names: Sequence[str] | None = None,
    min_documents: int = 4,
    require_test: bool = True,
) -> TaskStream:
    """The paper's non-iid split: tasks share labels, never documents.

    Each of the C x T tasks picks `labels_per_task` labels at random. The documents of a label that n tasks
    picked are divided at random into n disjoint parts, sizes differing by at most 1. A task's test set is
    every test document with one of its labels, not divided.

    >>> stream = non_iid([0, 1] * 20, [0, 1], num_clients=2, num_tasks=1, labels_per_task=2)
    >>> [len(stream.task(client, 0).train) for client in range(2)]
    [17, 17]

    Args:
      train_labels: dataset label id of each training document, int [n].
      test_labels: the same for the test set, int [m].
      num_clients: C.
      num_tasks: T, tasks of each client.
      labels_per_task: |L_c^t|.
      overlap: share of each label's documents that all of its tasks get, see `overlapping`.
      validation_share: share of a task's documents held out, stratified by label; each label keeps at least
        one to learn from.
      seed: decides labels and documents of the tasks ("task generation" in table 4).
      order_seed: decides the order of the tasks at each client, and nothing else.
      label_names: names of all dataset labels, in the order of their ids; also says which ids exist.
      min_documents: training documents (validation included) that a task gets of each of its labels, at
        least. A label goes to at most (its documents // min_documents) tasks; one with too few for a single
        task is picked by none, and listed in `excluded_labels`. Fine-grained TREC needs this: a label of 4
        documents can serve one task, not 15. With 0 any label may be picked, and an empty part is an error.
      require_test: pick only labels that occur in the test set, so that every task can be scored.

    Raises:
      StreamError: the data cannot give this; the message says what would be possible.
    """
    request = Request(
        train_labels, test_labels, num_clients, num_tasks, validation_share, seed, label_names, min_documents,
        require_test, overlap, labels_per_task, order_seed,
    )  # fmt: skip

    def capacity(documents: int) -> int:
        shared = num_shared(documents, overlap)
        return request.total_tasks if shared >= min_documents else (documents - shared) // (min_documents - shared)

    capacities = request.capacities(capacity, min_documents)
    picks = pick_labels(capacities, request.total_tasks, labels_per_task, generator(seed, PICK))
    name = "non_iid" if overlap == 0 else "overlapping"
    return divide(name, request, ordered(request, picks), _excluded(capacities))


def mixed(
    train_labels: _Labels,
    test_labels: _Labels,
    *,
    num_clients: int = 3,
    num_tasks: int = 5,
    labels_per_task: int = 4,
    validation_share: float = 1 / 8,
    seed: int = 42,
    order_seed: int = 1,
    label_names: Sequence[str] | None = None,
    min_documents: int = 4,
    require_test: bool = True,
) -> TaskStream:
    """Mixed domains: each task is of one of several sets of labels, drawn at random, and picks labels of it.

    A label's set is what stands before the "/" in its name, as `tffcl.datasets.join_texts` writes it. A task has
    `labels_per_task` labels of its set, or all that can be picked where the set has fewer. Documents are divided as in
    `non_iid`, whose arguments the others are.

    >>> stream = mixed([0, 1, 2, 3] * 40, [0, 1, 2, 3], num_clients=1, num_tasks=3, labels_per_task=2,
    ...                label_names=["a/x", "a/y", "b/x", "b/y"])
    >>> [task.labels for task in stream.tasks[0]]
    [(2, 3), (2, 3), (0, 1)]

    Raises:
      StreamError: labels without a set, or data that cannot give this; the message says what would be possible.
    """
    request = Request(
        train_labels, test_labels, num_clients, num_tasks, validation_share, seed, label_names, min_documents,
        require_test, 0.0, 1, order_seed,
    )  # fmt: skip
    check_whole("labels_per_task", labels_per_task, 1, StreamError)
    sets = domains_of(label_names or ())
    capacities = request.capacities(lambda documents: documents // max(1, min_documents), min_documents)
    usable = {
        name: {label: capacities[label] for label, own in enumerate(sets) if own == name and capacities[label]}
        for name in dict.fromkeys(sets)
    }
    names = [name for name, labels in usable.items() if labels]
    drawn = generator(seed, PICK).integers(len(names), size=request.total_tasks)
    picks: list[tuple[int, ...]] = [()] * request.total_tasks
    for number, name in enumerate(names):
        own = np.flatnonzero(drawn == number).tolist()
        size = min(labels_per_task, len(usable[name]))
        found = pick_labels(usable[name], len(own), size, generator(seed, PICK, number))
        for place, labels in zip(own, found):
            picks[place] = labels
    return divide("mixed", request, ordered(request, picks), _excluded(capacities))


def domains_of(label_names: Iterable[str]) -> list[str]:
    """The set of each label called SET/LABEL.

    >>> domains_of(["trec6/human", "r8/earn"])
    ['trec6', 'r8']

    Raises:
      StreamError: a label without a set.
    """
    parted = [name.partition("/") for name in label_names]
    without = next((name for name, slash, _ in parted if not slash), None)
    if without is not None or not parted:
        raise StreamError(
            f"mixed domains need labels called SET/LABEL, found {without!r}; join sets, as --data trec6+r8 does"
        )
    return [name for name, _, _ in parted]


def overlapping(train_labels: _Labels, test_labels: _Labels, *, overlap: float = 1.0, **options: Any) -> TaskStream:
    """As `non_iid`, but tasks that share a label also share documents of it.

    Of each label's documents, the share `overlap` (rounded) goes to every task that has the label; the
    rest is divided as in `non_iid`, and `overlap=0` is that split exactly. Which shared documents are held
    out for validation is decided once per label: no task learns from a document that another validates with.

    `overlap` is a share from 0 to 1; the other arguments are those of `non_iid`.

    >>> stream = overlapping([0, 1] * 40, [0, 1] * 5, num_clients=2, num_tasks=2, labels_per_task=2, overlap=1.0)
    >>> len(set(stream.task(0, 0).train) & set(stream.task(0, 1).train)) > 0
    True

    Raises:
      StreamError: the data cannot give this; the message says what would be possible.
    """
    return non_iid(train_labels, test_labels, overlap=overlap, **options)


def iid(
    train_labels: _Labels,
    test_labels: _Labels,
    *,
    num_clients: int = 3,
    num_tasks: int = 5,
    labels_per_task: int | None = None,
    validation_share: float = 1 / 8,
    seed: int = 42,
    order_seed: int = 1,
    label_names: Sequence[str] | None = None,
    min_documents: int = 4,
    require_test: bool = True,
) -> TaskStream:
    """Every task has the same labels, and an equal random part of the documents of each.

    Both the sizes of the parts of a label and the sizes of the tasks differ by at most 1; parts are disjoint.
    `labels_per_task` is None for all labels with enough documents for every task, else that many of those,
    drawn once for all tasks; the other arguments are those of `non_iid`.

    >>> stream = iid([0, 1] * 40, [0, 1] * 5, num_clients=2, num_tasks=2)
    >>> [len(stream.task(0, task).train) for task in range(2)]
    [17, 17]

    Raises:
      StreamError: the data cannot give this; the message says what would be possible.
    """
    request = Request(
        train_labels, test_labels, num_clients, num_tasks, validation_share, seed, label_names, min_documents,
        require_test, labels_per_task=labels_per_task, order_seed=order_seed,
    )  # fmt: skip
    # A label serves all tasks or none: the tasks would not be identically distributed otherwise.
    needed = request.total_tasks * min_documents
    capacities = request.capacities(lambda documents: request.total_tasks if documents >= needed else 0, needed)
    if labels_per_task is None:
        common = tuple(label for label, n in capacities.items() if n)
    else:
        common = pick_labels(capacities, 1, labels_per_task, generator(seed, PICK))[0]
    return divide("iid", request, ordered(request, [common] * request.total_tasks), _excluded(capacities))


def _excluded(capacities: dict[int, int]) -> tuple[int, ...]:
    return tuple(label for label, count in capacities.items() if count == 0)


def fewer_training(stream: TaskStream, train_labels: _Labels, most: int, seed: int = 42) -> TaskStream:
    """The same stream with at most `most` training documents in each task; a label keeps its share, and at least one.

    Validation documents are as much fewer, but at least one. `train_labels` are the dataset label ids of all rows.

    >>> labels = [0, 1] * 40
    >>> stream = iid(labels, labels, num_clients=2, num_tasks=2)
    >>> len(fewer_training(stream, labels, most=6).task(0, 0).train)
    6

    Raises:
      StreamError: `most` is no whole number, or less than a task's labels.
    """
    check_whole("most", most, 1, StreamError)
    known = np.asarray(train_labels)

    def cut(task: Task) -> Task:
        if len(task.train) <= most:
            return task
        if most < len(task.labels):
            raise StreamError(
                f"task {task.task} of client {task.client} has {len(task.labels)} labels, which {most} training "
                "documents cannot show; ask for more"
            )
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(task.client, task.task, 0)))
        parts = [rng.permutation(task.train[known[task.train] == label]) for label in task.labels]
        dropped = validation_counts([len(part) for part in parts], 1 - most / len(task.train))
        held_out = min(len(task.validation), max(1, round(len(task.validation) * most / len(task.train))))
        return dataclasses.replace(
            task,
            train=np.concatenate([part[count:] for part, count in zip(parts, dropped)]),
            validation=rng.choice(task.validation, held_out, replace=False),
        )

    return dataclasses.replace(stream, tasks=tuple(tuple(map(cut, tasks)) for tasks in stream.tasks))


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

    `labels_per_task` is one number, or one for each of the T tasks. `pools` lists for each task the label ids that it
    may draw from, e.g. first digits, then letters; any two are equal or disjoint, and None lets every task draw from
    all. With `same_order` every client gets the sequence that the first one draws. `overlap` is the share of a label's
    examples that all who hold it get; 1 divides nothing, as the published code. `validation_share` is 1/6 as in the
    paper's table 5. Only labels with `min_documents` training examples for each client are drawn; the others are listed
    in `excluded_labels`. The other arguments are those of `non_iid`.

    Raises:
      StreamError: the data cannot give this; the message says what would be possible.
    """
    request = Request(
        train_labels, test_labels, num_clients, num_tasks, validation_share, seed, label_names, min_documents,
        require_test, overlap,
    )  # fmt: skip
    sizes = [labels_per_task] * num_tasks if isinstance(labels_per_task, (int, float)) else list(labels_per_task)
    for size in sizes:
        check_whole("labels_per_task", size, 1, StreamError)
    if len(sizes) != num_tasks:
        raise StreamError(f"labels_per_task has {len(sizes)} numbers; expected one, or {num_tasks} (num_tasks)")
    needed = max(1, min_documents) * num_clients
    usable = {label for label, n in request.documents().items() if n >= needed and request.can_be_tested(label)}
    checked = _checked_pools(request, pools)
    sequences = [
        list(enumerate(_drawn(request, usable, sizes, checked, generator(seed, PICK, 0 if same_order else client))))
        for client in range(num_clients)
    ]
    excluded = tuple(label for label in request.label_ids() if label not in usable)
    return divide("label_sequence", request, sequences, excluded)


def _checked_pools(request: Request, pools: Sequence[Sequence[int]] | None) -> list[frozenset[int]]:
    """For each task the labels that it may draw from."""
    known = frozenset(request.label_ids())
    if pools is None:
        return [known] * request.num_tasks
    if len(pools) != request.num_tasks:
        raise StreamError(f"pools has {len(pools)} entries; expected one for each of the {request.num_tasks} tasks")
    checked = [frozenset(_label_ids(pool, f"pools[{task}]")) for task, pool in enumerate(pools)]
    for task, pool in enumerate(checked):
        _check_known(pool - known, known, f"pools[{task}]")
        for earlier, other in enumerate(checked[:task]):
            if pool != other and pool & other:
                raise StreamError(
                    f"pools[{task}] and pools[{earlier}] share {request.describe(min(pool & other))} but are not "
                    "equal; make any two pools equal or disjoint"
                )
    return checked


def _drawn(
    request: Request, usable: set[int], sizes: Sequence[int], pools: list[frozenset[int]], rng: np.random.Generator
) -> list[tuple[int, ...]]:
    """The labels of each task of one client, drawn without repetition."""
    left: dict[frozenset[int], list[int]] = {}
    for pool in dict.fromkeys(pools):
        candidates = sorted(pool & usable)
        wanted = sum(size for size, other in zip(sizes, pools) if other == pool)
        if len(candidates) < wanted:
            lacking = [request.describe(label) for label in sorted(pool - usable)]
            rule = f"{max(1, request.min_documents) * request.num_clients} training examples"
            rule += " and a test example" if request.require_test else ""
            why = f" ({', '.join(lacking[:3])}{', ...' * (len(lacking) > 3)} lack {rule})" if lacking else ""
            raise StreamError(
                f"each client's tasks need {wanted} different labels, but only {len(candidates)} of {len(pool)} can be "
                f"drawn{why}: ask for fewer num_tasks or labels_per_task, or fewer clients"
            )
        left[pool] = rng.permutation(candidates).tolist()
    drawn = []
    for size, pool in zip(sizes, pools):
        drawn.append(tuple(sorted(left[pool][:size])))
        left[pool] = left[pool][size:]
    return drawn


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

    `assignments[client][task]` is a label id or several; as many tasks for every client. `min_documents` is the least
    number of training examples (validation included) that each task gets of each of its labels; without `require_test`
    a label may lack test examples. The other arguments are those of `label_sequence`.

    Raises:
      StreamError: a label that does not exist, or that has too few examples for the tasks that hold it.
    """
    for client, tasks in enumerate(assignments):
        if not isinstance(tasks, (Sequence, np.ndarray)):
            raise StreamError(f"assignments[{client}]: expected a client's tasks, found {tasks!r}")
    lengths = [len(tasks) for tasks in assignments]
    if len(set(lengths)) != 1 or not lengths[0]:
        raise StreamError(
            f"assignments: every client needs the same number of tasks, at least 1; got lengths {lengths}"
        )
    sequences = [
        [(task, _label_ids(labels, f"assignments[{client}][{task}]")) for task, labels in enumerate(tasks)]
        for client, tasks in enumerate(assignments)
    ]
    request = Request(
        train_labels, test_labels, len(lengths), lengths[0], validation_share, seed, label_names, min_documents,
        require_test, overlap,
    )  # fmt: skip
    _require_examples(request, sequences)
    return divide("assigned_sequence", request, sequences)


def _require_examples(request: Request, sequences: list[list[tuple[int, tuple[int, ...]]]]) -> None:
    """Checks that every assigned label exists, and has examples for all the tasks that hold it."""
    documents, held = request.documents(), Counter[int]()
    first: dict[int, str] = {}
    for client, tasks in enumerate(sequences):
        for task, labels in tasks:
            held.update(labels)
            for label in labels:
                first.setdefault(label, f"assignments[{client}][{task}]")
    for label, count in sorted(held.items()):
        _check_known({label} - documents.keys(), documents, first[label])
        needed = count * max(1, request.min_documents)
        if documents[label] < needed:
            raise StreamError(
                f"{first[label]}: {request.describe(label)} has {documents[label]} training examples; the {count} "
                f"tasks that hold it need {needed}"
            )
        if not request.can_be_tested(label):
            raise StreamError(
                f"{first[label]}: {request.describe(label)} has no test example; assign another, or ask for "
                "require_test=False"
            )


def _check_known(unknown: Iterable[int], known: Iterable[int], where: str) -> None:
    for label in sorted(unknown):
        raise StreamError(f"{where}: {label} is no label of the dataset, which has {min(known)}..{max(known)}")


def _label_ids(labels: object, where: str) -> tuple[int, ...]:
    """One label id, or several different ones, in ascending order."""
    several = list(labels) if isinstance(labels, Iterable) and not isinstance(labels, str) else [labels]
    for label in several:
        if isinstance(label, bool) or not isinstance(label, numbers.Integral):
            raise StreamError(f"{where}: expected a label id, or several; got {labels!r}")
    if not several or len(set(several)) < len(several):
        raise StreamError(f"{where}: expected at least one label, each once; got {labels!r}")
    return tuple(sorted(int(label) for label in several))


def in_turn(num_clients: int, num_tasks: int, num_labels: int) -> list[list[int]]:
    """Assignments that deal the labels out like cards: task t of client c has label (t * C + c) mod L.

    This is the published code's sequence of digits.

    >>> in_turn(3, 5, 10)
    [[0, 3, 6, 9, 2], [1, 4, 7, 0, 3], [2, 5, 8, 1, 4]]

    Raises:
      StreamError: a number below 1.
    """
    for name, value in (("num_clients", num_clients), ("num_tasks", num_tasks), ("num_labels", num_labels)):
        check_whole(name, value, 1, StreamError)
    return [[(t * num_clients + c) % num_labels for t in range(num_tasks)] for c in range(num_clients)]
