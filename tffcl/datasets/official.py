"""`load`: the published text sets TREC, R8, TMN and SUBJ, the sample that ships with tffcl, and users' own folders.

Citations: TREC, Li and Roth, Learning Question Classifiers, COLING 2002. R8, Cardoso-Cachopo, Improving
Methods for Single-label Text Categorization, PhD thesis, Lisbon 2007. TMN, Vitale, Ferragina and Scaiella,
Classification of Short Texts by Deploying Topical Annotations, ECIR 2012. SUBJ, Pang and Lee, A Sentimental
Education, ACL 2004. The sample is written for this project in the manner of TREC; none of it is taken from TREC.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Callable

from tffcl.datasets import binary, download, images, raw_files, text
from tffcl.datasets.raw_files import PathLike
from tffcl.datasets.text import TextDataset, from_texts
from tffcl.errors import DatasetError

Rows = list[tuple[str, str]]

_SUBJ_TRAIN, _TMN_TRAIN = 8_000, 24_817
_TMN_LABELS = {"business", "entertainment", "health", "sci_tech", "sport", "us", "world"}
_TMN_LEAST = 32_000  # records of the archive
_MOST_NEWS_BYTES = 1 << 28  # of the archive, unzipped; it has some 15 MB
_NEWS_STRIDE = 8  # lines from one record of the TagMyNews archive to the next


def read_trec(path: Path, fine: bool) -> Rows:
    """(text, label) rows of a `COARSE:fine text` file in latin-1; the label is `COARSE` or `COARSE:fine`."""
    rows = []
    for number, line in enumerate(raw_files.read_lines(path, "latin-1"), 1):
        label, space, words = line.partition(" ")
        coarse, colon, rest = label.partition(":")
        if not (space and colon and coarse and rest):
            raise DatasetError(f"{path}, line {number}: expected 'COARSE:fine text', found {line[:60]!r}")
        rows.append((words, label if fine else coarse))
    return rows


def read_tab_separated(path: Path) -> Rows:
    """Rows of a `label<TAB>text` file in UTF-8 (R8, TMN)."""
    rows = []
    for number, line in enumerate(raw_files.read_lines(path), 1):
        label, tab, words = line.partition("\t")
        if not (tab and label.strip()):
            raise DatasetError(f"{path}, line {number}: expected 'label<TAB>text', found {line[:60]!r}")
        rows.append((words, label.strip()))
    return rows


def read_sentences(path: Path, label: str) -> Rows:
    """Rows of a file with a sentence a line in latin-1 (SUBJ); bytes 0x85 stand inside sentences."""
    return [(line.strip(" "), label) for line in raw_files.read_lines(path, "latin-1")]


def read_news(path: Path) -> Rows:
    """Rows of the TagMyNews archive `news` or `news.gz`: seven lines a record, then an empty line.

    The seven are title, description (may be empty), link, id, date, source and category; title and
    description make the text, the category is the label, with `sci&tech` spelled `sci_tech`.
    """
    with raw_files.open_unzipped(path, "the news archive") as file:
        content = raw_files.read_at_most(file, path, _MOST_NEWS_BYTES)
    lines = raw_files.split_lines(raw_files.decode(content, "utf-8", path, errors="replace"))
    while lines and not lines[-1].strip():
        lines.pop()
    rows = []
    for start in range(0, len(lines), _NEWS_STRIDE):
        record = [line.strip() for line in lines[start : start + _NEWS_STRIDE]]
        if len(record) < _NEWS_STRIDE - 1 or record[_NEWS_STRIDE - 1 :] not in ([], [""]) or not record[6]:
            raise DatasetError(f"{path}, line {start + 1}: a news record is seven lines and an empty one")
        rows.append((f"{record[0]} {record[1]}".strip(), record[6].replace("&", "_")))
    return rows


def seeded_split(rows: Rows, num_train: int) -> tuple[Rows, Rows]:
    """The first `num_train` rows of a fixed shuffle, and the rest; the same on every machine."""
    order = list(range(len(rows)))
    # random.Random's shuffle has been stable since Python 3.2, numpy's generators promise no such thing
    random.Random(download.SPLIT_SEED).shuffle(order)
    shuffled = [rows[position] for position in order]
    return shuffled[:num_train], shuffled[num_train:]


def _parse_tmn(*paths: Path) -> tuple[Rows, Rows]:
    """The split files (validation joins training), or a seeded split of the archive, which has none."""
    if len(paths) == 1:
        return seeded_split(read_news(paths[0]), _TMN_TRAIN)
    train, validation, test = map(read_tab_separated, paths)
    return train + validation, test


def _parse_subj(subjective: Path, objective: Path) -> tuple[Rows, Rows]:
    rows = read_sentences(subjective, "subjective") + read_sentences(objective, "objective")
    return seeded_split(rows, _SUBJ_TRAIN)


def rows_sha256(rows: Rows) -> str:
    """A sum over parsed rows that ignores line ends and runs of spaces."""
    total = hashlib.sha256()
    for words, label in rows:
        total.update(f"{label}\t{' '.join(words.split())}\n".encode())
    return total.hexdigest()


def _check_rows(path: Path, expected: str, url: str) -> None:
    """For R8: the page has moved between hosts, which may have changed line ends on the way."""
    download.check_sum(rows_sha256(read_tab_separated(path)), expected, url)


def _check_news(path: Path, _: str, url: str) -> None:
    """For TMN: the authors' archive has no split, while papers use one of 24,817 and 7,780 documents.

    Its checksum is not known to this project: only its form is checked (gzip's own checksum, whole records, labels,
    their number), and a seeded split is drawn. With the split files at hand, put them into the data folder instead.
    """
    rows = read_news(path)
    labels = {label for _, label in rows}
    if labels != _TMN_LABELS or len(rows) < _TMN_LEAST:
        raise DatasetError(
            f"{url}: expected at least {_TMN_LEAST} records with the labels {', '.join(sorted(_TMN_LABELS))}, found "
            f"{len(rows)} with {', '.join(sorted(labels))[:120]}; see {LAYOUTS['tmn'].home_page}"
        )


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a published set lies on disk."""

    folders: tuple[str, ...]  # sub-folders to look into, after the folder itself
    file_sets: tuple[tuple[str, ...], ...]  # alternatives; the first whose files are all there is read
    parse: Callable[..., Iterable[Rows]]  # from the paths of that alternative to (train rows, test rows)
    counts: tuple[int, int]  # (train, test) rows that must come out; of the news archive, a single file, any
    home_page: str
    source: download.Source

    def find(self, folder: Path) -> tuple[Path, ...] | None:
        """The paths of the first complete alternative under `folder`, or None."""
        for candidate in (folder, *(folder / name for name in self.folders)):
            for names in self.file_sets:
                paths = tuple(candidate / name for name in names)
                if all(map(os.path.isfile, paths)):
                    return paths
        return None

    def read(self, name: str, paths: tuple[Path, ...]) -> TextDataset:
        """Reads the set and checks its row counts."""
        train, test = self.parse(*paths)
        if (len(train), len(test)) != self.counts and len(paths) > 1:
            raise DatasetError(
                f"{paths[0].parent}: {name} must have {self.counts[0]} training and {self.counts[1]} test rows, found "
                f"{len(train)} and {len(test)}; a file is truncated or is another version: fetch it again"
            )
        return from_texts(train, test, name, unicode=False)


