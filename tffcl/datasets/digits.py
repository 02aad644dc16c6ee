"""Scikit-learn's digits, which come with it: real handwriting without a download.

Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998 (its test part): 1,797 images of 8 x 8,
values 0..16.
"""

from __future__ import annotations

import random

import numpy as np

from tffcl.datasets.image_dataset import ImageDataset
from tffcl.datasets.parsers import SPLIT_SEED

MAX_VALUE = 16
_TEST_SHARE = 5  # one in five


def load_digits() -> ImageDataset:
    """1,442 training and 355 test images; the set has no split, so a seeded one is fixed here for good.

    Stratified: of each digit one image in five, rounded down, is for testing.
    """
    from sklearn import datasets

    images, labels = datasets.load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8).astype(np.uint8)
    test = np.zeros(len(labels), bool)
    shuffle = random.Random(SPLIT_SEED)  # its shuffle is stable between releases; see `parsers.seeded_split`
    for digit in range(10):
        places = np.flatnonzero(labels == digit).tolist()
        shuffle.shuffle(places)
        test[places[: len(places) // _TEST_SHARE]] = True
    return ImageDataset(
        "digits", images[~test], labels[~test], images[test], labels[test], tuple("0123456789"), MAX_VALUE
    )
