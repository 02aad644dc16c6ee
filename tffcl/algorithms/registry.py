"""The methods that ship, by name."""

from __future__ import annotations

import dataclasses

from tffcl.algorithms import decomposed, fed_avg, fil_ver, made
from tffcl.algorithms.method import Method
from tffcl.errors import InputError
from tffcl.parts import Registry

SHIPPED: dict[str, Method] = {**decomposed.METHODS, **made.METHODS, **fil_ver.METHODS, **fed_avg.METHODS}
METHODS = Registry("method", "tffcl.methods", SHIPPED)


def find_method(reference: str) -> Method:
    """The method called `reference`, or FILE.py:NAME of the user's.

    Raises:
      InputError: there is none, or the object is no `Method`.
    """
    found = METHODS.get(reference)
    if not isinstance(found, Method):
        raise InputError(
            f"method: {reference} is a {type(found).__name__}; make it a method with the decorator @tffcl.method()"
        )
    return found if reference in SHIPPED else dataclasses.replace(found, reference=reference)


def beside(method: Method, reference: str) -> Method:
    """Another method under the conditions of `method`'s paper: `tffcl run confedmade --method fedprox`."""
    if method.schedule == "fil-ver" and reference == "offline":
        return dataclasses.replace(find_method("offline-vee"), name="offline")
    other = find_method(reference)
    if other.schedule == method.schedule:
        return other
    return dataclasses.replace(other, schedule=method.schedule, learns=method.learns)
