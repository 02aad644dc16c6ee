"""Domain streams: who is enrolled when, and which examples each enrolled client then has."""

import collections
import itertools
import re

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tffcl import streams
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
        (["*?"], r"client 0, task 1: '\?' is no state; expected x \(not yet\), \* \(active\), - \(away\) or o"),
        ([[None]], "client 0, task 0: None is no state"),
        (["x*", "o*"], "client 1, task 0: 'no longer' cannot stand in the first task; expected 'not yet' or 'active'"),
        (["xo"], "client 0, task 1: 'no longer' cannot stand after 'not yet'; expected 'not yet' or 'active'"),
        (["*x"], "client 0, task 1: 'not yet' cannot stand after 'active'; expected 'active' or 'no longer' or 'away'"),
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


LABELS = np.random.default_rng(5).integers(0, 5, 1200)
TEST_LABELS = np.random.default_rng(6).integers(0, 5, 203)


def rotations(**options):
    """Three domains over the same images, four clients."""
    return streams.domain_sequence(
        [LABELS] * 3,
        [TEST_LABELS] * 3,
        **{"num_clients": 4, "examples_per_task": 33, "shared_base": [0, 0, 0], **options},
    )


def rows(task):
    return [*task.train.tolist(), *task.validation.tolist()]


def content(stream):
    return [[(t.train.tolist(), t.validation.tolist(), t.test.tolist()) for t in own] for own in stream.tasks]


def check(stream, train_labels, test_labels, enrollment, examples, test_examples=None):
    """What holds for every stream."""
    for number in range(stream.num_tasks):
        train, test = np.asarray(train_labels[number]), np.asarray(test_labels[number])
        num_labels = len(stream.task(0, 0).labels)
        seen, tested = collections.Counter(), collections.Counter()
        for client in range(stream.num_clients):
            task = stream.task(client, number)
            if client not in enrollment.active(number):
                assert len(task.train) == len(task.validation) == len(task.test) == 0
                continue
            assert len(rows(task)) == examples
            counted = np.bincount(train[rows(task)], minlength=num_labels)
            assert counted.max() - counted.min() <= 1
            seen.update(rows(task))
            tested.update(task.test.tolist())
        assert not seen or max(seen.values()) == 1
        active = enrollment.active(number)
        if not active:
            continue
        wanted = np.count_nonzero(test >= 0) if test_examples is None else test_examples
        assert len(tested) == sum(tested.values()) == min(wanted, np.count_nonzero(test >= 0))
        assert all(test[row] >= 0 for row in tested)
        for label in (*range(num_labels), None):  # each label, and all
            sizes = [sum(label in (None, test[row]) for row in stream.task(c, number).test) for c in active]
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("scenario", ["full", "decreasing", "increasing", "scattered"])
def test_scenarios(scenario):
    enrollment = getattr(Enrollment, scenario)(4, 3)
    stream = rotations(enrollment=enrollment)
    assert (stream.name, stream.num_clients, stream.num_tasks) == ("domain_sequence", 4, 3)
    check(stream, [LABELS] * 3, [TEST_LABELS] * 3, enrollment, 33)


def test_a_task_with_nobody():
    enrollment = Enrollment.from_table(["*oo", "xx*"])
    stream = rotations(num_clients=2, enrollment=enrollment)
    check(stream, [LABELS] * 3, [TEST_LABELS] * 3, enrollment, 33)


def test_no_image_is_shown_in_two_domains_as_long_as_there_are_enough():
    everything = [row for own in rotations().tasks for task in own for row in rows(task)]
    assert len(set(everything)) == len(everything) == 4 * 3 * 33


def test_then_the_least_shown_come_again():
    stream = rotations(examples_per_task=150)  # 1800 of 1200
    check(stream, [LABELS] * 3, [TEST_LABELS] * 3, Enrollment.full(4, 3), 150)
    times = collections.Counter(row for own in stream.tasks for task in own for row in rows(task))
    for label in range(5):
        shown = [times[row] for row in np.flatnonzero(label == LABELS).tolist()]
        assert max(shown) - min(shown) <= 1


def test_what_a_client_has_does_not_depend_on_who_else_is_enrolled():
    full = content(rotations())
    for scenario in ("decreasing", "increasing", "scattered"):
        enrollment = getattr(Enrollment, scenario)(4, 3)
        other = content(rotations(enrollment=enrollment))
        for client in range(4):
            for task in range(3):
                if client in enrollment.active(task):
                    assert other[client][task][:2] == full[client][task][:2]


def test_where_there_are_enough_for_those_enrolled_only():
    enrollment = Enrollment.scattered(4, 3)
    stream = rotations(examples_per_task=250, enrollment=enrollment)  # 1000 of 1200; for all it would be 3000
    check(stream, [LABELS] * 3, [TEST_LABELS] * 3, enrollment, 250)
    everything = [row for own in stream.tasks for task in own for row in rows(task)]
    assert len(set(everything)) == len(everything) == 1000


