"""`load`: any data set by its name or path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional, Union

from tffcl.datasets import download, official, sample, table_files
from tffcl.datasets.text_dataset import TextDataset
from tffcl.errors import DatasetError

ENVIRONMENT_VARIABLE = "TFFCL_DATA_DIR"
NAMES = (*official.LAYOUTS, "sample")
PathLike = Union[str, "os.PathLike[str]"]


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
        if Path(name).exists():
            return table_files.from_directory(name)
        raise DatasetError(f"{name}: no such data set or folder; known sets are {', '.join(NAMES)}")
    layout = official.LAYOUTS[name]
    folder, is_cache = _folder(data_dir)
    paths = official.find(layout, folder)
    if paths is None and is_cache:
        download.fetch(name, folder)
        paths = official.find(layout, folder)
    if paths is None:
        raise DatasetError(_missing(name, folder))
    return official.read(name, layout, paths)


def available(name_or_path: PathLike, data_dir: Optional[PathLike] = None) -> bool:
    """Whether `load` would find the files without downloading; it does not open them.

    Raises:
      DatasetError: `data_dir` or $TFFCL_DATA_DIR is no folder; a mistyped one must not pass for "no data".
    """
    name = os.fspath(name_or_path)
    if name in official.LAYOUTS:
        return official.find(official.LAYOUTS[name], _folder(data_dir)[0]) is not None
    return name == "sample" or table_files.is_dataset_directory(name)


def _folder(data_dir: Optional[PathLike]) -> tuple[Path, bool]:
    """The folder to search, and whether it is the cache that downloads may fill."""
    chosen = data_dir if data_dir is not None else os.environ.get(ENVIRONMENT_VARIABLE) or None
    if chosen is None:
        return download.cache_folder(), True
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        origin = "data_dir" if data_dir is not None else f"${ENVIRONMENT_VARIABLE}"
        raise DatasetError(f"{origin} {folder}: no such folder")
    return folder, False


def _missing(name: str, folder: Path) -> str:
    layout = official.LAYOUTS[name]
    return (
        f"{name}: {' and '.join(layout.file_sets[0])} not found in {folder} or {folder / layout.folders[0]}; "
        f"get them from {download.HOME_PAGES[name]}, or use the data set 'sample', which ships with tffcl"
    )
