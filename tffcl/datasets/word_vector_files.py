"""Streaming readers of word-vector files; each yields (word, float32 [D], position in the file).

word2vec text:   a header `count dimension`, then `word x1 ... xD` a line
word2vec binary: the same header line, then `word`, a space and D little-endian float32, over and over
GloVe text:      as word2vec text without the header; words may hold spaces, so a line is cut from the right
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Set
from pathlib import Path
from typing import BinaryIO, Optional

import numpy as np

from tffcl.datasets import raw_files
from tffcl.errors import WordVectorError

Wanted = Optional[Set[str]]
# A word is None where it is not UTF-8 and that is to be ignored.
VectorRows = Iterator[tuple[Optional[str], np.ndarray, str]]

_PROBE_BYTES = 1 << 16
_PROBE_LINES = 100
_LONGEST_LINE = 1 << 21  # bytes: 65,536 numbers of up to 31 characters
_LONGEST_NUMBER = 18  # digits of a header's fields
_LONGEST_WORD = 1 << 12  # bytes; what has no space within that is not a word
_MOST_DIMENSIONS = 1 << 16
_BLOCK_BYTES = 1 << 20
_PICKLE_START = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def read(path: Path, wanted: Wanted, unicode_errors: str, allow_pickle: bool = False) -> VectorRows:
    """Rows of the words in `wanted` (None: of all), whichever of the formats the file has, gzipped or not.

    Raises:
      WordVectorError: the file is none of them, breaks off, or is a pickle and `allow_pickle` is false; the message
        names the line or word.
    """
    with raw_files.open_unzipped(path, "word vectors", WordVectorError) as file:
        start = file.peek(_PROBE_BYTES)[:_PROBE_BYTES]
        if start.startswith(_PICKLE_START):
            yield from _read_gensim(path, wanted, allow_pickle)
            return
        start = start[len(file.read(raw_files.mark_length(start, path, WordVectorError))) :]
        header = _header(start, path)
        if header is None and _is_binary(start):
            raise WordVectorError(
                f"{path}, line 1: binary data without the header 'count dimension'; write the file with "
                "gensim's save_word2vec_format"
            )
        if header:
            body = start.split(b"\n", 1)[1]
            last_field = body.split(b"\n", 1)[0].rstrip().rsplit(b" ", 1)[-1]
            file.readline()
            if not _is_number(last_field) and _is_binary(body):
                yield from _read_binary(file, path, wanted, unicode_errors, *header)
                return
        yield from _read_text(file, path, wanted, unicode_errors, header)


def _header(start: bytes, path: Path) -> Optional[tuple[int, int]]:
    """(count, dimension), if the first line is two whole numbers."""
    fields = start.split(b"\n", 1)[0].split()
    if b"\n" not in start or len(fields) != 2:
        return None
    if not all(field.isdigit() and len(field) <= _LONGEST_NUMBER for field in fields):
        return None
    count, dimension = map(int, fields)
    if not 1 <= dimension <= _MOST_DIMENSIONS:
        raise WordVectorError(
            f"{path}, line 1: the header promises vectors of dimension {dimension}; expected 1..{_MOST_DIMENSIONS}"
        )
    return count, dimension


def _is_binary(content: bytes) -> bool:
    """Text has no control bytes; little-endian floats are full of them."""
    return any(byte < 32 and byte not in b"\t\r\n" for byte in content)


def _is_number(field: bytes) -> bool:
    """Whether a field is a number; nan and inf are, so that they can be refused by name."""
    try:
        float(field)
    except ValueError:
        return False
    # float() takes '1_000' too, which is a word
    return b"_" not in field


def _read_gensim(path: Path, wanted: Wanted, allow_pickle: bool) -> VectorRows:
    """A saved gensim KeyedVectors, or a model that has one; big arrays beside it are mapped, not loaded."""
    if not allow_pickle:
        raise WordVectorError(
            f"{path}: is a pickle, which runs code of its writer when it is read; write the vectors with gensim's "
            "save_word2vec_format instead, or, where you trust the file, allow it (--allow-pickle, allow_pickle=True)"
        )
    from gensim.models import KeyedVectors

    try:
        loaded = KeyedVectors.load(str(path), mmap="r")
        vectors = getattr(loaded, "wv", loaded)
        words, matrix = list(vectors.index_to_key), vectors.vectors
    except Exception as error:  # a pickle may raise anything
        raise WordVectorError(f"{path}: not a gensim KeyedVectors file ({type(error).__name__}: {error})") from error
    for row, word in enumerate(words):
        if wanted is None or word in wanted:
            yield word, np.array(matrix[row], np.float32), f"row {row}"


def _read_binary(
    file: BinaryIO, path: Path, wanted: Wanted, unicode_errors: str, count: int, dimension: int
) -> VectorRows:
    """Rows of word2vec binary, read in blocks."""
    buffer, position = b"", 0
    for number in range(1, count + 1):
        where = f"{path}, vector {number}"
        if len(buffer) - position < _LONGEST_WORD + 4 * dimension:
            buffer, position = buffer[position:] + file.read(_BLOCK_BYTES + 4 * dimension), 0
        space = buffer.find(b" ", position, position + _LONGEST_WORD)
        end = space + 1 + 4 * dimension
        if space < 0 or end > len(buffer):
            raise WordVectorError(
                f"{where}: the file breaks off or is not word2vec binary; its header promises "
                f"{count} vectors of dimension {dimension}"
            )
        # some writers end each vector with a newline, some do not
        word = _decoded(buffer[position:space].lstrip(b"\n"), unicode_errors, where)
        if word is None or wanted is None or word in wanted:
            yield word, np.frombuffer(buffer[space + 1 : end], "<f4").astype(np.float32), f"vector {number}"
        position = end
    if (buffer[position:] + file.read(1)).strip():
        raise WordVectorError(f"{path}: more bytes follow the {count} vectors that its header promises")


def _read_text(
    file: BinaryIO, path: Path, wanted: Wanted, unicode_errors: str, header: Optional[tuple[int, int]]
) -> VectorRows:
    """Rows of word2vec or GloVe text; every line's number of fields is checked, wanted or not."""
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
        where = f"{path}, line {number}"
        word, numbers = _split(line, dimension, unicode_errors, where)
        if word is None or wanted is None or word in wanted:
            yield word, _vector(numbers, word, where), f"line {number}"
    if header and count != header[0]:
        raise WordVectorError(
            f"{path}: the header promises {header[0]} vectors, found {count}; the file is truncated, or its "
            f"first line should be '{count} {dimension}'"
        )


