"""The published image sets MNIST, Fashion-MNIST and EMNIST: which files they are, and how to read them.

Citations: MNIST, LeCun, Bottou, Bengio and Haffner, Gradient-based Learning Applied to Document Recognition,
1998. Fashion-MNIST, Xiao, Rasul and Vollgraf, 2017. EMNIST, Cohen, Afshar, Tapson and van Schaik, EMNIST: an
Extension of MNIST to Handwritten Letters, 2017.

MNIST and Fashion-MNIST have the same file names, so their files must lie in a folder that says which they are.
"""

from __future__ import annotations

import dataclasses
import os
import string
from pathlib import Path
from typing import Optional

import numpy as np

from tffcl.datasets.idx_files import read_idx
from tffcl.datasets.image_dataset import ImageDataset
from tffcl.errors import DatasetError

_DIGITS, _UPPER, _LOWER = string.digits, string.ascii_uppercase, string.ascii_lowercase
# in the balanced set, a small letter that looks like its capital is counted as the capital
_BALANCED_LOWER = "abdefghnqrt"
_GARMENTS = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ImageLayout:
    """How a published image set lies on disk.

    Attributes:
      folders: names of the folder that holds the files, or of sub-folders to look into.
      prefixes: what the names of the training and of the test files begin with.
      label_names: in the order of the label ids.
      first_label: the number in the files that stands for the first of `label_names`.
      transposed: whether the images are stored column by column.
      home_page: where a user can get it.
    """

    folders: tuple[str, ...]
    prefixes: tuple[str, str]
    label_names: tuple[str, ...]
    home_page: str
    first_label: int = 0
    transposed: bool = False

    def file_names(self) -> tuple[str, ...]:
        """Training images and labels, test images and labels, without the ending `.gz`."""
        kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
        return tuple(f"{prefix}-{kind}" for prefix in self.prefixes for kind in kinds)


def find(layout: ImageLayout, folder: Path) -> Optional[tuple[Path, ...]]:
    """The paths of `layout.file_names()` under `folder`, each gzipped or plain, or None where one is missing."""
    places = [folder / name for name in layout.folders]
    shares_names = layout.prefixes[0] == "train"  # MNIST's and Fashion-MNIST's files differ by their folder alone
    if not shares_names or folder.resolve().name.lower() in layout.folders:
        places.insert(0, folder)
    for place in places:
        found = [_either(place, name) for name in layout.file_names()]
        paths = tuple(path for path in found if path is not None)
        if len(paths) == len(found):
            return paths
    return None


def read(name: str, layout: ImageLayout, paths: tuple[Path, ...]) -> ImageDataset:
    """Reads a published image set.

    Raises:
      DatasetError: a file that is no whole IDX file, images and labels of different number, or a label out of
        the set's range; names the file.
    """
    train_images, train_labels = _read_part(layout, *paths[:2])
    test_images, test_labels = _read_part(layout, *paths[2:])
    return ImageDataset(name, train_images, train_labels, test_images, test_labels, layout.label_names)


def _either(place: Path, name: str) -> Optional[Path]:
    for path in (place / f"{name}.gz", place / name):
        if os.path.isfile(path):
            return path
    return None


def _read_part(layout: ImageLayout, image_path: Path, label_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [N, h, w] and int32 [N] labels from 0."""
    images, labels = read_idx(image_path, 3), read_idx(label_path, 1)
    if len(images) != len(labels):
        raise DatasetError(
            f"{label_path}: has {len(labels)} labels, but {image_path.name} has {len(images)} images; "
            "they must be as many: are both of one version?"
        )
    numbers = labels.astype(np.int32) - layout.first_label
    wrong = np.flatnonzero((numbers < 0) | (numbers >= len(layout.label_names)))
    if wrong.size:
        last = layout.first_label + len(layout.label_names) - 1
        raise DatasetError(
            f"{label_path}: label {labels[wrong[0]]} at row {wrong[0]}; expected {layout.first_label}..{last}"
        )
    return (np.ascontiguousarray(images.transpose(0, 2, 1)) if layout.transposed else images), numbers


def _emnist(kind: str, label_names: str, first_label: int = 0) -> ImageLayout:
    return ImageLayout(
        ("emnist", "gzip", "emnist/gzip", "EMNIST/raw"),
        (f"emnist-{kind}-train", f"emnist-{kind}-test"),
        tuple(label_names),
        "https://www.nist.gov/itl/products-and-services/emnist-dataset (gzip.zip)",
        first_label,
        transposed=True,
    )


LAYOUTS = {
    "mnist": ImageLayout(
        ("mnist", "MNIST/raw"), ("train", "t10k"), tuple(_DIGITS), "http://yann.lecun.com/exdb/mnist/"
    ),
    "fashion-mnist": ImageLayout(
        ("fashion-mnist", "FashionMNIST/raw"),
        ("train", "t10k"),
        _GARMENTS,
        "https://github.com/zalandoresearch/fashion-mnist",
    ),
    "emnist-balanced": _emnist("balanced", _DIGITS + _UPPER + _BALANCED_LOWER),
    "emnist-letters": _emnist("letters", _LOWER, first_label=1),
    "emnist-byclass": _emnist("byclass", _DIGITS + _UPPER + _LOWER),
}
