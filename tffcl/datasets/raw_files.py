"""Reading data files by bytes: one place that knows about line ends, encodings, gzip, and files that are none."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

from tffcl import storage
from tffcl.errors import DatasetError, InputError
from tffcl.storage import PathLike as PathLike

_GZIP_START = b"\x1f\x8b"
_BUFFER_BYTES = 1 << 16
# A mark of UTF-32 begins with that of UTF-16.
_WIDE_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


def read_bytes(path: PathLike, max_bytes: int = storage.MAX_BYTES) -> bytes:
    """The whole file.

    Raises:
      DatasetError: no regular file, one of more than `max_bytes`, or one that cannot be read.
    """
    return storage.read_regular(path, "a data file", max_bytes=max_bytes, error=DatasetError)


def read_text(path: PathLike, encoding: str = "utf-8", max_bytes: int = storage.MAX_BYTES) -> str:
    """The whole file as text, without a byte-order mark; see `read_bytes` and `decode`."""
    return decode(read_bytes(path, max_bytes), encoding, path)


def read_lines(path: PathLike, encoding: str = "utf-8", max_bytes: int = storage.MAX_BYTES) -> list[str]:
    """The lines of a text file; see `read_text` and `split_lines`."""
    return split_lines(read_text(path, encoding, max_bytes))


@contextlib.contextmanager
def open_unzipped(path: PathLike, what: str, error: type[InputError] = DatasetError) -> Iterator[io.BufferedReader]:
    """The bytes of a file, unzipped if its content is gzip; whatever its size.

    The reader bounds what it takes: a small gzip file may hold any number of bytes.

    Raises:
      error: no regular file, or one that cannot be read to its end; also while it is read.
    """
    with storage.open_regular(path, what, max_bytes=None, error=error) as raw:
        zipped = False
        try:
            zipped = cast(io.BufferedReader, raw).peek(2).startswith(_GZIP_START)
            content = gzip.GzipFile(fileobj=raw) if zipped else raw
            yield io.BufferedReader(cast(io.RawIOBase, content), _BUFFER_BYTES)
        except (OSError, EOFError, zlib.error) as problem:
            fault = "not a whole gzip file" if zipped else "cannot be read to its end"
            raise error(f"{path}: {fault} ({problem}); fetch it again") from problem


def read_at_most(file: IO[bytes], path: PathLike, num_bytes: int) -> bytes:
    """The rest of a file, never holding more than `num_bytes`; DatasetError if there is more."""
    content = file.read(num_bytes + 1)
    if len(content) > num_bytes:
        raise DatasetError(f"{path}: holds more than {num_bytes} bytes; is it the right file?")
    return content


def mark_length(start: bytes, path: PathLike, error: type[InputError] = DatasetError) -> int:
    """Bytes of the byte-order mark of UTF-8 that a text begins with.

    Raises:
      error: the text is UTF-16 or UTF-32, by its mark or by zeros in every other byte.
    """
    wide = next((name for mark, name in _WIDE_MARKS if start.startswith(mark)), None)
    even, odd = start[0:16:2], start[1:16:2]
    if wide is None and odd and any(even) != any(odd) and all(even) != all(odd):
        wide = "UTF-16"
    if wide:
        raise error(f"{path}: is {wide} text; convert it to UTF-8: iconv -f {wide} -t UTF-8 FILE > NEW_FILE")
    return len(codecs.BOM_UTF8) * start.startswith(codecs.BOM_UTF8)


def decode(content: bytes, encoding: str, path: PathLike, errors: str = "strict") -> str:
    """Decoded text without a byte-order mark.

    Raises:
      DatasetError: another encoding; names the line of the first wrong byte.
      InputError: no such encoding.
    """
    try:
        if not codecs.lookup(encoding).name.startswith(("utf-16", "utf-32")):
            content = content[mark_length(content[:16], path) :]
        return content.decode(encoding, errors).lstrip("\ufeff")
    except LookupError:
        raise InputError(f"encoding: {encoding!r} is none that Python knows; expected utf-8, for example") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise DatasetError(
            f"{path}, line {line}: byte 0x{byte:02X} is not {encoding}; convert the file to UTF-8, "
            "or pass encoding='latin-1' if that is what it holds"
        ) from None


def split_lines(text: str) -> list[str]:
    """Lines that end in LF or CR LF, and in nothing else; the last one may lack its end.

    `str.splitlines` also cuts at U+0085, U+2028 and others, which stand inside sentences of SUBJ.
    """
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line[:-1] if line.endswith("\r") else line for line in lines]


def part_tables(folder: Path, part: str, endings: Sequence[str]) -> list[Path]:
    """The tables in a folder that are called "train" or "test"."""
    return [path for path in (folder / (part + ending) for ending in endings) if os.path.isfile(path)]


def train_and_test(folder: Path, endings: Sequence[str]) -> list[Path]:
    """The one table of training and the one of test examples; DatasetError for none, or several of a part."""
    paths = []
    for part in ("train", "test"):
        tables = part_tables(folder, part, endings)
        if len(tables) != 1:
            names = " and ".join(path.name for path in tables) or "none"
            raise DatasetError(f"{folder}: expected one of {part}{f', {part}'.join(endings)}, found {names}")
        paths += tables
    return paths
