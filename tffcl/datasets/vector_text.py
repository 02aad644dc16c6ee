"""word2vec text and GloVe text, line by line."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Set
from pathlib import Path
from typing import BinaryIO, Optional

import numpy as np

from tffcl.errors import WordVectorError

_PROBE_LINES = 100
_LONGEST_LINE = 1 << 21  # bytes: 65,536 numbers of up to 31 characters


def read(
    file: BinaryIO, path: Path, wanted: Optional[Set[str]], unicode_errors: str, header: Optional[tuple[int, int]]
) -> Iterator[tuple[Optional[str], np.ndarray, str]]:
    """(word, float32 [D], "line n") of the wanted words; None for a word that is not UTF-8 if that is ignored.

    Every line's number of fields is checked.
    """
    if header:
        file.readline()
    first_number = 2 if header else 1
    lines = _lines(file, path, first_number)
    probe = list(itertools.islice(lines, _PROBE_LINES))
    dimension = header[1] if header else _common_dimension(probe, path)
    count = 0
    for number, line in enumerate(itertools.chain(probe, lines), first_number):
        # a file's last line may be empty; only spaces may end a line (word2vec's own tool writes one)
        line = line.rstrip(b" \r\n")
        if not line:
            continue
        count += 1
        row = _parse(line, dimension, wanted, unicode_errors, f"{path}, line {number}")
        if row is not None:
            yield (*row, f"line {number}")
    if header and count != header[0]:
        raise WordVectorError(
            f"{path}: the header promises {header[0]} vectors, found {count}; the file is truncated, or its "
            f"first line should be '{count} {dimension}'"
        )


def _lines(file: BinaryIO, path: Path, number: int) -> Iterator[bytes]:
    """The lines of a file, each of which may stand in memory."""
    while line := file.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
            raise WordVectorError(
                f"{path}, line {number}: is longer than {_LONGEST_LINE} bytes; is it a file of word vectors?"
            )
        yield line
        number += 1


def is_number(field: bytes) -> bool:
    """Whether a field is a number; nan and inf are, so that they can be refused by name."""
    try:
        float(field)
    except ValueError:
        return False
    # float() takes '1_000' too, which is a word
    return b"_" not in field


def _common_dimension(lines: list[bytes], path: Path) -> int:
    """How many numbers most of the first lines end in; a word with spaces does not mislead it."""
    counts: collections.Counter[int] = collections.Counter()
    for line in lines:
        fields = line.rstrip(b" \r\n").split(b" ")
        counts[sum(1 for _ in itertools.takewhile(is_number, reversed(fields[1:])))] += 1
    if not counts or counts.most_common(1)[0][0] == 0:
        raise WordVectorError(
            f"{path}, line 1: expected 'word x1 x2 ...' with plain spaces, or a header 'count dimension' "
            f"before binary data; found {_shown(lines[0] if lines else b'')}"
        )
    return max(counts, key=lambda dimension: (counts[dimension], dimension))


def _parse(
    line: bytes, dimension: int, wanted: Optional[Set[str]], unicode_errors: str, place: str
) -> Optional[tuple[Optional[str], np.ndarray]]:
    """The word and vector of a line, or None if nobody wants the word; the word is None as in `read`."""
    fields = line.rsplit(b" ", dimension)
    if len(fields) != dimension + 1 or not is_number(fields[1]):
        found = len(line.split(b" ")) - 1
        raise WordVectorError(
            f"{place}: expected a word and {dimension} numbers, found {found} fields "
            f"after {_shown(line.split(b' ')[0])}"
        )
    if b" " in fields[0] and is_number(fields[0].rsplit(b" ", 1)[1]):
        raise WordVectorError(
            f"{place}: expected {dimension} numbers after the word, found {line.count(b' ')} fields: {_shown(line)}"
        )
    word = decode(fields[0], unicode_errors, place)
    if word is None:
        return None, np.zeros(0, np.float32)
    if wanted is not None and word not in wanted:
        return None
    try:
        # what float32 cannot hold becomes inf here, and is refused with the other values that are not finite
        with np.errstate(over="ignore"):
            return word, np.array([float(field) for field in fields[1:]]).astype(np.float32)
    except ValueError:
        wrong = next(field for field in fields[1:] if not is_number(field))
        raise WordVectorError(f"{place}: {_shown(wrong)} is not a number (word {word!r})") from None


def decode(word: bytes, unicode_errors: str, place: str) -> Optional[str]:
    """The word, or None where it is not UTF-8 and that is to be ignored."""
    try:
        return word.decode("utf-8")
    except UnicodeDecodeError:
        if unicode_errors == "ignore":
            return None
        raise WordVectorError(
            f"{place}: the word {_shown(word)} is not UTF-8; convert the file, "
            "or pass unicode_errors='ignore' to skip it"
        ) from None


def _shown(content: bytes) -> str:
    """Bytes for a message, on one line and short."""
    return repr(content[:40])[1:] + ("..." if len(content) > 40 else "")
