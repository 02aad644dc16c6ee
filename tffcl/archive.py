"""Named arrays on the disk: archives that stay, and a shelf for what has no room in memory.

An archive is an .npz file without pickle, written whole or not at all; any byte that is not what was written is an
error. A shelf lies in a file without a name, which the system takes back when the process ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
import os
import struct
import tempfile
import weakref
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import IO, Any, BinaryIO, Union

import numpy as np

from tffcl import errors, storage

MEMORY_BYTES = 2**28  # of each shelf; small runs never write a byte

Named = Union[Mapping[str, np.ndarray], Iterable[tuple[str, np.ndarray]]]
Arrays = OrderedDict  # from names to arrays


def write(path: str | os.PathLike[str], arrays: Named) -> None:
    """Writes a file as `tffcl.storage.write_whole`; pairs of a name and an array are asked for one by one."""

    def save(file: BinaryIO) -> None:
        """As `np.savez`, which on a full disk leaves an archive open that complains when it is collected."""
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays.items() if isinstance(arrays, Mapping) else arrays:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)

    storage.write_whole(path, save)


def read(path: str | os.PathLike[str], *needed: str) -> dict[str, np.ndarray]:
    """All arrays of a file, each compared with its CRC-32; no more is read, or held, than the file has bytes.

    Raises:
      RunError: no such file, one that is damaged, cut short or of another kind, or without an array that is needed.
    """
    with _opened(path) as archive:
        found = {member.filename.removesuffix(".npy"): _array(archive, member) for member in archive.infolist()}
    if not set(needed) <= set(found):
        raise errors.RunError(f"{os.fspath(path)}: expected the arrays {list(needed)}, found {sorted(found)}")
    return found


def checksum(path: str | os.PathLike[str]) -> str:
    """CRC-32 of the names, sizes and CRC-32s of all arrays, from the file's directory: no array is read.

    Of files with the same checksum those that can be read hold the same.

    Raises:
      RunError: no such file, or one whose directory is damaged.
    """
    with _opened(path) as archive:
        members = [(entry.filename, entry.file_size, entry.CRC) for entry in archive.infolist()]
    return f"{zlib.crc32(repr(members).encode()):08x}"


# What zipfile and numpy raise where a byte is not what was written, a wild number of entries among it.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, TypeError, LookupError, AttributeError,
    ArithmeticError, MemoryError, NotImplementedError, RuntimeError, SyntaxError,
)  # fmt: skip


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[zipfile.ZipFile]:
    with storage.open_regular(path, "an archive of arrays", max_bytes=None, error=errors.RunError) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                _check_sizes(archive, os.fstat(file.fileno()).st_size)
                yield archive
        except (OSError, *_DAMAGE) as error:
            # A wild offset is looked for before the file's start, which the system calls an invalid argument.
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise errors.RunError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from error
            raise errors.RunError(f"{os.fspath(path)} is damaged, or no archive of arrays: {error}") from error


def _check_sizes(archive: zipfile.ZipFile, size: int) -> None:
    """Raises ValueError where the arrays are not stored as they are, or are said to be more than the file has bytes."""
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
        raise ValueError("its arrays are compressed")
    if sum(entry.file_size for entry in archive.infolist()) > size:
        raise ValueError("its arrays are larger than the file")


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        if _num_bytes(file) != member.file_size:  # numpy makes room before it reads
            raise ValueError(f"{member.filename} has another length than its first bytes say")
    with archive.open(member) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):  # the sum is compared when the last byte has been read
            raise ValueError(f"{member.filename} is longer than its first bytes say")
        return array


def _num_bytes(file: IO[bytes]) -> int:
    """Bytes of an array in numpy's format, its header included, as the header says."""
    version = np.lib.format.read_magic(file)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = read_header[version](file)
    if dtype.hasobject:
        raise ValueError("an array holds Python objects")
    return file.tell() + math.prod(shape) * dtype.itemsize


# -- archives for keeping: small, with weights that are rounded ---------------------------------------------------

PACKED_FROM = 4096  # values of a float32 array from which it is rounded and compressed
PACKED_BITS = 8  # significant bits that its values keep, as bfloat16 does: each is off by 0.2 % at most


def rounded(values: np.ndarray) -> np.ndarray:
    """float32 values with `PACKED_BITS` significant bits, to the nearest, ties to even; what is not finite stays.

    >>> rounded(np.float32([1.0, 1.00390625, -3.1415927, 0.0]))
    array([ 1.      ,  1.      , -3.140625,  0.      ], dtype=float32)
    """
    drop = np.uint32(24 - PACKED_BITS)
    words = np.ascontiguousarray(values, np.float32).view(np.uint32)
    last = (words >> drop) & np.uint32(1)
    near = (words + np.uint32((1 << int(drop) - 1) - 1) + last) & np.uint32(2**32 - (1 << int(drop)))
    found = near.view(np.float32)
    return np.where(np.isfinite(found), found, values).astype(np.float32)


