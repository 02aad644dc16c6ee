"""Reads files that come from outside (regular, of bounded size), and writes files whole and for their owner alone."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Callable, Optional, Union

from tffcl.errors import InputError, RunError, TffclError

PathLike = Union[str, "os.PathLike[str]"]

MAX_BYTES = 1 << 31  # of a file that is read whole, unless its reader has a smaller bound
TEMPORARY = ".writing-"  # how the name of a file begins that is being written
_MOST_NESTED = 64  # levels of a JSON file; what is written here has ten

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(
    path: PathLike, what: str, *, max_bytes: Optional[int] = MAX_BYTES, error: type[TffclError] = InputError
) -> BinaryIO:
    """Opens a file for reading bytes, without waiting for a writer at the other end of a pipe; the caller closes it.

    `what` is the noun phrase for it in a message, e.g. "a table of enrollment". Larger files than `max_bytes` are
    refused; None is for readers that bound what they hold themselves.

    Raises:
      error: no such file, one that cannot be opened, one that is not regular, or a larger one; one line.
    """
    try:
        # Non-blocking, as opening a pipe waits for its writer; of no effect on a regular file.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise error(f"{path}: no such file; expected {what}") from None
    except OSError as problem:
        raise _cannot_read(path, what, problem, error) from problem
    except ValueError as problem:  # a NUL, or a character that the file system's encoding lacks
        raise error(f"{path!r}: no path for {what} ({problem})") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = next((name for test, name in _KINDS if test(status.st_mode)), "no regular file")
            advice = "give a file in it" if kind == "a folder" else "copy its content into a file and give that"
            raise error(f"{path}: expected {what} in a regular file, found {kind}; {advice}")
        if max_bytes is not None and status.st_size > max_bytes:
            raise _too_large(path, what, max_bytes, error)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(
    path: PathLike, what: str, *, max_bytes: int = MAX_BYTES, error: type[TffclError] = InputError
) -> bytes:
    """The whole content of a file that `open_regular` accepts; also bounded where the file grows meanwhile.

    Raises:
      error: as `open_regular`, or the file cannot be read to its end; one line.
    """
    with open_regular(path, what, max_bytes=max_bytes, error=error) as file:
        try:
            content = file.read(max_bytes + 1)
        except OSError as problem:
            raise _cannot_read(path, what, problem, error) from problem
    if content is None or len(content) > max_bytes:  # None: it is no data, but what has nothing to say yet
        raise _too_large(path, what, max_bytes, error)
    return content


def _cannot_read(path: object, what: str, problem: OSError, error: type[TffclError]) -> TffclError:
    return error(f"{path}: {what} that cannot be read ({problem.strerror or problem})")


def _too_large(path: object, what: str, max_bytes: int, error: type[TffclError]) -> TffclError:
    return error(f"{path}: expected {what} of at most {max_bytes} bytes, found more; is it the right file?")


def read_object(path: PathLike, what: str, *, error: type[TffclError] = InputError) -> dict[str, Any]:
    """The JSON object in a file that `open_regular` accepts.

    Raises:
      error: as `open_regular`, or the file holds no JSON object; one line.
    """
    return parse_object(read_regular(path, what, error=error), f"{path}", error)


def parse_object(content: bytes, where: str, error: type[TffclError] = InputError) -> dict[str, Any]:
    """The JSON object that a text is; `where` it stands is for the message.

    Raises:
      error: it is no JSON, JSON of another type, or nested deeper than anything that is written here; one line.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as problem:
        raise error(f"{where}: not valid JSON ({problem})") from None
    if not isinstance(value, dict):
        raise error(f"{where}: expected a JSON object, found {type(value).__name__}")
    level: list[Any] = [value]
    for _ in range(_MOST_NESTED):
        level = [
            part
            for one in level
            for part in (one.values() if isinstance(one, dict) else one)
            if isinstance(part, (dict, list))
        ]
        if not level:
            return value
    raise error(f"{where}: not valid JSON here (nested more than {_MOST_NESTED} levels deep)")


