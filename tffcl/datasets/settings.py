"""Checks of the settings that several functions of this room take."""

from __future__ import annotations

import numbers

from tffcl.errors import InputError


def check_seed(seed: object) -> None:
    """Raises InputError unless `seed` is a whole number, 0 or more."""
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or int(seed) < 0:
        raise InputError(f"seed must be a whole number, 0 or more; got {seed!r}")


def check_below_one(name: str, value: object, zero: bool) -> None:
    """Raises InputError unless `value` is a number below 1, and above 0 (or 0 itself, where `zero` is true)."""
    if not isinstance(value, numbers.Real) or not 0 <= float(value) < 1 or (value == 0 and not zero):
        least = "from 0 to" if zero else "above 0 and"
        raise InputError(f"{name} must be a number {least} below 1; got {value!r}")
