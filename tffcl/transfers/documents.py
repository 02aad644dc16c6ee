"""Documents as vectors: the first half of FedSeIT's eq. 6."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from tffcl import errors


def document_vectors(tokens: np.ndarray, start: np.ndarray, length: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """The mean of a document's word vectors over its |x| words (eq. 6).

    A word without a vector (the zero vector) counts in |x|. A document without any word, or without any known word,
    is the zero vector.

    >>> vectors = np.array([[0, 0], [0, 0], [1, 2], [3, 4]], np.float32)
    >>> document_vectors(np.array([2, 3, 3, 1, 1]), np.array([0, 2, 4, 5]), np.array([2, 2, 1, 0]), vectors).tolist()
    [[2.0, 3.0], [1.5, 2.0], [0.0, 0.0], [0.0, 0.0]]

    Args:
      tokens: int `[W]`, word ids.
      start: int `[N]`.
      length: int `[N]`; document n is `tokens[start[n] : start[n] + length[n]]`.
      vectors: float32 `[V, D]`, row i for word i.

    Returns:
      float32 `[N, D]`.

    Raises:
      InputError: another shape, or an id that has no row.
    """
    shapes = [list(array.shape) for array in (tokens, start, length, vectors)]
    if [len(shape) for shape in shapes] != [1, 1, 1, 2] or shapes[1] != shapes[2]:
        raise errors.InputError(
            f"document vectors: expected tokens [W], start and length [N] and vectors [V, D], found {shapes}"
        )
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < len(vectors):
        raise errors.InputError(
            f"document vectors: word ids should lie in [0, {len(vectors)}), found {tokens.min()} to {tokens.max()}"
        )
    # A sparse matrix of counts: [N, L, D] at once is gigabytes for documents of news length.
    document = np.repeat(np.arange(len(length)), length)
    place = np.arange(len(document)) + np.repeat(start - np.cumsum(length) + length, length)
    ones = np.ones(len(document), np.float32)
    shape = (len(length), len(vectors))
    counts = scipy.sparse.csr_matrix((ones, (document, tokens[place])), shape=shape)
    return (counts @ vectors.astype(np.float32)) / np.maximum(length, 1).astype(np.float32)[:, None]