def plain(value: Any) -> Any:
    """The value as JSON knows it: numpy values as Python's, keys as text, non-finite numbers as null.

    >>> plain({1: float("inf"), "x": (float("nan"), 3)})
    {'1': None, 'x': [None, 3]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):  # numpy's arrays and scalars
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def write_json(path: PathLike, value: Any) -> None:
    """Replaces a JSON file at once (`write_whole`).

    Raises:
      RunError: the file cannot be written; what stood there still stands.
    """
    write_whole(path, (json.dumps(plain(value), indent=1, allow_nan=False) + "\n").encode())


def check_path(path: PathLike, what: str) -> None:
    """Raises RunError for a path that not every library below can name: TensorFlow takes UTF-8 alone."""
    try:
        os.fsencode(os.fspath(path))
        os.fsdecode(path).encode()
    except UnicodeError:
        raise RunError(
            f"{os.fsdecode(path)!r}: no path for {what}: it holds characters outside of this locale's encoding "
            f"({sys.getfilesystemencoding()}); name another, or set PYTHONUTF8=1"
        ) from None
    if "\0" in os.fsdecode(path):
        raise RunError(f"{os.fsdecode(path)!r}: no path for {what}: it holds a NUL")


def check_folder(path: PathLike, what: str) -> None:
    """Raises RunError, and makes nothing, where a folder cannot be made, or be written to where it stands."""
    check_path(path, what)
    nearest, missing = os.path.abspath(path), 0
    while True:
        try:
            os.lstat(nearest)
            break
        except (FileNotFoundError, NotADirectoryError):
            nearest, name = os.path.split(nearest)
            missing = max(missing, len(os.fsencode(name)))
        except OSError as problem:
            raise cannot_write(path, problem) from problem
    if not os.path.isdir(nearest):
        kind = "a file" if os.path.exists(nearest) else "a link to nothing"
        raise RunError(f"{path}: cannot be {what}: {nearest} is {kind}; give another directory")
    if missing > os.pathconf(nearest, "PC_NAME_MAX"):
        raise cannot_write(path, OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)))
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise RunError(f"cannot write {path}: {nearest} is read-only here; give another directory")


def check_run(folder: PathLike, error: type[TffclError] = InputError) -> None:
    """Raises `error` where there is no run directory."""
    if not os.path.isdir(folder):
        raise error(f"{os.fspath(folder)}: no such run directory")
    if not os.path.lexists(os.path.join(folder, "config.json")):
        raise error(f"{os.fspath(folder)}: expected a run directory, found no config.json in it")


def make_folder(path: PathLike, what: str) -> None:
    """Makes a folder for its owner alone (0700), and what is missing above it; one that stands stays as it is.

    Raises:
      RunError: it cannot be made, or be written to; one line.
    """
    check_folder(path, what)
    try:
        with private():
            os.makedirs(path, 0o700, exist_ok=True)
    except OSError as problem:
        raise cannot_write(path, problem) from problem


def write_whole(path: PathLike, content: Union[bytes, Callable[[BinaryIO], None]]) -> None:
    """Replaces a file at once, for its owner alone (0600): a reader, or a killed process, finds the old or the new one.

    The content is given in bytes, or by what writes them to a binary file.

    Raises:
      RunError: the file cannot be written; what stood there still stands.
    """
    check_path(path, "a file")
    folder, temporary = os.path.dirname(os.path.abspath(path)), None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=TEMPORARY)
        with os.fdopen(descriptor, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(folder)
    except OSError as problem:
        raise cannot_write(path, problem) from problem
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):  # it has its name by now, or cannot be removed
                os.unlink(temporary)


def append(path: PathLike, content: bytes) -> None:
    """Writes to the end of a file.

    Raises:
      RunError: it cannot be written.
    """
    try:
        with open(path, "ab") as file:
            file.write(content)
    except OSError as problem:
        raise cannot_write(path, problem) from problem


def _sync_folder(folder: str) -> None:
    """A rename survives a power cut only when its folder has reached the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(path: PathLike, problem: OSError) -> RunError:
    """The error for a file that cannot be written, with what helps."""
    hint = "; make room" if problem.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return RunError(f"cannot write {os.fspath(path)}: {problem.strerror or problem}{hint}")


class _Mask:
    """The process's mask of permissions, while somebody writes what is for the owner alone."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, 0

    @contextlib.contextmanager
    def private(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._before = os.umask(0o077)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    os.umask(self._before)


_mask = _Mask()


def private() -> contextlib.AbstractContextManager[None]:
    """Inside, whatever is written in this process is for its owner alone: files 0600, folders 0700.

    The mask belongs to the whole process: files that other threads make meanwhile have it, too.
    """
    return _mask.private()
