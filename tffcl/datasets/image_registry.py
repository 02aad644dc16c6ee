"""`load_images`: any image set by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from tffcl.datasets import digits, image_download, image_files
from tffcl.datasets.folders import data_folder
from tffcl.datasets.image_dataset import ImageDataset
from tffcl.datasets.raw_files import PathLike
from tffcl.errors import DatasetError

NAMES = ("digits", *image_files.LAYOUTS)


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

    Returns:
      The data set.

    Raises:
      DatasetError: no such set, or its files are missing, truncated or malformed, or cannot be fetched.
    """
    if name == "digits":
        return digits.load_digits()
    layout = image_files.LAYOUTS.get(name)
    if layout is None:
        raise DatasetError(f"{name}: no such image set; known sets are {', '.join(NAMES)}")
    folder, is_cache = data_folder(data_dir)
    paths = image_files.find(layout, folder)
    if paths is None and is_cache and name in image_download.SHA256:
        image_download.fetch(name, folder)
        paths = image_files.find(layout, folder)
    if paths is None:
        raise DatasetError(_missing(name, layout, folder))
    return image_files.read(name, layout, paths)


def has_files(name: str, data_dir: Optional[PathLike] = None) -> bool:
    """Whether `load_images` would find what it needs without downloading, for one of `NAMES`."""
    return name == "digits" or image_files.find(image_files.LAYOUTS[name], data_folder(data_dir)[0]) is not None


def _missing(name: str, layout: image_files.ImageLayout, folder: Path) -> str:
    place = folder / layout.folders[0]
    return (
        f"{name}: {', '.join(layout.file_names())} (each .gz or plain) not found together in {place}; get them from "
        f"{layout.home_page} and put them there, or into such a sub-folder of what you pass as data_dir "
        "(--data-dir); or use the data set 'digits', which needs no files"
    )
