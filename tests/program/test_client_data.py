"""Data sets and streams as the tensors of clients and tasks: documents, arrays, binary vectors, images of domains."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import pytest

from tffcl import datasets, streams
from tffcl.datasets import BinaryVectors, EncodedTextDataset, ImageDataset, RaggedTokens
from tffcl.errors import InputError
from tffcl.program import ArrayData, DensityClientData, DomainClientData, OfflineDomainData, TextClientData
from tffcl.streams import Enrollment, Task, TaskStream


def documents():
    embedding = np.arange(6, dtype=np.float32)[:, None] * np.array([[1.0, 10.0]], np.float32)
    embedding[:2] = 0
    return EncodedTextDataset(
        name="four",
        label_names=("a", "b", "c"),
        words=("<padding>", "<unknown>", "p", "q", "r", "s"),
        embedding=embedding,
        train_tokens=RaggedTokens.from_rows([[5, 2], [1, 5, 5], [3], []]),
        train_labels=np.array([0, 2, 2, 1], np.int32),
        test_tokens=RaggedTokens.from_rows([[4, 4], [1], [2]]),
        test_labels=np.array([2, 0, 1], np.int32),
    )


def documents_stream(**changes):
    first = {"client": 0, "task": 0, "labels": (0, 2), "train": [0, 1], "validation": [2], "test": [0, 1]}
    second = {"client": 1, "task": 0, "labels": (1,), "train": [3], "validation": [], "test": []}
    return TaskStream("hand", ((Task(**{**first, **changes}),), (Task(**second),)))


FIRST = Task(0, 0, (0, 2), train=[0, 1], validation=[2], test=[0, 1])
SECOND = Task(0, 1, (1,), train=[3], validation=[], test=[2])


def words(context, examples):
    """The words of each document."""
    places = zip(examples["start"], examples["length"])
    return [context["tokens"][start : start + length].tolist() for start, length in places]


def test_only_the_words_in_use_travel():
    task = TextClientData(documents(), documents_stream()).task(0, 0)
    # Words 2, 3 and 5 of the data set are rows 2, 3 and 4 here; validation shares the context.
    assert task.context["vectors"].tolist() == [[0, 0], [0, 0], [2, 20], [3, 30], [5, 50]]
    assert words(task.context, task.train) == [[4, 2], [1, 4, 4]]
    assert words(task.context, task.validation) == [[3]]
    assert task.test_context["vectors"].tolist() == [[0, 0], [0, 0], [4, 40]]
    assert words(task.test_context, task.test) == [[2, 2], [1]]


def test_labels_are_numbered_within_the_task():
    task = TextClientData(documents(), documents_stream()).task(0, 0)
    assert (task.train["label"].tolist(), task.validation["label"].tolist()) == ([0, 1], [1])
    assert (task.test["label"].tolist(), task.num_classes) == ([1, 0], 2)


@pytest.mark.parametrize("kind", ["text", "arrays"])
def test_with_one_head_the_contexts_say_which_labels_compete(kind):
    """In training those of the task, which may be joined with past ones; in a test those of the task alone."""
    divided = streams.cumulative(TaskStream("hand", ((FIRST, SECOND),)))
    if kind == "text":
        data = TextClientData(documents(), divided, one_head=True)
    else:
        texts = documents()
        data = ArrayData(
            divided, np.zeros((4, 1)), texts.train_labels, np.zeros((3, 1)), texts.test_labels, 3, one_head=True
        )
    first, second = data.task(0, 0), data.task(0, 1)
    assert first.context["classes"].tolist() == first.test_context["classes"].tolist() == [True, False, True]
    assert second.context["classes"].tolist() == [True, True, True]
    assert second.test_context["classes"].tolist() == [False, True, False]
    assert (first.train["label"].tolist(), second.test["label"].tolist(), second.num_classes) == ([0, 2], [1], 3)
    apart = TextClientData(documents(), divided).task(0, 0)
    assert "classes" not in {**apart.context, **apart.test_context}


def test_dtypes_and_empty_sets():
    task = TextClientData(documents(), documents_stream()).task(1, 0)
    assert words(task.context, task.train) == [[]]
    assert words(task.test_context, task.test) == []
    assert (task.context["vectors"].dtype, task.context["tokens"].dtype) == (np.float32, np.int32)
    for examples in (task.train, task.validation, task.test):
        assert {name: values.dtype for name, values in examples.items()} == dict.fromkeys(
            ("start", "length", "label"), np.int32
        )


def test_numbers_of_clients_and_tasks():
    data = TextClientData(documents(), documents_stream())
    assert (data.num_clients, data.num_tasks) == (2, 1)


@pytest.mark.parametrize("change", [{"train": [0, 9]}, {"validation": [9]}, {"test": [9]}])
def test_a_stream_of_other_documents(change):
    with pytest.raises(InputError, match="client 0, task 0: asks for .* document 9, but 'four' has"):
        TextClientData(documents(), documents_stream(**change))


def arrays(divided=None, **changes):
    given = {
        "train_x": np.arange(8.0).reshape(4, 2),
        "train_labels": np.array([0, 2, 2, 1]),
        "test_x": np.ones((3, 2), np.uint8),
        "test_labels": np.array([2, 0, 1]),
    }
    return ArrayData(divided or TaskStream("hand", ((FIRST, SECOND),)), **{**given, **changes})


def test_arrays_are_coerced_and_labels_numbered_within_the_task():
    task = arrays(train_x=[[0, 1], [2, 3], [4, 5], [6, 7]], train_labels=[0, 2, 2, 1]).task(0, 0)
    assert task.train["features"].tolist() == [[0, 1], [2, 3]]
    assert (task.train["features"].dtype, task.train["label"].dtype) == (np.float32, np.int32)
    assert task.test["features"].dtype == np.uint8
    assert (task.train["label"].tolist(), task.test["label"].tolist(), task.labels) == ([0, 1], [1, 0], (0, 2))
    assert task.train_labels.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_labels": [0, 2, -1, 1]}, r"labels: expected 0\.\.2, found -1 \(1 such\)"),
        ({"num_labels": 2}, r"labels: expected 0\.\.1, found 2 \(3 such\)"),
        ({"test_labels": [2, 0]}, "test: expected a whole label for each of 3 examples, found int64"),
        ({"test_labels": [2.0, 0.0, 1.0]}, "test: expected a whole label for each of 3 examples, found float64"),
        ({"train_x": [["a"]] * 4}, "train_x: expected numbers, found <U1"),
        (
            {"train_x": [[0.0]] * 2, "train_labels": [0, 2]},
            "client 0, task 0: asks for train example 2, but 'the data' has",
        ),
    ],
)
def test_wrong_arrays(changes, message):
    with pytest.raises(InputError, match=message):
        arrays(**changes)


@pytest.mark.parametrize("make", [lambda stream: TextClientData(documents(), stream), arrays], ids=["text", "arrays"])
def test_a_stream_with_labels_that_the_data_lack(make):
    stream = TaskStream("hand", ((Task(0, 0, (0, 3), train=[0], validation=[], test=[]),),))
    with pytest.raises(InputError, match="client 0, task 0: has label 3, but '(four|the data)' has 3; was the stream"):
        make(stream)


BESIDE = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data"
DATA = pathlib.Path(os.environ.get("TFFCL_DATA_DIR") or BESIDE)


def vectors(**changes):
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


def vectors_stream(**changes):
    first = {"client": 0, "task": 0, "labels": (0,), "train": [1], "validation": [0], "test": [0]}
    second = {"client": 0, "task": 1, "labels": (1,), "train": [2, 3], "validation": [], "test": [1]}
    return TaskStream("hand", ((Task(**{**first, **changes}), Task(**second)),))


def test_binary_vectors_by_hand():
    data = DensityClientData(vectors(), vectors_stream())
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
    data = DensityClientData(vectors(), vectors_stream())
    for place in (0, 1):
        task = data.task(0, place)
        assert (list(task.context), list(task.test_context)) == (["observed"], ["observed"])
        assert (task.context["observed"].dtype, task.context["observed"].shape) == (np.float32, (4,))
        for examples in (task.train, task.validation, task.test):
            assert (examples["x"].dtype, examples["x"].shape[1:]) == (np.uint8, (4,))


def test_a_task_of_different_widths_marks_what_its_narrower_rows_lack():
    pooled = DensityClientData(vectors(), streams.offline(vectors_stream()))
    assert pooled.task(0, 0).context["observed"].tolist() == [1, 1, 1, 1]
    assert pooled.task(0, 0).test["x"].tolist() == [[0, 1, 2, 2], [1, 1, 1, 1]]


def test_a_replayed_task_is_tested_without_the_padding_of_its_own_narrow_rows():
    wide = Task(0, 0, (1,), train=[2, 3], validation=[], test=[1])
    narrow = Task(0, 1, (0,), train=[1], validation=[0], test=[0])
    replayed = DensityClientData(vectors(), streams.cumulative(TaskStream("hand", ((wide, narrow),))))
    assert replayed.task(0, 1).context["observed"].tolist() == [1, 1, 1, 1]
    assert replayed.task(0, 1).test["x"].tolist() == [[0, 1, 2, 2]]
    assert replayed.task(0, 1).validation["x"].tolist() == [[1, 0, 2, 2]]


def test_values_that_are_not_binary():
    with pytest.raises(InputError, match="two sets: train_x holds 3 at row 0, column 0; expected 0 or 1"):
        DensityClientData(vectors(train_x=np.full((4, 4), 3, np.uint8)), vectors_stream())
    with pytest.raises(InputError, match="dataset must be BinaryVectors .* found ndarray"):
        DensityClientData(np.zeros((2, 2)), vectors_stream())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": [9]}, "client 0, task 0: asks for train row 9, but 'two sets' has 4; was the stream made"),
        ({"validation": [9]}, "asks for train row 9"),
        ({"test": [9]}, "asks for test row 9, but 'two sets' has 2"),
        ({"labels": (0, 2)}, "client 0, task 0: has label 2, but 'two sets' has 2"),
    ],
)
def test_a_stream_of_other_vectors(change, message):
    with pytest.raises(InputError, match=message):
        DensityClientData(vectors(), vectors_stream(**change))


def test_digits_from_end_to_end():
    sets = datasets.vectors_of_images(datasets.load_images("digits"))
    data = DensityClientData(sets, streams.label_sequence(sets.train_labels, sets.test_labels))
    for client in range(3):
        for place in range(5):
            task, (label,) = data.task(client, place), data.stream.task(client, place).labels
            assert task.context["observed"].tolist() == [1.0] * 64
            assert len(task.test["x"]) == (sets.test_labels == label).sum()
            assert len(task.train["x"]) > 20
            assert set(np.unique(task.train["x"])) == {0, 1}


def test_the_binary_sequence():
    if not (DATA / "debd").is_dir():
        pytest.skip("needs the binary sets: set TFFCL_DATA_DIR to a folder with debd")
    names = ("adult", "connect4", "tretail", "rcv1")
    sets = datasets.vectors_of_sets([datasets.load_binary(name, DATA) for name in names])
    split = streams.label_sequence(sets.train_labels, sets.test_labels, num_clients=5, num_tasks=4)
    data = DensityClientData(sets, split)
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


def images():
    """Row n is all n + 1 but for its first pixel, and shows class n mod 4; test rows begin at 101."""

    def part(first, count):
        pixels = np.repeat(np.arange(first, first + count, dtype=np.uint8), 9).reshape(-1, 3, 3)
        pixels[:, 0, 0] = 0
        return pixels, np.arange(count) % 4

    return ImageDataset("toy", *part(1, 40), *part(101, 12), tuple("abcd"))


TOY = images()
TURNED = datasets.rotations(TOY, (0, 90))


def divided(domains=TURNED, **options):
    return streams.domain_sequence(
        domains.train_labels,
        domains.test_labels,
        **{"num_clients": 2, "examples_per_task": 8, "shared_base": domains.shared_base, **options},
    )


def test_images_of_domains_by_hand():
    rows = {"train": [4, 9], "validation": [3], "test": [2]}
    stream = TaskStream("hand", ((Task(0, 0, (0, 1), **rows), Task(0, 1, (0, 1), **rows)),))
    data = DomainClientData(datasets.class_groups([(TOY, (0, 1, 2, 3)), (TOY, (3, 2, 1, 0))]), stream)
    assert (data.num_clients, data.num_tasks) == (1, 2)
    first, second = data.task(0, 0), data.task(0, 1)
    assert first.context == first.test_context == {}
    assert list(first.train) == ["x", "label"]
    assert first.train["x"].tolist() == [[[0, 5, 5], [5, 5, 5], [5, 5, 5]], [[0, 10, 10], [10, 10, 10], [10, 10, 10]]]
    assert (first.train["label"].tolist(), second.train["label"].tolist()) == ([0, 1], [3, 2])
    assert (first.validation["label"].tolist(), second.test["label"].tolist()) == ([3], [1])
    assert first.test["x"][0, 0].tolist() == [0, 103, 103]
    assert (first.train["x"].dtype, first.train["label"].dtype, first.num_classes) == (np.uint8, np.int32, 4)


def test_each_task_shows_its_domain():
    data = DomainClientData(TURNED, divided(), encoder_input="image")
    for client in range(2):
        for task, corner in ((0, (0, 0)), (1, (2, 0))):  # a turn counter-clockwise: top left goes to bottom left
            one = data.task(client, task)
            for examples in (one.train, one.test):
                assert list(examples) == ["image", "label"]
                dark = np.argwhere(examples["image"] == 0)
                assert dark[:, 1:].tolist() == [list(corner)] * len(examples["label"])


def test_no_examples_where_a_client_is_not_enrolled():
    data = DomainClientData(TURNED, divided(enrollment=Enrollment.from_table(["*o", "x*"])))
    for client, task, size in ((0, 0, 8), (0, 1, 0), (1, 0, 0), (1, 1, 8)):
        one = data.task(client, task)
        assert one.train["x"].shape == (size, 3, 3)
        assert one.test["label"].shape == (12 if size else 0,)


def test_offline_is_everything_of_everybody():
    stream = divided(enrollment=Enrollment.from_table(["**", "x*"]), validation_share=0.25)
    data, offline = DomainClientData(TURNED, stream), OfflineDomainData(TURNED, stream)
    assert (offline.num_clients, offline.num_tasks) == (1, 1)
    whole = offline.task(0, 0)
    assert (whole.num_classes, whole.context) == (4, {})
    for split in ("train", "validation", "test"):
        parts = [getattr(data.task(client, task), split) for task in (0, 1) for client in (0, 1)]
        for name in ("x", "label"):
            assert np.array_equal(getattr(whole, split)[name], np.concatenate([part[name] for part in parts]))
    assert [len(getattr(whole, split)["label"]) for split in ("train", "validation", "test")] == [18, 6, 24]
    assert sum(len(offline.test_of(task)["label"]) for task in (0, 1)) == 24
    assert sorted(offline.test_of(1)["x"].max(axis=(1, 2)).tolist()) == list(range(101, 113))
    assert "_divided" not in repr(offline)
    with pytest.raises(InputError, match="there is no task 1 of client 0"):
        offline.task(0, 1)


def test_a_stream_of_other_domains():
    stream = divided()
    with pytest.raises(InputError, match="toy rotations: has 3 domains, but the stream has 2 tasks"):
        DomainClientData(datasets.rotations(TOY, (0, 90, 180)), stream)
    groups = datasets.class_groups([(TOY, (0, 1)), (TOY, (2, 3))])
    with pytest.raises(
        InputError, match=r"client 0, task 0, training images of domain 'toy 0-1': row \d+ does not belong to it"
    ):
        DomainClientData(groups, stream)
    long = TaskStream("hand", ((Task(0, 0, (0,), [1], [], [12]),),))
    with pytest.raises(InputError, match=r"test images of domain '0 degrees': row 12 does not .* \(1 such\)"):
        DomainClientData(datasets.rotations(TOY, (0,)), long)
