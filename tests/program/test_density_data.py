"""Binary vectors of each client and task as dense tensors."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import pytest

from tffcl import datasets, streams
from tffcl.datasets import BinaryVectors
from tffcl.errors import InputError
from tffcl.program import DensityClientData
from tffcl.streams import Task, TaskStream

BESIDE = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data"
DATA = pathlib.Path(os.environ.get("TFFCL_DATA_DIR") or BESIDE)


def dataset(**changes):
    fields = {
        "name": "two sets",
        "train_x": np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 1], [0, 0, 1, 0]], np.uint8),
        "train_labels": np.array([0, 0, 1, 1]),
        "test_x": np.array([[0, 1, 0, 0], [1, 1, 1, 1]], np.uint8),
        "test_labels": np.array([0, 1]),
        "label_names": ("narrow", "wide"),
        "widths": (2, 4),
    }
    return BinaryVectors(**{**fields, **changes})


def stream(**changes):
    first = {"client": 0, "task": 0, "labels": (0,), "train": [1], "validation": [0], "test": [0]}
    second = {"client": 0, "task": 1, "labels": (1,), "train": [2, 3], "validation": [], "test": [1]}
    return TaskStream("hand", ((Task(**{**first, **changes}), Task(**second)),))


def test_tensors_by_hand():
    data = DensityClientData(dataset(), stream())
    assert (data.num_clients, data.num_tasks) == (1, 2)
    task = data.task(0, 0)
    assert list(task.train) == list(task.validation) == list(task.test) == ["x"]
    assert task.train["x"].tolist() == [[1, 1, 0, 0]]
    assert task.validation["x"].tolist() == [[1, 0, 0, 0]]
    assert task.test["x"].tolist() == [[0, 1, 0, 0]]
    assert task.context["observed"].tolist() == task.test_context["observed"].tolist() == [1, 1, 0, 0]
    assert task.num_classes is None
    second = data.task(0, 1)
    assert second.context["observed"].tolist() == [1, 1, 1, 1]
    assert second.train["x"].tolist() == [[0, 1, 1, 1], [0, 0, 1, 0]]
    assert second.validation["x"].shape == (0, 4)


def test_dtypes_and_shapes_are_those_of_every_task():
    data = DensityClientData(dataset(), stream())
    for place in (0, 1):
        task = data.task(0, place)
        assert (list(task.context), list(task.test_context)) == (["observed"], ["observed"])
        assert (task.context["observed"].dtype, task.context["observed"].shape) == (np.float32, (4,))
        for examples in (task.train, task.validation, task.test):
            assert (examples["x"].dtype, examples["x"].shape[1:]) == (np.uint8, (4,))


def test_a_task_of_different_widths_marks_what_its_narrower_rows_lack():
    pooled = DensityClientData(dataset(), streams.offline(stream()))
    assert pooled.task(0, 0).context["observed"].tolist() == [1, 1, 1, 1]
    assert pooled.task(0, 0).test["x"].tolist() == [[0, 1, 2, 2], [1, 1, 1, 1]]


def test_a_replayed_task_is_tested_without_the_padding_of_its_own_narrow_rows():
    wide = Task(0, 0, (1,), train=[2, 3], validation=[], test=[1])
    narrow = Task(0, 1, (0,), train=[1], validation=[0], test=[0])
    replayed = DensityClientData(dataset(), streams.cumulative(TaskStream("hand", ((wide, narrow),))))
    assert replayed.task(0, 1).context["observed"].tolist() == [1, 1, 1, 1]
    assert replayed.task(0, 1).test["x"].tolist() == [[0, 1, 2, 2]]
    assert replayed.task(0, 1).validation["x"].tolist() == [[1, 0, 2, 2]]


def test_values_that_are_not_binary():
    with pytest.raises(InputError, match="two sets, train: x holds 3 at row 0, column 0; expected 0 or 1"):
        DensityClientData(dataset(train_x=np.full((4, 4), 3, np.uint8)), stream())
    with pytest.raises(InputError, match="dataset must be BinaryVectors .* found ndarray"):
        DensityClientData(np.zeros((2, 2)), stream())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": [9]}, "client 0, task 0: asks for train row 9, but 'two sets' has 4; was the stream made"),
        ({"validation": [9]}, "asks for train row 9"),
        ({"test": [9]}, "asks for test row 9, but 'two sets' has 2"),
        ({"labels": (0, 2)}, "client 0, task 0: has label 2, but 'two sets' has 2"),
    ],
)
def test_a_stream_of_another_data_set(change, message):
    with pytest.raises(InputError, match=message):
        DensityClientData(dataset(), stream(**change))


def test_digits_from_end_to_end():
    vectors = datasets.vectors_of_images(datasets.load_images("digits"))
    data = DensityClientData(vectors, streams.label_sequence(vectors.train_labels, vectors.test_labels))
    for client in range(3):
        for place in range(5):
            task, (label,) = data.task(client, place), data.stream.task(client, place).labels
            assert task.context["observed"].tolist() == [1.0] * 64
            assert len(task.test["x"]) == (vectors.test_labels == label).sum()
            assert len(task.train["x"]) > 20
            assert set(np.unique(task.train["x"])) == {0, 1}


def test_the_binary_sequence():
    if not (DATA / "debd").is_dir():
        pytest.skip("needs the binary sets: set TFFCL_DATA_DIR to a folder with debd")
    names = ("adult", "connect4", "tretail", "rcv1")
    vectors = datasets.vectors_of_sets([datasets.load_binary(name, DATA) for name in names])
    split = streams.label_sequence(vectors.train_labels, vectors.test_labels, num_clients=5, num_tasks=4)
    data = DensityClientData(vectors, split)
    widths = {}
    for client in range(5):
        for place in range(4):
            task, (label,) = data.task(client, place), split.task(client, place).labels
            widths.setdefault(names[label], set()).add(int(task.context["observed"].sum()))
            padding = task.context["observed"] == 0
            for examples in (task.train, task.validation, task.test):
                assert examples["x"].shape[1] == 150
                assert not examples["x"][:, padding].any()
    assert widths == {"adult": {123}, "connect4": {126}, "tretail": {135}, "rcv1": {150}}
