"""A labelled text collection with its train and test parts, as every loader returns it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Union

import numpy as np

from tffcl.datasets.tokens import tokenise
from tffcl.errors import DatasetError

_INTEGER = re.compile(r"-?\d{1,18}")  # Python turns no more than 4,300 digits into a number

Label = Union[str, int]
Row = tuple[str, Label]


@dataclasses.dataclass(frozen=True)
class TextDataset:
    """Documents with labels; label ids index `label_names`.

    Attributes:
      name: what reports call the data set.
      train_texts: N documents, untokenised.
      train_labels: int32 [N], each in 0 .. len(label_names) - 1.
      test_texts: M documents.
      test_labels: int32 [M].
      label_names: the label space, sorted.
      unicode: whether `tokenise` keeps the letters of every script; False for the published sets, whose words are
        those of Kim's rule.
    """

    name: str
    train_texts: tuple[str, ...]
    train_labels: np.ndarray
    test_texts: tuple[str, ...]
    test_labels: np.ndarray
    label_names: tuple[str, ...]
    unicode: bool = True
    kind = "text"

    def tokenise(self, text: str) -> list[str]:
        """The tokens of a document; see `tffcl.datasets.tokenise`."""
        return tokenise(text, unicode=self.unicode)


def from_texts(
    train: Sequence[Row],
    test: Sequence[Row],
    name: str = "texts",
    *,
    allow_unseen_labels: bool = False,
    unicode: bool = True,
) -> TextDataset:
    """Makes a data set of rows that are already in memory.

    >>> from_texts([("good film", "pos"), ("dull", "neg")], [("fine", "pos")]).label_names
    ('neg', 'pos')

    Args:
      train: (text, label) pairs; a label is a string or an integer. An empty text is legal.
      test: as `train`.
      name: what reports call the data set.
      allow_unseen_labels: let labels into the label space that only `test` has.
      unicode: whether the letters of every script are kept, see `TextDataset`.

    Returns:
      The data set; its label names are sorted (as numbers, if every label is an integer).

    Raises:
      DatasetError: a part without rows, a row of another form, or a label that only `test` has.
    """
    train_texts, train_names = _columns(train, "train")
    test_texts, test_names = _columns(test, "test")
    names = sorted(set(train_names) | set(test_names), key=_order(train_names + test_names))
    if not allow_unseen_labels:
        _check_seen(set(train_names), test_names, name)
    ids = {label: position for position, label in enumerate(names)}
    return TextDataset(
        name=name,
        train_texts=train_texts,
        train_labels=np.array([ids[label] for label in train_names], np.int32),
        test_texts=test_texts,
        test_labels=np.array([ids[label] for label in test_names], np.int32),
        label_names=tuple(names),
        unicode=unicode,
    )


def _columns(rows: Iterable[Row], part: str) -> tuple[tuple[str, ...], list[str]]:
    """Texts and label names of one part, each row checked."""
    texts, names = [], []
    for position, row in enumerate(rows):
        if isinstance(row, (str, bytes)) or not isinstance(row, Sequence) or len(row) != 2:
            raise DatasetError(f"{part} row {position}: expected a (text, label) pair, found {_short(row)}")
        text, label = row
        texts.append(_checked_text(text, f"{part} row {position}"))
        names.append(_label_name(label, f"{part} row {position}"))
    if not texts:
        raise DatasetError(f"{part} holds no rows; at least one (text, label) pair is needed")
    return tuple(texts), names


def _checked_text(text: object, where: str) -> str:
    if not isinstance(text, str):
        raise DatasetError(f"{where}: the text must be a str, found {type(text).__name__} {_short(text)}")
    return text


def _label_name(label: object, where: str) -> str:
    """A label as a name; bool and float are refused, since they are mostly a wrong column."""
    if isinstance(label, (int, np.integer)) and not isinstance(label, bool):
        return str(int(label))
    if isinstance(label, str) and label.strip():
        return label.strip()
    raise DatasetError(f"{where}: the label must be a non-empty str or an int, found {_short(label)}")


def _order(names: Sequence[str]) -> Callable[[str], tuple[int, str]]:
    """Sort key: as numbers when every label is one, so that '10' follows '9'."""
    if all(_INTEGER.fullmatch(name) for name in names):
        return lambda name: (int(name), name)
    return lambda name: (0, name)


def _check_seen(seen: set[str], test_names: Sequence[str], name: str) -> None:
    for position, label in enumerate(test_names):
        if label not in seen:
            raise DatasetError(
                f"{name}: test row {position} has label {label!r}, which no training row has "
                f"(training labels: {_short(', '.join(sorted(seen)))}); add training rows, "
                "drop those test rows, or pass allow_unseen_labels=True"
            )


def _short(value: object, limit: int = 80) -> str:
    """`value` on one line, cut to `limit` characters, for error messages."""
    shown = value if isinstance(value, str) and ", " in value else repr(value)
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."
