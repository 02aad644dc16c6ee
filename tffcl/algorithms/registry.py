"""The methods that ship, by name."""

from __future__ import annotations

import dataclasses
import importlib
import os
import pkgutil
from typing import Union

from tffcl.algorithms.method import Method
from tffcl.errors import InputError
from tffcl.parts import Registry

_SHIPPED: dict[str, Method] = {  # the METHODS of every module of this room
    name: each
    for module in pkgutil.iter_modules([os.path.dirname(__file__)])
    if module.name != "registry"
    for name, each in getattr(importlib.import_module(f"tffcl.algorithms.{module.name}"), "METHODS", {}).items()
}
METHODS = Registry("method", "tffcl.methods", _SHIPPED)


def find_method(reference: str) -> Method:
    """The method called `reference`, or FILE.py:NAME of the user's.

    "fedprox@confedmade" is FedProx under the conditions of ConFedMADE's paper: `tffcl run confedmade --method fedprox`.

    Raises:
      InputError: there is none, or the object is no `Method`.
    """
    other, separator, under = reference.rpartition("@")
    if separator:
        return _beside(find_method(under), other)
    found = METHODS.get(reference)
    if not isinstance(found, Method):
        raise InputError(
            f"method: {reference} is a {type(found).__name__}; make it a method with the decorator @tffcl.method()"
        )
    return found


def reference_of(method: Union[str, Method]) -> Union[str, Method]:
    """The name of a method that ships or is installed; any other as it is."""
    if isinstance(method, str) or method.name not in METHODS.names or find_method(method.name) is not method:
        return method
    return method.name


def _beside(method: Method, reference: str) -> Method:
    if method.schedule == "fil-ver" and reference == "offline":
        return dataclasses.replace(find_method("offline-vee"), name="offline")
    other = find_method(reference)
    if other.schedule == method.schedule:
        return other
    return dataclasses.replace(other, schedule=method.schedule, learns=method.learns)
