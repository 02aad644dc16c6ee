"""Streams of one growing head: what each partition promises, counted; enrolment by examples; memories by class."""

import collections
import dataclasses

import numpy as np
import pytest

from tffcl import streams
from tffcl.errors import StreamError
from tffcl.streams.incremental import herding

LABELS = np.random.default_rng(3).integers(0, 7, 600)
TEST_LABELS = np.arange(70) % 7


def made(**options):
    return streams.class_incremental(
        LABELS, TEST_LABELS, **{"num_clients": 4, "num_tasks": 3, "labels_per_task": 2, **options}
    )


def rows_of(task):
    return [*task.train.tolist(), *task.validation.tolist()]


@pytest.mark.parametrize("partition", list(streams.PARTITIONS))
@pytest.mark.parametrize("share", [0, 0.25])
def test_the_rows_of_a_task_go_to_one_client_each_and_none_is_left(partition, share):
    stream = made(partition=partition, alpha=0.3, validation_share=share)
    for number in range(3):
        tasks = [own[number] for own in stream.tasks]
        labels = tasks[0].labels
        rows = sorted(row for task in tasks for row in rows_of(task))
        assert rows == np.flatnonzero(np.isin(LABELS, labels)).tolist()
        for task in tasks:
            assert task.labels == labels
            assert task.test.tolist() == (
                np.flatnonzero(np.isin(TEST_LABELS, labels)).tolist() if len(task.train) else []
            )


def test_no_class_comes_twice_and_all_clients_have_the_same_order():
    stream = made()
    labels = [label for task in stream.tasks[0] for label in task.labels]
    assert len(set(labels)) == len(labels) == 6
    others = {tuple(task.labels for task in made(order_seed=seed).tasks[0]) for seed in range(5)}
    assert len(others) > 1
    assert streams.seen_classes(stream) == [tuple(sorted(labels[: 2 * t + 2])) for t in range(3)]


def test_the_seed_of_the_split_decides_who_has_which_rows():
    one, other = made(seed=5), made(seed=5)
    assert [rows_of(t) for own in one.tasks for t in own] == [rows_of(t) for own in other.tasks for t in own]
    assert [rows_of(t) for t in made(seed=6).tasks[0]] != [rows_of(t) for t in one.tasks[0]]


def test_equal_parts_differ_by_at_most_one_by_class_and_by_client():
    stream = made(partition="equal", validation_share=0)
    for number in range(3):
        sizes = [len(own[number].train) for own in stream.tasks]
        assert max(sizes) - min(sizes) <= 1
        for label in stream.task(0, number).labels:
            counts = [int((LABELS[own[number].train] == label).sum()) for own in stream.tasks]
            assert max(counts) - min(counts) <= 1


def test_shards_give_each_client_two_runs_of_rows_sorted_by_class():
    stream = made(partition="shards", validation_share=0)
    for number in range(3):
        total = sum(len(own[number].train) for own in stream.tasks)
        for own in stream.tasks:
            assert abs(len(own[number].train) - total / 4) <= 2
    one_class = [len(set(LABELS[own[n].train])) == 1 for own in stream.tasks for n in range(3)]
    assert any(one_class)


def test_quantity_skews_how_much_and_not_what():
    labels = np.repeat([0, 1], 5000)
    clients = streams.PARTITIONS["quantity"](labels, 5, 0.5, np.random.default_rng(1))
    by_class = np.array([np.bincount(clients[labels == label], minlength=5) for label in (0, 1)])
    assert abs(by_class[0] - by_class[1]).max() <= 1
    assert by_class.sum(axis=0).max() > 3 * max(1, by_class.sum(axis=0).min())


@pytest.mark.parametrize("alpha", [0.1, 1.0, 100.0])
def test_dirichlet_shares_have_the_mean_and_variance_of_the_distribution(alpha):
    """Var of a share is (1/C)(1 - 1/C) / (C alpha + 1), over classes as independent draws."""
    clients_count, classes, each = 4, 400, 200
    labels = np.repeat(np.arange(classes), each)
    clients = streams.PARTITIONS["dirichlet"](labels, clients_count, alpha, np.random.default_rng(2))
    shares = np.array([np.bincount(clients[labels == c], minlength=clients_count) for c in range(classes)]) / each
    variance = 0.25 * 0.75 / (clients_count * alpha + 1)
    error = 4 * np.sqrt(variance / classes)
    assert abs(shares.mean(axis=0) - 0.25).max() < error
    assert shares.var() == pytest.approx(variance, rel=0.25, abs=2e-5)


