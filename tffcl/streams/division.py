"""Dividing the documents of a label between tasks, and holding some out for validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def divide(documents: np.ndarray, loads: Mapping[int, int]) -> dict[int, np.ndarray]:
    """Divides `documents` (int64 [n], in random order) into disjoint parts whose sizes differ by at most 1.

    Args:
      documents: places of one label's documents.
      loads: owner -> number of documents it already has; the remainder goes, one each, to those with fewest,
        so that no task collects the remainders of every label.

    Returns:
      Owner -> int64 part; the parts together are all of `documents`.
    """
    owners = sorted(loads, key=lambda owner: (loads[owner], owner))
    return dict(zip(owners, np.array_split(documents, len(owners))))


def validation_counts(sizes: Sequence[int] | np.ndarray, share: float) -> np.ndarray:
    """How many documents of each label to hold out, int64 [k], for labels with `sizes` documents.

    Stratified by largest remainder: the total is `share` of all documents (rounded; at least 1 if share > 0),
    each label gives its share rounded down or up, and every label keeps at least one document to learn from.

    >>> validation_counts([16, 8, 4, 4], 1 / 8).tolist()
    [2, 1, 1, 0]
    """
    sizes = np.asarray(sizes, np.int64)
    most = np.maximum(sizes - 1, 0)
    if share <= 0 or not most.any():
        return np.zeros_like(sizes)
    counts = np.minimum(np.floor(sizes * share + 1e-9).astype(np.int64), most)
    total = min(max(1, int(sizes.sum() * share + 0.5)), int(most.sum()))
    while counts.sum() < total:
        counts[np.argmax(np.where(counts < most, sizes * share - counts, -np.inf))] += 1
    return counts


def hold_out(parts: Sequence[np.ndarray], share: float) -> tuple[np.ndarray, np.ndarray]:
    """Splits the documents of one task, a part (int64, in random order) per label, into train and validation.

    Returns:
      (train, validation), int64, disjoint; see `validation_counts` for how many.
    """
    counts = validation_counts([len(part) for part in parts], share)
    none = [np.zeros(0, np.int64)]
    train = np.concatenate(none + [part[count:] for part, count in zip(parts, counts)])
    return train, np.concatenate(none + [part[:count] for part, count in zip(parts, counts)])