def _lines(file: BinaryIO, path: Path, number: int) -> Iterator[bytes]:
    """The lines of a file, none longer than may stand in memory."""
    while line := file.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
            raise WordVectorError(
                f"{path}, line {number}: is longer than {_LONGEST_LINE} bytes; is it a file of word vectors?"
            )
        yield line
        number += 1


def _common_dimension(lines: list[bytes], path: Path) -> int:
    """How many numbers most of the first lines end in; a word with spaces does not mislead it."""
    counts: collections.Counter[int] = collections.Counter()
    for line in lines:
        fields = line.rstrip(b" \r\n").split(b" ")
        counts[sum(1 for _ in itertools.takewhile(_is_number, reversed(fields[1:])))] += 1
    if not counts or counts.most_common(1)[0][0] == 0:
        raise WordVectorError(
            f"{path}, line 1: expected 'word x1 x2 ...' with plain spaces, or a header 'count dimension' "
            f"before binary data; found {_shown(lines[0] if lines else b'')}"
        )
    return max(counts, key=lambda dimension: (counts[dimension], dimension))


def _split(line: bytes, dimension: int, unicode_errors: str, where: str) -> tuple[Optional[str], list[bytes]]:
    """The word of a line, None if it is not UTF-8 and that is ignored, and its number fields."""
    fields = line.rsplit(b" ", dimension)
    if len(fields) != dimension + 1 or not _is_number(fields[1]):
        found = len(line.split(b" ")) - 1
        raise WordVectorError(
            f"{where}: expected a word and {dimension} numbers, found {found} fields "
            f"after {_shown(line.split(b' ')[0])}"
        )
    if b" " in fields[0] and _is_number(fields[0].rsplit(b" ", 1)[1]):
        raise WordVectorError(
            f"{where}: expected {dimension} numbers after the word, found {line.count(b' ')} fields: {_shown(line)}"
        )
    return _decoded(fields[0], unicode_errors, where), fields[1:]


def _vector(numbers: list[bytes], word: Optional[str], where: str) -> np.ndarray:
    try:
        # what float32 cannot hold becomes inf here, and is refused with the other values that are not finite
        with np.errstate(over="ignore"):
            return np.array([float(number) for number in numbers]).astype(np.float32)
    except ValueError:
        wrong = next(number for number in numbers if not _is_number(number))
        raise WordVectorError(f"{where}: {_shown(wrong)} is not a number (word {word!r})") from None


def _decoded(word: bytes, unicode_errors: str, where: str) -> Optional[str]:
    """The word, or None where it is not UTF-8 and that is to be ignored."""
    try:
        return word.decode("utf-8")
    except UnicodeDecodeError:
        if unicode_errors == "ignore":
            return None
        raise WordVectorError(
            f"{where}: the word {_shown(word)} is not UTF-8; convert the file, "
            "or pass unicode_errors='ignore' to skip it"
        ) from None


def _shown(content: bytes) -> str:
    """Bytes for a message, on one line and short."""
    return repr(content[:40])[1:] + ("..." if len(content) > 40 else "")
