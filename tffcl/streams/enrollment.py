"""Clients that come and go: who is enrolled in which task, and the four scenarios of FIL-VER.

Park, Kumatani, Dimitriadis: Tackling Dynamics in Federated Incremental Learning with Variational Embedding Rehearsal,
2021 (FIL-VER), section 4 and figure 4.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Sequence
from typing import Optional, Union

import numpy as np

from tffcl.errors import StreamError, check_whole


class EnrollmentState(enum.Enum):
    """What a client is in a task; it does not change within one."""

    NOT_YET = "not yet"
    ACTIVE = "active"
    NO_LONGER = "no longer"

    @property
    def sign(self) -> str:
        """One character for tables, after figure 4: x, * or o."""
        return {"not yet": "x", "active": "*", "no longer": "o"}[self.value]


_Cell = Union[EnrollmentState, str]
# A client that never was active cannot be "no longer", so that is no first state and follows "active" alone.
_FIRST = (EnrollmentState.NOT_YET, EnrollmentState.ACTIVE)
_NEXT = {
    EnrollmentState.NOT_YET: _FIRST,
    EnrollmentState.ACTIVE: (EnrollmentState.ACTIVE, EnrollmentState.NO_LONGER),
    EnrollmentState.NO_LONGER: (EnrollmentState.NO_LONGER,),
}
_TEXTS = {text: state for state in EnrollmentState for text in (state.value, state.name.lower(), state.sign)}


@dataclasses.dataclass(frozen=True)
class Enrollment:
    """The state of each of C clients in each of T tasks.

    A client comes at most once, stays for some tasks one after the other, and leaves at most once. A task in which
    nobody is active is legal. What a client had sent before it left may still be used.

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
        x not yet, * active, o no longer. A row may be one text of signs. `num_clients` and `num_tasks` are the size
        that the table must have; None for any. `name` is that of the scenario.

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
            f"enrollment, {where}: {cell!r} is no state; expected x (not yet), * (active) or o (no longer)"
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
