"""Reading a run directory: the results and history of a run that ended, was killed, or is going on."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any, Union

from tffcl import storage
from tffcl.errors import InputError, TffclError

PathLike = Union[str, "os.PathLike[str]"]
Event = dict[str, Any]


def load_results(run_dir: PathLike) -> dict[str, Any]:
    """The numbers of a finished run, from `results.json` in `run_dir`; null (None) stands for "no data".

    Shown in docs/runs.md.

    Raises:
      InputError: the file is missing (the run has not ended, or there is no run) or is not a JSON object.
    """
    path = pathlib.Path(run_dir) / "results.json"
    if not os.path.lexists(path):
        storage.check_run(run_dir)
        raise InputError(f"{path}: no such file: it is written when a run ends; resume the run to finish it")
    return storage.read_object(path, "the results of a run")


def load_history(run_dir: PathLike) -> list[Event]:
    """The events of a run in order, from `history.jsonl` in `run_dir`.

    A last line that a kill cut short is left out. Where a resumed run did a round again, the newer
    line counts.

    Shown in docs/runs.md.

    Raises:
      InputError: the file is missing, or a line other than the last is not a JSON object.
    """
    path = pathlib.Path(run_dir) / "history.jsonl"
    if not os.path.lexists(path):
        storage.check_run(run_dir)
    # Bytes: a cut may fall inside a character, and text tools also split at other separators.
    lines = storage.read_regular(path, "the history of a run").split(b"\n")
    events: dict[tuple[Any, ...], Event] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            event = storage.parse_object(line, f"{path}, line {number}")
        except InputError:
            if number == len(lines):  # no line break after it
                break
            raise
        kind = event.get("event")
        again = kind in ("round", "task_end")
        events[(kind, str(event.get("task")), str(event.get("round"))) if again else (number,)] = event
    return list(events.values())


@contextlib.contextmanager
def reading(run_dir: PathLike) -> Iterator[None]:
    """Turns what goes wrong inside, with values that no run writes into its files, into one line.

    Raises:
      InputError: in the place of errors of Python and numpy.
    """
    try:
        yield
    except TffclError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InputError(f"{os.fspath(run_dir)}: its files are not as a run writes them ({error!r})") from error


def total(value: Any) -> float:
    """Sum of all numbers in a number, or in nested lists and objects of them; null counts as nothing."""
    if isinstance(value, dict):
        return sum(map(total, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(total, value))
    return 0 if value is None else value
