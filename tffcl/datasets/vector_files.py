"""Streaming readers of word-vector files; each yields (word, float32 [D], place in the file).

word2vec text:   a header `count dimension`, then `word x1 ... xD` a line
word2vec binary: the same header line, then `word`, a space and D little-endian float32, over and over
GloVe text:      as word2vec text without the header; words may hold spaces, so a line is cut from the right
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from pathlib import Path
from typing import Optional

import numpy as np

from tffcl.datasets import raw_files, vector_binary, vector_text
from tffcl.errors import WordVectorError

Wanted = Optional[Set[str]]
# A word is None where it is not UTF-8 and that is to be ignored.
VectorRows = Iterator[tuple[Optional[str], np.ndarray, str]]

_PROBE_BYTES = 1 << 16
_LONGEST_NUMBER = 18  # digits of a header's fields
_MOST_DIMENSIONS = 1 << 16
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
        if header and _is_binary_body(start.split(b"\n", 1)[1]):
            yield from vector_binary.read(file, path, wanted, unicode_errors, header)
        else:
            yield from vector_text.read(file, path, wanted, unicode_errors, header)


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


def _is_binary_body(body: bytes) -> bool:
    """Whether floats, not lines of numbers, follow the header."""
    last_field = body.split(b"\n", 1)[0].rstrip().rsplit(b" ", 1)[-1]
    return not vector_text.is_number(last_field) and _is_binary(body)


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
