"""Streams of one growing head: the same tasks for all clients, and the rows of a task divided over them.

`class_incremental`: every task brings classes that no task before it had. `data_incremental`: every task has all
classes, and ever new rows. In both a test example comes without the number of its task
(van de Ven, Tuytelaars, Tolias: Three types of incremental learning, 2022).

A partition gives each row of a task to one client, so that parts are disjoint and nothing is left over:
`equal`; `dirichlet` (Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019), with shares of its own for each class; `shards` (McMahan et al., 2017: rows sorted by class, cut
into two shards for each client); `quantity` (Li et al.: Federated Learning on Non-IID Data Silos, 2022: clients differ
in how much they have, and not in what); or `natural`, as the data say whose each row is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Optional, Union

import numpy as np

from tffcl.errors import StreamError, check_whole, is_number
from tffcl.streams.division import Request, generator, hold_out
from tffcl.streams.domains import Enrollment, EnrollmentState
from tffcl.streams.stream import Task, TaskStream

_Labels = Union[Sequence[int], np.ndarray]
# (labels int64 [n] of a task's rows, number of clients, alpha, generator) -> the client of each row, int64 [n]
Partition = Callable[[np.ndarray, int, float, np.random.Generator], np.ndarray]

_ORDER, _TASKS, _CLIENTS, _HELD_OUT, _MEMORY = range(
    100, 105
)  # purposes of generators, apart from those of other streams
_SHARDS = 2  # for each client in a task


def equal(labels: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Parts of a class, and of the task, whose sizes differ by at most 1."""
    del alpha
    clients = np.zeros(len(labels), np.int64)
    order = _by_class(labels, rng)  # dealt like cards, class after class
    clients[order] = np.arange(len(labels)) % num_clients
    return rng.permutation(num_clients)[clients]


