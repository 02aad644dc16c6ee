"""Bytes that a message of float32 values costs, dense or sparse-coded."""

from __future__ import annotations

import numbers

from tffcl.errors import InputError

BYTES_PER_VALUE = 4
BYTES_PER_INDEX = 4


def dense_bytes(num_values: int) -> int:
    """Bytes of `num_values` float32 values sent one after the other.

    Raises:
      InputError: not a whole number, 0 or more.
    """
    return BYTES_PER_VALUE * _count(num_values, "num_values")


def sparse_bytes(num_nonzero: int, size: int) -> int:
    """Bytes of a float32 array of `size` entries of which only `num_nonzero` are sent.

    The values, and what tells where they stand: a bitmap of one bit per entry, or a 4-byte index per value,
    whichever is smaller. Nothing to send costs nothing.

    >>> sparse_bytes(10, 10_000), sparse_bytes(5_000, 10_000)
    (80, 21250)

    Raises:
      InputError: not whole numbers, 0 or more, or more non-zero entries than entries.
    """
    num_nonzero, size = _count(num_nonzero, "num_nonzero"), _count(size, "size")
    if num_nonzero > size:
        raise InputError(f"num_nonzero={num_nonzero} is more than size={size}; it must be at most the size")
    bitmap = (size + 7) // 8
    return BYTES_PER_VALUE * num_nonzero + min(bitmap, BYTES_PER_INDEX * num_nonzero)


def _count(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < 0:
        raise InputError(f"{name} must be a whole number, 0 or more; got {value!r}")
    return int(value)
