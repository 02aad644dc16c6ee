"""Splits against counts made by hand and by brute force."""

import collections
import itertools

import numpy as np
import pytest

from tffcl import streams
from tffcl.errors import StreamError

LABELS = np.random.default_rng(5).integers(0, 6, 1000)
TEST_LABELS = np.random.default_rng(6).integers(0, 6, 100)
SPLITS = [streams.non_iid, streams.overlapping, streams.iid]


def flat(stream):
    return [task for tasks in stream.tasks for task in tasks]


def documents(task):
    return set(task.train.tolist()) | set(task.validation.tolist())


def content(stream):
    return [
        (t.client, t.task, t.labels, t.train.tolist(), t.validation.tolist(), t.test.tolist()) for t in flat(stream)
    ]


@pytest.mark.parametrize("split", SPLITS)
def test_every_task_holds_only_its_labels_and_all_its_test_documents(split):
    stream = split(LABELS, TEST_LABELS)
    assert (stream.num_clients, stream.num_tasks, stream.name) == (3, 5, split.__name__)
    for client, place in itertools.product(range(3), range(5)):
        task = stream.task(client, place)
        assert (task.client, task.task) == (client, place)
        assert len(task.labels) == (6 if split is streams.iid else 4)
        assert {int(LABELS[i]) for i in task.train} == set(task.labels)
        assert {int(LABELS[i]) for i in task.validation} <= set(task.labels)
        assert not set(task.train.tolist()) & set(task.validation.tolist())
        assert task.test.tolist() == [i for i, label in enumerate(TEST_LABELS) if label in task.labels]
        assert all(field.dtype == np.int64 for field in (task.train, task.validation, task.test))


def test_non_iid_divides_each_label_into_equal_disjoint_parts():
    tasks = flat(streams.non_iid(LABELS, TEST_LABELS))
    seen = collections.Counter(i for task in tasks for i in documents(task))
    assert max(seen.values()) == 1
    for label in range(6):
        parts = [sum(LABELS[i] == label for i in documents(task)) for task in tasks if label in task.labels]
        assert max(parts) - min(parts) <= 1
        assert sum(parts) in {0, LABELS.tolist().count(label)}


def test_validation_is_a_stratified_share():
    for task in flat(streams.non_iid(LABELS, TEST_LABELS, validation_share=0.25)):
        total = len(documents(task))
        assert len(task.validation) == int(total / 4 + 0.5)
        for label in task.labels:
            here = sum(LABELS[i] == label for i in documents(task))
            assert abs(sum(LABELS[i] == label for i in task.validation) - here / 4) < 1


def test_no_validation_when_the_share_is_zero():
    stream = streams.non_iid(LABELS, TEST_LABELS, validation_share=0)
    assert not any(len(task.validation) for task in flat(stream))


def test_iid_parts_of_labels_and_tasks_differ_by_at_most_one():
    tasks = flat(streams.iid(LABELS, TEST_LABELS, num_clients=7, num_tasks=2))
    sizes = [len(documents(task)) for task in tasks]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == 1000
    assert len(set.union(*map(documents, tasks))) == 1000
    for label in range(6):
        parts = [sum(LABELS[i] == label for i in documents(task)) for task in tasks]
        assert max(parts) - min(parts) <= 1


def test_iid_with_fewer_labels_gives_all_tasks_the_same_ones():
    stream = streams.iid(LABELS, TEST_LABELS, labels_per_task=3)
    assert len({task.labels for task in flat(stream)}) == 1
    assert len(flat(stream)[0].labels) == 3


@pytest.mark.parametrize("overlap", [0.0, 0.3, 1.0])
def test_overlap_counts_by_hand(overlap):
    tasks = flat(streams.overlapping(LABELS, TEST_LABELS, overlap=overlap))
    for label in range(6):
        here = [task for task in tasks if label in task.labels]
        owners = [{i for i in documents(task) if LABELS[i] == label} for task in here]
        if len(owners) > 1:
            count = LABELS.tolist().count(label)
            common = int(count * overlap + 0.5)
            assert len(set.intersection(*owners)) == common
            assert sum(map(len, owners)) == len(owners) * common + count - common


def test_overlap_zero_is_the_non_iid_split_and_validation_never_leaks():
    assert content(streams.overlapping(LABELS, TEST_LABELS, overlap=0)) == content(streams.non_iid(LABELS, TEST_LABELS))
    tasks = flat(streams.overlapping(LABELS, TEST_LABELS, overlap=0.5))
    trained = set().union(*(task.train.tolist() for task in tasks))
    assert not trained & set().union(*(task.validation.tolist() for task in tasks))


@pytest.mark.parametrize("split", SPLITS)
def test_seeds_decide_everything(split):
    first = content(split(LABELS, TEST_LABELS))
    np.random.seed(1)  # noqa: NPY002 (the global state is what is under test)
    assert content(split(LABELS.tolist(), TEST_LABELS.tolist())) == first
    assert content(split(LABELS, TEST_LABELS, seed=43)) != first
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    split(LABELS, TEST_LABELS)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_order_seed_orders_the_tasks_of_a_client_and_nothing_else():
    def per_client(order_seed):
        stream = streams.non_iid(LABELS, TEST_LABELS, order_seed=order_seed)
        return [[(t.labels, tuple(t.train), tuple(t.validation)) for t in tasks] for tasks in stream.tasks]

    first, second = per_client(1), per_client(2)
    assert first != second
    assert [sorted(tasks) for tasks in first] == [sorted(tasks) for tasks in second]


def test_known_split_stays_as_it_is():
    # A run resumes only if its stream can be made again: this split may never change for a released version.
    stream = streams.non_iid([0, 1, 2, 3] * 12, [0, 1, 2, 3], num_clients=2, num_tasks=2, labels_per_task=2)
    assert [(task.labels, task.train.tolist()[:3]) for task in flat(stream)] == [
        ((1, 3), [7, 13, 15]),
        ((1, 3), [5, 21, 27]),
        ((1, 2), [2, 6, 10]),
        ((0, 3), [0, 3, 4]),
    ]


def test_names_of_the_package():
    assert {"Task", "TaskStream", "iid", "non_iid", "overlapping"} <= set(streams.__all__)
    with pytest.raises(StreamError, match="no task 9 of client 0: clients are 0..2, tasks 0..4"):
        streams.non_iid(LABELS, TEST_LABELS).task(0, 9)
