"""What the parts at the server measured in a round, as history, results and reporters hold it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tffcl.program.history import Event

NAME = "server_metrics"  # of the entry of a round's event and of the results


def by_path(measured: Any) -> dict[str, Any]:
    """Nested measurements as a flat mapping; what holds no value is left out.

    >>> by_path({"aggregator": (), "finalizer": {"update": {"rejected": np.int32(0)}}})
    {'finalizer/update/rejected': 0}

    Args:
      measured: what `ContinualProcess.next` gives last: mappings, sequences and `tff.structure.Struct`s of values.
    """
    return dict(_leaves("", measured))


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        parts = list(value.items())
    elif isinstance(value, tff.structure.Struct):
        parts = list(tff.structure.iter_elements(value))
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        parts = list(value._asdict().items())
    elif isinstance(value, (list, tuple)):
        parts = [(None, part) for part in value]
    else:
        yield path, np.asarray(value).tolist()
        return
    for place, (name, part) in enumerate(parts):
        step = str(place if name is None else name)
        yield from _leaves(f"{path}/{step}" if path else step, part)


def rejected(event: Event) -> list[str]:
    """Paths of the parts that did not take something in a round because it was not finite.

    >>> rejected({"server_metrics": {"finalizer/update/rejected": 1, "finalizer/rejected": 0}})
    ['finalizer/update']
    """
    paths = (path for path, value in event.get(NAME, {}).items() if value)
    return [path[: -len("/rejected")] for path in paths if path.endswith("/rejected")]


def of_rounds(events: Sequence[Event]) -> dict[str, list[Any]]:
    """By path a value for each round; None where there is none, as in a round in which nobody took part."""
    measured = [event.get(NAME, {}) for event in events if event["event"] == "round"]
    paths = dict.fromkeys(path for one in measured for path in one)
    return {path: [one.get(path) for one in measured] for path in paths}
