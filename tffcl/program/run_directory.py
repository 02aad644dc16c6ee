"""The run directory: config.json, history.jsonl, checkpoints/ and, at the end, results.json."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Optional, Union

from tffcl import storage
from tffcl.errors import RunError, run_exists
from tffcl.program.checkpoint import Checkpoints
from tffcl.program.events import Event
from tffcl.program.state import RunState

PathLike = Union[str, "os.PathLike[str]"]
_MISSING = object()


class History:
    """The events of a run: one line each, none lost, none doubled.

    With a path they stand in that file, too, which is on the disk before `append` returns.
    """

    def __init__(self, path: Optional[pathlib.Path] = None):
        self.events: list[Event] = []
        self.size = 0  # bytes of the file, which a checkpoint records
        self._sum = hashlib.sha256()  # of them
        self._path = path

    @property
    def checksum(self) -> str:
        """SHA-256 of the file."""
        return self._sum.hexdigest()

    def append(self, event: Mapping[str, Any]) -> Event:
        """Adds an event and returns it in the form that stands in the file; RunError if that cannot be written."""
        line = storage.plain(event)
        if self._path is not None:
            content = (json.dumps(line, allow_nan=False) + "\n").encode()
            try:
                with os.fdopen(_open(self._path, os.O_WRONLY | os.O_APPEND), "ab") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise storage.cannot_write(self._path, error) from error
            self.size += len(content)
            self._sum.update(content)
        self.events.append(line)
        return line

    def read(self, size: int, checksum: str) -> None:
        """Reads the first `size` bytes of the file, all that a checkpoint knows of.

        Raises:
          RunError: the file is shorter than that, or its checksum another.
        """
        if self._path is None:
            raise RunError("a history without a file cannot be resumed")
        with storage.open_regular(self._path, "the history of a run", max_bytes=None, error=RunError) as file:
            content = file.read(size)
        if len(content) < size:
            raise RunError(f"{self._path} is damaged: it has {len(content)} bytes, its checkpoint tells of {size}")
        read = hashlib.sha256(content)
        if read.hexdigest() != checksum:
            raise RunError(f"{self._path} is damaged: it is not what its checkpoint tells of")
        self.events = [
            storage.parse_object(line, f"{self._path}, line {number}", RunError)
            for number, line in enumerate(content.split(b"\n")[:-1], start=1)
        ]
        self.size, self._sum = size, read

    def cut(self) -> None:
        """Cuts off what the file has beyond the events: lines that no checkpoint knows of."""
        if self._path is None:
            return
        try:
            descriptor = _open(self._path, os.O_WRONLY)
            try:
                os.ftruncate(descriptor, self.size)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise storage.cannot_write(self._path, error) from error


def _open(path: pathlib.Path, flags: int) -> int:
    """Opens the file, for its owner alone where it is new; a pipe without a reader is an error rather than a wait."""
    return os.open(path, flags | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)


class RunDirectory:
    """What one run keeps: on disk, or only in memory where there is no path. What cannot be used is a RunError."""

    def __init__(self, path: Optional[pathlib.Path] = None):
        self.path = path
        self.history = History(None if path is None else path / "history.jsonl")
        self._checkpoints = None if path is None else Checkpoints(path / "checkpoints")

    def restore(self, first: RunState) -> RunState:
        """The state to go on from, that of the last whole checkpoint or else `first`, with the history up to there."""
        if self._checkpoints is None:
            return first
        state = self._checkpoints.restore(first, self.history)
        with self.advising():
            self.history.cut()
        return state or first

    def save(self, state: RunState) -> None:
        """Writes a checkpoint that knows of the history as it stands; the one before it stays whole if that fails."""
        if self._checkpoints is not None:
            self._checkpoints.save(state, self.history)

    @contextlib.contextmanager
    def advising(self) -> Iterator[None]:
        """Adds to a RunError inside that there is a checkpoint to go on from, where there is one."""
        try:
            yield
        except RunError as error:
            if self._checkpoints is None or not self._checkpoints.any():
                raise
            raise RunError(f"{error}; the last checkpoint is whole: resume to go on from it") from error

    def finish(self, results: Mapping[str, Any]) -> None:
        """Writes results.json."""
        if self.path is not None:
            with self.advising():
                storage.write_json(self.path / "results.json", results)


@contextlib.contextmanager
def open_run(path: Optional[PathLike], config: Mapping[str, Any], resume: bool) -> Iterator[RunDirectory]:
    """The run directory at `path`, for this process alone as long as the block runs; None keeps everything in memory.

    All that is written inside, by whatever library, is for the owner alone (`tffcl.storage.private`). With `resume` the
    run that is there goes on.

    Raises:
      RunError: a run is there but `resume` is not given, it has another configuration, another process is at
        work on it, or the directory cannot be made.
    """
    if path is None:
        if resume:
            raise RunError("resume needs the directory of the run to go on with (output_dir)")
        with storage.private():
            yield RunDirectory()
        return
    folder = pathlib.Path(path)
    storage.make_folder(folder, "a run directory")
    try:
        handle = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise storage.cannot_write(folder / ".lock", error) from error
    try:
        with storage.private():
            _lock(handle, folder)
            _settle_config(folder, storage.plain(config), resume)
            yield RunDirectory(folder)
    finally:
        os.close(handle)


def _lock(handle: int, folder: pathlib.Path) -> None:
    """Held until the handle is closed, or the process ends, whatever ends it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunError(f"{folder}: another process is at work on this run") from None
    except OSError:  # a file system without locks
        pass


def _settle_config(folder: pathlib.Path, config: dict[str, Any], resume: bool) -> None:
    """Writes config.json for a new run; for a resumed one compares it."""
    path = folder / "config.json"
    others = [
        one.name for one in folder.iterdir() if one.name != ".lock" and not one.name.startswith(storage.TEMPORARY)
    ]
    if not os.path.lexists(path):
        if others:
            raise RunError(
                f"{folder} is not empty and holds no run ({sorted(others)[0]} stands there); give another directory"
            )
        storage.write_json(path, config)
        return
    if not resume:
        raise run_exists(folder)
    there = storage.read_object(path, "the configuration of a run", error=RunError)
    difference = config_difference(there, config)
    if difference is not None:
        raise RunError(f"{folder} holds a run of another configuration: {difference}")


def config_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> Optional[str]:
    """The first setting that differs, in words; None where all are equal.

    >>> config_difference({"num_rounds": 3, "seed": 1}, {"num_rounds": 10, "seed": 1})
    'num_rounds is 3 there and 10 here'
    """
    for key in {**here, **there}:
        old, new = there.get(key, _MISSING), here.get(key, _MISSING)
        if old != new:
            return f"{key} is {_shown(old)} there and {_shown(new)} here"
    return None


def _shown(value: Any) -> str:
    return "not set" if value is _MISSING else repr(value)