@pytest.mark.parametrize("alpha", [1e-300, 0.01, 1e9])
def test_extreme_dirichlet_ends_disjoint_and_complete(alpha):
    labels = np.arange(200) % 10
    stream = streams.class_incremental(labels, np.arange(10), num_clients=100, partition="dirichlet", alpha=alpha)
    assert sorted(row for own in stream.tasks for task in own for row in rows_of(task)) == list(range(200))
    table = streams.participation(stream).table()
    active = [[len(task.train) > 0 for task in own] for own in stream.tasks]
    assert [[sign == "*" for sign in row] for row in table] == active


def test_a_client_that_has_nothing_between_two_tasks_is_away():
    stream = made()
    none = np.zeros(0, int)
    own = list(stream.tasks[1])
    own[1] = dataclasses.replace(own[1], train=none, validation=none, test=none)
    tasks = (stream.tasks[0], tuple(own), *stream.tasks[2:])
    found = streams.participation(dataclasses.replace(stream, tasks=tasks))
    assert (found.table()[:2], found.active(1)) == (("***", "*-*"), (0, 2, 3))
    assert found.tasks_before(1, 2) == 1
    assert streams.participation(stream).name == "full"


@pytest.mark.parametrize("split", ["class", "data"])
def test_natural_parts_are_whose_the_rows_are(split):
    clients = np.random.default_rng(0).choice(["zoe", "ann", "bob"], len(LABELS), p=[0.6, 0.3, 0.1])
    build = {"class": streams.class_incremental, "data": streams.data_incremental}[split]
    stream = build(LABELS, TEST_LABELS, num_clients=3, num_tasks=3, partition="natural", clients=clients)
    for own, name in zip(stream.tasks, ("ann", "bob", "zoe")):
        assert {str(clients[row]) for task in own for row in rows_of(task)} == {name}
    rows = [row for own in stream.tasks for task in own for row in rows_of(task)]
    assert len(rows) == len(set(rows)) == np.isin(LABELS, streams.seen_classes(stream)[-1]).sum()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the client of each training example, and the data have none"),
        ({"clients": ["a", "b"]}, "needs the client of each training example"),
        ({"clients": ["a", "b"] * 300}, "the data name 2 clients, expected 4: ask for num_clients=2"),
        ({"clients": list("abcd") * 150, "enrollment": streams.Enrollment.scattered(4, 3)}, "leave the enrolment out"),
    ],
)
def test_natural_parts_without_owners_are_refused(options, message):
    with pytest.raises(StreamError, match=message):
        made(partition="natural", **options)


def test_rows_are_divided_among_those_who_are_enrolled():
    table = streams.Enrollment.from_table(["***", "x**", "*oo", "**o"])
    stream = made(enrollment=table)
    assert streams.participation(stream).table() == table.table()
    rows = [row for own in stream.tasks for task in own for row in rows_of(task)]
    assert len(rows) == len(set(rows)) == np.isin(LABELS, streams.seen_classes(stream)[-1]).sum()


def test_data_incremental_has_all_classes_and_no_row_twice():
    stream = streams.data_incremental(LABELS, TEST_LABELS, num_clients=3, num_tasks=4, validation_share=0)
    tasks = [task for own in stream.tasks for task in own]
    assert all(task.labels == tuple(range(7)) and len(task.test) == 70 for task in tasks)
    assert sorted(row for task in tasks for row in task.train.tolist()) == list(range(600))
    counts = np.array([np.bincount(LABELS[np.concatenate([own[t].train for own in stream.tasks])]) for t in range(4)])
    assert (counts.max(axis=0) - counts.min(axis=0)).max() <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_tasks": 4}, "4 tasks with 2 new classes each need 8 classes, and 7 can be had: ask for fewer"),
        ({"partition": "even"}, "partition must be one of equal, dirichlet, shards, quantity, natural; got 'even'"),
        ({"alpha": 0}, "alpha must be a number above 0; got 0"),
        ({"alpha": float("nan")}, "alpha must be a number above 0"),
        (
            {"label_names": [*"abcdefg", "nobody"], "num_tasks": 4},
            r"without training or test examples: label 7 \(nobody\)",
        ),
        ({"enrollment": streams.Enrollment.scattered(4, 2)}, "expected 4 x 3"),
        ({"num_clients": 1, "enrollment": streams.Enrollment.from_table(["*oo"])}, "task 1: nobody is enrolled"),
    ],
)
def test_what_cannot_be_had_is_said_in_a_line(options, message):
    with pytest.raises(StreamError, match=message) as refused:
        made(**options)
    assert "\n" not in str(refused.value)


