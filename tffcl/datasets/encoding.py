"""Documents as token ids, with one embedding matrix of just the words in use."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Iterable, Sequence
from typing import Callable, Optional

import numpy as np

from tffcl.datasets.text import TextDataset, share_dropped
from tffcl.datasets.word_vectors import WordVectors
from tffcl.errors import InputError, WordVectorError, check_choice, check_whole

_log = logging.getLogger(__name__)

_SHARE_TO_REPORT = 0.01  # of the characters that the tokeniser drops
PADDING, UNKNOWN = 0, 1  # ids; both have the zero vector
PADDING_WORD, UNKNOWN_WORD = "<padding>", "<unknown>"  # no tokeniser makes these: brackets are not kept


# Arrays have no single truth value, so a generated `==` would raise.
@dataclasses.dataclass(frozen=True, eq=False)
class RaggedTokens:
    """Token ids of N documents of any length, concatenated, as a ragged tensor has them.

    >>> tokens = RaggedTokens.from_rows([[5, 2], [], [3]])
    >>> tokens.values.tolist(), tokens.row_splits.tolist(), tokens.take([2, 0]).padded().tolist()
    ([5, 2, 3], [0, 2, 2, 3], [[3, 0], [5, 2]])

    Attributes:
      values: int32 [W], the ids of all documents.
      row_splits: int64 [N + 1]; document n is `values[row_splits[n] : row_splits[n + 1]]`.

    Raises:
      InputError: row_splits that do not go from 0 to W, or go back.
    """

    values: np.ndarray
    row_splits: np.ndarray

    def __post_init__(self) -> None:
        values, splits = np.asarray(self.values), np.asarray(self.row_splits)
        if values.ndim != 1 or splits.ndim != 1 or not len(splits) or splits[0] or splits[-1] != len(values):
            raise InputError(f"row_splits: expected numbers from 0 to {values.size}, found {splits!r:.60}")
        if (np.diff(splits) < 0).any():
            raise InputError("row_splits: expected no number to be less than the one before it")
        object.__setattr__(self, "values", values.astype(np.int32, copy=False))
        object.__setattr__(self, "row_splits", splits.astype(np.int64, copy=False))

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[int]]) -> RaggedTokens:
        """Of a sequence of ids for each document."""
        arrays = [np.asarray(row, np.int32) for row in rows]
        return cls(np.concatenate([np.zeros(0, np.int32), *arrays]), np.cumsum([0, *map(len, arrays)]))

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    @property
    def lengths(self) -> np.ndarray:
        """int32 [N], ids in each document."""
        return np.diff(self.row_splits).astype(np.int32)

    def take(self, rows: Sequence[int] | np.ndarray) -> RaggedTokens:
        """Documents number `rows`, in that order."""
        rows = np.asarray(rows, np.int64)
        splits = np.concatenate([[0], np.cumsum(self.lengths[rows], dtype=np.int64)])
        places = np.arange(splits[-1]) + np.repeat(self.row_splits[rows] - splits[:-1], np.diff(splits))
        return RaggedTokens(self.values[places], splits)

    def padded(self) -> np.ndarray:
        """int32 [N, L], right-padded with 0; L is the longest document, at least 1."""
        inside = np.arange(max(1, self.lengths.max(initial=0))) < self.lengths[:, None]
        tokens = np.full(inside.shape, PADDING, np.int32)
        tokens[inside] = self.values
        return tokens


@dataclasses.dataclass(frozen=True)
class EncodedTextDataset:
    """A data set that a model can take.

    Shown with `encode`.

    Attributes:
      name: of the data set.
      label_names: the label space.
      words: V names; the first two are padding and the unknown word, the others are sorted.
      embedding: float32 [V, D], row i for words[i]; rows 0 and 1 are zero.
      train_tokens: of N documents.
      train_labels: int32 [N].
      test_tokens: of M documents.
      test_labels: int32 [M].
      unicode: the tokeniser's rule, as for `TextDataset`; None for a tokeniser of one's own.
      max_words: where documents were cut; None for nowhere.
    """

    name: str
    label_names: tuple[str, ...]
    words: tuple[str, ...]
    embedding: np.ndarray
    train_tokens: RaggedTokens
    train_labels: np.ndarray
    test_tokens: RaggedTokens
    test_labels: np.ndarray
    unicode: Optional[bool] = None
    max_words: Optional[int] = None


def encode(
    dataset: TextDataset,
    vectors: WordVectors,
    oov: str = "zero",
    max_words: Optional[int] = None,
    *,
    tokeniser: Optional[Callable[[str], Sequence[str]]] = None,
    oov_variance: Optional[float] = None,
) -> EncodedTextDataset:
    """Tokenises and numbers the documents.

    A word without a vector (out of vocabulary) keeps its position in the document. With `oov="zero"` it is id 1,
    the zero vector. With `oov="random"` each such word has a vector of its own: uniform, with the variance of
    the known vectors, drawn from a generator seeded by the word's bytes alone, so that every client draws the
    same.

    A tokeniser that drops more than a hundredth of the characters is logged, and so are documents that are cut.

    The test documents only decide which rows of the frozen vector table are kept; nothing is fitted to them. Empty
    documents are legal: they are all padding.

    >>> from tffcl.datasets import text, word_vectors
    >>> words = word_vectors.WordVectors(("cat",), np.ones([1, 2], np.float32), "mine")
    >>> rows = [("a cat", "x"), ("a dog", "y")]
    >>> encoded = encode(text.from_texts(rows, rows), words)
    >>> encoded.embedding.shape
    (3, 2)

    Args:
      dataset: the documents.
      vectors: word vectors, at least of the words in use that have one.
      oov: "zero" or "random".
      max_words: cut longer documents to so many tokens.
      tokeniser: from a document to its tokens; None takes `dataset.tokenise`.
      oov_variance: variance of the random vectors; None takes that of `vectors`. Clients that load different
        words should agree on a number.

    Raises:
      InputError: an unknown `oov`, or `max_words` below 1.
      WordVectorError: not one word of the documents has a vector.
    """
    check_choice("oov", oov, ("zero", "random"))
    if max_words is not None:
        check_whole("max_words", max_words, 1)
    texts = (*dataset.train_texts, *dataset.test_texts)
    dropped = 0.0 if tokeniser else share_dropped(texts, dataset.unicode)
    if dropped > _SHARE_TO_REPORT:
        advice = "; tokenise it with unicode=True (--tokeniser unicode), which keeps all letters"
        _log.warning(
            "%s: the tokeniser drops %.0f %% of the characters, punctuation not counted%s",
            dataset.name, 100 * dropped, "" if dataset.unicode else advice,
        )  # fmt: skip
    documents = [list((tokeniser or dataset.tokenise)(text)) for text in texts]
    longer = sum(len(document) > max_words for document in documents) if max_words else 0
    if longer:
        _log.warning(
            "%s: %d of %d documents have more than %d words and are cut", dataset.name, longer, len(texts), max_words
        )
    documents = [document[:max_words] for document in documents]
    used = {token for document in documents for token in document}
    words, embedding = _table(used, vectors, oov, oov_variance)
    ids = {word: number for number, word in enumerate(words)}
    rows = [[ids.get(word, UNKNOWN) for word in document] for document in documents]
    return EncodedTextDataset(
        name=dataset.name,
        label_names=dataset.label_names,
        words=words,
        embedding=embedding,
        train_tokens=RaggedTokens.from_rows(rows[: len(dataset.train_texts)]),
        train_labels=np.asarray(dataset.train_labels, np.int32),
        test_tokens=RaggedTokens.from_rows(rows[len(dataset.train_texts) :]),
        test_labels=np.asarray(dataset.test_labels, np.int32),
        unicode=None if tokeniser else dataset.unicode,
        max_words=max_words,
    )


def random_vector(word: str, dimension: int, variance: float) -> np.ndarray:
    """float32 [dimension], uniform with that variance; depends on the word's bytes and on nothing else."""
    seed = int.from_bytes(hashlib.sha256(word.encode("utf-8")).digest()[:16], "big")
    # raw PCG64 output is fixed by its algorithm; numpy lets the methods of Generator change between releases
    bits = np.random.PCG64(seed).random_raw(dimension) >> np.uint64(11)
    unit = bits.astype(np.float64) * 2.0**-53
    return ((2.0 * unit - 1.0) * np.sqrt(3.0 * variance)).astype(np.float32)


def _table(
    used: set[str], vectors: WordVectors, oov: str, variance: Optional[float]
) -> tuple[tuple[str, ...], np.ndarray]:
    """Words and their float32 [V, D] rows: padding, unknown, then the words in use that get a row, sorted."""
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
