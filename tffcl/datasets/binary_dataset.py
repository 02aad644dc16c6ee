"""Binary data sets of density estimation (DEBD): adult, connect4, tretail, rcv1, nltcs and their kin.

Lowd and Davis, Learning Markov Network Structure with Decision Trees, ICDM 2010; Van Haaren and Davis, Markov
Network Structure Learning: A Randomized Feature Generation Approach, AAAI 2012; Larochelle and Murray, The
Neural Autoregressive Distribution Estimator, AISTATS 2011.
"""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

import numpy as np

from tffcl.datasets.arrays import read_only
from tffcl.datasets.binary_files import read_binary_rows
from tffcl.datasets.folders import data_folder
from tffcl.datasets.raw_files import PathLike
from tffcl.errors import DatasetError

HOME_PAGE = "https://github.com/arranger1044/DEBD"
SPLITS = ("train", "valid", "test")
WIDTHS = {"adult": 123, "connect4": 126, "tretail": 135, "rcv1": 150, "nltcs": 16}


# Arrays have no single truth value, so a generated `==` would raise: data sets compare by identity.
@dataclasses.dataclass(frozen=True, eq=False)
class BinaryDataset:
    """Rows of zeros and ones in the official splits, of which some may be missing.

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
        """The rows of one split, uint8 [N, D].

        Raises:
          DatasetError: the set has no such split.
        """
        if name not in self.splits:
            raise DatasetError(
                f"{self.name}: has no split {name!r}, only {', '.join(self.splits) or 'none at all'}; put "
                f"{self.name}.{name}.data beside the others, or ask for one that is there"
            )
        return self.splits[name]


def load_binary(name: str, data_dir: Optional[PathLike] = None) -> BinaryDataset:
    """Reads the splits of a binary data set that are there; at least one must be.

    Args:
      name: adult, connect4, tretail, rcv1, nltcs, or any NAME whose files lie in the folder.
      data_dir: the folder that holds NAME.train.data, NAME.valid.data and NAME.test.data, or a sub-folder NAME,
        debd or debd/NAME that does. None means $TFFCL_DATA_DIR if set, else the per-user cache; nothing is
        downloaded, since no checksums are published for these sets.

    Returns:
      The data set.

    Raises:
      DatasetError: no file at all; or a file that is empty, ragged, not binary, or of another width than the
        set is known to have.
    """
    folder = data_folder(data_dir)[0]
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
    """The files of a set by split, all from the first place under `folder` that has any."""
    for place in (folder, folder / name, folder / "debd" / name, folder / "debd"):
        paths = {split: place / f"{name}.{split}.data" for split in SPLITS}
        found = {split: path for split, path in paths.items() if os.path.isfile(path)}
        if found:
            return found
    return {}
