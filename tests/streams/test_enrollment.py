"""Tables of enrolment against an independent rule, the figure of the paper, and counts."""

import itertools
import re

import numpy as np
import pytest

from tffcl.errors import StreamError
from tffcl.streams import Enrollment, EnrollmentState

SIZES = [(c, t) for c in (1, 2, 3, 4, 5, 7, 10, 23) for t in (1, 2, 3, 4, 5, 10)]
SCENARIOS = ("full", "decreasing", "increasing", "scattered")


def counts(enrollment):
    return [len(enrollment.active(task)) for task in range(enrollment.num_tasks)]


def test_every_table_of_two_clients_and_three_tasks():
    # a client has not come for some tasks, is there for some, has left for the rest; who left was there
    legal, illegal = "x*([*]+o*)?", 0
    for signs in itertools.product("x*o", repeat=6):
        table = ("".join(signs[:3]), "".join(signs[3:]))
        wrong = [
            (client, end - 1) for client in (0, 1) for end in (1, 2, 3) if not re.fullmatch(legal, table[client][:end])
        ]
        if not wrong:
            assert Enrollment.from_table(table).table() == table
            continue
        illegal += 1
        with pytest.raises(StreamError, match="^enrollment, client {}, task {}: .* cannot".format(*wrong[0])):
            Enrollment.from_table(table)
    assert illegal == 3**6 - 7**2  # xxx, xx*, x**, x*o, ***, **o, *oo


def test_figure_four():
    """Four clients, four tasks: all; 4, 3, 2, 1 of them; 1, 2, 3, 4; one in each task."""
    assert Enrollment.full(4, 4).table() == ("****",) * 4
    assert Enrollment.decreasing(4, 4).table() == ("****", "***o", "**oo", "*ooo")
    assert Enrollment.increasing(4, 4).table() == ("****", "x***", "xx**", "xxx*")
    assert Enrollment.scattered(4, 4).table() == ("*ooo", "x*oo", "xx*o", "xxx*")


@pytest.mark.parametrize(("num_clients", "num_tasks"), SIZES)
def test_scenarios_of_any_size(num_clients, num_tasks):
    made = {name: getattr(Enrollment, name)(num_clients, num_tasks) for name in SCENARIOS}
    for name, one in made.items():
        assert (one.name, one.num_clients, one.num_tasks) == (name, num_clients, num_tasks)
        assert Enrollment.from_table(one.table(), name=name) == one
    assert counts(made["full"]) == [num_clients] * num_tasks
    down, up = counts(made["decreasing"]), counts(made["increasing"])
    assert up == down[::-1]
    assert down[0] == num_clients
    assert down[-1] >= 1
    leaving = -np.diff([*down, 0])  # after each task, the last one included
    assert leaving.max() - leaving.min() <= 1
    if num_clients >= num_tasks:
        assert leaving.min() >= 1
    once = counts(made["scattered"])
    assert sum(once) == num_clients
    assert max(once) - min(once) <= 1
    assert all(row.count("*") == 1 for row in made["scattered"].table())


def test_ways_to_write_a_state():
    states = (EnrollmentState.NOT_YET, EnrollmentState.ACTIVE, EnrollmentState.NO_LONGER)
    rows = [
        states,
        ["NOT_YET", "ACTIVE", "NO_LONGER"],
        ["not yet", "Active", " no longer"],
        "x*o",
        np.array(list("x*o")),
    ]
    made = Enrollment.from_table(rows, num_clients=5, num_tasks=3)
    assert made.states == (states,) * 5
    assert made.name == "custom"
    assert [made.active(task) for task in range(3)] == [(), (0, 1, 2, 3, 4), ()]
    assert made.state(4, 2) is EnrollmentState.NO_LONGER


def test_own_numbers_of_tasks():
    made = Enrollment.from_table(["xx**o"])
    assert [made.tasks_before(0, task) for task in range(5)] == [0, 0, 0, 1, 2]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (["*?"], r"client 0, task 1: '\?' is no state; expected x \(not yet\), \* \(active\) or o \(no longer\)"),
        ([[None]], "client 0, task 0: None is no state"),
        (["x*", "o*"], "client 1, task 0: 'no longer' cannot stand in the first task; expected 'not yet' or 'active'"),
        (["xo"], "client 0, task 1: 'no longer' cannot stand after 'not yet'; expected 'not yet' or 'active'"),
        (["*x"], "client 0, task 1: 'not yet' cannot stand after 'active'; expected 'active' or 'no longer'"),
        (["**", "*"], r"rows of lengths \[2, 1\]"),
        ([], r"rows of lengths \[\]"),
        (["", ""], r"rows of lengths \[0, 0\]"),
        ("**", r"rows of lengths \[\]"),
        (3, r"rows of lengths \[\]"),
        ([3], r"rows of lengths \[0\]"),
    ],
)  # fmt: skip
def test_what_is_no_table(table, message):
    with pytest.raises(StreamError, match=message):
        Enrollment.from_table(table)


@pytest.mark.parametrize(("size", "shown"), [((2, 3), "2 x 3"), ((2, None), "2 x any"), ((None, 4), "any x 4")])
def test_another_size_than_asked(size, shown):
    with pytest.raises(StreamError, match=f"'hand' is for 1 x 3 clients x tasks; expected {shown}"):
        Enrollment.from_table(["x**"], num_clients=size[0], num_tasks=size[1], name="hand")


def test_text_is_no_state_of_its_own():
    with pytest.raises(StreamError, match=r"client 0, task 0: expected an EnrollmentState, found '\*'"):
        Enrollment(("**",))


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("size", [(0, 3), (3, 0), (2.5, 3), (True, 3), (3, "4")])
def test_sizes_that_are_none(name, size):
    with pytest.raises(StreamError, match="num_(clients|tasks) must be a whole number, 1 or more"):
        getattr(Enrollment, name)(*size)


def test_no_such_client_or_task():
    with pytest.raises(StreamError, match=r"has no task 2 of client 0: clients are 0..1, tasks 0..1"):
        Enrollment.full(2, 2).state(0, 2)
