"""JSON written whole or not at all, and lines appended to a file that survives any kind of end."""

from __future__ import annotations

import json
import math
import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from tffcl.errors import RunError


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
    content = json.dumps(plain(value), indent=1, allow_nan=False) + "\n"
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            os.fchmod(handle, 0o644)  # mkstemp's files are for their owner alone
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise cannot_write(path, error) from error


def read_json(path: pathlib.Path) -> Any:
    """The content of a JSON file.

    Raises:
      RunError: no such file, or one that is cut short.
    """
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from error


def cannot_write(path: pathlib.Path, error: OSError) -> RunError:
    """The error for a file that cannot be written, with what helps."""
    return RunError(
        f"cannot write {path}: {error.strerror or error}; the last checkpoint is whole: make room and resume"
    )
