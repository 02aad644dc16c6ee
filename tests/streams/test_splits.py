"""Splits and sequences of labels, drawn and assigned, against counts made by hand and by brute force."""

import collections
import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

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


DIGITS = np.random.default_rng(5).integers(0, 10, 1500)
TEST_DIGITS = np.random.default_rng(6).integers(0, 10, 200)
NAMES = tuple(f"digit {number}" for number in range(10))


def labels_of(stream):
    return [[task.labels for task in tasks] for tasks in stream.tasks]


def check_division(stream, labels, test_labels):
    """Disjoint parts of equal size of every label held, and whole test sets."""
    held = collections.Counter(label for task in flat(stream) for label in task.labels)
    seen = collections.Counter(i for task in flat(stream) for i in documents(task))
    assert not seen or max(seen.values()) == 1
    assert len(seen) == sum(int(labels[i] in held) for i in range(len(labels)))
    for label in held:
        parts = [sum(labels[i] == label for i in documents(t)) for t in flat(stream) if label in t.labels]
        assert max(parts) - min(parts) <= 1
    for task in flat(stream):
        assert {int(labels[i]) for i in task.train} == set(task.labels)
        assert not set(task.train.tolist()) & set(task.validation.tolist())
        assert task.test.tolist() == [i for i, label in enumerate(test_labels) if label in task.labels]


def test_single_digits_by_default():
    stream = streams.label_sequence(DIGITS, TEST_DIGITS)
    assert (stream.name, stream.num_clients, stream.num_tasks) == ("label_sequence", 3, 5)
    for tasks in stream.tasks:
        assert all(len(task.labels) == 1 for task in tasks)
        assert len({task.labels for task in tasks}) == 5, "no digit twice at one client"
    check_division(stream, DIGITS, TEST_DIGITS)
    for task in flat(stream):
        assert abs(len(task.validation) - len(documents(task)) / 6) <= 0.5


@hypothesis.settings(max_examples=40)
@hypothesis.given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 2), st.booleans(), st.integers(0, 1000))
def test_any_drawn_sequence(num_clients, num_tasks, per_task, same_order, seed):
    stream = streams.label_sequence(
        DIGITS,
        TEST_DIGITS,
        num_clients=num_clients,
        num_tasks=num_tasks,
        labels_per_task=per_task,
        same_order=same_order,
        seed=seed,
    )
    for tasks in stream.tasks:
        assert len({label for task in tasks for label in task.labels}) == num_tasks * per_task
    if same_order:
        assert len({tuple(task.labels for task in tasks) for tasks in stream.tasks}) == 1
    check_division(stream, DIGITS, TEST_DIGITS)


def test_digits_then_letters():
    rng = np.random.default_rng(0)
    labels, test_labels = rng.integers(0, 36, 4000), np.arange(36)
    digits, letters = range(10), range(10, 36)
    stream = streams.label_sequence(
        labels, test_labels, num_tasks=4, labels_per_task=[3, 3, 13, 13], pools=[digits, digits, letters, letters]
    )
    for tasks in stream.tasks:
        assert [len(task.labels) for task in tasks] == [3, 3, 13, 13]
        assert {label for task in tasks[:2] for label in task.labels} <= set(digits)
        assert {label for task in tasks[2:] for label in task.labels} == set(letters)
    check_division(stream, labels, test_labels)


def test_whole_data_sets_one_a_task():
    labels, test_labels = np.repeat(range(4), [50, 90, 31, 70]), np.repeat(range(4), 5)
    orders = set()
    for seed in range(4):
        stream = streams.label_sequence(labels, test_labels, num_clients=3, num_tasks=4, seed=seed)
        check_division(stream, labels, test_labels)
        assert all(sorted(t.labels[0] for t in tasks) == [0, 1, 2, 3] for tasks in stream.tasks)
        orders |= {tuple(task.labels[0] for task in tasks) for tasks in stream.tasks}
    assert len(orders) > 4, "each client has an order of its own"


def test_seeds_decide_every_sequence():
    first = content(streams.label_sequence(DIGITS, TEST_DIGITS))
    np.random.seed(1)  # noqa: NPY002 (the global state is what is under test)
    assert content(streams.label_sequence(DIGITS.tolist(), TEST_DIGITS.tolist())) == first
    assert content(streams.label_sequence(DIGITS, TEST_DIGITS, seed=43)) != first
    more = streams.label_sequence(DIGITS, TEST_DIGITS, num_clients=4)
    assert labels_of(more)[:3] == [[labels for _, _, labels, *_ in first[c * 5 : c * 5 + 5]] for c in range(3)]


