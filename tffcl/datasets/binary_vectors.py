"""Binary vectors, the common form of data for density estimation: binarised images or binary sets of any width."""

from __future__ import annotations

import dataclasses

import numpy as np

from tffcl.datasets.arrays import read_only
from tffcl.errors import InputError


# Arrays have no single truth value, so a generated `==` would raise: data sets compare by identity.
@dataclasses.dataclass(frozen=True, eq=False)
class BinaryVectors:
    """Rows of zeros and ones, each with a label that says what it is a picture of, or which set it is from.

    Labels only serve to make tasks: a density is learnt without them.

    Attributes:
      name: what reports call the data.
      train_x: uint8 [N, D] of 0 and 1, read-only.
      train_labels: int32 [N], each in 0 .. len(label_names) - 1, read-only.
      test_x: uint8 [M, D].
      test_labels: int32 [M].
      label_names: the label space, in the order of the ids.
      widths: for each label how many columns its rows have; the columns from there to D are padding and 0.
    """

    name: str
    train_x: np.ndarray
    train_labels: np.ndarray
    test_x: np.ndarray
    test_labels: np.ndarray
    label_names: tuple[str, ...]
    widths: tuple[int, ...]
    kind = "binary"

    def __post_init__(self) -> None:
        if len(self.widths) != len(self.label_names):
            raise InputError(
                f"{self.name}: needs a width for each of {len(self.label_names)} labels, found {len(self.widths)}"
            )
        for part in ("train", "test"):
            x, labels = np.asarray(getattr(self, f"{part}_x")), np.asarray(getattr(self, f"{part}_labels"))
            where = f"{self.name}, {part}"
            _check_x(x, where)
            _check_labels(labels, len(x), len(self.label_names), where)
            _check_padding(x, np.asarray(self.widths)[labels], where)
            object.__setattr__(self, f"{part}_x", read_only(x))
            object.__setattr__(self, f"{part}_labels", read_only(labels.astype(np.int32)))
        if self.train_x.shape[1] != self.test_x.shape[1]:
            raise InputError(
                f"{self.name}: training rows have {self.train_x.shape[1]} columns, test rows {self.test_x.shape[1]}"
            )
        if max(self.widths) > self.width or min(self.widths) < 1:
            raise InputError(f"{self.name}: widths must be 1..{self.width}, found {self.widths}")

    @property
    def width(self) -> int:
        """D, the width of the widest rows."""
        return self.train_x.shape[1]


def join_vectors(first: BinaryVectors, *others: BinaryVectors) -> BinaryVectors:
    """Several data sets as one: labels follow each other, rows are padded at the right to the widest.

    Label k of the second set becomes label K + k, where K is the number of labels of the first, and so on; the
    names say which set a label is from ("mnist 3").
    """
    sets = (first, *others)
    width = max(one.width for one in sets)
    starts = np.cumsum([0] + [len(one.label_names) for one in sets[:-1]])
    return BinaryVectors(
        name="+".join(one.name for one in sets),
        train_x=np.concatenate([pad(one.train_x, width) for one in sets]),
        train_labels=np.concatenate([one.train_labels + start for one, start in zip(sets, starts)]),
        test_x=np.concatenate([pad(one.test_x, width) for one in sets]),
        test_labels=np.concatenate([one.test_labels + start for one, start in zip(sets, starts)]),
        label_names=tuple(f"{one.name} {label}" for one in sets for label in one.label_names),
        widths=sum((one.widths for one in sets), ()),
    )


def pad(x: np.ndarray, width: int) -> np.ndarray:
    """uint8 [N, D] -> [N, width], with zeros at the right."""
    return np.pad(x, [(0, 0), (0, width - x.shape[1])])


def _check_x(x: np.ndarray, where: str) -> None:
    if x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] == 0:
        raise InputError(f"{where}: x must be uint8 [N, D], D at least 1; found {x.dtype}{list(x.shape)}")
    if x.size and x.max() > 1:
        row, column = np.argwhere(x > 1)[0]
        raise InputError(
            f"{where}: x holds {x[row, column]} at row {row}, column {column}; expected 0 or 1: binarise it first"
        )


def _check_labels(labels: np.ndarray, count: int, num_labels: int, where: str) -> None:
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise InputError(
            f"{where}: labels must be {count} whole numbers, one a row; found {labels.dtype}{list(labels.shape)}"
        )
    wrong = np.flatnonzero((labels < 0) | (labels >= num_labels))
    if wrong.size:
        raise InputError(f"{where}: row {wrong[0]} has label {labels[wrong[0]]}; expected 0..{num_labels - 1}")


def _check_padding(x: np.ndarray, widths: np.ndarray, where: str) -> None:
    for width in np.unique(widths):
        rows = np.flatnonzero(widths == width)
        wrong = rows[x[rows, width:].any(axis=1)]
        if wrong.size:
            raise InputError(f"{where}: row {wrong[0]} has a 1 beyond its {width} columns; padding must be 0")
