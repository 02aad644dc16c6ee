"""Binary vectors out of images and out of binary data sets."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Optional

import numpy as np

from tffcl.datasets.binarisation import binarise, binarise_stochastic
from tffcl.datasets.binary_dataset import BinaryDataset
from tffcl.datasets.binary_vectors import BinaryVectors, pad
from tffcl.datasets.image_dataset import ImageDataset
from tffcl.datasets.settings import check_below_one, check_seed
from tffcl.errors import InputError


def vectors_of_images(images: ImageDataset, threshold: float = 0.5, *, seed: Optional[int] = None) -> BinaryVectors:
    """Images as rows of h * w zeros and ones, row by row of the image; labels as they are.

    Args:
      images: the data set.
      threshold: 1 where a pixel is brighter than that share of full intensity; see `binarise`.
      seed: None, or the seed of a stochastic binarisation instead; see `binarise_stochastic`. The test images
        are drawn after the training images, from the same seed.

    Raises:
      InputError: a threshold or seed out of range.
    """
    both = np.concatenate([images.train_images, images.test_images])
    if seed is None:
        ones = binarise(both, threshold, max_value=images.max_value)
    else:
        ones = binarise_stochastic(both, seed, max_value=images.max_value)
    flat = ones.reshape(len(ones), -1)
    count = len(images.train_images)
    return BinaryVectors(
        name=images.name,
        train_x=flat[:count],
        train_labels=images.train_labels,
        test_x=flat[count:],
        test_labels=images.test_labels,
        label_names=images.label_names,
        widths=(flat.shape[1],) * len(images.label_names),
    )


def vectors_of_sets(
    sets: Sequence[BinaryDataset], *, rows: str = "pooled", test_share: float = 1 / 7, seed: int = 42
) -> BinaryVectors:
    """Binary sets of any width as one: the label is the set, narrower rows are padded at the right with zeros.

    Validation rows are for a stream to hold out of a client's training rows. With the shares used here by default
    (1/7 for testing, and 1/6 of the rest for validation) that is 5/7, 1/7 and 1/7, as in table 5 of Paul et al.,
    Masked Autoencoders are Efficient Continual Federated Learners, 2023 (ConFedMADE), appendix B.2.

    Args:
      sets: at least one, each with at least one split.
      rows: "pooled", as in the paper: all splits that a set has are put together and divided anew, which also
        serves sets that lack a split. "official": the split "train" for training, and for testing "test", or
        "valid" where there is none; where there are both, "valid" is left alone.
      test_share: with "pooled", the share of a set's rows that are for testing, above 0 and below 1; rounded.
      seed: with "pooled", decides which.

    Raises:
      DatasetError: "official" rows of a set that has no split "train", or neither "test" nor "valid".
      InputError: no sets, or a setting out of range.
    """
    _check(sets, rows, test_share, seed)
    width = max(one.width for one in sets)
    parts = [_official(one) if rows == "official" else _divided(one, test_share, seed) for one in sets]
    counts = [[len(part[place]) for part in parts] for place in (0, 1)]
    return BinaryVectors(
        name="+".join(one.name for one in sets),
        train_x=np.concatenate([pad(train, width) for train, _ in parts]),
        train_labels=np.repeat(np.arange(len(sets)), counts[0]),
        test_x=np.concatenate([pad(test, width) for _, test in parts]),
        test_labels=np.repeat(np.arange(len(sets)), counts[1]),
        label_names=tuple(one.name for one in sets),
        widths=tuple(one.width for one in sets),
    )


def _official(one: BinaryDataset) -> tuple[np.ndarray, np.ndarray]:
    return one.split("train"), one.split("test" if "test" in one.splits or "valid" not in one.splits else "valid")


def _divided(one: BinaryDataset, test_share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(training, test) rows of all splits together, each part in the order of the files."""
    rows = np.concatenate(list(one.splits.values()))
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)  # stable between releases; see `parsers.seeded_split`
    num_test = int(len(rows) * test_share + 0.5)
    if not 0 < num_test < len(rows):
        raise InputError(
            f"{one.name}: test_share={test_share} of {len(rows)} rows leaves nothing to learn from or to test with"
        )
    return rows[sorted(order[num_test:])], rows[sorted(order[:num_test])]


def _check(sets: Sequence[BinaryDataset], rows: str, test_share: float, seed: int) -> None:
    if not sets:
        raise InputError("sets is empty; expected at least one binary data set")
    names = [one.name for one in sets]
    if len(set(names)) < len(names):
        raise InputError(f"sets must be different ones, found {', '.join(names)}")
    if rows not in ("pooled", "official"):
        raise InputError(f"rows must be 'pooled' or 'official', found {rows!r}")
    check_below_one("test_share", test_share, zero=False)
    check_seed(seed)
