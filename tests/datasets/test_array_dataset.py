"""Arrays, tables of numbers and pandas frames as a data set."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tffcl.datasets import from_arrays, from_frames, load_arrays
from tffcl.errors import DatasetError

FRAME = pd.DataFrame({"a": [1.0, 3.0, 5.0, 7.0], "b": [2, 2, 2, 2], "kind": ["x", "y", "x", "y"]})


def test_labels_of_any_kind_are_numbered():
    data = from_arrays(np.zeros((3, 2, 2)), ["b", "a", "c"], np.ones((1, 2, 2)), ["c"])
    assert (data.label_names, data.train_labels.tolist(), data.test_labels.tolist()) == (
        ("a", "b", "c"),
        [1, 0, 2],
        [2],
    )
    assert (data.train_x.dtype, data.train_x.shape) == (np.float32, (3, 2, 2))
    assert from_arrays([[0.0]], [7], [[1.0]], [3]).label_names == ("3", "7")


def test_frames_are_scaled_by_the_training_rows():
    data = from_frames(FRAME[:3], FRAME[3:], label="kind")
    a = FRAME["a"].to_numpy()
    np.testing.assert_allclose(data.train_x[:, 0], (a[:3] - a[:3].mean()) / a[:3].std(), rtol=1e-6)
    np.testing.assert_allclose(data.test_x[:, 0], (a[3:] - a[:3].mean()) / a[:3].std(), rtol=1e-6)
    assert not data.train_x[:, 1].any()  # a column that never changes
    assert data.label_names == ("x", "y")


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_one_table_and_a_folder_of_two(ending, tmp_path):
    table = pd.DataFrame({"a": np.arange(12.0), "label": ["u", "v"] * 6})
    separator = "\t" if ending == "tsv" else ","
    table.to_csv(tmp_path / f"whole.{ending}", sep=separator, index=False)
    data = load_arrays(str(tmp_path / f"whole.{ending}"))
    tested = np.isin(np.arange(12), (8, 9))  # the fifth of each label
    mean, deviation = table["a"][~tested].mean(), table["a"][~tested].std(ddof=0)
    np.testing.assert_allclose(data.test_x[:, 0], (table["a"][tested] - mean) / deviation, rtol=1e-5)
    assert (len(data.train_x), data.name) == (10, "whole")
    for part, rows in (("train", ~tested), ("test", tested)):
        table[rows].to_csv(tmp_path / f"{part}.{ending}", sep=separator, index=False)
    both = load_arrays(str(tmp_path))
    np.testing.assert_array_equal(both.test_x, data.test_x)
    np.testing.assert_array_equal(both.train_labels, data.train_labels)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_frames(FRAME, FRAME), "train has no column 'label', only a, b, kind"),
        (lambda: from_frames(FRAME, FRAME[["a", "kind"]], label="kind"), "test has no column 'b'"),
        (lambda: from_frames(FRAME, FRAME, label="a"), "column 'kind' is not numeric"),
        (lambda: from_arrays([[np.nan]], [0], [[0.0]], [0]), "train_x holds a value that is not finite, in row 0"),
        (lambda: from_arrays([[0.0]], [0, 1], [[0.0]], [0]), "train_labels should be 1 whole numbers"),
        (lambda: from_arrays([[0.0]], [0], [[0.0, 1.0]], [0]), "they should have one shape"),
        (lambda: from_arrays([[0.0]], [2], [[0.0]], [0], label_names=("a", "b")), "row 0 has label 2; expected 0..1"),
    ],
)
def test_what_does_not_fit_is_said(make, message):
    with pytest.raises(DatasetError, match=message):
        make()


def test_a_table_without_labels_or_too_short(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DatasetError, match=r"t\.csv: has no column 'label', only a, b"):
        load_arrays(str(path))
    path.write_text("a,label\n1,2\n")
    with pytest.raises(DatasetError, match="no label has 5 rows"):
        load_arrays(str(path))