def dirichlet(labels: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Each class by shares that are drawn from Dirichlet(alpha, ..., alpha), for each class anew."""
    return _class_by_class(labels, lambda: _drawn_shares(num_clients, alpha, rng), rng)


def shards(labels: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Rows in the order of their classes, cut into two shards for each client: few classes each."""
    del alpha
    clients = np.zeros(len(labels), np.int64)
    owners = rng.permutation(np.repeat(np.arange(num_clients), _SHARDS))
    for owner, rows in zip(owners, np.array_split(_by_class(labels, rng), len(owners))):
        clients[rows] = owner
    return clients


def quantity(labels: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """All classes by the same shares, drawn from Dirichlet(alpha, ..., alpha) for each task."""
    shares = _drawn_shares(num_clients, alpha, rng)
    return _class_by_class(labels, lambda: shares, rng)


NATURAL = "natural"
PARTITIONS: dict[str, Partition] = {each.__name__: each for each in (equal, dirichlet, shards, quantity)}


def _by_class(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows class after class, in random order within a class."""
    order = rng.permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")]


def _class_by_class(labels: np.ndarray, shares_of: Callable[[], np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """The client of each row, the rows of each class in random order and by the shares that it is given."""
    clients = np.zeros(len(labels), np.int64)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        clients[rows] = _by_shares(len(rows), shares_of())
    return clients


def _drawn_shares(num_clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """float64 [C], their sum 1: Dirichlet(alpha, ..., alpha), from logarithms of gamma variables.

    Gamma(alpha) is Gamma(alpha + 1) U^(1 / alpha), whose logarithm does not underflow however small alpha is.
    """
    logs = np.log(rng.standard_gamma(alpha + 1, num_clients)) + np.log1p(-rng.random(num_clients)) / alpha
    shares = np.exp(logs - logs.max())
    return shares / shares.sum()


def _by_shares(count: int, shares: np.ndarray) -> np.ndarray:
    """The client of each of `count` rows, ascending: cut where the sum of the shares passes."""
    cuts = np.rint(np.cumsum(shares) * count).astype(np.int64)
    cuts[-1] = count
    return np.repeat(np.arange(len(shares)), np.diff(np.minimum(cuts, count), prepend=0))


def class_incremental(
    train_labels: _Labels,
    test_labels: _Labels,
    *,
    num_clients: int = 5,
    num_tasks: int = 5,
    labels_per_task: int = 2,
    partition: str = "equal",
    alpha: float = 0.5,
    clients: Sequence[str] | np.ndarray | None = None,
    enrollment: Enrollment | None = None,
    validation_share: float = 1 / 8,
    seed: int = 42,
    order_seed: int = 1,
    label_names: Sequence[str] | None = None,
) -> TaskStream:
    """Every task has `labels_per_task` classes that no task before it had, the same ones for all clients.

    A client may have no examples in a task: see `participation`. The test set of a task is every test example of its
    classes, the same for all clients that have examples in it; others have none.

    >>> stream = class_incremental([0, 1, 2, 3] * 6, [0, 1, 2, 3], num_clients=2, num_tasks=2, validation_share=0)
    >>> [[(task.labels, len(task.train)) for task in tasks] for tasks in stream.tasks]
    [[((2, 3), 6), ((0, 1), 6)], [((2, 3), 6), ((0, 1), 6)]]

    Args:
      train_labels: class of each training example, int [n].
      test_labels: the same for the test set, int [m].
      num_clients: C.
      num_tasks: T.
      labels_per_task: classes of a task.
      partition: a name of `PARTITIONS`, or `natural`.
      alpha: of Dirichlet's distribution: large for equal shares, near 0 for one client that has nearly all.
      clients: whose each training example is, `[n]`, for `natural`: C names, of which the first in order is client 0.
      enrollment: among whom the rows of a task are divided; None for all clients.
      validation_share: share of a client's examples of a task that is held out, stratified by class.
      seed: decides which client has which rows.
      order_seed: decides the order of the classes, and nothing else.
      label_names: names of all classes, in the order of their ids; also says which ids exist.

    Raises:
      StreamError: fewer classes than tasks need, a class without training or test examples, or no such partition.
    """
    request = Request(
        train_labels, test_labels, num_clients, num_tasks, validation_share, seed, label_names, 1, True, 0.0,
        labels_per_task, order_seed,
    )  # fmt: skip
    documents = request.documents()
    usable = [label for label, count in documents.items() if count and request.can_be_tested(label)]
    wanted = num_tasks * labels_per_task
    if len(usable) < wanted:
        without = [request.describe(label) for label in documents if label not in usable]
        lacking = f"; without training or test examples: {', '.join(without[:3])}" if without else ""
        raise StreamError(
            f"{num_tasks} tasks with {labels_per_task} new classes each need {wanted} classes, and {len(usable)} can "
            f"be had{lacking}: ask for fewer num_tasks or labels_per_task"
        )
    order = generator(order_seed, _ORDER).permutation(usable)[:wanted].reshape(num_tasks, labels_per_task)
    classes = [tuple(sorted(map(int, row))) for row in order]
    rows = [np.flatnonzero(np.isin(request.train_labels, own)) for own in classes]
    excluded = tuple(label for label in documents if label not in usable)
    return _divided("class_incremental", request, classes, rows, partition, alpha, clients, enrollment, excluded)


def data_incremental(
    train_labels: _Labels,
    test_labels: _Labels,
    *,
    num_clients: int = 5,
    num_tasks: int = 5,
    partition: str = "equal",
    alpha: float = 0.5,
    clients: Sequence[str] | np.ndarray | None = None,
    enrollment: Enrollment | None = None,
    validation_share: float = 1 / 8,
    seed: int = 42,
    label_names: Sequence[str] | None = None,
) -> TaskStream:
    """Every task has all classes, an equal part of the rows of each, and no row comes twice.

    The test set of each task is the whole one. Arguments are those of `class_incremental`.

    >>> stream = data_incremental([0, 1] * 8, [0, 1], num_clients=2, num_tasks=2, validation_share=0)
    >>> [[len(task.train) for task in tasks] for tasks in stream.tasks]
    [[4, 4], [4, 4]]

    Raises:
      StreamError: a class with fewer rows than there are tasks, or no such partition.
    """
    request = Request(train_labels, test_labels, num_clients, num_tasks, validation_share, seed, label_names, 1, True)
    documents = request.documents()
    usable = tuple(label for label, n in documents.items() if n >= num_tasks and request.can_be_tested(label))
    if not usable:
        raise StreamError(
            f"no class has a training example for each of {num_tasks} tasks and a test example: ask for fewer num_tasks"
        )
    known = np.flatnonzero(np.isin(request.train_labels, usable))
    task_of = equal(np.asarray(request.train_labels)[known], num_tasks, alpha, generator(seed, _TASKS))
    rows = [known[task_of == task] for task in range(num_tasks)]
    excluded = tuple(label for label in documents if label not in usable)
    return _divided(
        "data_incremental", request, [usable] * num_tasks, rows, partition, alpha, clients, enrollment, excluded
    )  # fmt: skip


def _divided(
    name: str,
    request: Request,
    classes: Sequence[tuple[int, ...]],
    rows: Sequence[np.ndarray],
    partition: str,
    alpha: float,
    clients: Sequence[str] | np.ndarray | None,
    enrollment: Enrollment | None,
    excluded: tuple[int, ...],
) -> TaskStream:
    """The stream of tasks whose classes and rows are given, divided over the clients that are enrolled in them."""
    if partition not in (*PARTITIONS, NATURAL):
        raise StreamError(f"partition must be one of {', '.join((*PARTITIONS, NATURAL))}; got {partition!r}")
    owners = _natural(request, clients, enrollment) if partition == NATURAL else None
    if not is_number(alpha) or not 0 < alpha < np.inf:
        raise StreamError(f"alpha must be a number above 0; got {alpha!r}")
    if enrollment is not None:
        enrollment.require_size(request.num_clients, request.num_tasks)
    tests = np.asarray(request.test_labels)
    tasks: list[list[Task]] = [[] for _ in range(request.num_clients)]
    for number, (own, every) in enumerate(zip(classes, rows)):
        active = np.arange(request.num_clients) if enrollment is None else np.array(enrollment.active(number), int)
        if not len(active):
            raise StreamError(f"task {number}: nobody is enrolled, who would have its examples; enrol a client there")
        labels = np.asarray(request.train_labels)[every]
        if owners is not None:
            owner = owners[every]
        else:
            owner = active[PARTITIONS[partition](labels, len(active), alpha, generator(request.seed, _CLIENTS, number))]
        test = np.flatnonzero(np.isin(tests, own))
        for client, made in enumerate(tasks):
            rng = generator(request.seed, _HELD_OUT, number, client)
            parts = [rng.permutation(every[(owner == client) & (labels == label)]) for label in own]
            train, validation = hold_out(parts, request.validation_share)
            made.append(Task(client, number, own, train, validation, test if len(train) else test[:0]))
    return TaskStream(name, tuple(map(tuple, tasks)), excluded)


def _natural(request: Request, clients: Sequence[str] | np.ndarray | None, enrollment: Enrollment | None) -> np.ndarray:
    """The number of the client of each training example, int64 [n]."""
    if clients is None or len(clients) != len(request.train_labels):
        raise StreamError("partition natural needs the client of each training example, and the data have none")
    if enrollment is not None and enrollment.name != "full":
        raise StreamError("partition natural: who has examples in a task is who takes part; leave the enrolment out")
    names, owners = np.unique(np.asarray(clients), return_inverse=True)
    if len(names) != request.num_clients:
        raise StreamError(
            f"partition natural: the data name {len(names)} clients, expected {request.num_clients}: "
            f"ask for num_clients={len(names)}"
        )
    return owners


def participation(stream: TaskStream) -> Enrollment:
    """Who has training examples when: a client without any in a task takes no part in it, before, between or after.

    >>> participation(class_incremental([0, 1] * 4, [0, 1], num_clients=2, num_tasks=2, labels_per_task=1)).table()
    ('**', '**')
    """
    rows = []
    for tasks in stream.tasks:
        having = [task.task for task in tasks if len(task.train)]
        first, last = (having[0], having[-1]) if having else (stream.num_tasks, -1)
        rows.append(tuple(_state(task, first, last, task in having) for task in range(stream.num_tasks)))
    return Enrollment(tuple(rows), "full" if all(set(r) == {EnrollmentState.ACTIVE} for r in rows) else "by examples")


def _state(task: int, first: int, last: int, active: bool) -> EnrollmentState:
    if active:
        return EnrollmentState.ACTIVE
    if task < first:
        return EnrollmentState.NOT_YET
    return EnrollmentState.NO_LONGER if task > last else EnrollmentState.AWAY


def class_counts(stream: TaskStream, train_labels: _Labels, num_labels: int) -> np.ndarray:
    """Training examples of each client and class, all tasks together, int64 [C, L].

    >>> labels = [0, 1] * 6
    >>> stream = class_incremental(labels, [0, 1], num_clients=2, num_tasks=1, validation_share=0)
    >>> class_counts(stream, labels, 2).tolist()
    [[3, 3], [3, 3]]
    """
    known = np.asarray(train_labels)
    return np.array([
        np.bincount(np.concatenate([known[task.train] for task in tasks]), minlength=num_labels)
        for tasks in stream.tasks
    ])  # fmt: skip


def seen_classes(stream: TaskStream) -> list[tuple[int, ...]]:
    """For each task the classes of it and of all tasks before it, of all clients, ascending.

    >>> [len(seen) for seen in seen_classes(class_incremental([0, 1, 2, 3] * 6, [0, 1, 2, 3], num_tasks=2))]
    [2, 4]
    """
    seen: set[int] = set()
    found = []
    for number in range(stream.num_tasks):
        seen.update(label for tasks in stream.tasks for label in tasks[number].labels)
        found.append(tuple(sorted(seen)))
    return found


def with_memory(
    stream: TaskStream, train_labels: _Labels, per_class: int, seed: int = 42, vectors: Optional[np.ndarray] = None
) -> TaskStream:
    """Experience replay (Chaudhry et al.: On Tiny Episodic Memories in Continual Learning, 2019): each task is trained
    with what its client remembers of its past ones, at most `per_class` examples of each class.

    Which of a class's examples stay is decided by a rank that each draws once, so that at any time the memory is a
    random sample of all that the client has had of the class (reservoir sampling); or, with `vectors`, by `herding` of
    what it remembers and what a task brings, towards the mean of all that it has had of the class. Remembered rows are
    repeated until there are as many as new ones, or half of them: each step has as much of the past as of the present.
    A client that has nothing new trains on its memory.

    >>> labels = [0, 1] * 6
    >>> stream = class_incremental(labels, [0, 1], num_clients=1, num_tasks=2, labels_per_task=1, validation_share=0)
    >>> [task.labels for task in with_memory(stream, labels, 1).tasks[0]]
    [(1,), (0, 1)]

    Args:
      stream: of tasks without any memory.
      train_labels: int [N].
      per_class: most examples of each class that a client remembers.
      seed: of the ranks.
      vectors: float [N, D], features of the training examples, for herding.

    Raises:
      StreamError: `per_class` is no whole number, 0 or more; vectors of another number of examples.
    """
    check_whole("per_class", per_class, 0, StreamError)
    known, nothing = np.asarray(train_labels), np.zeros(0, np.int64)
    if vectors is not None and len(vectors) != len(known):
        raise StreamError(f"vectors: expected one for each of {len(known)} training examples, found {len(vectors)}")
    rank = generator(seed, _MEMORY).permutation(len(known))

    def chosen(candidates: np.ndarray, had: np.ndarray) -> np.ndarray:
        if vectors is None:
            return candidates[np.argsort(rank[candidates], kind="stable")[:per_class]]
        return candidates[herding(vectors[candidates], vectors[had].mean(axis=0), per_class)]

    tasks = []
    for own in stream.tasks:
        made, kept, had = [], dict[int, np.ndarray](), dict[int, np.ndarray]()
        for task in own:
            old = np.sort(np.concatenate([nothing, *kept.values()]))
            times = max(1, round(len(task.train) / len(old))) if len(old) else 0
            labels = tuple(sorted({*task.labels, *known[old].tolist()}))
            train = np.concatenate([task.train, np.tile(old, times)])
            made.append(dataclasses.replace(task, labels=labels, train=train, test_labels=task.labels))
            new = np.asarray(task.train, np.int64)
            for label in np.unique(known[new]).tolist():
                of_label = new[known[new] == label]
                had[label] = np.union1d(had.get(label, nothing), of_label)
                kept[label] = chosen(np.union1d(kept.get(label, nothing), of_label), had[label])
        tasks.append(tuple(made))
    return TaskStream(f"with_memory({stream.name})", tuple(tasks), stream.excluded_labels)


def herding(vectors: np.ndarray, mean: np.ndarray, count: int) -> np.ndarray:
    """Rows whose mean is near a given one, at most `count`, the most important first: int64 [count].

    Row k is the one with which the mean of the first k is nearest (Rebuffi et al.: iCaRL, 2017, algorithm 4); each is
    taken once.

    >>> herding(np.array([[0.0], [4.0], [1.0], [3.5]]), np.array([2.0]), 3).tolist()
    [2, 3, 0]

    Args:
      vectors: float [n, D].
      mean: float [D].
      count: most rows.
    """
    vectors, total = np.asarray(vectors, np.float64), np.zeros(np.shape(mean))
    left, order = np.ones(len(vectors), bool), []
    for number in range(1, min(count, len(vectors)) + 1):
        distances = np.linalg.norm(mean - (total + vectors) / number, axis=1)
        order.append(int(np.argmin(np.where(left, distances, np.inf))))
        left[order[-1]], total = False, total + vectors[order[-1]]
    return np.array(order, np.int64)
