"""Bytes counted by hand."""

import numpy as np
import pytest

from tffcl import metrics
from tffcl.errors import InputError


@pytest.mark.parametrize(
    ("nonzero", "size", "expected"),
    [
        (0, 0, 0),
        (0, 1000, 0),
        (1, 1000, 4 + 4),  # an index
        (100, 1000, 400 + 125),  # a bitmap of 125 bytes is smaller than 100 indices
        (31, 1000, 124 + 124),
        (32, 1000, 128 + 125),  # where one overtakes the other
        (9, 9, 36 + 2),  # nine bits need two bytes
    ],
)
def test_sparse_bytes_by_hand(nonzero, size, expected):
    assert metrics.sparse_bytes(nonzero, size) == expected
    assert metrics.sparse_bytes(np.int64(nonzero), np.int32(size)) == expected


def test_dense_bytes():
    assert metrics.dense_bytes(7) == 28
    assert isinstance(metrics.dense_bytes(np.int32(2**31 - 1)), int)
    assert metrics.dense_bytes(np.int32(2**31 - 1)) == 4 * (2**31 - 1)


@pytest.mark.parametrize("wrong", [-1, 1.5, "3", None, True])
def test_counts_must_be_whole(wrong):
    with pytest.raises(InputError, match="num_values must be a whole number"):
        metrics.dense_bytes(wrong)
    with pytest.raises(InputError, match="must be a whole number"):
        metrics.sparse_bytes(0, wrong)


def test_more_nonzero_than_entries():
    with pytest.raises(InputError, match="num_nonzero=5 is more than size=4"):
        metrics.sparse_bytes(5, 4)
