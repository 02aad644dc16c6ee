"""Named arrays in one .npz file, without pickle, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
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
    """All arrays of a file.

    Raises:
      RunError: no such file, or one that is cut short or of another kind.
    """
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except OSError as error:
        raise errors.RunError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, EOFError, ValueError, TypeError, AttributeError) as error:
        raise errors.RunError(f"{os.fspath(path)} is damaged, or no archive of arrays: {error}") from error


def _sync_folder(folder: pathlib.Path) -> None:
    """A rename survives a power cut only when its folder has reached the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
