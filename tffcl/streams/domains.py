"""Domain-incremental streams: the same labels in every task, on other images, for clients that come and go.

Park, Kumatani, Dimitriadis: Tackling Dynamics in Federated Incremental Learning with Variational Embedding Rehearsal,
2021 (FIL-VER), sections 4 and 5.2: "each client contains balanced training examples per label, sequentially per task".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Union

import numpy as np

from tffcl.errors import StreamError
from tffcl.streams.division import hold_out
from tffcl.streams.enrollment import Enrollment
from tffcl.streams.request import SHUFFLE, check_count, check_share, generator
from tffcl.streams.stream import Task, TaskStream

_Labels = Union[Sequence[int], np.ndarray]  # row -> label of the domain, integer [n]; -1 for a row outside it
_TRAIN, _TEST = 0, 1  # keep the draws of the two sets apart


def domain_sequence(
    train_labels: Sequence[_Labels],
    test_labels: Sequence[_Labels],
    *,
    num_clients: int,
    examples_per_task: int,
    enrollment: Enrollment | None = None,
    validation_share: float = 0.0,
    test_examples: int | None = None,
    seed: int = 42,
    shared_base: Sequence[int] | None = None,
) -> TaskStream:
    """Task t of every client is domain t; a client that is not enrolled in it has no examples there.

    Training examples are drawn at random, as many of each label as of any other (up to 1), and no two clients have
    the same one in a task. Domains over the same images show different images as long as there are enough; then
    those come again that were shown least often. A client has the same examples whatever the enrolment of the
    others, as long as there would be enough different ones for all clients in all tasks.

    The test examples of a domain are divided into disjoint parts, of equal size and with equally many of each label
    (both up to 1), over the clients enrolled in it: nothing is scored twice, and the mean over clients is the score
    on the whole set (but for that 1). With nobody enrolled, nobody has any.

    >>> stream = domain_sequence([[0, 1] * 9] * 2, [[0, 1] * 4] * 2, num_clients=2, examples_per_task=4)
    >>> [[(len(task.train), len(task.test)) for task in tasks] for tasks in stream.tasks]
    [[(4, 4), (4, 4)], [(4, 4), (4, 4)]]

    Args:
      train_labels: for each of the T domains the label of each row of its images, int [n]: 0 .. L-1, or -1 for a row
        that does not belong to the domain (`Domains.train_labels`).
      test_labels: the same for the test sets, int [m].
      num_clients: C.
      examples_per_task: training examples (validation included) of each enrolled client in each task.
      enrollment: who is enrolled when, C x T; None for everybody always.
      validation_share: share of a task's examples held out, stratified by label; each label that is there keeps at
        least one to learn from.
      test_examples: at most so many test examples of a domain are used in all, balanced over labels; None for all.
      seed: decides all draws.
      shared_base: for each domain a number that is equal for domains over the same images (`Domains.shared_base`), row
        for row; None where every domain has images of its own.

    Raises:
      StreamError: settings out of range, an enrolment of another size, or too few examples; the message says what
        would be possible.
    """
    _check_numbers(num_clients, examples_per_task, validation_share, test_examples, seed)
    trains, tests = _checked(train_labels, "train_labels"), _checked(test_labels, "test_labels")
    if len(trains) != len(tests) or not trains:
        raise StreamError(
            f"train_labels and test_labels: need both for the same domains, at least one; got {len(trains)} and "
            f"{len(tests)}"
        )
    enrollment = Enrollment.full(num_clients, len(trains)) if enrollment is None else enrollment
    enrollment.require_size(num_clients, len(trains))
    num_labels = 1 + max(max(rows.max(initial=-1) for rows in sets) for sets in (trains, tests))
    if not num_labels:
        raise StreamError("train_labels: no domain has any example; all labels are -1")
    drawer = _Drawer(trains, _checked_base(shared_base, trains, tests), int(num_labels), num_clients, int(seed))
    train = drawer.draw(int(examples_per_task), enrollment)
    test = [
        _divided(rows, enrollment.active(task), test_examples, (int(seed), task)) for task, rows in enumerate(tests)
    ]
    none = np.zeros(0, np.int64)
    clients = []
    for client in range(num_clients):
        tasks = []
        for task in range(len(trains)):
            learnt, held = hold_out(train[task].get(client, []), validation_share)
            tested = test[task].get(client, none)
            tasks.append(Task(client, task, tuple(range(num_labels)), learnt, held, tested))
        clients.append(tuple(tasks))
    return TaskStream("domain_sequence", tuple(clients))


@dataclasses.dataclass(frozen=True)
class _Drawer:
    """Draws the training examples of all clients and tasks."""

    labels: list[np.ndarray]  # for each domain int64 [n]
    base: list[int]
    num_labels: int
    num_clients: int
    seed: int

    def draw(self, examples: int, enrollment: Enrollment) -> list[dict[int, list[np.ndarray]]]:
        """For each task and client enrolled in it the rows of each label, in random order."""
        active = [enrollment.active(task) for task in range(len(self.labels))]
        self._require(examples, active)
        everybody = [tuple(range(self.num_clients))] * len(self.labels)
        parts, fresh = self._parts(examples, everybody)
        if not fresh:
            parts, _ = self._parts(examples, active)
        return [{client: part[client] for client in clients} for clients, part in zip(active, parts)]

    def _parts(self, examples: int, clients: Sequence[Sequence[int]]) -> tuple[list[dict[int, list[np.ndarray]]], bool]:
        """As `draw` for given clients of each task, and whether there were enough examples never shown before."""
        shown = {number: np.zeros(len(labels), np.int64) for number, labels in zip(self.base, self.labels)}
        parts, fresh = [], True
        for task, labels in enumerate(self.labels):
            times, counts = shown[self.base[task]], self._counts(examples, task)
            part: dict[int, list[np.ndarray]] = {client: [] for client in clients[task]}
            for label in range(self.num_labels):
                rows = generator(self.seed, SHUFFLE, _TRAIN, task, label).permutation(np.flatnonzero(labels == label))
                rows = rows[np.argsort(times[rows], kind="stable")]
                ends = np.cumsum([counts[client, label] for client in clients[task]], dtype=np.int64)
                taken = rows[: ends[-1]] if len(ends) else rows[:0]
                fresh = fresh and len(taken) == ends[-1:].sum() and not times[taken].any()
                times[taken] += 1
                for client, rows_of in zip(clients[task], np.split(taken, ends[:-1])):
                    part[client].append(rows_of)
            parts.append(part)
        return parts, bool(fresh)

    def _counts(self, examples: int, task: int) -> np.ndarray:
        """int64 [C, L]: examples of each label at each client; where 1 is left over, it goes from label to label."""
        least, left = divmod(examples, self.num_labels)
        counts = np.full([self.num_clients, self.num_labels], least, np.int64)
        for client in range(self.num_clients):
            counts[client, (client * left + task + np.arange(left)) % self.num_labels] += 1
        return counts

    def _require(self, examples: int, active: Sequence[Sequence[int]]) -> None:
        """Raises StreamError where a domain has too few examples of a label for the clients enrolled in it."""
        short = self._short(examples, active)
        if short is None:
            return
        task, label, found, needed = short
        # No more than all examples of the smallest domain, divided over its clients.
        most = min(int((rows >= 0).sum()) // len(who) for rows, who in zip(self.labels, active) if who)
        top = min(examples - 1, most)
        possible = next((n for n in range(top, 0, -1) if self._short(n, active) is None), None)
        advice = "enrol fewer clients" if possible is None else f"ask for {possible} or fewer, or fewer clients"
        raise StreamError(
            f"examples_per_task={examples}: domain {task} has {found} training examples of label {label}, its "
            f"{len(active[task])} clients need {needed}: {advice}"
        )

    def _short(self, examples: int, active: Sequence[Sequence[int]]) -> tuple[int, int, int, int] | None:
        """The first (domain, label, examples found, examples needed) with too few."""
        for task, labels in enumerate(self.labels):
            found = np.bincount(labels[labels >= 0], minlength=self.num_labels)
            needed = self._counts(examples, task)[list(active[task])].sum(axis=0)
            for label in np.flatnonzero(needed > found):
                return task, int(label), int(found[label]), int(needed[label])
        return None


def _divided(
    labels: np.ndarray, clients: Sequence[int], most: int | None, seeds: tuple[int, int]
) -> dict[int, np.ndarray]:
    """For each client its part (int64) of the rows of a domain, of at most `most` rows in all."""
    seed, task = seeds
    rows = generator(seed, SHUFFLE, _TEST, task).permutation(np.flatnonzero(labels >= 0))
    rows = rows[np.argsort(labels[rows], kind="stable")]
    counts = np.bincount(labels[rows])
    rank = np.concatenate([np.arange(count) for count in counts]) if len(rows) else rows
    # the first of every label, then the second of every label, ...: any start of this is balanced
    chosen = np.sort(np.argsort(rank, kind="stable")[: len(rows) if most is None else most])
    dealt = rows[chosen]  # label by label, so that dealing divides every label evenly
    return {client: dealt[place :: len(clients)] for place, client in enumerate(clients)}


def _check_numbers(
    num_clients: object, examples: object, validation_share: float, test_examples: object, seed: object
) -> None:
    check_count("num_clients", num_clients, 1)
    check_count("examples_per_task", examples, 1)
    check_count("seed", seed, 0)
    if test_examples is not None:
        check_count("test_examples", test_examples, 1)
    check_share("validation_share", validation_share)
    if validation_share == 1:
        raise StreamError("validation_share=1 leaves nothing to learn from; it must be below 1")


def _checked(labels: Sequence[_Labels], name: str) -> list[np.ndarray]:
    """For each domain int64 [n], checked."""
    checked = []
    for domain, one in enumerate(labels):
        array = np.asarray(one)
        if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
            raise StreamError(
                f"{name}[{domain}]: expected a flat sequence of whole labels, one for each row of the domain, got "
                f"shape {array.shape}, dtype {array.dtype}"
            )
        if array.size and array.min() < -1:
            raise StreamError(
                f"{name}[{domain}]: row {array.argmin()} has label {array.min()}; expected 0 or more, or -1 for a row "
                "outside the domain"
            )
        checked.append(array.astype(np.int64))
    return checked


def _checked_base(
    shared_base: Sequence[int] | None, trains: Sequence[np.ndarray], tests: Sequence[np.ndarray]
) -> list[int]:
    """For each domain the number of its images.

    Raises:
      StreamError: not one for each domain, or domains said to be over the same images have different numbers of rows.
    """
    if shared_base is None:
        return list(range(len(trains)))
    base = [int(one) for one in shared_base]
    if len(base) != len(trains):
        raise StreamError(f"shared_base has {len(base)} numbers; expected one for each of {len(trains)} domains")
    for domain, number in enumerate(base):
        first = base.index(number)
        for name, sets in (("training", trains), ("test", tests)):
            if len(sets[domain]) != len(sets[first]):
                raise StreamError(
                    f"shared_base: domains {first} and {domain} have {len(sets[first])} and {len(sets[domain])} "
                    f"{name} rows, so they are not over the same images"
                )
    return base
