"""Text of each client and task as dense tensors with a vocabulary of their own."""

from __future__ import annotations

import numpy as np
import pytest

from tffcl import streams
from tffcl.datasets import EncodedTextDataset, RaggedTokens
from tffcl.errors import InputError
from tffcl.program import ArrayData, TextClientData
from tffcl.streams import Task, TaskStream


def dataset():
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


def stream(**changes):
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
    task = TextClientData(dataset(), stream()).task(0, 0)
    # Words 2, 3 and 5 of the data set are rows 2, 3 and 4 here; validation shares the context.
    assert task.context["vectors"].tolist() == [[0, 0], [0, 0], [2, 20], [3, 30], [5, 50]]
    assert words(task.context, task.train) == [[4, 2], [1, 4, 4]]
    assert words(task.context, task.validation) == [[3]]
    assert task.test_context["vectors"].tolist() == [[0, 0], [0, 0], [4, 40]]
    assert words(task.test_context, task.test) == [[2, 2], [1]]


def test_labels_are_numbered_within_the_task():
    task = TextClientData(dataset(), stream()).task(0, 0)
    assert (task.train["label"].tolist(), task.validation["label"].tolist()) == ([0, 1], [1])
    assert (task.test["label"].tolist(), task.num_classes) == ([1, 0], 2)


@pytest.mark.parametrize("kind", ["text", "arrays"])
def test_with_one_head_the_contexts_say_which_labels_compete(kind):
    """In training those of the task, which may be joined with past ones; in a test those of the task alone."""
    divided = streams.cumulative(TaskStream("hand", ((FIRST, SECOND),)))
    if kind == "text":
        data = TextClientData(dataset(), divided, one_head=True)
    else:
        texts = dataset()
        data = ArrayData(
            divided, np.zeros((4, 1)), texts.train_labels, np.zeros((3, 1)), texts.test_labels, 3, one_head=True
        )
    first, second = data.task(0, 0), data.task(0, 1)
    assert first.context["classes"].tolist() == first.test_context["classes"].tolist() == [True, False, True]
    assert second.context["classes"].tolist() == [True, True, True]
    assert second.test_context["classes"].tolist() == [False, True, False]
    assert (first.train["label"].tolist(), second.test["label"].tolist(), second.num_classes) == ([0, 2], [1], 3)
    apart = TextClientData(dataset(), divided).task(0, 0)
    assert "classes" not in {**apart.context, **apart.test_context}


def test_dtypes_and_empty_sets():
    task = TextClientData(dataset(), stream()).task(1, 0)
    assert words(task.context, task.train) == [[]]
    assert words(task.test_context, task.test) == []
    assert (task.context["vectors"].dtype, task.context["tokens"].dtype) == (np.float32, np.int32)
    for examples in (task.train, task.validation, task.test):
        assert {name: values.dtype for name, values in examples.items()} == dict.fromkeys(
            ("start", "length", "label"), np.int32
        )


def test_numbers_of_clients_and_tasks():
    data = TextClientData(dataset(), stream())
    assert (data.num_clients, data.num_tasks) == (2, 1)


@pytest.mark.parametrize("change", [{"train": [0, 9]}, {"validation": [9]}, {"test": [9]}])
def test_a_stream_of_another_data_set(change):
    with pytest.raises(InputError, match="client 0, task 0: asks for .* document 9, but 'four' has"):
        TextClientData(dataset(), stream(**change))
