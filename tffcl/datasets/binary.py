"""Rows of zeros and ones for density estimation: binary sets (DEBD) from their files, and binarised images.

Lowd and Davis, Learning Markov Network Structure with Decision Trees, ICDM 2010; Van Haaren and Davis, Markov
Network Structure Learning: A Randomized Feature Generation Approach, AAAI 2012; Larochelle and Murray, The
Neural Autoregressive Distribution Estimator, AISTATS 2011.
"""

from __future__ import annotations

import dataclasses
import os
import random
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

import numpy as np

from tffcl.datasets import download, raw_files
from tffcl.datasets.arrays import BinaryVectors, ImageDataset, pad, read_only
from tffcl.datasets.raw_files import PathLike
from tffcl.errors import DatasetError, InputError, check_between_0_and_1, check_choice, check_whole, is_number

HOME_PAGE = "https://github.com/arranger1044/DEBD"
WIDTHS = {"adult": 123, "connect4": 126, "tretail": 135, "rcv1": 150, "nltcs": 16}
_SPLITS = ("train", "valid", "test")
_ROWS_AT_ONCE = 4096  # random numbers take eight bytes a pixel


# Arrays have no single truth value, so a generated `==` would raise: data sets compare by identity.
@dataclasses.dataclass(frozen=True, eq=False)
class BinaryDataset:
    """Rows of zeros and ones in the official splits, of which some may be missing.

    >>> BinaryDataset("mine", 3, {"train": np.array([[0, 1, 1]], np.uint8)}).split("train")
    array([[0, 1, 1]], dtype=uint8)

    Attributes:
      name: what reports call the data set.
      width: D.
      splits: of "train", "valid" and "test" those that are there, each uint8 [N, D], read-only.
    """

    name: str
    width: int
    splits: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        for split, rows in self.splits.items():
            if rows.ndim != 2 or rows.shape[1] != self.width or rows.dtype != np.uint8:
                raise DatasetError(
                    f"{self.name}: split {split!r} must be uint8 [N, {self.width}], found "
                    f"{rows.dtype}{list(rows.shape)}"
                )
        frozen = {split: read_only(rows) for split, rows in self.splits.items()}
        object.__setattr__(self, "splits", types.MappingProxyType(frozen))

    def split(self, name: str) -> np.ndarray:
        """The rows of one split, uint8 [N, D]; DatasetError where the set has no such split."""
        if name not in self.splits:
            raise DatasetError(
                f"{self.name}: has no split {name!r}, only {', '.join(self.splits) or 'none at all'}; put "
                f"{self.name}.{name}.data beside the others, or ask for one that is there"
            )
        return self.splits[name]


def load_binary(name: str, data_dir: Optional[PathLike] = None) -> BinaryDataset:
    """Reads the splits of a binary data set that are there; at least one must be.

    Shown with `BinaryDataset`.

    Args:
      name: adult, connect4, tretail, rcv1, nltcs, or any NAME whose files lie in the folder.
      data_dir: the folder that holds NAME.train.data, NAME.valid.data and NAME.test.data, or a sub-folder NAME,
        debd or debd/NAME that does. None means $TFFCL_DATA_DIR if set, else the per-user cache; nothing is
        downloaded, since no checksums are published for these sets.

    Raises:
      DatasetError: no file at all; or a file that is empty, ragged, not binary, or of another width than the
        set is known to have.
    """
    folder = download.data_folder(data_dir)[0]
    paths = find(name, folder)
    if not paths:
        raise DatasetError(
            f"{name}: no {name}.train.data, {name}.valid.data or {name}.test.data in {folder} or "
            f"{folder / 'debd' / name}; get them from {HOME_PAGE} and put them there, or pass data_dir (--data-dir); "
            f"known sets are {', '.join(WIDTHS)}"
        )
    splits = {split: read_binary_rows(path) for split, path in paths.items()}
    width = WIDTHS.get(name, next(iter(splits.values())).shape[1])
    for split, rows in splits.items():
        if rows.shape[1] != width:
            raise DatasetError(
                f"{paths[split]}, line 1: has {rows.shape[1]} fields; {name} has {width}: is it another set?"
            )
    return BinaryDataset(name, width, splits)