def _trec(name: str, fine: bool) -> Layout:
    sums = {
        "train_5500.label": "9e4c8bdcaffb96ed61041bd64b564183d52793a8e91d84fc3a8646885f466ec3",
        "TREC_10.label": "033f22c028c2bbba9ca682f68ffe204dc1aa6e1cf35dd6207f2d4ca67f0d0e8e",
    }
    page = "https://cogcomp.seas.upenn.edu/Data/QA/QC/"
    return Layout(
        ("trec", name), (tuple(sums),), lambda *paths: [read_trec(path, fine) for path in paths], (5_452, 500), page,
        download.Source("trec", page, sums),
    )  # fmt: skip


_SUBJ = {
    "quote.tok.gt9.5000": "73a2dcf8dc3cbcc7f068a70ef9f021c86b2a8e4dac81566b7fd015b3e938f2c5",
    "plot.tok.gt9.5000": "5ddc9b44dc60d64d651347fcd7bdd489b0c70661e3f768215c16eea36f51204a",
}
_SUBJ_PAGE = "https://www.cs.cornell.edu/people/pabo/movie-review-data/"
_R8 = {
    "r8-train-all-terms.txt": "015bddccc661d2e604bbdb2bf0405c184f35af21a48a55d8e5a8e9947698b2ed",
    "r8-test-all-terms.txt": "9ed028ab5dbcc8dfb575b2efde93ecc166529e70849dc041113fed6598b0302c",
}
# the home page of R8 links a shared drive, where a file has no address of its own
_R8_ADDRESS = "https://www.cs.umb.edu/~smimarog/textmining/datasets/"

