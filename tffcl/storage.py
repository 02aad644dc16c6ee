"""Opens files that come from outside: regular files of bounded size, never a pipe, a device or a folder."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO, Optional, Union

from tffcl.errors import InputError, TffclError

MAX_BYTES = 1 << 31  # of a file that is read whole, unless its reader has a smaller bound

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(
    path: Union[str, os.PathLike[str]],
    what: str,
    *,
    max_bytes: Optional[int] = MAX_BYTES,
    error: type[TffclError] = InputError,
) -> BinaryIO:
    """Opens a file for reading bytes, without waiting for a writer at the other end of a pipe.

    Args:
      path: of the file; a symbolic link is followed.
      what: the noun phrase for it in a message, e.g. "a table of enrollment".
      max_bytes: the largest file that is accepted; None for readers that bound what they hold themselves.
      error: class of the error.

    Returns:
      A buffered binary file, to be closed by the caller.

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
            advice = (
                "give a file in it" if kind == "a folder" else "copy its content into a file and give that"
            )
            raise error(f"{path}: expected {what} in a regular file, found {kind}; {advice}")
        if max_bytes is not None and status.st_size > max_bytes:
            raise _too_large(path, what, max_bytes, error)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(
    path: Union[str, os.PathLike[str]],
    what: str,
    *,
    max_bytes: int = MAX_BYTES,
    error: type[TffclError] = InputError,
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
