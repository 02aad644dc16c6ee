"""Cumulative replay and the offline forms, against unions made by hand."""

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
