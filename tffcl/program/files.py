"""Values as JSON knows them, and files of them that are written whole or not at all."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tffcl import storage


def plain(value: Any) -> Any:
    """The value as JSON knows it: numpy values as Python's, keys as text, non-finite numbers as null.

    >>> plain({1: np.float32(0.5), "x": (float("nan"), np.int32(3))})
    {'1': 0.5, 'x': [None, 3]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def write_json(path: pathlib.Path, value: Any) -> None:
    """Replaces a JSON file at once: a reader, or a killed process, finds the old one or the new one.

    Raises:
      RunError: the file cannot be written; what stood there still stands.
    """
    storage.write_whole(path, (json.dumps(plain(value), indent=1, allow_nan=False) + "\n").encode())
