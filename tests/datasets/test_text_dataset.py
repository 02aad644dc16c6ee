import doctest

import numpy as np
import pytest

from tffcl.datasets import from_texts, text_dataset
from tffcl.errors import DatasetError


def test_two_labels_by_hand():
    data = from_texts([("x", "b"), ("", "a"), ("y", "b")], [("z", "b")], name="mine")
    assert data.name == "mine"
    assert data.label_names == ("a", "b")
    assert data.train_texts == ("x", "", "y")
    np.testing.assert_array_equal(data.train_labels, [1, 0, 1])
    np.testing.assert_array_equal(data.test_labels, [1])
    assert data.train_labels.dtype == data.test_labels.dtype == np.int32


def test_integer_labels_sort_as_numbers():
    data = from_texts([("x", 10), ("y", np.int64(9)), ("z", "2")], [("w", 10)])
    assert data.label_names == ("2", "9", "10")


@pytest.mark.parametrize("odd", ["--1", "-", "1-", "+1", "1.0", "²", "9" * 5000, "-" + "9" * 19])
def test_labels_that_only_look_like_numbers_sort_as_text(odd):
    labels = ["10", "9", odd]
    data = from_texts([("x", label) for label in labels], [("w", "10")])
    assert data.label_names == tuple(sorted(labels))


def test_label_only_in_test():
    train, test = [("x", "a"), ("y", "b")], [("z", "a"), ("w", "c")]
    with pytest.raises(DatasetError, match=r"test row 1 has label 'c', which no training row has.*a, b"):
        from_texts(train, test)
    assert from_texts(train, test, allow_unseen_labels=True).label_names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([], "train holds no rows"),
        ([("x",)], "train row 0: expected a"),
        (["ab"], "train row 0: expected a"),
        ([None], "train row 0: expected a"),
        ([("x", "a"), (3, "a")], "train row 1: the text must be a str, found int"),
        ([("x", " ")], "train row 0: the label must be"),
        ([("x", 0.5)], "train row 0: the label must be"),
        ([("x", True)], "train row 0: the label must be"),
        ([("x", None)], "train row 0: the label must be"),
    ],
)
def test_bad_rows(train, message):
    with pytest.raises(DatasetError, match=message) as caught:
        from_texts(train, [("x", "a")])
    assert "\n" not in str(caught.value)


def test_docstring():
    assert doctest.testmod(text_dataset).failed == 0
