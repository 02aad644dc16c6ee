"""Named arrays in one .npz file, without pickle, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Union

import numpy as np

from tffcl import errors, storage

Named = Union[Mapping[str, np.ndarray], Iterable[tuple[str, np.ndarray]]]


def write(path: str | os.PathLike[str], arrays: Named) -> None:
    """Writes a file whole or not at all (`tffcl.storage.write_whole`).

    Args:
      path: of the file.
      arrays: a mapping, or pairs of a name and an array, which are asked for one by one.

    Raises:
      RunError: the file cannot be written; what stood at `path` still stands.
    """
    storage.write_whole(path, lambda file: _save(file, arrays))


def _save(file: IO[bytes], arrays: Named) -> None:
    """As `np.savez`, which on a full disk leaves an archive open that complains when it is collected."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items() if isinstance(arrays, Mapping) else arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read(path: str | os.PathLike[str], *needed: str) -> dict[str, np.ndarray]:
    """All arrays of a file, each compared with its CRC-32; no more is read, or held, than the file has bytes.

    Args:
      path: of the file.
      *needed: names of arrays that have to be there.

    Raises:
      RunError: no such file, or one that is damaged, cut short or of another kind.
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
        members = [(one.filename, one.file_size, one.CRC) for one in archive.infolist()]
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
    if any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()):
        raise ValueError("its arrays are compressed")
    if sum(one.file_size for one in archive.infolist()) > size:
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
