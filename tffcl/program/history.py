"""The events of a run, in memory and in `history.jsonl`: one line each, none lost, none doubled."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Optional

from tffcl import storage
from tffcl.errors import RunError
from tffcl.program.files import plain

Event = dict[str, Any]


class History:
    """Appends events; with a path also to that file, which is on the disk before `append` returns."""

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
        """Adds an event and returns it in the form that stands in the file.

        Raises:
          RunError: the file cannot be written.
        """
        line = plain(event)
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

        Args:
          size: bytes that the checkpoint knows of.
          checksum: of them.

        Raises:
          RunError: the file is shorter than that, or not what was written.
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
        """Cuts off what the file has beyond the events: lines that no checkpoint knows of.

        Raises:
          RunError: the file cannot be written.
        """
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
