"""Tensors in named groups, as computations take them, and flat under `GROUP/NAME`, as files and shelves hold them.

TFF matches the entries of a mapping to those of a type by position, whatever they are called: what comes from outside
is put into the type's order first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow_federated as tff

from tffcl.errors import InputError
from tffcl.templates import tff_types


def flat(groups: Mapping[str, Mapping[str, Any]]) -> OrderedDict[str, Any]:
    """All values of some groups, in order.

    >>> flat({"context": {"table": 1}, "test": {"x": 2, "y": 3}})
    OrderedDict([('context/table', 1), ('test/x', 2), ('test/y', 3)])
    """
    return OrderedDict((f"{group}/{name}", value) for group, values in groups.items() for name, value in values.items())


def grouped(values: Mapping[str, Any], groups: Iterable[str]) -> OrderedDict[str, OrderedDict[str, Any]]:
    """What `flat` was made of: the groups that are named, an empty one included.

    >>> grouped({"test/x": 2, "test/y": 3}, ["context", "test"])
    OrderedDict([('context', OrderedDict()), ('test', OrderedDict([('x', 2), ('y', 3)]))])
    """
    found: OrderedDict[str, OrderedDict[str, Any]] = OrderedDict((group, OrderedDict()) for group in groups)
    for path, value in values.items():
        group, _, name = path.partition("/")
        found[group][name] = value
    return found


def ordered(value: Any, kind: tff.Type, where: str) -> Any:
    """A value whose mappings have their entries in the order of a type, at every level.

    Args:
      value: of the type, but for the order.
      kind: the type.
      where: names the value in the error.

    Raises:
      InputError: a mapping has other entries than its type.
    """
    if not isinstance(kind, tff.StructType) or not isinstance(value, Mapping):
        return value
    entries = tff_types.entries(kind)
    if set(value) != set(entries):
        raise InputError(f"{where}: expected the entries {list(entries)}, found {list(value)}")
    return OrderedDict((name, ordered(value[name], entry, f"{where}, {name}")) for name, entry in entries.items())
