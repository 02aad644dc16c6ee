"""Parsers of the published file formats, a function each; all give (text, label) rows in file order."""

from __future__ import annotations

import random
from pathlib import Path

from tffcl.datasets import raw_files
from tffcl.errors import DatasetError

Rows = list[tuple[str, str]]

SPLIT_SEED = 20240607  # for the sets that come without a split; changing it changes every figure for them
_MOST_NEWS_BYTES = 1 << 28  # of the archive, unzipped; it has some 15 MB
_NEWS_STRIDE = 8  # lines from one record of the TagMyNews archive to the next


def read_trec(path: Path, fine: bool) -> Rows:
    """Rows of a `COARSE:fine text` file in latin-1; the label is `COARSE` or `COARSE:fine`."""
    rows = []
    lines = raw_files.split_lines(raw_files.read_text(path, "latin-1"))
    for number, line in enumerate(lines, 1):
        label, space, text = line.partition(" ")
        coarse, colon, rest = label.partition(":")
        if not (space and colon and coarse and rest):
            raise DatasetError(f"{path}, line {number}: expected 'COARSE:fine text', found {line[:60]!r}")
        rows.append((text, label if fine else coarse))
    return rows


def read_tab_separated(path: Path) -> Rows:
    """Rows of a `label<TAB>text` file in UTF-8 (R8, TMN); the last line may lack its end."""
    rows = []
    lines = raw_files.split_lines(raw_files.read_text(path))
    for number, line in enumerate(lines, 1):
        label, tab, text = line.partition("\t")
        if not (tab and label.strip()):
            raise DatasetError(f"{path}, line {number}: expected 'label<TAB>text', found {line[:60]!r}")
        rows.append((text, label.strip()))
    return rows


def read_sentences(path: Path, label: str) -> Rows:
    """Rows of a file with one sentence a line in latin-1 (SUBJ); bytes 0x85 stand inside sentences."""
    lines = raw_files.split_lines(raw_files.read_text(path, "latin-1"))
    return [(line.strip(" "), label) for line in lines]


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
    random.Random(SPLIT_SEED).shuffle(order)
    shuffled = [rows[position] for position in order]
    return shuffled[:num_train], shuffled[num_train:]
