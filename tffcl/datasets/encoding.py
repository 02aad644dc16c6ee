"""Documents as rows of token ids, with one embedding matrix of just the words in use."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Callable, Optional

import numpy as np

from tffcl.datasets.text_dataset import TextDataset
from tffcl.datasets.tokens import tokenise
from tffcl.datasets.word_vectors import WordVectors
from tffcl.errors import InputError, WordVectorError

PADDING, UNKNOWN = 0, 1  # ids; both have the zero vector
PADDING_WORD, UNKNOWN_WORD = "<padding>", "<unknown>"  # no tokeniser makes these: brackets are not kept


@dataclasses.dataclass(frozen=True)
class EncodedTextDataset:
    """A data set that a model can take.

    Attributes:
      name: of the data set.
      label_names: the label space.
      words: V names; the first two are padding and the unknown word, the others are sorted.
      embedding: float32 [V, D], row i for words[i]; rows 0 and 1 are zero.
      train_tokens: int32 [N, L], right-padded with 0; L is the longest training document, at least 1.
      train_labels: int32 [N].
      test_tokens: int32 [M, L2], likewise.
      test_labels: int32 [M].
    """

    name: str
    label_names: tuple[str, ...]
    words: tuple[str, ...]
    embedding: np.ndarray
    train_tokens: np.ndarray
    train_labels: np.ndarray
    test_tokens: np.ndarray
    test_labels: np.ndarray


def encode(
    dataset: TextDataset,
    vectors: WordVectors,
    oov: str = "zero",
    max_length: Optional[int] = None,
    *,
    tokeniser: Callable[[str], Sequence[str]] = tokenise,
    oov_variance: Optional[float] = None,
) -> EncodedTextDataset:
    """Tokenises and numbers the documents.

    A word without a vector (out of vocabulary) keeps its place in the document. With `oov="zero"` it is id 1,
    the zero vector. With `oov="random"` each such word has a vector of its own: uniform, with the variance of
    the known vectors, drawn from a generator seeded by the word's bytes alone, so that every client draws the
    same.

    The test documents take part only in saying which rows of the frozen vector table are kept; nothing is
    fitted to them. Empty documents are legal: they are all padding.

    Args:
      dataset: the documents.
      vectors: word vectors, at least of the words in use that have one.
      oov: "zero" or "random".
      max_length: cut longer documents to so many tokens.
      tokeniser: from a document to its tokens.
      oov_variance: variance of the random vectors; None takes that of `vectors`. Clients that load different
        words should agree on a number.

    Returns:
      The encoded data set.

    Raises:
      InputError: an unknown `oov`, or a `max_length` below 1.
      WordVectorError: not one word of the documents has a vector, or the vectors do not fit the words.
    """
    _check(vectors, oov, max_length)
    train = [tuple(tokeniser(text))[:max_length] for text in dataset.train_texts]
    test = [tuple(tokeniser(text))[:max_length] for text in dataset.test_texts]
    used = {token for document in (*train, *test) for token in document}
    words, embedding = _table(used, vectors, oov, oov_variance)
    ids = {word: number for number, word in enumerate(words)}
    return EncodedTextDataset(
        name=dataset.name,
        label_names=dataset.label_names,
        words=words,
        embedding=embedding,
        train_tokens=_pad(train, ids),
        train_labels=np.asarray(dataset.train_labels, np.int32),
        test_tokens=_pad(test, ids),
        test_labels=np.asarray(dataset.test_labels, np.int32),
    )


def random_vector(word: str, dimension: int, variance: float) -> np.ndarray:
    """float32 [dimension], uniform with that variance; depends on the word's bytes and on nothing else."""
    seed = int.from_bytes(hashlib.sha256(word.encode("utf-8")).digest()[:16], "big")
    # raw PCG64 output is fixed by its algorithm; numpy lets the methods of Generator change between releases
    bits = np.random.PCG64(seed).random_raw(dimension) >> np.uint64(11)
    unit = bits.astype(np.float64) * 2.0**-53
    return ((2.0 * unit - 1.0) * np.sqrt(3.0 * variance)).astype(np.float32)


def _check(vectors: WordVectors, oov: str, max_length: Optional[int]) -> None:
    if oov not in ("zero", "random"):
        raise InputError(f"oov must be 'zero' or 'random', found {oov!r}")
    if max_length is not None and max_length < 1:
        raise InputError(f"max_length must be at least 1 or None, found {max_length}")
    if np.ndim(vectors.vectors) != 2 or len(vectors.vectors) != len(vectors.words):
        raise WordVectorError(
            f"{vectors.source}: {len(vectors.words)} words, vectors {np.shape(vectors.vectors)}"
        )
    if not np.isfinite(vectors.vectors).all():
        row = int(np.flatnonzero(~np.isfinite(vectors.vectors).all(axis=1))[0])
        raise WordVectorError(
            f"{vectors.source}: the vector of {vectors.words[row]!r} holds a value that is not finite"
        )


def _table(
    used: set[str], vectors: WordVectors, oov: str, variance: Optional[float]
) -> tuple[tuple[str, ...], np.ndarray]:
    """Names and float32 [V, D] rows: padding, unknown, then the words in use that get a row, sorted."""
    rows = {word: row for row, word in enumerate(vectors.words)}
    dimension = vectors.vectors.shape[1]
    if used and not used & rows.keys():
        raise WordVectorError(
            f"{vectors.source}: none of the {len(used)} words in use has a vector (e.g. {min(used)!r}); "
            "is it the right language and case?"
        )
    kept = sorted(used if oov == "random" else used & rows.keys())
    if variance is None:
        variance = float(np.var(vectors.vectors, dtype=np.float64))
    table = np.zeros((2 + len(kept), dimension), np.float32)
    for number, word in enumerate(kept, 2):
        known = word in rows
        table[number] = vectors.vectors[rows[word]] if known else random_vector(word, dimension, variance)
    return (PADDING_WORD, UNKNOWN_WORD, *kept), table


def _pad(documents: list[tuple[str, ...]], ids: dict[str, int]) -> np.ndarray:
    """int32 [N, L] of ids, right-padded with 0."""
    length = max(1, max(map(len, documents), default=0))
    tokens = np.full((len(documents), length), PADDING, np.int32)
    for row, document in enumerate(documents):
        tokens[row, : len(document)] = [ids.get(word, UNKNOWN) for word in document]
    return tokens