# -- memories -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_class", [0, 1, 5, 10_000])
def test_a_memory_has_so_many_of_each_past_class_at_a_client(per_class):
    stream = made(partition="dirichlet", alpha=0.5, validation_share=0)
    rehearsed = streams.with_memory(stream, LABELS, per_class, seed=1)
    for own, with_old in zip(stream.tasks, rehearsed.tasks):
        for number, task in enumerate(with_old):
            old = collections.Counter(LABELS[np.setdiff1d(task.train, own[number].train)].tolist())
            had = collections.Counter(label for past in own[:number] for label in LABELS[past.train].tolist())
            assert old == {label: min(count, per_class) for label, count in had.items() if per_class}
            assert set(own[number].train) <= set(task.train)
            assert (task.test.tolist(), task.test_labels) == (own[number].test.tolist(), own[number].labels)


def test_what_is_remembered_stays_and_is_repeated_to_as_many_as_new():
    stream = made(validation_share=0)
    rehearsed = streams.with_memory(stream, LABELS, 3, seed=1)
    for own, with_old in zip(stream.tasks, rehearsed.tasks):
        kept = [set(with_old[n].train) - set(own[n].train) for n in range(3)]
        assert kept[1] <= kept[2]
        for number in (1, 2):
            repeated = len(with_old[number].train) - len(own[number].train)
            assert abs(repeated - len(own[number].train)) <= len(kept[number]) / 2


def test_a_memory_of_all_data_so_far_is_a_uniform_sample():
    """Data of one class in three tasks: whatever the task, a row is remembered with the same probability, 10 of 60."""
    labels = np.zeros(60, int)
    stream = streams.data_incremental(labels, [0], num_clients=1, num_tasks=3, validation_share=0)
    extended = [[*stream.tasks[0], streams.Task(0, 3, (0,), [], [], [])]]
    four = streams.TaskStream("four", tuple(map(tuple, extended)))
    hits = np.zeros(60)
    for seed in range(300):
        hits[np.unique(streams.with_memory(four, labels, 10, seed=seed).task(0, 3).train)] += 1
    by_task = [hits[task.train].mean() / 300 for task in stream.tasks[0]]
    assert by_task == pytest.approx([1 / 6] * 3, abs=0.03)  # 5 standard deviations of 300 draws


def herded_by_hand(vectors, mean, count):
    """All continuations are tried in each step."""
    order = []
    while len(order) < min(count, len(vectors)):
        rest = [row for row in range(len(vectors)) if row not in order]
        order.append(min(rest, key=lambda row: np.sum((mean - np.mean(vectors[[*order, row]], axis=0)) ** 2)))
    return order


@pytest.mark.parametrize("count", [0, 1, 4, 9, 30])
def test_herding_takes_the_row_with_which_the_mean_is_nearest(count):
    vectors = np.random.default_rng(count).normal(size=(12, 3))
    order = herding(vectors, vectors.mean(axis=0), count)
    assert order.tolist() == herded_by_hand(vectors, vectors.mean(axis=0), count)
    assert len(set(order.tolist())) == min(count, 12)


@pytest.mark.parametrize("per_class", [0, 1, 5])
def test_a_herded_memory_is_that_of_each_class_of_each_client(per_class):
    vectors = np.random.default_rng(0).normal(size=(len(LABELS), 3))
    stream = made(partition="dirichlet", alpha=0.5, validation_share=0)
    herded = streams.with_memory(stream, LABELS, per_class, vectors=vectors)
    for own, with_old in zip(stream.tasks, herded.tasks):
        for number, task in enumerate(with_old):
            wanted = set()
            for past in own[:number]:
                for label in past.labels:
                    rows = np.sort(past.train[LABELS[past.train] == label])
                    kept = herded_by_hand(vectors[rows], vectors[rows].mean(axis=0), per_class) if len(rows) else []
                    wanted |= set(rows[kept].tolist())
            assert set(np.setdiff1d(task.train, own[number].train).tolist()) == wanted


def test_what_comes_again_is_herded_with_what_is_remembered_towards_the_mean_of_all():
    labels, vectors = np.zeros(40, int), np.random.default_rng(3).normal(size=(40, 2))
    stream = streams.data_incremental(labels, [0], num_clients=1, num_tasks=3, validation_share=0)
    parts = [task.train for task in stream.tasks[0]]
    first = np.sort(parts[0])[herded_by_hand(vectors[np.sort(parts[0])], vectors[parts[0]].mean(axis=0), 4)]
    candidates = np.sort(np.concatenate([first, parts[1]]))
    both = np.concatenate(parts[:2])
    second = candidates[herded_by_hand(vectors[candidates], vectors[both].mean(axis=0), 4)]
    last = streams.with_memory(stream, labels, 4, vectors=vectors).task(0, 2).train
    assert set(np.setdiff1d(last, parts[2])) == set(second)


def test_vectors_of_other_examples_are_refused():
    with pytest.raises(StreamError, match="vectors: expected one for each of"):
        streams.with_memory(made(), LABELS, 2, vectors=np.zeros((3, 2)))
