"""Where the files of published data sets are looked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

from tffcl.datasets import download
from tffcl.datasets.raw_files import PathLike
from tffcl.errors import DatasetError

ENVIRONMENT_VARIABLE = "TFFCL_DATA_DIR"


def data_folder(data_dir: Optional[PathLike]) -> tuple[Path, bool]:
    """The folder to search, and whether it is the cache that downloads may fill.

    Raises:
      DatasetError: `data_dir` or $TFFCL_DATA_DIR is no folder; a mistyped one must not pass for "no data".
    """
    chosen = data_dir if data_dir is not None else os.environ.get(ENVIRONMENT_VARIABLE) or None
    if chosen is None:
        return download.cache_folder(), True
    folder = Path(os.path.expanduser(chosen))
    # Here and elsewhere: os.path says no to what cannot be a path, a name of 300 characters, where pathlib raises.
    if not os.path.isdir(folder):
        origin = "data_dir" if data_dir is not None else f"${ENVIRONMENT_VARIABLE}"
        raise DatasetError(f"{origin} {folder}: no such folder")
    return folder, False