def packed(arrays: Iterable[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    """Arrays as `write` takes them: large float32 ones rounded and compressed, equal rows once; others as they are.

    A row is what the first axis counts.
    """
    index: dict[str, tuple[list[int], list[int]]] = {}
    known: dict[bytes, int] = {}
    for name, array in arrays:
        array = np.asanyarray(array)
        if array.dtype != np.float32 or array.size < PACKED_FROM:
            yield f"whole/{name}", array
            continue
        numbers = []
        for row in array.reshape(len(array) if array.ndim > 1 else 1, -1):
            near = rounded(row)
            digest = hashlib.sha256(near.tobytes()).digest()
            if digest not in known:
                known[digest] = len(known)
                yield f"row/{known[digest]}", _row_packed(near)
            numbers.append(known[digest])
        index[name] = (list(array.shape), numbers)
    yield "index", np.frombuffer(json.dumps(index).encode(), np.uint8)


class Packed:
    """The arrays of a file that `packed` gave, one by one.

    Raises:
      RunError: no such file, or it is damaged or of another kind.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._path = path
        self._stored = read(path, "index")
        with self._checked():
            self._index = json.loads(self._stored.pop("index").tobytes())
            whole = [name.removeprefix("whole/") for name in self._stored if name.startswith("whole/")]
            self.names = (*self._index, *whole)

    @contextlib.contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except _DAMAGE as error:
            raise errors.RunError(
                f"{os.fspath(self._path)} is damaged, or no archive of a finished run: {error}"
            ) from error

    def num_bytes(self, name: str) -> int:
        """Of an array as it was."""
        with self._checked():
            return 4 * math.prod(self._index[name][0]) if name in self._index else self._stored[f"whole/{name}"].nbytes

    def __getitem__(self, name: str) -> np.ndarray:
        with self._checked():
            if name not in self._index:
                return self._stored[f"whole/{name}"]
            shape, numbers = self._index[name]
            size = math.prod(shape) // len(numbers)
            return np.stack([_row_unpacked(self._stored[f"row/{each}"], size) for each in numbers]).reshape(shape)


# A row is the places of what is not 0, as bits, then two bytes of each such value: exponents, which are much alike, and
# the rest of the significant bits with the sign. Each part is compressed by itself.
_PARTS = struct.Struct("<3I")


def _row_packed(row: np.ndarray) -> np.ndarray:
    there = row.view(np.uint32) != 0
    words = row.view(np.uint32)[there]
    exponents, rest = ((words >> np.uint32(shift)).astype(np.uint8) for shift in (23, 16))
    rest = (rest & np.uint8(0x7F)) | ((words >> np.uint32(24)).astype(np.uint8) & np.uint8(0x80))
    # Bytes of weights repeat nowhere, and looking for that is slow.
    parts = [zlib.compress(np.packbits(there).tobytes()), *map(_by_frequency, (exponents, rest))]
    return np.frombuffer(b"".join([_PARTS.pack(*map(len, parts)), *parts]), np.uint8)


def _by_frequency(part: np.ndarray) -> bytes:
    compressor = zlib.compressobj(strategy=zlib.Z_HUFFMAN_ONLY)
    return compressor.compress(part.tobytes()) + compressor.flush()


def _row_unpacked(stored: np.ndarray, size: int) -> np.ndarray:
    content, start = stored.tobytes(), _PARTS.size
    parts = []
    for length in _PARTS.unpack_from(content):
        part = zlib.decompressobj().decompress(content[start : start + length], size + 8)  # no more than it may be
        parts.append(np.frombuffer(part, np.uint8).astype(np.uint32))
        start += length
    if len(parts[0]) != -(-size // 8):
        raise ValueError(f"a row has not the {size} values that its index says")
    there = np.unpackbits(parts[0].astype(np.uint8), count=size).astype(bool)
    words = np.zeros(size, np.uint32)
    words[there] = (
        (parts[1] << np.uint32(23)) | ((parts[2] & 0x7F) << np.uint32(16)) | ((parts[2] & 0x80) << np.uint32(24))
    )
    return words.view(np.float32)


class Shelf:
    """A mapping from keys to named arrays; those used longest ago lie in a file once memory is full.

    The file has no name (it lies in `tempfile.gettempdir()`, which TMPDIR decides): the system takes it back when the
    process ends, whatever ends it. Nothing in it outlives the process; checkpoints are another matter.

    Room that is no longer used is used again. Arrays are not to be written to: put new ones in their place. `memory` is
    how many bytes of arrays may stay in memory (None: `MEMORY_BYTES`); what was used last does so in any case.

    >>> shelf = Shelf(memory=8)
    >>> for key in range(3):
    ...     shelf[key] = {"value": np.full(2, key, np.int32)}
    >>> [shelf[key]["value"].tolist() for key in shelf], shelf.memory_used, shelf.num_bytes(0)
    ([[0, 0], [1, 1], [2, 2]], 8, 8)
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
        """Writes arrays to the first free place that is large enough, or to the end; RunError on a full disk."""
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
