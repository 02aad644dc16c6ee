"""Domain-incremental streams: balance, disjointness and errors, counted."""

import collections

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tffcl import streams
from tffcl.errors import StreamError
from tffcl.streams import Enrollment

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
