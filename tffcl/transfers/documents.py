"""Documents as vectors: the first half of FedSeIT's eq. 6."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from tffcl import errors

PADDING = 0  # id of a place where there is no word


def document_vectors(tokens: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """The mean of a document's word vectors over its |x| words (eq. 6).

    A word without a vector (the zero vector) counts in |x|; padding does not. A document without any word, or
    without any known word, is the zero vector.

    >>> vectors = np.array([[0, 0], [0, 0], [1, 2], [3, 4]], np.float32)
    >>> document_vectors(np.array([[2, 3, 0], [3, 1, 0], [1, 0, 0], [0, 0, 0]]), vectors).tolist()
    [[2.0, 3.0], [1.5, 2.0], [0.0, 0.0], [0.0, 0.0]]

    Args:
      tokens: int `[N, L]`, word ids, 0 where there is no word.
      vectors: float32 `[V, D]`, row i for word i.

    Returns:
      float32 `[N, D]`.

    Raises:
      InputError: another shape, or an id that has no row.
    """
    if tokens.ndim != 2 or vectors.ndim != 2:
        raise errors.InputError(
            "document vectors: expected tokens [N, L] and vectors [V, D], "
            f"found {list(tokens.shape)} and {list(vectors.shape)}"
        )
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < len(vectors):
        raise errors.InputError(
            f"document vectors: word ids should lie in [0, {len(vectors)}), "
            f"found {tokens.min()} to {tokens.max()}"
        )
    # A sparse matrix of counts: [N, L, D] at once is gigabytes for documents of news length.
    document, place = np.nonzero(tokens != PADDING)
    ones = np.ones(len(document), np.float32)
    shape = (len(tokens), len(vectors))
    counts = scipy.sparse.csr_matrix((ones, (document, tokens[document, place])), shape=shape)
    lengths = np.bincount(document, minlength=len(tokens)).astype(np.float32)
    return (counts @ vectors.astype(np.float32)) / np.maximum(lengths, 1.0)[:, None]
