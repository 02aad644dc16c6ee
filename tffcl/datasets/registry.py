"""`load`: any data set by its name or path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

from tffcl.datasets import binary_dataset, download, image_registry, official, sample, table_files
from tffcl.datasets.folders import ENVIRONMENT_VARIABLE as ENVIRONMENT_VARIABLE
from tffcl.datasets.folders import data_folder
from tffcl.datasets.raw_files import PathLike
from tffcl.datasets.text_dataset import TextDataset
from tffcl.errors import DatasetError

NAMES = (*official.LAYOUTS, "sample")


def load(name_or_path: PathLike, data_dir: Optional[PathLike] = None) -> TextDataset:
    """Reads a data set.

    Args:
      name_or_path: trec6, trec50, r8, tmn, subj, sample, or a folder with `train.*` and `test.*` tables.
      data_dir: the folder that holds the published files, each set in a sub-folder of its name or all in one.
        None means $TFFCL_DATA_DIR if set, else a per-user cache, which a checked download fills.

    Returns:
      The data set.

    Raises:
      DatasetError: no such set, or its files are missing, truncated or malformed, or cannot be fetched.
    """
    name = os.fspath(name_or_path)
    if name == "sample":
        return sample.load()
    if name not in official.LAYOUTS:
        if os.path.exists(name):
            return table_files.from_directory(name)
        raise DatasetError(f"{name}: no such data set or folder; known sets are {', '.join(NAMES)}")
    layout = official.LAYOUTS[name]
    folder, is_cache = data_folder(data_dir)
    paths = official.find(layout, folder)
    if paths is None and is_cache:
        download.fetch(name, folder)
        paths = official.find(layout, folder)
    if paths is None:
        raise DatasetError(_missing(name, folder))
    return official.read(name, layout, paths)


def available(name_or_path: PathLike, data_dir: Optional[PathLike] = None) -> bool:
    """Whether `load`, `load_images` or `load_binary` would find the files without downloading; opens none.

    Raises:
      DatasetError: `data_dir` or $TFFCL_DATA_DIR is no folder; a mistyped one must not pass for "no data".
    """
    name = os.fspath(name_or_path)
    if name in official.LAYOUTS:
        return official.find(official.LAYOUTS[name], data_folder(data_dir)[0]) is not None
    if name in image_registry.NAMES:
        return image_registry.has_files(name, data_dir)
    if name in binary_dataset.WIDTHS:
        return bool(binary_dataset.find(name, data_folder(data_dir)[0]))
    return name == "sample" or table_files.is_dataset_directory(name)


def _missing(name: str, folder: Path) -> str:
    layout = official.LAYOUTS[name]
    return (
        f"{name}: {' and '.join(layout.file_sets[0])} not found in {folder} or {folder / layout.folders[0]}; "
        f"get them from {download.HOME_PAGES[name]}, or use the data set 'sample', which ships with tffcl"
    )
