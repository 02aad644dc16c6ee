"""Named arrays in one .npz file, without pickle, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Union

import numpy as np

from tffcl import errors

Named = Union[Mapping[str, np.ndarray], Iterable[tuple[str, np.ndarray]]]


def write(path: str | os.PathLike[str], arrays: Named) -> None:
    """Writes to a temporary file beside `path`, brings it to the disk, and renames it.

    Args:
      path: of the file.
      arrays: a mapping, or pairs of a name and an array, which are asked for one by one.

    Raises:
      RunError: the file cannot be written; what stood at `path` still stands.
    """
    target = pathlib.Path(path)
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(descriptor, "wb") as file:
            _save(file, arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        _sync_folder(target.parent)
    except OSError as error:
        raise errors.RunError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def _save(file: IO[bytes], arrays: Named) -> None:
    """As `np.savez`, which on a full disk leaves an archive open that complains when it is collected."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items() if isinstance(arrays, Mapping) else arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """All arrays of a file, each compared with its CRC-32.

    Raises:
      RunError: no such file, or one that is damaged, cut short or of another kind.
    """
    with _opened(path) as archive:
        return {
            member.filename.removesuffix(".npy"): _array(archive, member) for member in archive.infolist()
        }


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
    ArithmeticError, MemoryError, NotImplementedError, RuntimeError,
)  # fmt: skip


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (OSError, *_DAMAGE) as error:
        # A wild offset is looked for before the file's start, which the system calls an invalid argument.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise errors.RunError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from error
        raise errors.RunError(f"{os.fspath(path)} is damaged, or no archive of arrays: {error}") from error


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):  # the sum is compared when the last byte has been read
            raise ValueError(f"{member.filename} is longer than its first bytes say")
        return array


def _sync_folder(folder: pathlib.Path) -> None:
    """A rename survives a power cut only when its folder has reached the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