def test_domains_with_images_of_their_own():
    groups = [np.where(LABELS < 2, LABELS, -1), np.where(LABELS > 2, LABELS - 3, -1)]
    tests = [np.where(TEST_LABELS < 2, TEST_LABELS, -1), np.where(TEST_LABELS > 2, TEST_LABELS - 3, -1)]
    for base in (None, [0, 0], [7, 3]):
        stream = streams.domain_sequence(groups, tests, num_clients=3, examples_per_task=20, shared_base=base, seed=1)
        assert stream.task(0, 1).labels == (0, 1)
        check(stream, groups, tests, Enrollment.full(3, 2), 20)


def test_validation_is_held_out_of_the_examples():
    task = rotations(examples_per_task=50, validation_share=0.2).task(2, 1)
    assert (len(task.train), len(task.validation)) == (40, 10)
    assert np.bincount(LABELS[task.validation]).tolist() == [2] * 5


def test_fewer_test_examples():
    stream = rotations(test_examples=30)
    check(stream, [LABELS] * 3, [TEST_LABELS] * 3, Enrollment.full(4, 3), 33, 30)
    used = [row for client in range(4) for row in stream.task(client, 0).test]
    assert np.bincount(TEST_LABELS[used]).tolist() == [6] * 5


def test_the_seed_decides():
    assert content(rotations()) == content(rotations())
    assert content(rotations(seed=1)) != content(rotations(seed=2))
    assert content(rotations())[0][0] != content(rotations())[0][1]


@hypothesis.settings(max_examples=40)
@hypothesis.given(
    num_clients=st.integers(1, 6),
    num_tasks=st.integers(1, 4),
    examples=st.integers(1, 40),
    scenario=st.sampled_from(["full", "decreasing", "increasing", "scattered"]),
    shared=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_request_holds_or_is_refused(num_clients, num_tasks, examples, scenario, shared, seed):
    rng = np.random.default_rng(seed)
    train, test = rng.integers(-1, 4, 300), rng.integers(-1, 4, 41)
    enrollment = getattr(Enrollment, scenario)(num_clients, num_tasks)
    arguments = [train] * num_tasks, [test] * num_tasks
    options = {
        "num_clients": num_clients,
        "enrollment": enrollment,
        "seed": seed,
        "shared_base": [0] * num_tasks if shared else None,
    }
    try:
        stream = streams.domain_sequence(*arguments, examples_per_task=examples, **options)
    except StreamError as error:
        possible = int(str(error).split("ask for ")[1].split()[0])
        stream = streams.domain_sequence(*arguments, examples_per_task=possible, **options)
        check(stream, *arguments, enrollment, possible)
        with pytest.raises(StreamError):
            streams.domain_sequence(*arguments, examples_per_task=possible + 1, **options)
        return
    check(stream, *arguments, enrollment, examples)


def test_too_few_examples_say_what_would_be_possible():
    labels = [0] * 10 + [1] * 7
    with pytest.raises(
        StreamError,
        match=(
            "examples_per_task=8: domain 1 has 7 training examples of label 1, its 2 clients need 8: ask for 7 or "
            "fewer, or fewer clients"
        ),
    ):
        streams.domain_sequence([[0, 1] * 9, labels], [[0], [1]], num_clients=2, examples_per_task=8, shared_base=None)
    with pytest.raises(StreamError, match="domain 0 has 1 training .*its 9 clients need 9: enrol fewer clients"):
        streams.domain_sequence([[0]], [[0]], num_clients=9, examples_per_task=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_clients": 0}, "num_clients must be a whole number, 1 or more"),
        ({"examples_per_task": 0}, "examples_per_task must be a whole number, 1 or more"),
        ({"examples_per_task": 2.5}, "examples_per_task must be"),
        ({"test_examples": 0}, "test_examples must be"),
        ({"seed": -1}, "seed must be a whole number, 0 or more"),
        ({"validation_share": 1}, "validation_share=1 leaves nothing to learn from"),
        ({"validation_share": -0.1}, "validation_share must be a share from 0 to 1"),
        ({"enrollment": Enrollment.full(3, 3)}, "'full' is for 3 x 3 clients x tasks; expected 4 x 3"),
        ({"shared_base": [0, 0]}, "shared_base has 2 numbers; expected one for each of 3 domains"),
    ],
)
def test_settings_out_of_range(changes, message):
    with pytest.raises(StreamError, match=message):
        rotations(**changes)


@pytest.mark.parametrize(
    ("train", "test", "base", "message"),
    [
        ([[0, 1]], [[0], [1]], None, "need both for the same domains, at least one; got 1 and 2"),
        ([], [], None, "got 0 and 0"),
        ([[0, -2]], [[0]], None, r"train_labels\[0\]: row 1 has label -2; expected 0 or more, or -1"),
        ([[0, 0.5]], [[0]], None, r"train_labels\[0\]: expected a flat sequence of whole labels"),
        ([[0]], [[[0]]], None, r"test_labels\[0\]: expected a flat sequence"),
        ([[-1, -1]], [[-1]], None, "no domain has any example"),
        ([[0, 1], [0]], [[0], [0]], [1, 1], "domains 0 and 1 have 2 and 1 training rows"),
        ([[0], [0]], [[0, 0], [0]], [1, 1], "domains 0 and 1 have 2 and 1 test rows"),
    ],
)
def test_labels_that_cannot_be_used(train, test, base, message):
    with pytest.raises(StreamError, match=message):
        streams.domain_sequence(train, test, num_clients=1, examples_per_task=1, shared_base=base)
