"""Cumulative replay and the offline forms, against unions made by hand; fewer test documents, and nothing else."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tffcl import streams
from tffcl.errors import StreamError
from tffcl.streams import Task, TaskStream

LABELS = np.random.default_rng(5).integers(0, 10, 600)
TEST_LABELS = np.random.default_rng(6).integers(0, 10, 100)


def by_hand():
    first = (
        Task(0, 0, (1,), train=[0, 2], validation=[1], test=[0, 1]),
        Task(0, 1, (0, 2), train=[5, 3], validation=[], test=[2]),
    )
    second = (
        Task(1, 0, (2,), train=[7], validation=[8], test=[2]),
        Task(1, 1, (1,), train=[9], validation=[4], test=[0, 1]),
    )
    return TaskStream("hand", (first, second), (3,))


def test_a_task_that_a_stream_does_not_have():
    with pytest.raises(StreamError, match="no task 9 of client 0: clients are 0..1, tasks 0..1"):
        by_hand().task(0, 9)


def content(stream):
    return [
        [(t.client, t.task, t.labels, *(f.tolist() for f in (t.train, t.validation, t.test))) for t in tasks]
        for tasks in stream.tasks
    ]


def test_cumulative_by_hand():
    stream = streams.cumulative(by_hand())
    assert (stream.name, stream.excluded_labels) == ("cumulative(hand)", (3,))
    assert content(stream) == [
        [(0, 0, (1,), [0, 2], [1], [0, 1]), (0, 1, (0, 1, 2), [0, 2, 3, 5], [1], [2])],
        [(1, 0, (2,), [7], [8], [2]), (1, 1, (1, 2), [7, 9], [4, 8], [0, 1])],
    ]


def test_offline_by_hand():
    assert content(streams.federated_offline(by_hand())) == [
        [(0, 0, (0, 1, 2), [0, 2, 3, 5], [1], [0, 1, 2])],
        [(1, 0, (1, 2), [7, 9], [4, 8], [0, 1, 2])],
    ]
    stream = streams.offline(by_hand())
    assert (stream.name, stream.num_clients, stream.num_tasks) == ("offline(hand)", 1, 1)
    assert content(stream) == [[(0, 0, (0, 1, 2), [0, 2, 3, 5, 7, 9], [1, 4, 8], [0, 1, 2])]]


@hypothesis.settings(max_examples=25)
@hypothesis.given(
    st.sampled_from([streams.label_sequence, streams.non_iid, streams.overlapping]),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_against_brute_force(split, num_clients, num_tasks, seed):
    options = {"num_clients": num_clients, "num_tasks": num_tasks, "labels_per_task": 2, "seed": seed}
    stream = split(LABELS, TEST_LABELS, **options)
    grown, whole, one = (form(stream) for form in (streams.cumulative, streams.federated_offline, streams.offline))
    for field in ("train", "validation"):
        everything = set()
        for client, tasks in enumerate(stream.tasks):
            so_far = set()
            for place, task in enumerate(tasks):
                so_far |= set(getattr(task, field).tolist())
                assert getattr(grown.task(client, place), field).tolist() == sorted(so_far)
                assert grown.task(client, place).test.tolist() == task.test.tolist()
            assert getattr(whole.task(client, 0), field).tolist() == sorted(so_far)
            everything |= so_far
        assert getattr(one.task(0, 0), field).tolist() == sorted(everything)
    held = {label for tasks in stream.tasks for task in tasks for label in task.labels}
    assert one.task(0, 0).test.tolist() == [i for i, label in enumerate(TEST_LABELS) if label in held]
    assert one.task(0, 0).labels == tuple(sorted(held))


def test_an_example_that_one_task_learns_from_and_another_validates_with():
    tasks = (
        Task(0, 0, (0,), train=[0, 1], validation=[2], test=[]),
        Task(0, 1, (0,), train=[2], validation=[1], test=[]),
    )
    with pytest.raises(StreamError, match="task 1 of client 0: train and validation share documents"):
        streams.cumulative(TaskStream("hand", (tasks,)))


REPEATED = np.repeat(np.arange(4), 30)
STREAM = streams.non_iid(REPEATED, np.repeat(np.arange(4), 25), num_clients=3, num_tasks=2, labels_per_task=2)


def test_only_the_test_documents_become_fewer():
    found = streams.fewer_tests(STREAM, 20)
    for before, after in zip(STREAM.tasks, found.tasks):
        for old, new in zip(before, after):
            assert (new.client, new.task, new.labels) == (old.client, old.task, old.labels)
            assert np.array_equal(new.train, old.train)
            assert np.array_equal(new.validation, old.validation)
            assert (len(old.test), len(new.test), len(set(new.test))) == (50, 20, 20)
            assert set(new.test) <= set(old.test)
    assert found.name == STREAM.name


def test_the_draw_hangs_from_the_seed_and_differs_between_tasks():
    def drawn(**seed):
        return [tuple(task.test) for tasks in streams.fewer_tests(STREAM, 20, **seed).tasks for task in tasks]

    assert drawn() == drawn()
    assert drawn() != drawn(seed=1)
    assert len(set(drawn())) == 6


def test_a_task_that_has_no_more_stays_as_it_is():
    assert streams.fewer_tests(STREAM, 50).tasks == STREAM.tasks
    with pytest.raises(StreamError, match="most must be a whole number, 1 or more; got 0"):
        streams.fewer_tests(STREAM, 0)
