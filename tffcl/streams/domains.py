"""Domain-incremental streams: the same labels in every task, on other images, for clients that come and go.

Park, Kumatani, Dimitriadis: Tackling Dynamics in Federated Incremental Learning with Variational Embedding Rehearsal,
2021 (FIL-VER), sections 4 and 5.2: "each client contains balanced training examples per label, sequentially per task".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Union

import numpy as np

from tffcl.errors import StreamError, check_whole
from tffcl.streams.division import SHUFFLE, check_share, generator, hold_out
from tffcl.streams.enrollment import Enrollment
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
    check_whole("num_clients", num_clients, 1, StreamError)
    check_whole("examples_per_task", examples_per_task, 1, StreamError)
    check_whole("seed", seed, 0, StreamError)
    if test_examples is not None:
        check_whole("test_examples", test_examples, 1, StreamError)
    check_share("validation_share", validation_share, below_one=True)
    trains, tests = _checked(train_labels, "train_labels"), _checked(test_labels, "test_labels")
    if len(trains) != len(tests) or not trains:
        raise StreamError(
            f"train_labels and test_labels: need both for the same domains, at least one; got {len(trains)} and "
            f"{len(tests)}"
        )
    enrollment = Enrollment.full(num_clients, len(trains)) if enrollment is None else enrollment
    enrollment.require_size(num_clients, len(trains))
    active = [enrollment.active(task) for task in range(len(trains))]
    num_labels = 1 + max(int(rows.max(initial=-1)) for rows in (*trains, *tests))
    if not num_labels:
        raise StreamError("train_labels: no domain has any example; all labels are -1")
    draw = _Draw(trains, _checked_base(shared_base, trains, tests), num_labels, num_clients, int(seed))
    train = draw.examples(int(examples_per_task), active)
    test = [_dealt(rows, active[task], test_examples, int(seed), task) for task, rows in enumerate(tests)]
    none, labels = np.zeros(0, np.int64), tuple(range(num_labels))
    clients = [
        tuple(
            Task(c, t, labels, *hold_out(train[t].get(c, []), validation_share), test[t].get(c, none))
            for t in range(len(trains))
        )
        for c in range(num_clients)
    ]
    return TaskStream("domain_sequence", tuple(clients))


@dataclasses.dataclass(frozen=True)
class _Draw:
    """The random draw of the training examples of all clients and tasks."""

    labels: list[np.ndarray]  # for each domain int64 [n]
    base: list[int]
    num_labels: int
    num_clients: int
    seed: int

    def examples(self, count: int, active: Sequence[Sequence[int]]) -> list[dict[int, list[np.ndarray]]]:
        """For each task and client enrolled in it the rows of each label, in random order."""
        self._require(count, active)
        parts, fresh = self._parts(count, [range(self.num_clients)] * len(self.labels))
        if not fresh:
            parts, _ = self._parts(count, active)
        return [{client: part[client] for client in clients} for clients, part in zip(active, parts)]

    def _parts(self, count: int, clients: Sequence[Sequence[int]]) -> tuple[list[dict[int, list[np.ndarray]]], bool]:
        """The rows for the clients of each task, and whether there were enough examples never shown before."""
        shown = {number: np.zeros(len(labels), np.int64) for number, labels in zip(self.base, self.labels)}
        parts, fresh = [], True
        for task, labels in enumerate(self.labels):
            times, counts = shown[self.base[task]], self._counts(count, task)
            part: dict[int, list[np.ndarray]] = {client: [] for client in clients[task]}
            for label in range(self.num_labels):
                rows = generator(self.seed, SHUFFLE, _TRAIN, task, label).permutation(np.flatnonzero(labels == label))
                rows = rows[np.argsort(times[rows], kind="stable")]
                ends = np.cumsum([counts[client, label] for client in clients[task]], dtype=np.int64)
                taken = rows[: ends[-1]] if len(ends) else rows[:0]
                fresh = fresh and len(taken) == ends[-1:].sum() and not times[taken].any()
                times[taken] += 1
                for client, own in zip(clients[task], np.split(taken, ends[:-1])):
                    part[client].append(own)
            parts.append(part)
        return parts, bool(fresh)

    def _counts(self, count: int, task: int) -> np.ndarray:
        """int64 [C, L]: examples of each label at each client; where 1 is left over, it goes from label to label."""
        least, left = divmod(count, self.num_labels)
        counts = np.full([self.num_clients, self.num_labels], least, np.int64)
        for client in range(self.num_clients):
            counts[client, (client * left + task + np.arange(left)) % self.num_labels] += 1
        return counts

    def _require(self, count: int, active: Sequence[Sequence[int]]) -> None:
        """Raises StreamError where a domain has too few examples of a label for the clients enrolled in it."""
        shortage = self._shortage(count, active)
        if shortage is None:
            return
        task, label, available, needed = shortage
        # No more than all examples of the smallest domain, divided over its clients.
        most = min(int((rows >= 0).sum()) // len(who) for rows, who in zip(self.labels, active) if who)
        smaller = range(min(count - 1, most), 0, -1)
        possible = next((n for n in smaller if self._shortage(n, active) is None), None)
        advice = "enrol fewer clients" if possible is None else f"ask for {possible} or fewer, or fewer clients"
        raise StreamError(
            f"examples_per_task={count}: domain {task} has {available} training examples of label {label}, its "
            f"{len(active[task])} clients need {needed}: {advice}"
        )

    def _shortage(self, count: int, active: Sequence[Sequence[int]]) -> tuple[int, int, int, int] | None:
        """The first (domain, label, examples available, examples needed) with too few."""
        for task, labels in enumerate(self.labels):
            available = np.bincount(labels[labels >= 0], minlength=self.num_labels)
            needed = self._counts(count, task)[list(active[task])].sum(axis=0)
            for label in np.flatnonzero(needed > available):
                return task, int(label), int(available[label]), int(needed[label])
        return None


def _dealt(labels: np.ndarray, clients: Sequence[int], most: int | None, seed: int, task: int) -> dict[int, np.ndarray]:
    """For each client its part (int64) of the test rows of a domain, of at most `most` rows in all."""
    rows = generator(seed, SHUFFLE, _TEST, task).permutation(np.flatnonzero(labels >= 0))
    rows = rows[np.argsort(labels[rows], kind="stable")]
    counts = np.bincount(labels[rows])
    rank = np.concatenate([np.arange(count) for count in counts]) if len(rows) else rows
    # the first of every label, then the second of every label, ...: any start of this is balanced
    chosen = np.sort(np.argsort(rank, kind="stable")[: len(rows) if most is None else most])
    dealt = rows[chosen]  # label by label, so that dealing divides every label evenly
    return {client: dealt[index :: len(clients)] for index, client in enumerate(clients)}


def _checked(labels: Sequence[_Labels], name: str) -> list[np.ndarray]:
    """For each domain int64 [n]."""
    arrays = [np.asarray(rows) for rows in labels]
    for domain, array in enumerate(arrays):
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
    return [array.astype(np.int64) for array in arrays]


def _checked_base(
    shared_base: Sequence[int] | None, trains: Sequence[np.ndarray], tests: Sequence[np.ndarray]
) -> list[int]:
    """For each domain the number of its images; domains with the same number have equally many rows."""
    if shared_base is None:
        return list(range(len(trains)))
    base = [int(number) for number in shared_base]
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