def test_known_sequence_stays_as_it_is():
    # A run resumes only if its stream can be made again: this one may never change for a released version.
    stream = streams.label_sequence([0, 1, 2, 3] * 12, [0, 1, 2, 3], num_clients=2, num_tasks=2)
    assert [(task.labels, task.train.tolist()[:3]) for task in flat(stream)] == [
        ((1,), [5, 9, 13]),
        ((2,), [2, 22, 26]),
        ((1,), [1, 25, 29]),
        ((2,), [6, 10, 14]),
    ]


def test_each_label_is_drawn_equally_often_at_each_place():
    counts = np.zeros((2, 5))
    for seed in range(500):
        stream = streams.label_sequence(
            [0, 1, 2, 3, 4], range(5), num_clients=1, num_tasks=2, min_documents=1, seed=seed
        )
        for place, task in enumerate(stream.tasks[0]):
            counts[place, task.labels[0]] += 1
    # Binomial(500, 1/5): standard deviation 8.9
    assert np.abs(counts - 100).max() < 4 * 8.9


def test_assigned_tasks_overlap_on_purpose():
    # figure 4: clients 0 and 1 hold the same two subsets the other way round, client 2 one of them and its own
    assignments = [[0, 3], [3, 0], [(3, 1), 2]]
    stream = streams.assigned_sequence(DIGITS, TEST_DIGITS, assignments)
    assert labels_of(stream) == [[(0,), (3,)], [(3,), (0,)], [(1, 3), (2,)]]
    check_division(stream, DIGITS, TEST_DIGITS)
    threes = [len([i for i in documents(t) if DIGITS[i] == 3]) for t in flat(stream) if 3 in t.labels]
    assert sum(threes) == DIGITS.tolist().count(3)
    assert len(threes) == 3
    again = streams.assigned_sequence(DIGITS, TEST_DIGITS, assignments, seed=1)
    assert content(again) != content(stream)


def test_all_data_over_all_clients_as_one_task():
    # tables 1 and 2: each client has 1/C of the data, of all classes or of three
    stream = streams.assigned_sequence(DIGITS, TEST_DIGITS, [[range(10)]] * 7)
    sizes = [len(documents(task)) for task in flat(stream)]
    assert (sum(sizes), max(sizes) - min(sizes) <= 1) == (1500, True)
    three = streams.assigned_sequence(DIGITS, TEST_DIGITS, [[(0, 1, 2)]] * 5)
    check_division(three, DIGITS, TEST_DIGITS)
    iid = streams.iid(DIGITS, TEST_DIGITS, num_clients=5, num_tasks=1, labels_per_task=3)
    assert len({task.labels for task in flat(iid)}) == 1


def test_a_label_twice_at_one_client():
    stream = streams.assigned_sequence([0] * 30, [0], [[0, 0], [0, 0]])
    check_division(stream, [0] * 30, [0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_tasks": 11}, "need 11 different labels, but only 10 of 10 can be drawn: ask for fewer num_tasks"),
        ({"num_tasks": 4, "labels_per_task": 3}, "need 12 different labels, but only 10 of 10"),
        ({"labels_per_task": 0}, "labels_per_task must be a whole number, 1 or more; got 0"),
        ({"labels_per_task": 1.5}, "labels_per_task must be a whole number"),
        ({"labels_per_task": [1, 2]}, r"labels_per_task has 2 numbers; expected one, or 5 \(num_tasks\)"),
        ({"num_clients": 0}, "num_clients must be a whole number, 1 or more; got 0"),
        ({"validation_share": 1}, "validation_share=1 leaves nothing"),
        ({"pools": [range(10)] * 4}, "pools has 4 entries; expected one for each of the 5 tasks"),
        ({"pools": [["a"]] * 5}, r"pools\[0\]: expected a label id, or several; got \['a'\]"),
        ({"pools": [range(11)] * 5}, r"pools\[0\]: 10 is no label of the dataset, which has 0..9"),
        (
            {"pools": [range(5)] * 3 + [range(4, 10)] * 2},
            r"pools\[3\] and pools\[0\] share label 4 \(digit 4\) but are not equal",
        ),
        ({"pools": [[0, 1]] * 3 + [[2, 3]] * 2}, "need 3 different labels, but only 2 of 2 can be drawn"),
        (
            {"min_documents": 1000},
            r"only 0 of 10 can be drawn \(label 0 \(digit 0\), .*, \.\.\. lack 3000 training examples and a test",
        ),
    ],
)
def test_impossible_draws(arguments, message):
    with pytest.raises(StreamError, match=message) as caught:
        streams.label_sequence(DIGITS, TEST_DIGITS, label_names=NAMES, **arguments)
    assert "\n" not in str(caught.value)


