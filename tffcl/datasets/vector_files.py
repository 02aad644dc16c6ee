"""Streaming readers of word-vector files; each yields (word, float32 [D], place in the file).

word2vec text:   a header `count dimension`, then `word x1 ... xD` a line
word2vec binary: the same header line, then `word`, a space and D little-endian float32, over and over
GloVe text:      as word2vec text without the header; words may hold spaces, so a line is cut from the right
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Optional, cast

import numpy as np

from tffcl.datasets import vector_binary, vector_text
from tffcl.errors import WordVectorError

Wanted = Optional[Set[str]]
VectorRows = Iterator[tuple[str, np.ndarray, str]]

_PROBE_BYTES = 1 << 16
_GENSIM_ENDINGS = (".kv", ".model", ".wordvectors", ".keyedvectors")
_PICKLE_START = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def read(path: Path, wanted: Wanted, unicode_errors: str) -> VectorRows:
    """Rows of the words in `wanted` (None: of all), whichever of the formats the file has.

    Raises:
      WordVectorError: the file is none of them, or breaks off; the message names the line or word.
    """
    try:
        with _open(path) as file:
            start = file.peek(_PROBE_BYTES)[:_PROBE_BYTES]
            if path.suffix in _GENSIM_ENDINGS or start.startswith(_PICKLE_START):
                yield from _read_gensim(path, wanted)
                return
            header = _header(start)
            if header is None and _is_binary(start):
                raise WordVectorError(
                    f"{path}, line 1: binary data without the header 'count dimension'; write the file with "
                    "gensim's save_word2vec_format"
                )
            if header and _is_binary_body(start.split(b"\n", 1)[1]):
                yield from vector_binary.read(file, path, wanted, unicode_errors)
            else:
                yield from vector_text.read(file, path, wanted, unicode_errors, header)
    except (OSError, EOFError, zlib.error) as error:
        raise WordVectorError(f"{path}: cannot be read to its end ({error})") from error


def _open(path: Path) -> io.BufferedReader:
    if path.suffix == ".gz":
        return io.BufferedReader(cast(io.RawIOBase, gzip.open(path, "rb")), _PROBE_BYTES)
    return io.BufferedReader(io.FileIO(path), _PROBE_BYTES)


def _header(start: bytes) -> Optional[tuple[int, int]]:
    """(count, dimension), if the first line is two positive integers."""
    fields = start.split(b"\n", 1)[0].split()
    if b"\n" in start and len(fields) == 2 and all(field.isdigit() for field in fields):
        return int(fields[0]), int(fields[1])
    return None


def _is_binary(content: bytes) -> bool:
    """Text has no control bytes; little-endian floats are full of them."""
    return any(byte < 32 and byte not in b"\t\r\n" for byte in content)


def _is_binary_body(body: bytes) -> bool:
    """Whether floats, not lines of numbers, follow the header."""
    last_field = body.split(b"\n", 1)[0].rstrip().rsplit(b" ", 1)[-1]
    return not vector_text.is_number(last_field) and _is_binary(body)


def _read_gensim(path: Path, wanted: Wanted) -> VectorRows:
    """A saved gensim KeyedVectors, or a model that has one; big arrays beside it are mapped, not loaded."""
    import pickle

    from gensim.models import KeyedVectors

    try:
        loaded = KeyedVectors.load(str(path), mmap="r")
        vectors = getattr(loaded, "wv", loaded)
        words, matrix = list(vectors.index_to_key), vectors.vectors
    except (
        pickle.UnpicklingError,
        AttributeError,
        ImportError,
        IndexError,
        KeyError,
        ValueError,
        TypeError,
    ) as error:
        raise WordVectorError(
            f"{path}: not a gensim KeyedVectors file ({type(error).__name__}: {error})"
        ) from error
    for row, word in enumerate(words):
        if wanted is None or word in wanted:
            yield word, np.array(matrix[row], np.float32), f"row {row}"
