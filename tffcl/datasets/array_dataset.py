"""Arrays, tables of numbers and data frames as a labelled data set."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from tffcl.datasets.arrays import every_fifth, read_only
from tffcl.datasets.image_dataset import ImageDataset
from tffcl.errors import DatasetError

if TYPE_CHECKING:
    import pandas as pd

_SHIPPED = {"iris": "load_iris", "wine": "load_wine", "breast-cancer": "load_breast_cancer"}
_ARRAYS = ("train_x", "train_y", "test_x", "test_y")


# Arrays have no single truth value, so a generated `==` would raise: data sets compare by identity.
@dataclasses.dataclass(frozen=True, eq=False)
class ArrayDataset:
    """Examples of any shape with labels; label ids index `label_names`.

    Attributes:
      name: what reports call the data set.
      train_x: float32 [N, ...], read-only.
      train_labels: int32 [N].
      test_x: float32 [M, ...].
      test_labels: int32 [M].
      label_names: the label space.
    """

    name: str
    train_x: np.ndarray
    train_labels: np.ndarray
    test_x: np.ndarray
    test_labels: np.ndarray
    label_names: tuple[str, ...]
    kind = "vector"

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            x = np.asarray(getattr(self, f"{part}_x"))
            if x.dtype.kind not in "biuf" or x.ndim < 2:
                raise DatasetError(f"{self.name}: {part}_x should be numbers [N, ...], found {x.dtype}{list(x.shape)}")
            x, labels = x.astype(np.float32), np.asarray(getattr(self, f"{part}_labels"))
            if not np.isfinite(x).all():
                row = int(np.argwhere(~np.isfinite(x))[0][0])
                raise DatasetError(f"{self.name}: {part}_x holds a value that is not finite, in row {row}")
            if labels.shape != (len(x),) or labels.dtype.kind not in "iu":
                raise DatasetError(
                    f"{self.name}: {part}_labels should be {len(x)} whole numbers, one for each example, found "
                    f"{labels.dtype}{list(labels.shape)}"
                )
            wrong = np.flatnonzero((labels < 0) | (labels >= len(self.label_names)))
            if wrong.size:
                raise DatasetError(
                    f"{self.name}: {part}_labels: row {wrong[0]} has label {labels[wrong[0]]}; expected "
                    f"0..{len(self.label_names) - 1}"
                )
            object.__setattr__(self, f"{part}_x", read_only(x))
            object.__setattr__(self, f"{part}_labels", read_only(labels.astype(np.int32)))
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            raise DatasetError(
                f"{self.name}: training examples are {list(self.train_x.shape[1:])}, test examples "
                f"{list(self.test_x.shape[1:])}; they should have one shape"
            )


def from_arrays(
    train_x: Any,
    train_y: Any,
    test_x: Any,
    test_y: Any,
    *,
    name: str = "arrays",
    label_names: Optional[Sequence[str]] = None,
) -> ArrayDataset:
    """Examples and labels that are already in memory; labels are any whole numbers or strings.

    >>> data = from_arrays([[0.0], [1.0]], ["no", "yes"], [[1.0]], ["yes"])
    >>> data.label_names, data.train_labels.tolist()
    (('no', 'yes'), [0, 1])

    Args:
      train_x: numbers [N, ...].
      train_y: N labels.
      test_x: numbers [M, ...].
      test_y: M labels.
      name: what reports call the data set.
      label_names: the label space, where labels are ids in it; by default the labels that occur, sorted.

    Raises:
      DatasetError: shapes that do not fit, or values that are not finite.
    """
    labels = [np.asarray(train_y), np.asarray(test_y)]
    if label_names is None:
        known = sorted(set(labels[0].tolist()) | set(labels[1].tolist()))
        numbers = {label: number for number, label in enumerate(known)}
        labels = [np.array([numbers[label] for label in part.tolist()], np.int32) for part in labels]
        label_names = [str(label) for label in known]
    return ArrayDataset(
        name, np.asarray(train_x), labels[0], np.asarray(test_x), labels[1], tuple(map(str, label_names))
    )


def from_frames(train: pd.DataFrame, test: pd.DataFrame, *, label: str = "label", name: str = "frames") -> ArrayDataset:
    """Two pandas frames with numeric columns and one of labels; features are scaled by the training set's mean and std.

    Args:
      train: training rows.
      test: test rows, with the same columns.
      label: the column of labels.
      name: what reports call the data set.

    Raises:
      DatasetError: a missing column, or one that is not numeric.
    """
    for part, frame in (("train", train), ("test", test)):
        if label not in frame:
            raise DatasetError(f"{name}: {part} has no column {label!r}, only {', '.join(map(str, frame.columns))}")
    columns = [column for column in train.columns if column != label]
    missing = [column for column in columns if column not in test]
    if missing:
        raise DatasetError(f"{name}: test has no column {missing[0]!r}")
    wrong = [column for column in columns if train[column].dtype.kind not in "biuf"]
    if wrong or not columns:
        raise DatasetError(f"{name}: column {wrong[0]!r} is not numeric" if wrong else f"{name}: no columns of numbers")
    raw = [frame[columns].to_numpy(np.float64) for frame in (train, test)]
    mean, deviation = raw[0].mean(axis=0), raw[0].std(axis=0)
    scaled = [(part - mean) / np.where(deviation > 0, deviation, 1.0) for part in raw]
    return from_arrays(scaled[0], train[label], scaled[1], test[label], name=name)


def load_arrays(name_or_path: str) -> ArrayDataset:
    """Tables of numbers: `iris`, `wine`, `breast-cancer` (scikit-learn's), .npz, .csv or .tsv files, or a folder.

    Args:
      name_or_path: a name; an .npz file with `train_x`, `train_y`, `test_x`, `test_y`; a table in CSV or TSV, with a
        first line of names and a column `label`, of which every fifth row of each label is for testing; or a folder
        with the tables train.* and test.*.

    Raises:
      DatasetError: no such data, or malformed ones.
    """
    if name_or_path in _SHIPPED:
        return _shipped(name_or_path)
    path = pathlib.Path(name_or_path)
    if path.suffix == ".npz":
        return _npz(path)
    if path.is_file():
        table = _table(path)
        if "label" not in table:
            raise DatasetError(f"{path}: has no column 'label', only {', '.join(map(str, table.columns))}")
        tested = every_fifth(table["label"].tolist())
        if not tested.any():
            raise DatasetError(
                f"{path}: no label has 5 rows, and every fifth is for testing; give a folder with train.* and test.*"
            )
        return from_frames(table[~tested], table[tested], name=path.stem)
    frames = []
    for part in ("train", "test"):
        found = [path / f"{part}{ending}" for ending in (".csv", ".tsv") if (path / f"{part}{ending}").is_file()]
        if len(found) != 1:
            raise DatasetError(f"{path}: expected one of {part}.csv, {part}.tsv, found {len(found)}")
        frames.append(_table(found[0]))
    return from_frames(*frames, name=path.resolve().name)


def _table(path: pathlib.Path) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",")
    except (ValueError, OSError) as error:
        raise DatasetError(f"{path}: no table ({error})") from error


def as_arrays(data: Any) -> ArrayDataset:
    """Images or binary vectors as vectors of numbers, images scaled to [0, 1]."""
    if isinstance(data, ImageDataset):
        parts = [images.reshape(len(images), -1) / data.max_value for images in (data.train_images, data.test_images)]
        return ArrayDataset(data.name, parts[0], data.train_labels, parts[1], data.test_labels, data.label_names)
    if isinstance(data, ArrayDataset):
        return data
    return ArrayDataset(data.name, data.train_x, data.train_labels, data.test_x, data.test_labels, data.label_names)


def _shipped(name: str) -> ArrayDataset:
    """Scikit-learn's set, every fifth example for testing."""
    from sklearn import datasets as sklearn_datasets

    found = getattr(sklearn_datasets, _SHIPPED[name])()
    x = (found.data - found.data.mean(axis=0)) / found.data.std(axis=0)
    tested = np.arange(len(x)) % 5 == 4
    names = [str(each) for each in found.target_names]
    return from_arrays(x[~tested], found.target[~tested], x[tested], found.target[tested], name=name, label_names=names)


def _npz(path: pathlib.Path) -> ArrayDataset:
    try:
        with np.load(os.fspath(path), allow_pickle=False) as held:
            missing = [name for name in _ARRAYS if name not in held]
            if missing:
                raise DatasetError(f"{path}: has no array {missing[0]!r}, only {', '.join(held)}")
            return from_arrays(*(held[name] for name in _ARRAYS), name=path.stem)
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: no .npz file of arrays ({error})") from error
