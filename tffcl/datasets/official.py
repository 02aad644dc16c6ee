"""The published sets TREC, R8, TMN and SUBJ: which files they are, and what must come out.

Citations: TREC, Li and Roth, Learning Question Classifiers, COLING 2002. R8, Cardoso-Cachopo, Improving
Methods for Single-label Text Categorization, PhD thesis, Lisbon 2007. TMN, Vitale, Ferragina and Scaiella,
Classification of Short Texts by Deploying Topical Annotations, ECIR 2012. SUBJ, Pang and Lee, A Sentimental
Education, ACL 2004.

A folder is searched for the files themselves and for a sub-folder with the set's name that holds them.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Callable, Optional

from tffcl.datasets import parsers
from tffcl.datasets.parsers import Rows
from tffcl.datasets.text_dataset import TextDataset, from_texts
from tffcl.errors import DatasetError

SUBJ_TRAIN = 8_000
TMN_TRAIN = 24_817


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a published set lies on disk.

    Attributes:
      folders: sub-folders to look into, after the folder itself.
      file_sets: alternatives; the first whose files are all there is read.
      parse: from the paths of that alternative to (train rows, test rows).
      counts: (train, test) rows that must come out, where they are known.
    """

    folders: tuple[str, ...]
    file_sets: tuple[tuple[str, ...], ...]
    parse: Callable[[tuple[Path, ...]], tuple[Rows, Rows]]
    counts: Optional[tuple[int, int]]


def find(layout: Layout, folder: Path) -> Optional[tuple[Path, ...]]:
    """The paths of the first complete alternative under `folder`, or None."""
    for place in (folder, *(folder / name for name in layout.folders)):
        for names in layout.file_sets:
            paths = tuple(place / name for name in names)
            if all(map(os.path.isfile, paths)):
                return paths
    return None


def read(name: str, layout: Layout, paths: tuple[Path, ...]) -> TextDataset:
    """Reads a published set and checks its row counts.

    Raises:
      DatasetError: a malformed line, or a number of rows other than the published one (a truncated file).
    """
    train, test = layout.parse(paths)
    found = (len(train), len(test))
    # the raw news archive has no published count: the split files have
    if layout.counts and found != layout.counts and len(paths) > 1:
        raise DatasetError(
            f"{paths[0].parent}: {name} must have {layout.counts[0]} training and "
            f"{layout.counts[1]} test rows, found {found[0]} and {found[1]}; "
            "a file is truncated or is another version: fetch it again"
        )
    return from_texts(train, test, name, unicode=False)


def _parse_trec(paths: tuple[Path, ...], fine: bool) -> tuple[Rows, Rows]:
    return parsers.read_trec(paths[0], fine), parsers.read_trec(paths[1], fine)


def _parse_r8(paths: tuple[Path, ...]) -> tuple[Rows, Rows]:
    return parsers.read_tab_separated(paths[0]), parsers.read_tab_separated(paths[1])


def _parse_tmn(paths: tuple[Path, ...]) -> tuple[Rows, Rows]:
    """The split files (validation joins training), or a seeded split of the archive, which has none."""
    if len(paths) == 1:
        return parsers.seeded_split(parsers.read_news(paths[0]), TMN_TRAIN)
    return parsers.read_tab_separated(paths[0]) + parsers.read_tab_separated(paths[1]), parsers.read_tab_separated(
        paths[2]
    )


def _parse_subj(paths: tuple[Path, ...]) -> tuple[Rows, Rows]:
    return parsers.seeded_split(
        parsers.read_sentences(paths[0], "subjective") + parsers.read_sentences(paths[1], "objective"), SUBJ_TRAIN
    )


_TREC_FILES = (("train_5500.label", "TREC_10.label"),)

LAYOUTS = {
    "trec6": Layout(("trec", "trec6"), _TREC_FILES, lambda paths: _parse_trec(paths, False), (5_452, 500)),
    "trec50": Layout(("trec", "trec50"), _TREC_FILES, lambda paths: _parse_trec(paths, True), (5_452, 500)),
    "r8": Layout(("r8",), (("r8-train-all-terms.txt", "r8-test-all-terms.txt"),), _parse_r8, (5_485, 2_189)),
    "tmn": Layout(
        ("tmn",),
        (("TMN_train.txt", "TMN_val.txt", "TMN_test.txt"), ("news.gz",), ("news",)),
        _parse_tmn,
        (24_817, 7_780),
    ),
    "subj": Layout(
        ("subj", "rotten_imdb"), (("quote.tok.gt9.5000", "plot.tok.gt9.5000"),), _parse_subj, (8_000, 2_000)
    ),
}
