"""The events of a run, in memory and in `history.jsonl`: one line each, none lost, none doubled."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Optional

from tffcl.errors import RunError
from tffcl.program.files import cannot_write, plain

Event = dict[str, Any]


class History:
    """Appends events; with a path also to that file, which is on the disk before `append` returns."""

    def __init__(self, path: Optional[pathlib.Path] = None):
        self.events: list[Event] = []
        self.size = 0  # bytes of the file, which a checkpoint records
        self._path = path

    def append(self, event: Mapping[str, Any]) -> Event:
        """Adds an event and returns it in the form that stands in the file.

        Raises:
          RunError: the file cannot be written.
        """
        line = plain(event)
        if self._path is not None:
            content = (json.dumps(line, allow_nan=False) + "\n").encode()
            try:
                with open(self._path, "ab") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise cannot_write(self._path, error) from error
            self.size += len(content)
        self.events.append(line)
        return line

    def rewind(self, size: int) -> None:
        """Reads the first `size` bytes of the file, and cuts off what was written after that checkpoint.

        Raises:
          RunError: the file is shorter than that, or its lines are damaged.
        """
        if self._path is None:
            raise RunError("a history without a file cannot be resumed")
        try:
            with open(self._path, "ab+") as file:
                file.seek(0)
                content = file.read(size)
                if len(content) == size:
                    file.truncate(size)
            if len(content) < size:
                raise RunError(
                    f"{self._path} is damaged: it has {len(content)} bytes, its checkpoint tells of {size}"
                )
            self.events = [json.loads(line) for line in content.split(b"\n") if line]
        except OSError as error:
            raise cannot_write(self._path, error) from error
        except ValueError as error:
            raise RunError(f"{self._path} is damaged: {error}") from error
        self.size = size
