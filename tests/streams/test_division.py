"""What the data cannot give: rare labels, and requests that end in one clear line."""

import os
import pathlib
import re

import numpy as np
import pytest

from tffcl import streams
from tffcl.errors import InputError, StreamError
from tffcl.streams import division

LABELS = np.arange(600) % 6
BESIDE = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data"
DATA = pathlib.Path(os.environ.get("TFFCL_DATA_DIR") or BESIDE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels_per_task": 7}, "labels_per_task=7, but the dataset has 6 labels: ask for 6 or fewer"),
        ({"num_clients": 0}, "num_clients must be a whole number, 1 or more; got 0"),
        ({"num_tasks": 2.5}, "num_tasks must be a whole number"),
        ({"seed": -1}, "seed must be a whole number, 0 or more"),
        ({"validation_share": 1}, "validation_share=1 leaves nothing to learn from"),
        ({"validation_share": float("nan")}, "validation_share must be a share from 0 to 1"),
        ({"num_clients": 300}, "1500 tasks x 4 labels = 6000 picks, but the labels' documents allow 150"),
        ({"label_names": ["a", "b"]}, r"train_labels: row 2 has label 2; label ids must be 0..1"),
        ({"min_documents": 101}, "only 0 of 6 labels have at least 101 training documents and a test document"),
    ],
)
def test_impossible_requests_say_what_would_be_possible(arguments, message):
    with pytest.raises(StreamError, match=message) as caught:
        streams.non_iid(LABELS, LABELS, **arguments)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, InputError)


@pytest.mark.parametrize("capacities", [{0: 13, 1: 13, 2: 13}, {0: 9, 1: 2, 2: 1}, {0: 1}])
def test_as_many_tasks_fit_as_the_refusal_says(capacities):
    def pick(num_tasks):
        return division.pick_labels(capacities, num_tasks, 2, np.random.default_rng(0))

    with pytest.raises(StreamError, match="enough for") as caught:
        pick(50)
    most = int(re.search(r"enough for (\d+) tasks", str(caught.value))[1])
    assert len(pick(most)) == most
    with pytest.raises(StreamError):
        pick(most + 1)


@pytest.mark.parametrize("wrong", [[], [[0, 1]], [0.5, 1.0], ["a", "b"], [0, -1]])
def test_labels_that_are_no_labels(wrong):
    with pytest.raises(StreamError, match="train_labels"):
        streams.non_iid(wrong, [0], labels_per_task=1)


@pytest.mark.parametrize("overlap", [-0.1, 1.1, "half"])
def test_overlap_must_be_a_share(overlap):
    with pytest.raises(StreamError, match="overlap must be a share from 0 to 1"):
        streams.overlapping(LABELS, LABELS, overlap=overlap)


def test_iid_names_the_documents_that_all_tasks_together_need():
    with pytest.raises(StreamError, match="only 0 of 6 labels have at least 120 training documents"):
        streams.iid(LABELS, LABELS, num_clients=6, num_tasks=5)


def test_a_task_without_a_document_of_its_label_is_named():
    train = [0] * 3 + [1] * 40
    with pytest.raises(StreamError, match=r"task \d of client \d has no training document of label 0 \(ra"):
        streams.non_iid(train, [0, 1], labels_per_task=2, min_documents=0, label_names=["rare", "common"])


def test_rare_and_untested_labels_are_left_out_and_reported():
    train = [0] * 100 + [1] * 100 + [2] * 3 + [3] * 100
    names = ["a", "b", "rare", "untested", "unseen"]
    stream = streams.non_iid(train, [0, 1, 2, 4], num_clients=1, num_tasks=2, labels_per_task=2, label_names=names)
    assert stream.excluded_labels == (2, 3, 4)
    assert {task.labels for task in stream.tasks[0]} == {(0, 1)}
    untested = streams.non_iid(train, [0], num_clients=1, num_tasks=1, labels_per_task=3, require_test=False)
    assert untested.task(0, 0).labels == (0, 1, 3)


def test_each_task_gets_min_documents_of_every_label():
    train = np.repeat(np.arange(8), [9, 14, 20, 30, 60, 60, 60, 100])
    for seed in range(20):
        stream = streams.non_iid(train, np.arange(8), seed=seed, labels_per_task=3, min_documents=5)
        for tasks in stream.tasks:
            for task in tasks:
                counts = np.bincount(train[np.concatenate([task.train, task.validation])], minlength=8)
                assert counts[list(task.labels)].min() >= 5


@pytest.mark.parametrize(
    "capacities", [{0: 1, 1: 1, 2: 1, 3: 3}, {0: 2, 1: 2, 2: 2}, {0: 3, 1: 3, 2: 0}, {0: 1, 1: 2, 2: 3, 3: 1, 4: 1}]
)
def test_tight_capacities_are_always_filled(capacities):
    for seed in range(50):
        picks = division.pick_labels(capacities, 3, 2, np.random.default_rng(seed))
        assert all(len(set(pick)) == 2 for pick in picks)
        assert all(sum(label in pick for pick in picks) <= n for label, n in capacities.items())


def test_labels_are_picked_uniformly_where_documents_abound():
    picks = division.pick_labels(dict.fromkeys(range(6), 6000), 6000, 4, np.random.default_rng(0))
    counts = np.bincount(np.concatenate(picks))
    # Binomial(6000, 2/3): standard deviation 36.5.
    assert np.abs(counts - 4000).max() < 4 * 36.5


@pytest.mark.parametrize(
    ("sizes", "share", "expected"),
    [
        ([8, 8], 1 / 8, [1, 1]),
        ([1, 1], 0.5, [0, 0]),
        ([2], 1 / 8, [1]),
        ([10], 0, [0]),
        ([3, 3], 0.99, [2, 2]),
        ([0, 5], 0.2, [0, 1]),
        ([], 0.5, []),
    ],
)
def test_validation_counts_by_hand(sizes, share, expected):
    assert division.validation_counts(sizes, share).tolist() == expected


def test_real_fine_grained_trec():
    folder = DATA / "trec"
    if not folder.is_dir():
        pytest.skip("needs TREC: set TFFCL_DATA_DIR to a folder with trec/train_5500.label and TREC_10.label")
    read = [
        [line.split(b" ")[0] for line in (folder / name).read_bytes().strip().split(b"\n")]
        for name in ("train_5500.label", "TREC_10.label")
    ]
    names = sorted(set(read[0]) | set(read[1]))
    train, test = ([names.index(label) for label in column] for column in read)
    stream = streams.non_iid(train, test, label_names=names)
    assert all(
        len(task.test) and len(task.train) >= 4 and len(task.validation) for tasks in stream.tasks for task in tasks
    )
    assert len(names) == 50
    assert len(stream.excluded_labels) == 8
    with pytest.raises(StreamError, match="ask for 50 or fewer"):
        streams.non_iid(train, test, label_names=names, labels_per_task=51)
