"""Tensors in named groups, as computations take them, and flat under `GROUP/NAME`, as files and shelves hold them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any


def flat(groups: Mapping[str, Mapping[str, Any]]) -> OrderedDict[str, Any]:
    """All values of some groups, in order.

    >>> flat({"context": {"table": 1}, "test": {"x": 2, "y": 3}})
    OrderedDict([('context/table', 1), ('test/x', 2), ('test/y', 3)])
    """
    return OrderedDict(
        (f"{group}/{name}", value) for group, values in groups.items() for name, value in values.items()
    )


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
