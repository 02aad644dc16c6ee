"""Image sets: scikit-learn's digits, and MNIST, Fashion-MNIST and EMNIST in their published IDX files.

Digits: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998 (its test part). MNIST: LeCun, Bottou,
Bengio and Haffner, Gradient-based Learning Applied to Document Recognition, 1998. Fashion-MNIST: Xiao, Rasul and
Vollgraf, 2017. EMNIST: Cohen, Afshar, Tapson and van Schaik, an Extension of MNIST to Handwritten Letters, 2017.
"""

from __future__ import annotations

import dataclasses
import io
import math
import os
import random
import string
import struct
from pathlib import Path
from typing import Optional

import numpy as np

from tffcl import storage
from tffcl.datasets import download, raw_files
from tffcl.datasets.arrays import ImageDataset
from tffcl.datasets.raw_files import PathLike
from tffcl.errors import DatasetError

_UNSIGNED_BYTE = 0x08
_DIGITS, _UPPER, _LOWER = string.digits, string.ascii_uppercase, string.ascii_lowercase
# in the balanced set, a small letter that looks like its capital is counted as the capital
_BALANCED_LOWER = "abdefghnqrt"
_GARMENTS = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ImageLayout:
    """How a published image set lies on disk."""

    folders: tuple[str, ...]  # names of the folder that holds the files, or of sub-folders to look into
    prefixes: tuple[str, str]  # how the names of the training and of the test files begin
    label_names: tuple[str, ...]  # in the order of the label ids
    home_page: str
    first_label: int = 0  # the number in the files that stands for the first of `label_names`
    transposed: bool = False  # stored column by column
    # EMNIST is left to the user: it comes as one archive of half a gigabyte, without checksums of its members.
    source: Optional[download.Source] = None

    def file_names(self) -> tuple[str, ...]:
        """Training images and labels, test images and labels, without the ending `.gz`."""
        contents = ("images-idx3-ubyte", "labels-idx1-ubyte")
        return tuple(f"{prefix}-{content}" for prefix in self.prefixes for content in contents)

    def find(self, folder: Path) -> Optional[list[Path]]:
        """The paths of `file_names` under `folder`, each gzipped or plain, or None where one is missing."""
        candidates = [folder / name for name in self.folders]
        # MNIST's and Fashion-MNIST's files have the same names: the folder must say which they are.
        if self.prefixes[0] != "train" or folder.resolve().name.lower() in self.folders:
            candidates.insert(0, folder)
        for candidate in candidates:
            paths = [
                next((path for path in (candidate / f"{name}.gz", candidate / name) if os.path.isfile(path)), None)
                for name in self.file_names()
            ]
            if all(paths):
                return [path for path in paths if path]
        return None

    def read(self, image_path: Path, label_path: Path) -> tuple[np.ndarray, np.ndarray]:
        """uint8 [N, h, w] images and int32 [N] labels from 0, of one part of the set."""
        images, labels = read_idx(image_path, 3), read_idx(label_path, 1)
        if len(images) != len(labels):
            raise DatasetError(
                f"{label_path}: has {len(labels)} labels, but {image_path.name} has {len(images)} images; "
                "they must be as many: are both of one version?"
            )
        ids = labels.astype(np.int32) - self.first_label
        wrong = np.flatnonzero((ids < 0) | (ids >= len(self.label_names)))
        if wrong.size:
            last = self.first_label + len(self.label_names) - 1
            raise DatasetError(
                f"{label_path}: label {labels[wrong[0]]} at row {wrong[0]}; expected {self.first_label}..{last}"
            )
        return (np.ascontiguousarray(images.transpose(0, 2, 1)) if self.transposed else images), ids


def _emnist(split: str, label_names: str, first_label: int = 0) -> ImageLayout:
    return ImageLayout(
        ("emnist", "gzip", "emnist/gzip", "EMNIST/raw"),
        (f"emnist-{split}-train", f"emnist-{split}-test"),
        tuple(label_names),
        "https://www.nist.gov/itl/products-and-services/emnist-dataset (gzip.zip)",
        first_label,
        transposed=True,
    )


