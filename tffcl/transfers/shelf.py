"""Named arrays under keys, of which only so many bytes stay in memory."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from typing import IO, Any

import numpy as np

from tffcl import errors

MEMORY_BYTES = 2**28  # of each shelf; small runs never write a byte

Arrays = OrderedDict  # from names to arrays


class Shelf:
    """A mapping from keys to named arrays; those used longest ago lie in a file once memory is full.

    The file has no name (it lies in `tempfile.gettempdir()`, which TMPDIR decides): the system takes it back when the
    process ends, whatever ends it. Nothing in it outlives the process; checkpoints are another matter.

    Room that is no longer used is used again. Arrays are not to be written to: put new ones in their place.

    >>> shelf = Shelf(memory=8)
    >>> for key in range(3):
    ...     shelf[key] = {"value": np.full(2, key, np.int32)}
    >>> [shelf[key]["value"].tolist() for key in shelf], shelf.memory_used, shelf.num_bytes(0)
    ([[0, 0], [1, 1], [2, 2]], 8, 8)

    Args:
      memory: bytes of arrays that may stay in memory; what was used last does so in any case. None for
        `MEMORY_BYTES`.
    """

    def __init__(self, memory: int | None = None):
        self._memory = MEMORY_BYTES if memory is None else memory
        self._sizes: dict[Hashable, int] = {}
        self._near: OrderedDict[Hashable, Arrays] = OrderedDict()  # used last: at the end
        self._far: dict[Hashable, _Place] = {}
        self._file = _File()
        self.memory_used = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._sizes))

    def __contains__(self, key: Hashable) -> bool:
        return key in self._sizes

    def num_bytes(self, key: Hashable) -> int:
        """Bytes of the arrays under a key, without reading them."""
        return self._sizes[key]

    def __setitem__(self, key: Hashable, arrays: Mapping[str, np.ndarray]) -> None:
        kept = OrderedDict((name, np.asarray(array)) for name, array in arrays.items())
        for name, array in kept.items():
            if array.dtype.hasobject:
                raise TypeError(f"{name!r} under {key!r} holds Python objects, expected numbers or text")
        if key in self._sizes:
            del self[key]
        self._sizes[key] = sum(array.nbytes for array in kept.values())
        self._place_near(key, kept)

    def __getitem__(self, key: Hashable) -> Arrays:
        if key in self._near:
            self._near.move_to_end(key)
            return OrderedDict(self._near[key])
        arrays = self._file.read(self._far[key])
        self._place_near(key, arrays)
        return OrderedDict(arrays)

    def __delitem__(self, key: Hashable) -> None:
        size = self._sizes.pop(key)
        if self._near.pop(key, None) is not None:
            self.memory_used -= size
        if key in self._far:
            self._file.free(self._far.pop(key))

    def _place_near(self, key: Hashable, arrays: Arrays) -> None:
        self._near[key] = arrays
        self.memory_used += self._sizes[key]
        while self.memory_used > self._memory and len(self._near) > 1:
            oldest, leaving = self._near.popitem(last=False)
            self.memory_used -= self._sizes[oldest]
            if oldest not in self._far:  # else it lies there as it is
                self._far[oldest] = self._file.write(leaving)


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where arrays lie in the file, one after the other."""

    start: int
    size: int
    kinds: tuple[tuple[str, np.dtype, tuple[int, ...]], ...]


class _File:
    """A file without a name, made when something is first written, in which free room is used again."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._free: dict[int, int] = {}  # start -> size
        self._end = 0

    def write(self, arrays: Arrays) -> _Place:
        """Writes arrays to the first free place that is large enough, or to the end.

        Raises:
          RunError: there is no room on the disk.
        """
        kinds = tuple((name, array.dtype, array.shape) for name, array in arrays.items())
        place = _Place(self._room(sum(array.nbytes for array in arrays.values())), 0, kinds)
        offset = place.start
        try:
            for array in arrays.values():
                offset += self._put(np.ascontiguousarray(array), offset)
        except OSError as error:
            raise errors.RunError(
                f"cannot write to a temporary file in {tempfile.gettempdir()}: {error.strerror or error}; "
                "make room, or set TMPDIR to another folder"
            ) from error
        return dataclasses.replace(place, size=offset - place.start)

    def read(self, place: _Place) -> Arrays:
        """The arrays at a place."""
        content = self._get(place)
        arrays, offset = OrderedDict(), 0
        for name, dtype, shape in place.kinds:
            count = int(np.prod(shape, dtype=np.int64))
            arrays[name] = np.frombuffer(content, dtype, count, offset).reshape(shape)
            offset += count * dtype.itemsize
        return arrays

    def free(self, place: _Place) -> None:
        """Gives a place back; free neighbours become one."""
        start, size = place.start, place.size
        if not size:
            return
        for other in sorted(self._free):
            if other + self._free[other] == start:
                start, size = other, self._free.pop(other) + size
            elif other == start + size:
                size += self._free.pop(other)
        if start + size == self._end:
            self._end = start
        else:
            self._free[start] = size

    def _room(self, size: int) -> int:
        for start in sorted(self._free):
            if self._free[start] >= size > 0:
                rest = self._free.pop(start) - size
                if rest:
                    self._free[start + size] = rest
                return start
        start, self._end = self._end, self._end + size
        return start

    def _put(self, array: np.ndarray, offset: int) -> int:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="tffcl-")  # noqa: SIM115 - closed with this object
            weakref.finalize(self, self._file.close)
        flat: Any = array.reshape(-1).view(np.uint8) if array.nbytes else b""
        content = memoryview(flat)
        while content:
            written = os.pwrite(self._file.fileno(), content, offset)
            content, offset = content[written:], offset + written
        return array.nbytes

    def _get(self, place: _Place) -> bytes | bytearray:
        if self._file is None or not place.size:
            return b""
        content = bytearray(place.size)
        view, done = memoryview(content), 0
        while done < place.size:
            count = os.preadv(self._file.fileno(), [view[done:]], place.start + done)
            if not count:
                raise errors.RunError("a temporary file is shorter than what was written to it")
            done += count
        return content