LAYOUTS = {
    "trec6": _trec("trec6", fine=False),
    "trec50": _trec("trec50", fine=True),
    "r8": Layout(
        ("r8",), (tuple(_R8),), lambda *paths: map(read_tab_separated, paths), (5_485, 2_189),
        "https://ana.cachopo.org/datasets-for-single-label-text-categorization",
        download.Source("r8", _R8_ADDRESS, _R8, _check_rows),
    ),
    "tmn": Layout(
        ("tmn",), (("TMN_train.txt", "TMN_val.txt", "TMN_test.txt"), ("news.gz",), ("news",)), _parse_tmn,
        (_TMN_TRAIN, 7_780), "http://acube.di.unipi.it/tmn-dataset/",
        download.Source("tmn", "http://acube.di.unipi.it/repo/", {"news.gz": ""}, _check_news),
    ),
    "subj": Layout(
        ("subj", "rotten_imdb"), (tuple(_SUBJ),), _parse_subj, (_SUBJ_TRAIN, 2_000), _SUBJ_PAGE,
        download.Source("subj", _SUBJ_PAGE, _SUBJ, archive="rotten_imdb.tar.gz"),
    ),
}  # fmt: skip


def load(
    name_or_path: PathLike, data_dir: PathLike | None = None, *, text_column: str = "text", label_column: str = "label"
) -> TextDataset:
    """Reads a data set.

    >>> load("sample").label_names
    ('abbreviation', 'description', 'entity', 'human', 'location', 'number')

    Args:
      name_or_path: trec6, trec50, r8, tmn, subj, sample, or a folder with `train.*` and `test.*` tables.
      data_dir: the folder that holds the published files, each set in a sub-folder of its name or all in one.
        None means $TFFCL_DATA_DIR if set, else a per-user cache, which a checked download fills.
      text_column: the column, or key, of texts in tables of one's own.
      label_column: that of labels.

    Raises:
      DatasetError: no such set, or its files are missing, truncated or malformed, or cannot be fetched.
    """
    name = os.fspath(name_or_path)
    if name == "sample":
        return from_texts(_sample("train.tsv"), _sample("test.tsv"), name="sample", unicode=False)
    if name not in LAYOUTS:
        if os.path.exists(name):
            return text.from_directory(name, text_column=text_column, label_column=label_column)
        raise DatasetError(f"{name}: no such data set or folder; known sets are {', '.join((*LAYOUTS, 'sample'))}")
    layout = LAYOUTS[name]
    folder, paths = download.found_or_fetched(name, layout.find, layout.source, data_dir)
    if paths is None:
        raise DatasetError(
            f"{name}: {' and '.join(layout.file_sets[0])} not found in {folder} or {folder / layout.folders[0]}; "
            f"get them from {layout.home_page}, or use the data set 'sample', which ships with tffcl"
        )
    return layout.read(name, paths)


def _sample(file_name: str) -> Rows:
    """Questions labelled abbreviation, description, entity, human, location or number."""
    content = resources.files("tffcl.datasets").joinpath("sample").joinpath(file_name).read_bytes()
    cells = (line.partition("\t") for line in raw_files.split_lines(content.decode("utf-8"))[1:])
    return [(words, label) for label, _, words in cells]


def available(name_or_path: PathLike, data_dir: PathLike | None = None) -> bool:
    """Whether `load`, `load_images` or `load_binary` would find the files without downloading; opens none.

    >>> available("sample")
    True

    Raises:
      DatasetError: `data_dir` or $TFFCL_DATA_DIR is no folder; a mistyped one must not pass for "no data".
    """
    name = os.fspath(name_or_path)
    layout = LAYOUTS.get(name) or images.LAYOUTS.get(name)
    if layout is not None:
        return layout.find(download.data_folder(data_dir)[0]) is not None
    if name in binary.WIDTHS:
        return bool(binary.find(name, download.data_folder(data_dir)[0]))
    return name in ("sample", "digits") or text.is_dataset_directory(name)