def test_rare_and_untested_labels_are_left_out_and_reported():
    train = [0] * 100 + [1] * 100 + [2] * 11 + [3] * 100
    tests = [0, 1, 2, 4]
    stream = streams.label_sequence(train, tests, num_tasks=2, label_names=["a", "b", "rare", "untested", "none"])
    assert stream.excluded_labels == (2, 3, 4)
    assert {task.labels for task in flat(stream)} == {(0,), (1,)}
    with pytest.raises(StreamError, match=r"\(label 2, label 3, label 4 lack 12 training examples and a test exa"):
        streams.label_sequence(train, tests, num_tasks=3)
    assert streams.label_sequence(train, tests, num_tasks=3, require_test=False).excluded_labels == (2, 4)


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        ([], r"every client needs the same number of tasks, at least 1; got lengths \[\]"),
        ([0, 1], r"assignments\[0\]: expected a client's tasks, found 0"),
        ([[], []], r"got lengths \[0, 0\]"),
        ([[0], [1, 2]], r"got lengths \[1, 2\]"),
        ([[0], [()]], r"assignments\[1\]\[0\]: expected at least one label, each once; got \(\)"),
        ([[(1, 1)]], r"assignments\[0\]\[0\]: expected at least one label, each once"),
        ([[0, "3"]], r"assignments\[0\]\[1\]: expected a label id, or several; got '3'"),
        ([[0, 1.0]], r"assignments\[0\]\[1\]: expected a label id"),
        ([[0, 2], [0, 12]], r"assignments\[1\]\[1\]: 12 is no label of the dataset, which has 0..2"),
        ([[0, 2], [2, 2]], r"assignments\[0\]\[1\]: label 2 has 2 training examples; the 3 tasks that hold it need 3"),
        ([[0, 1]], r"assignments\[0\]\[1\]: label 1 has no test example"),
    ],
)
def test_assignments_that_cannot_be(assignments, message):
    with pytest.raises(StreamError, match=message) as caught:
        streams.assigned_sequence([0, 0, 0, 0, 1, 1, 2, 2], [0, 2], assignments)
    assert "\n" not in str(caught.value)


def test_a_digit_that_nobody_has_is_named():
    with pytest.raises(StreamError, match=r"assignments\[1\]\[0\]: label 3 \(three\) has 0 training examples"):
        streams.assigned_sequence([0, 1, 2], [0, 1, 2, 3], [[0], [3]], label_names=["zero", "one", "two", "three"])


def test_numpy_labels_are_labels():
    stream = streams.assigned_sequence(DIGITS, TEST_DIGITS, np.array([[3, 1], [1, 3]]))
    assert labels_of(stream) == [[(3,), (1,)], [(1,), (3,)]]
    assert all(isinstance(label, int) for task in flat(stream) for label in itertools.chain(task.labels))


def test_overlap_of_one_divides_nothing():
    train = np.repeat(np.arange(10), 30)
    stream = streams.assigned_sequence(train, np.arange(10), streams.in_turn(3, 5, 10), overlap=1.0)
    assert labels_of(stream) == [
        [(0,), (3,), (6,), (9,), (2,)],
        [(1,), (4,), (7,), (0,), (3,)],
        [(2,), (5,), (8,), (1,), (4,)],
    ]
    for task in flat(stream):
        everything = np.flatnonzero(train == task.labels[0])
        assert np.array_equal(np.sort(np.concatenate([task.train, task.validation])), everything)
        assert len(task.validation) == 5
    with pytest.raises(StreamError, match="overlap must be a share from 0 to 1; got 2"):
        streams.assigned_sequence(train, np.arange(10), [[0]], overlap=2)