def find(name: str, folder: Path) -> dict[str, Path]:
    """The files of a set by split, all from the first folder under `folder` that has any."""
    for candidate in (folder, folder / name, folder / "debd" / name, folder / "debd"):
        paths = {split: candidate / f"{name}.{split}.data" for split in _SPLITS}
        found = {split: path for split, path in paths.items() if os.path.isfile(path)}
        if found:
            return found
    return {}


def read_binary_rows(path: PathLike) -> np.ndarray:
    """uint8 [N, D] of 0 and 1, read-only, from a file of `0,1,...` lines; every byte is checked, all rows at once.

    Raises:
      DatasetError: an empty file, a value other than 0 or 1, or a row of another width than the first; names
        the line.
    """
    content = raw_files.read_bytes(path)
    content = content[raw_files.mark_length(content[:16], path) :]
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n")
    content = content.rstrip(b"\n") + b"\n"
    if content == b"\n":
        raise DatasetError(f"{path}: holds no rows; expected lines of comma-separated 0 and 1")
    stride = content.index(b"\n") + 1
    if stride % 2 or len(content) % stride:
        raise _first_fault(path, content, stride)
    # a field and what follows it, as one number: b"0," or b"1,", and at the end of a line b"0\n" or b"1\n"
    cells = np.frombuffer(content, "<u2").reshape(-1, stride // 2)
    expected = np.full(stride // 2, ord(",") << 8 | ord("0"), "<u2")
    expected[-1] = ord("\n") << 8 | ord("0")
    values = cells ^ expected
    if values.max() > 1:
        raise _first_fault(path, content, stride)
    return read_only(values.astype(np.uint8))


def _first_fault(path: PathLike, content: bytes, stride: int) -> DatasetError:
    """The error for the first wrong line; such a file is read line by line."""
    width = content.count(b",", 0, stride) + 1
    for number, line in enumerate(content.split(b"\n"), 1):
        fields = line.split(b",") if line else []
        for column, field in enumerate(fields, 1):
            if field not in (b"0", b"1"):
                found = field.decode("latin-1")[:20]
                return DatasetError(
                    f"{path}, line {number}: field {column} is {found!r}; expected 0 or 1, separated by commas"
                )
        if len(fields) != width:
            return DatasetError(f"{path}, line {number}: has {len(fields)} fields; line 1 has {width}")
    return DatasetError(f"{path}: is no table of 0 and 1")


def binarise(images: np.ndarray, threshold: float = 0.5, *, max_value: int = 255) -> np.ndarray:
    """uint8 of the shape of `images`: 1 where a pixel is brighter than `threshold * max_value`, else 0.

    `images` are uint8 [N, ...] of 0 .. max_value; `threshold` is a share of full intensity, 0 or more and below 1. At
    0.5, bytes from 128 on are 1, and of the digits 0..16 those from 9 on.

    >>> binarise(np.array([[0, 127, 128, 255]], np.uint8)).tolist()
    [[0, 0, 1, 1]]
    >>> binarise(np.array([[8, 9]], np.uint8), max_value=16).tolist()
    [[0, 1]]

    Raises:
      InputError: values that are no intensities, or a threshold out of range.
    """
    _check_intensities(images, max_value)
    if not is_number(threshold) or not 0 <= threshold < 1:
        raise InputError(f"threshold must be a number from 0 to below 1; got {threshold!r}")
    return (images > float(threshold) * max_value).astype(np.uint8)


def binarise_stochastic(images: np.ndarray, seed: int, *, max_value: int = 255) -> np.ndarray:
    """uint8 of the shape of `images`: each pixel is 1 with the probability `value / max_value`.

    Salakhutdinov and Murray, On the Quantitative Analysis of Deep Belief Networks, 2008. `images` are uint8 [N, ...] of
    0 .. max_value. Drawn once from `seed`, 0 or more: the same one gives the same images on every machine and release.

    >>> binarise_stochastic(np.array([[0, 255]], np.uint8), seed=1)
    array([[0, 1]], dtype=uint8)

    Raises:
      InputError: values that are no intensities, or a seed that is no seed.
    """
    _check_intensities(images, max_value)
    check_whole("seed", seed, 0)
    # raw PCG64 output is fixed by its algorithm; numpy lets the methods of Generator change between releases
    source = np.random.PCG64(int(seed))
    ones = np.empty(images.shape, np.uint8)
    for start in range(0, len(images), _ROWS_AT_ONCE):
        block = images[start : start + _ROWS_AT_ONCE]
        bits = source.random_raw(block.size) >> np.uint64(11)
        ones[start : start + len(block)] = bits.reshape(block.shape) * 2.0**-53 * max_value < block
    return ones


def _check_intensities(images: np.ndarray, max_value: int) -> None:
    found = getattr(images, "dtype", type(images).__name__)
    if found != np.uint8 or images.ndim == 0:
        raise InputError(f"images must be an array of uint8, found {found}")
    if images.size and images.max() > max_value:
        raise InputError(f"images hold the value {images.max()}; expected 0..{max_value} (max_value)")


def vectors_of_images(images: ImageDataset, threshold: float = 0.5, *, seed: Optional[int] = None) -> BinaryVectors:
    """Images as rows of h * w zeros and ones, row by row of the image; labels as they are.

    >>> from tffcl.datasets import images
    >>> vectors_of_images(images.load_images("digits")).test_x.shape
    (355, 64)

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
    train, test = np.split(ones.reshape(len(ones), -1), [len(images.train_images)])
    widths = (train.shape[1],) * len(images.label_names)
    labels = images.train_labels, images.test_labels
    return BinaryVectors(images.name, train, labels[0], test, labels[1], images.label_names, widths)


def vectors_of_sets(
    sets: Sequence[BinaryDataset], *, rows: str = "pooled", test_share: float = 1 / 7, seed: int = 42
) -> BinaryVectors:
    """Binary sets of any width as one: the label is the set, narrower rows are padded at the right with zeros.

    Validation rows are for a stream to hold out of a client's training rows. With the shares used here by default
    (1/7 for testing, and 1/6 of the rest for validation) that is 5/7, 1/7 and 1/7, as in table 5 of Paul et al.,
    Masked Autoencoders are Efficient Continual Federated Learners, 2023 (ConFedMADE), appendix B.2.

    >>> rows = {split: np.zeros([6, 3], np.uint8) for split in ("train", "valid", "test")}
    >>> sets = [BinaryDataset(name, 3, rows) for name in ("a", "b")]
    >>> vectors_of_sets(sets).label_names
    ('a', 'b')

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
    names = tuple(data.name for data in sets)
    if not sets:
        raise InputError("sets is empty; expected at least one binary data set")
    if len(set(names)) < len(names):
        raise InputError(f"sets must be different ones, found {', '.join(names)}")
    check_choice("rows", rows, ("pooled", "official"))
    check_between_0_and_1("test_share", test_share)
    check_whole("seed", seed, 0)
    width = max(data.width for data in sets)
    trains, tests = zip(*(_official(data) if rows == "official" else _divided(data, test_share, seed) for data in sets))
    return BinaryVectors(
        name="+".join(names),
        train_x=np.concatenate([pad(x, width) for x in trains]),
        train_labels=np.repeat(np.arange(len(sets)), list(map(len, trains))),
        test_x=np.concatenate([pad(x, width) for x in tests]),
        test_labels=np.repeat(np.arange(len(sets)), list(map(len, tests))),
        label_names=names,
        widths=tuple(data.width for data in sets),
    )


def _official(data: BinaryDataset) -> tuple[np.ndarray, np.ndarray]:
    return data.split("train"), data.split("test" if "test" in data.splits or "valid" not in data.splits else "valid")


def _divided(data: BinaryDataset, test_share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(training, test) rows of all splits together, each part in the order of the files."""
    rows = np.concatenate(list(data.splits.values()))
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)  # stable between releases of Python
    num_test = int(len(rows) * test_share + 0.5)
    if not 0 < num_test < len(rows):
        raise InputError(
            f"{data.name}: test_share={test_share} of {len(rows)} rows leaves nothing to learn from or to test with"
        )
    return rows[sorted(order[num_test:])], rows[sorted(order[:num_test])]