_MNIST_SUMS = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
_FASHION_SUMS = {
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
_CVDF = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"

LAYOUTS = {
    "mnist": ImageLayout(
        ("mnist", "MNIST/raw"), ("train", "t10k"), tuple(_DIGITS), "http://yann.lecun.com/exdb/mnist/",
        source=download.Source("mnist", _CVDF, _MNIST_SUMS, instead="digits"),
    ),
    "fashion-mnist": ImageLayout(
        ("fashion-mnist", "FashionMNIST/raw"), ("train", "t10k"), _GARMENTS,
        "https://github.com/zalandoresearch/fashion-mnist",
        source=download.Source("fashion-mnist", _ZALANDO, _FASHION_SUMS, instead="digits"),
    ),
    "emnist-balanced": _emnist("balanced", _DIGITS + _UPPER + _BALANCED_LOWER),
    "emnist-letters": _emnist("letters", _LOWER, first_label=1),
    "emnist-byclass": _emnist("byclass", _DIGITS + _UPPER + _LOWER),
}  # fmt: skip


def load_images(name: str = "digits", data_dir: Optional[PathLike] = None) -> ImageDataset:
    """Reads an image set.

    >>> load_images().train_images.shape
    (1442, 8, 8)

    Args:
      name: digits (8 x 8, comes with scikit-learn, needs no files), mnist, fashion-mnist, emnist-balanced,
        emnist-letters or emnist-byclass (28 x 28). The 26 letters have the ids 0..25, numbered 1..26 in the files.
      data_dir: the folder that holds the official IDX files, gzipped or plain, each set in a sub-folder of its
        name (the EMNIST sets in `emnist`). None means $TFFCL_DATA_DIR if set, else a per-user cache, which a
        checked download fills (not for EMNIST).

    Raises:
      DatasetError: no such set, or its files are missing, truncated or malformed, or cannot be fetched.
    """
    if name == "digits":
        return _digits()
    layout = LAYOUTS.get(name)
    if layout is None:
        raise DatasetError(f"{name}: no such image set; known sets are {', '.join(('digits', *LAYOUTS))}")
    folder, paths = download.found_or_fetched(name, layout.find, layout.source, data_dir)
    if paths is None:
        raise DatasetError(
            f"{name}: {', '.join(layout.file_names())} (each .gz or plain) not found together in "
            f"{folder / layout.folders[0]}; get them from {layout.home_page} and put them there, or into such a "
            "sub-folder of what you pass as data_dir (--data-dir); or use the data set 'digits', which needs no files"
        )
    return ImageDataset(name, *layout.read(*paths[:2]), *layout.read(*paths[2:]), layout.label_names)


def _digits() -> ImageDataset:
    """Scikit-learn's 1,797 digits of 0..16; the set has no split, so a seeded one is fixed here for good.

    Stratified: of each digit one image in five, rounded down, is for testing.
    """
    from sklearn import datasets

    images, labels = datasets.load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8).astype(np.uint8)
    test = np.zeros(len(labels), bool)
    shuffle = random.Random(download.SPLIT_SEED).shuffle  # stable between releases of Python
    for digit in range(10):
        rows = np.flatnonzero(labels == digit).tolist()
        shuffle(rows)
        test[rows[: len(rows) // 5]] = True
    return ImageDataset("digits", images[~test], labels[~test], images[test], labels[test], tuple(_DIGITS), 16)


def read_idx(path: PathLike, num_dimensions: int) -> np.ndarray:
    """Reads an IDX file of unsigned bytes, the format of MNIST and its kin.

    LeCun, Cortes and Burges, The MNIST Database of Handwritten Digits: two zero bytes, a type code (8: unsigned byte),
    the number of dimensions, that many 4-byte sizes, and the data; big-endian.

    Shown with `load_images`.

    Args:
      path: the file; gzip is recognised by content, not by name.
      num_dimensions: of the uint8 array, which is read-only: 3 for images, 1 for labels.

    Raises:
      DatasetError: no regular file, a gzip file cut short, another magic number, an empty dimension, or fewer or
        more bytes than the header promises; no more of them are read.
    """
    with raw_files.open_unzipped(path, "an IDX file") as file:
        sizes = _idx_sizes(file, path, num_dimensions)
        expected = math.prod(sizes)
        content = file.read(expected + 1)  # one more, which reaches the checksum of a gzip file
    if len(content) != expected:
        found = len(content) if len(content) < expected else "more"
        raise DatasetError(
            f"{path}: its header promises {_by(sizes)} = {expected} bytes of data, found {found}; fetch it again"
        )
    return np.frombuffer(content, np.uint8).reshape(sizes)


def _idx_sizes(file: io.BufferedReader, path: PathLike, num_dimensions: int) -> tuple[int, ...]:
    magic, length = _UNSIGNED_BYTE << 8 | num_dimensions, 4 * (1 + num_dimensions)
    header = file.read(length)
    if header[:4] != magic.to_bytes(4, "big"):
        raise DatasetError(
            f"{path}: expected an IDX file of {num_dimensions} dimension{'s' * (num_dimensions > 1)}, magic number "
            f"0x{magic:08X}, found 0x{header[:4].hex().upper() or '(nothing)'}; is it another file?"
        )
    if len(header) < length:
        raise DatasetError(f"{path}: breaks off within its header; expected {length} bytes, found {len(header)}")
    sizes = struct.unpack(f">{num_dimensions}I", header[4:])
    if 0 in sizes:
        raise DatasetError(f"{path}: its header says {_by(sizes)}, which is nothing; expected at least one of each")
    if math.prod(sizes) > storage.MAX_BYTES:
        raise DatasetError(
            f"{path}: its header promises {_by(sizes)} bytes of data; at most {storage.MAX_BYTES} are read"
        )
    return sizes


def _by(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))
