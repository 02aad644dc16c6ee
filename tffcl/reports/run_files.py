"""Reading a run directory: the results and history of a run that ended, was killed, or is going on."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any, Union

from tffcl.errors import InputError, RunError

PathLike = Union[str, "os.PathLike[str]"]
Event = dict[str, Any]


def load_results(run_dir: PathLike) -> dict[str, Any]:
    """The numbers of a finished run, from `results.json` in `run_dir`; null (None) stands for "no data".

    Raises:
      InputError: the file is missing (the run has not ended) or is not a JSON object.
    """
    path = pathlib.Path(run_dir) / "results.json"
    content = _read(path, "it is written when a run ends; resume the run to finish it")
    try:
        results = json.loads(content)
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(results, dict):
        raise InputError(f"{path}: expected a JSON object with the results, got {type(results).__name__}")
    return results


def load_history(run_dir: PathLike) -> list[Event]:
    """The events of a run in order, from `history.jsonl` in `run_dir`.

    A last line that a kill cut short is left out. Where a resumed run did a round again, the newer
    line counts.

    Raises:
      InputError: the file is missing, or a line other than the last is not a JSON object.
    """
    path = pathlib.Path(run_dir) / "history.jsonl"
    # Bytes: a cut may fall inside a character, and text tools also split at other separators.
    lines = _read(path, "expected a run directory, with a line of history per round").split(b"\n")
    events: dict[tuple[Any, ...], Event] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise InputError(f"{path}, line {number}: not valid JSON ({error})") from error
        if not isinstance(event, dict):
            raise InputError(f"{path}, line {number}: expected a JSON object, got {type(event).__name__}")
        kind = event.get("event")
        again = kind in ("round", "task_end")
        events[(kind, event.get("task"), event.get("round")) if again else (number,)] = event
    return list(events.values())


def write_whole(path: PathLike, content: bytes) -> pathlib.Path:
    """Writes `content` to `path` so that a reader finds the old file or the new one, never a part.

    Raises:
      RunError: the disk is full, or the folder cannot be written to.
    """
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def total(value: Any) -> float:
    """Sum of all numbers in a number, or in nested lists and objects of them; null counts as nothing."""
    if isinstance(value, dict):
        return sum(map(total, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(total, value))
    return 0 if value is None else value


def _read(path: pathlib.Path, hint: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): {hint}") from error
