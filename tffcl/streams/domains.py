"""Domain-incremental streams: the same labels in every task, on other images, for clients that come and go.

Park, Kumatani, Dimitriadis: Tackling Dynamics in Federated Incremental Learning with Variational Embedding Rehearsal,
2021 (FIL-VER), sections 4 (who is enrolled in which task, and its four scenarios in figure 4) and 5.2: "each client
contains balanced training examples per label, sequentially per task".
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Sequence
from typing import Optional, Union

import numpy as np

from tffcl.errors import StreamError, check_whole
from tffcl.streams.division import SHUFFLE, check_share, generator, hold_out
from tffcl.streams.stream import Task, TaskStream


class EnrollmentState(enum.Enum):
    """What a client is in a task; it does not change within one.

    Shown with `Enrollment`.
    """

    NOT_YET = "not yet"
    ACTIVE = "active"
    NO_LONGER = "no longer"
    AWAY = "away"  # and back later

    @property
    def sign(self) -> str:
        """One character for tables, after figure 4: x, * or o; - for a client that comes back."""
        return {"not yet": "x", "active": "*", "no longer": "o", "away": "-"}[self.value]


_Cell = Union[EnrollmentState, str]
# A client that never was active cannot be "no longer", so that is no first state and follows "active" alone.
_FIRST = (EnrollmentState.NOT_YET, EnrollmentState.ACTIVE)
_NEXT = {
    EnrollmentState.NOT_YET: _FIRST,
    EnrollmentState.ACTIVE: (EnrollmentState.ACTIVE, EnrollmentState.NO_LONGER, EnrollmentState.AWAY),
    EnrollmentState.AWAY: (EnrollmentState.ACTIVE, EnrollmentState.NO_LONGER, EnrollmentState.AWAY),
    EnrollmentState.NO_LONGER: (EnrollmentState.NO_LONGER,),
}
_TEXTS = {text: state for state in EnrollmentState for text in (state.value, state.name.lower(), state.sign)}


@dataclasses.dataclass(frozen=True)
class Enrollment:
    """The state of each of C clients in each of T tasks.

    A client comes at most once and leaves at most once; between, it may be away for some tasks. A task in which nobody
    is active is legal. What a client had sent before it left may still be used.

    >>> enrollment = Enrollment.decreasing(4, 4)
    >>> enrollment.table()
    ('****', '***o', '**oo', '*ooo')
    >>> [enrollment.active(task) for task in range(4)]
    [(0, 1, 2, 3), (0, 1, 2), (0, 1), (0,)]

    Attributes:
      states: `states[client][task]`, every client with the same number of tasks.
      name: how the table was made, e.g. "decreasing".
    """

    states: tuple[tuple[EnrollmentState, ...], ...]
    name: str = "custom"

    def __post_init__(self) -> None:
        rows = _rows(self.states)
        for client, row in enumerate(rows):
            for task, state in enumerate(row):
                _check_state(state, row[task - 1] if task else None, f"enrollment, client {client}, task {task}")
        object.__setattr__(self, "states", tuple(map(tuple, rows)))

    @classmethod
    def from_table(
        cls,
        table: Sequence[Sequence[_Cell]],
        *,
        num_clients: Optional[int] = None,
        num_tasks: Optional[int] = None,
        name: str = "custom",
    ) -> Enrollment:
        """A table written by hand, a row per client and a cell per task.

        >>> Enrollment.from_table(["**o", "x**"]).active(1)
        (0, 1)

        `table[client][task]` is an `EnrollmentState`, its name or text ("NOT_YET", "not yet"), or a sign of figure 4:
        x not yet, * active, - away, o no longer. A row may be one text of signs. `num_clients` and `num_tasks` are the
        size that the table must have; None for any. `name` is that of the scenario.

        Raises:
          StreamError: another size, ragged rows, a cell that is no state, or one that cannot follow the one before
            it; names the cell.
        """
        rows = [
            tuple(_state_of(cell, f"client {client}, task {task}") for task, cell in enumerate(row))
            for client, row in enumerate(_rows(table))
        ]
        enrollment = cls(tuple(rows), name)
        enrollment.require_size(num_clients, num_tasks)
        return enrollment

    @classmethod
    def full(cls, num_clients: int, num_tasks: int) -> Enrollment:
        """Scenario 1: everybody is active in every task."""
        return _spans("full", num_clients, num_tasks, lambda client: (0, num_tasks))

    @classmethod
    def decreasing(cls, num_clients: int, num_tasks: int) -> Enrollment:
        """Scenario 2: all are active in the first task and fewer in every later one, the last clients leaving first.

        C (T - t) / T clients, rounded up, are active in task t: as many leave after each task, up to 1. Where there
        are fewer clients than tasks, some tasks have as many as the one before; somebody stays to the end.

        >>> [len(Enrollment.decreasing(10, 4).active(task)) for task in range(4)]
        [10, 8, 5, 3]
        """
        return _spans("decreasing", num_clients, num_tasks, lambda c: (0, num_tasks - c * num_tasks // num_clients))

    @classmethod
    def increasing(cls, num_clients: int, num_tasks: int) -> Enrollment:
        """Scenario 3, `decreasing` in the mirror of time: all are active in the last task."""
        return _spans("increasing", num_clients, num_tasks, lambda c: (c * num_tasks // num_clients, num_tasks))

    @classmethod
    def scattered(cls, num_clients: int, num_tasks: int) -> Enrollment:
        """Scenario 4: every client is active in one task only, and the tasks have equally many clients, up to 1.

        With fewer clients than tasks some tasks have nobody.
        """
        first = lambda c: c * num_tasks // num_clients  # noqa: E731
        return _spans("scattered", num_clients, num_tasks, lambda c: (first(c), first(c) + 1))

    @property
    def num_clients(self) -> int:
        """C."""
        return len(self.states)

    @property
    def num_tasks(self) -> int:
        """T."""
        return len(self.states[0])

    def active(self, task: int) -> tuple[int, ...]:
        """Numbers of the clients that are active in a task, ascending; maybe none."""
        return tuple(client for client in range(self.num_clients) if self.state(client, task) is EnrollmentState.ACTIVE)

    def state(self, client: int, task: int) -> EnrollmentState:
        """The state of client number `client` (0 .. C-1) in task number `task` (0 .. T-1).

        Raises:
          StreamError: there is no such client or task.
        """
        if not (0 <= client < self.num_clients and 0 <= task < self.num_tasks):
            raise StreamError(
                f"enrollment {self.name!r} has no task {task} of client {client}: clients are "
                f"0..{self.num_clients - 1}, tasks 0..{self.num_tasks - 1}"
            )
        return self.states[client][task]

    def tasks_before(self, client: int, task: int) -> int:
        """In how many tasks before `task` the client was active: for an active one, the number of its own task."""
        return sum(self.state(client, earlier) is EnrollmentState.ACTIVE for earlier in range(task))

    def table(self) -> tuple[str, ...]:
        """The signs of each client as one string, as `from_table` takes them."""
        return tuple("".join(state.sign for state in row) for row in self.states)

    def require_size(self, num_clients: Optional[int], num_tasks: Optional[int]) -> None:
        """Raises StreamError unless the table is for so many clients and tasks; None stands for any number."""
        found, wanted = (self.num_clients, self.num_tasks), (num_clients, num_tasks)
        if any(want not in (None, have) for have, want in zip(found, wanted)):
            shown = " x ".join("any" if want is None else str(want) for want in wanted)
            raise StreamError(
                f"enrollment {self.name!r} is for {found[0]} x {found[1]} clients x tasks; expected {shown}"
            )


def _spans(name: str, num_clients: int, num_tasks: int, span: Callable[[int], tuple[int, int]]) -> Enrollment:
    """Each client active in the tasks of `span(client)`, from the first of the pair to before the second."""
    for argument, value in (("num_clients", num_clients), ("num_tasks", num_tasks)):
        check_whole(argument, value, 1, StreamError)
    rows = []
    for first, end in map(span, range(num_clients)):
        lengths = zip(EnrollmentState, (first, end - first, num_tasks - end))
        rows.append(tuple(state for state, length in lengths for _ in range(length)))
    return Enrollment(tuple(rows), name)


def _rows(table: object) -> list[Sequence]:
    """The rows of a table: at least one cell, and all of one length."""
    rows = list(table) if isinstance(table, Iterable) and not isinstance(table, str) else []
    lengths = [len(row) if isinstance(row, (Sequence, np.ndarray)) else 0 for row in rows]
    if len(set(lengths)) != 1 or not lengths[0]:
        raise StreamError(
            "enrollment: needs a row for each client, with a state for each task, as many for every client and at "
            f"least 1; got rows of lengths {lengths}"
        )
    return rows


def _state_of(cell: object, where: str) -> EnrollmentState:
    if isinstance(cell, EnrollmentState):
        return cell
    text = cell.strip().lower() if isinstance(cell, str) else ""
    if text not in _TEXTS:
        raise StreamError(
            f"enrollment, {where}: {cell!r} is no state; expected x (not yet), * (active), - (away) or o (no longer)"
        )
    return _TEXTS[text]


def _check_state(state: object, before: Optional[EnrollmentState], where: str) -> None:
    """Raises StreamError unless `state` may follow `before` (None at the first task)."""
    if not isinstance(state, EnrollmentState):
        raise StreamError(f"{where}: expected an EnrollmentState, found {state!r}; or use Enrollment.from_table")
    allowed = _FIRST if before is None else _NEXT[before]
    if state not in allowed:
        after = "in the first task" if before is None else f"after {before.value!r}"
        choices = " or ".join(repr(choice.value) for choice in allowed)
        raise StreamError(f"{where}: {state.value!r} cannot stand {after}; expected {choices}")


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
