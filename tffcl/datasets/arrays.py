"""Arrays of a data set that nobody may write to, and the division of a table that has no test part."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np


def read_only(array: np.ndarray) -> np.ndarray:
    """A view of `array` that refuses to be written to; the caller's own array stays as it is."""
    view = np.asarray(array).view()
    view.setflags(write=False)
    return view


def every_fifth(labels: Sequence[Any]) -> np.ndarray:
    """Which rows of a table are for testing, bool [N]: every fifth one of each label.

    >>> every_fifth(["a"] * 5 + ["b"] * 4).nonzero()[0].tolist()
    [4]
    """
    counts: collections.Counter = collections.Counter()
    tested = np.zeros(len(labels), bool)
    for row, label in enumerate(labels):
        counts[label] += 1
        tested[row] = counts[label] % 5 == 0
    return tested
