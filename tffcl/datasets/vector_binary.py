"""word2vec binary, in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Set
from pathlib import Path
from typing import BinaryIO, Optional

import numpy as np

from tffcl.datasets import vector_text
from tffcl.errors import WordVectorError

_BLOCK_BYTES = 1 << 20
_LONGEST_WORD = 1 << 12  # bytes; what has no space within that is not a word


def read(
    file: BinaryIO, path: Path, wanted: Optional[Set[str]], unicode_errors: str, header: tuple[int, int]
) -> Iterator[tuple[Optional[str], np.ndarray, str]]:
    """(word, float32 [D], "vector n") of the wanted words; None for a word that is not UTF-8 if that is ignored.

    Raises:
      WordVectorError: fewer vectors than the header promises, or bytes after the last.
    """
    file.readline()
    count, dimension = header
    buffer, position = b"", 0
    for number in range(1, count + 1):
        place = f"{path}, vector {number}"
        if len(buffer) - position < _LONGEST_WORD + 4 * dimension:
            buffer, position = buffer[position:] + file.read(_BLOCK_BYTES + 4 * dimension), 0
        space = buffer.find(b" ", position, position + _LONGEST_WORD)
        end = space + 1 + 4 * dimension
        if space < 0 or end > len(buffer):
            raise WordVectorError(
                f"{place}: the file breaks off or is not word2vec binary; its header promises "
                f"{count} vectors of dimension {dimension}"
            )
        # some writers end each vector with a newline, some do not
        word = vector_text.decode(buffer[position:space].lstrip(b"\n"), unicode_errors, place)
        if word is None or wanted is None or word in wanted:
            yield word, np.frombuffer(buffer[space + 1 : end], "<f4").astype(np.float32), f"vector {number}"
        position = end
    if (buffer[position:] + file.read(1)).strip():
        raise WordVectorError(f"{path}: more bytes follow the {count} vectors that its header promises")
