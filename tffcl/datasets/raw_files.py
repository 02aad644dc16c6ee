"""Reading text files by bytes: one place that knows about line ends, encodings and missing files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Union

from tffcl.errors import DatasetError

PathLike = Union[str, "os.PathLike[str]"]


def read_bytes(path: PathLike) -> bytes:
    """The whole file.

    Raises:
      DatasetError: the file is missing, a folder, or cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise DatasetError(f"{path}: no such file") from None
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror})") from error


def decode(content: bytes, encoding: str, path: PathLike) -> str:
    """Decoded text; an error names the line of the first wrong byte."""
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise DatasetError(
            f"{path}, line {line}: byte 0x{byte:02X} is not {encoding}; convert the file to UTF-8, "
            "or pass encoding='latin-1' if that is what it holds"
        ) from None


def split_lines(text: str) -> list[str]:
    """Lines that end in LF or CR LF, and in nothing else.

    `str.splitlines` also cuts at U+0085, U+2028 and others, which stand inside sentences of SUBJ.
    The last line may lack its end.
    """
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line[:-1] if line.endswith("\r") else line for line in lines]