# -- mixed domains --------------------------------------------------------------------------------------------

SETS = {"a": 5, "b": 2, "c": 4}
SET_NAMES = [f"{name}/{label}" for name, count in SETS.items() for label in range(count)]
OF_SETS = np.random.default_rng(7).integers(0, 11, 4000)
TEST_OF_SETS = np.random.default_rng(8).integers(0, 11, 200)


def mixed(train=OF_SETS, tests=TEST_OF_SETS, **options):
    return streams.mixed(train, tests, **{"labels_per_task": 3, "label_names": SET_NAMES, **options})


@pytest.mark.parametrize("seed", [0, 42])
def test_a_mixed_stream_by_brute_force(seed):
    tasks = flat(mixed(num_clients=4, num_tasks=3, seed=seed, order_seed=5))
    drawn = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,))).integers(3, size=12)
    rngs = [np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0, number))) for number in range(3)]
    ids = [range(5), range(5, 7), range(7, 11)]
    picks = [tuple(sorted(rngs[number].permutation(ids[number])[:3].tolist())) for number in drawn]
    for client in range(4):
        order = np.random.default_rng(np.random.SeedSequence(5, spawn_key=(2, client))).permutation(3)
        for place, labels in zip(order, picks[client * 3 : client * 3 + 3]):
            assert tasks[client * 3 + place].labels == labels
    every = collections.Counter(row for task in tasks for row in documents(task))
    assert max(every.values()) == 1
    for label in {label for task in tasks for label in task.labels}:
        parts = [sum(OF_SETS[row] == label for row in documents(t)) for t in tasks if label in t.labels]
        assert sum(parts) == (label == OF_SETS).sum()
        assert max(parts) - min(parts) <= 1
    for task in tasks:
        assert task.test.tolist() == [row for row, label in enumerate(TEST_OF_SETS) if label in task.labels]


def test_each_set_is_drawn_equally_often_whatever_its_size():
    counts = collections.Counter(
        SET_NAMES[task.labels[0]][0] for seed in range(100) for task in flat(mixed(num_tasks=2, seed=seed))
    )
    assert all(abs(counts[name] - 200) < 5 * np.sqrt(600 * 2 / 9) for name in SETS)


def test_a_set_without_usable_labels_is_never_drawn():
    keep = ~np.isin(OF_SETS, range(7, 11)) | (np.arange(4000) < 20)
    stream = mixed(OF_SETS[keep], min_documents=20)
    assert stream.excluded_labels == (7, 8, 9, 10)
    assert {SET_NAMES[label][0] for task in flat(stream) for label in task.labels} <= {"a", "b"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_names": [f"{label}" for label in range(11)]}, "labels called SET/LABEL, found '0'"),
        ({"label_names": None}, "labels called SET/LABEL, found None"),
        ({"labels_per_task": 0}, "labels_per_task must be"),
        ({"min_documents": 300}, "the labels' documents allow"),
    ],
)
def test_mixed_streams_that_cannot_be(options, message):
    with pytest.raises(StreamError, match=message):
        mixed(**options)


@pytest.mark.parametrize("most", [3, 10, 64])
def test_fewer_training_documents_keep_the_shares_of_labels(most):
    before, after = (flat(stream) for stream in (mixed(), streams.fewer_training(mixed(), OF_SETS, most)))
    for old, new in zip(before, after):
        assert (new.labels, new.test.tolist()) == (old.labels, old.test.tolist())
        assert set(new.train) <= set(old.train)
        assert set(new.validation) <= set(old.validation)
        assert len(new.train) == min(most, len(old.train))
        share = len(new.train) / len(old.train)
        assert len(new.validation) == max(1, round(len(old.validation) * share))
        for label in old.labels:
            kept, had = (sum(OF_SETS[row] == label for row in task.train) for task in (new, old))
            assert kept >= 1
            assert abs(kept - had * share) < 1 or kept == 1


def test_fewer_training_documents_than_labels():
    with pytest.raises(StreamError, match="has 3 labels, which 2 training documents cannot show"):
        streams.fewer_training(mixed(num_tasks=9), OF_SETS, 2)
    with pytest.raises(StreamError, match="most must be a whole number, 1 or more; got 0"):
        streams.fewer_training(mixed(), OF_SETS, 0)
