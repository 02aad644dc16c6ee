"""Labelled texts: the data set, its tokeniser, and users' own tables (CSV, TSV, JSONL with columns `text` and `label`).

Tokenisation follows Kim, Convolutional Neural Networks for Sentence Classification, EMNLP 2014, for English alone or
for the letters of every script.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np

from tffcl.datasets import raw_files
from tffcl.datasets.arrays import tested_rows
from tffcl.datasets.raw_files import PathLike
from tffcl.errors import DatasetError

Label = Union[str, int]
Row = tuple[str, Label]

_ENDINGS = (".csv", ".tsv", ".jsonl")
_INTEGER = re.compile(r"-?\d{1,18}")  # Python turns no more than 4,300 digits into a number
_MARKS = "(),!?'`"
# The tokeniser's rule, in what Python's regular expressions and TensorFlow's have in common.
FOREIGN = f"[^A-Za-z0-9{_MARKS}]"
SUFFIX = "('s|'ve|n't|'re|'d|'ll)"  # small or capital
PUNCTUATION = "([,!()?])"
HAN = "([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd])"
_FOREIGN, _PUNCTUATION, _HAN = map(re.compile, (FOREIGN, PUNCTUATION, HAN))
_SUFFIX = re.compile(SUFFIX, re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class TextDataset:
    """Documents with labels; label ids index `label_names`.

    Shown with `from_texts`.

    Attributes:
      name: what reports call the data set.
      train_texts: N documents, untokenised.
      train_labels: int32 [N], each in 0 .. len(label_names) - 1.
      test_texts: M documents.
      test_labels: int32 [M].
      label_names: the label space, sorted.
      unicode: whether `tokenise` keeps the letters of every script; False for the published sets, whose words are
        those of Kim's rule.
    """

    name: str
    train_texts: tuple[str, ...]
    train_labels: np.ndarray
    test_texts: tuple[str, ...]
    test_labels: np.ndarray
    label_names: tuple[str, ...]
    unicode: bool = True
    kind = "text"

    def tokenise(self, text: str) -> list[str]:
        """The tokens of a document; see `tffcl.datasets.tokenise`."""
        return tokenise(text, unicode=self.unicode)


def from_texts(
    train: Sequence[Row],
    test: Sequence[Row],
    name: str = "texts",
    *,
    allow_unseen_labels: bool = False,
    unicode: bool = True,
) -> TextDataset:
    """A data set of rows that are already in memory; label names are sorted, as numbers if every label is an integer.

    >>> from_texts([("good film", "pos"), ("dull", "neg")], [("fine", "pos")]).label_names
    ('neg', 'pos')

    Args:
      train: (text, label) pairs; a label is a string or an integer. An empty text is legal.
      test: as `train`.
      name: what reports call the data set.
      allow_unseen_labels: let labels into the label space that only `test` has.
      unicode: whether the letters of every script are kept, see `TextDataset`.

    Raises:
      DatasetError: a part without rows, a row of another form, or a label that only `test` has.
    """
    train_texts, train_names = _columns(train, "train")
    test_texts, test_names = _columns(test, "test")
    seen, both = set(train_names), {*train_names, *test_names}
    for row, label in enumerate(test_names):
        if label not in seen and not allow_unseen_labels:
            raise DatasetError(
                f"{name}: test row {row} has label {label!r}, which no training row has "
                f"(training labels: {_cut(', '.join(sorted(seen)))}); add training rows, "
                "drop those test rows, or pass allow_unseen_labels=True"
            )
    # as numbers when every label is one, so that '10' follows '9'
    whole = all(_INTEGER.fullmatch(label) for label in both)
    names = sorted(both, key=lambda label: (int(label) if whole else 0, label))
    ids = {label: number for number, label in enumerate(names)}
    train_labels, test_labels = (
        np.array([ids[label] for label in part], np.int32) for part in (train_names, test_names)
    )
    return TextDataset(name, train_texts, train_labels, test_texts, test_labels, tuple(names), unicode)


def join_texts(datasets: Sequence[TextDataset]) -> TextDataset:
    """Several data sets as one: their documents one after the other, with labels called SET/LABEL.

    >>> films = from_texts([("good", "pos"), ("dull", "neg")], [("fine", "pos")], "films")
    >>> moods = from_texts([("hooray", "pos")], [("yes", "pos")], "moods")
    >>> joined = join_texts([films, moods])
    >>> joined.name, joined.label_names, joined.train_labels.tolist(), joined.test_labels.tolist()
    ('films+moods', ('films/neg', 'films/pos', 'moods/pos'), [1, 0, 2], [1, 2])

    Raises:
      DatasetError: fewer than two sets, one twice, or sets that are tokenised in different ways.
    """
    names = [dataset.name for dataset in datasets]
    if len(names) < 2 or len(set(names)) < len(names):
        raise DatasetError(f"a union of data sets needs two or more with different names, found {', '.join(names)}")
    if len({dataset.unicode for dataset in datasets}) > 1:
        ways = ", ".join(f"{dataset.name} {'unicode' if dataset.unicode else 'ascii'}" for dataset in datasets)
        raise DatasetError(f"{'+'.join(names)}: one tokeniser for all, and these have {ways}; give --tokeniser")
    first = np.cumsum([0, *(len(dataset.label_names) for dataset in datasets)])[:-1].tolist()
    return TextDataset(
        "+".join(names),
        tuple(text for dataset in datasets for text in dataset.train_texts),
        np.concatenate([dataset.train_labels + start for dataset, start in zip(datasets, first)]).astype(np.int32),
        tuple(text for dataset in datasets for text in dataset.test_texts),
        np.concatenate([dataset.test_labels + start for dataset, start in zip(datasets, first)]).astype(np.int32),
        tuple(f"{dataset.name}/{label}" for dataset in datasets for label in dataset.label_names),
        datasets[0].unicode,
    )


def _columns(rows: Iterable[Row], part: str) -> tuple[tuple[str, ...], list[str]]:
    """Texts and label names of one part; labels of bool and float are refused, since they are mostly a wrong column."""
    texts, names = [], []
    for number, row in enumerate(rows):
        where = f"{part} row {number}"
        if isinstance(row, (str, bytes)) or not isinstance(row, Sequence) or len(row) != 2:
            raise DatasetError(f"{where}: expected a (text, label) pair, found {_cut(repr(row))}")
        text, label = row
        if not isinstance(text, str):
            raise DatasetError(f"{where}: the text must be a str, found {type(text).__name__} {_cut(repr(text))}")
        whole = isinstance(label, (int, np.integer)) and not isinstance(label, bool)
        name = str(int(label)) if whole else label.strip() if isinstance(label, str) else ""
        if not name:
            raise DatasetError(f"{where}: the label must be a non-empty str or an int, found {_cut(repr(label))}")
        texts.append(text)
        names.append(name)
    if not texts:
        raise DatasetError(f"{part} holds no rows; at least one (text, label) pair is needed")
    return tuple(texts), names


def _cut(shown: str, limit: int = 80) -> str:
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


class _EveryScript(dict[int, Optional[str]]):
    """For `str.translate`: the replacement of a character; each is looked up in Unicode's tables once."""

    def __missing__(self, code: int) -> Optional[str]:
        character = chr(code)
        category = unicodedata.category(character)
        if category[0] in "LMN" or character in _MARKS:
            kept: Optional[str] = character
        else:
            kept = None if category == "Cf" else " "  # Cf: soft hyphens and signs of direction, inside words
        self[code] = kept
        return kept


_EVERY_SCRIPT = _EveryScript(
    {
        0x2019: "'",  # the typographic apostrophe
        0x02BC: "'",  # and the one that counts as a letter
        0x200B: " ",  # a space of no width, between words
        0x200C: "\u200c",  # joins and keeps apart the letters of a word, in Persian and in Indian scripts
        0x200D: "\u200d",
    }
)


def replacement(code: int) -> Optional[str]:
    """What stands for a character in texts of every script: itself, a space, an apostrophe, or nothing (None)."""
    return _EVERY_SCRIPT[code]


def tokenise(text: str, *, lower: bool = True, split: bool = True, unicode: bool = True) -> list[str]:
    """Words and punctuation marks of `text`, in order.

    Whatever is not a letter, a digit or one of ``( ) , ! ? ' ` `` becomes a space; the suffixes 's, 've, n't,
    're, 'd, 'll and the marks ``, ! ? ( )`` become tokens of their own; the rest is cut at white space.

    >>> tokenise("Who's Galileo (1564-1642)?")
    ['who', "'s", 'galileo', '(', '1564', '1642', ')', '?']
    >>> tokenise("L'été à San José")
    ["l'été", 'à', 'san', 'josé']
    >>> tokenise("L'été à San José", unicode=False)
    ["l'", 't', 'san', 'jos']

    Three variants are in use in Kim's experiments: most sets (SUBJ among them) lower-case, which is the
    default and what the GloVe 6B vectors want; TREC keeps capitals (`lower=False`), for vectors that have
    them; SST cuts at white space only (`split=False`). One deviation: a bracket is the token ``(``, where
    Kim's substitution leaves a backslash before it, which no word vectors know.

    Args:
      text: one document, tokenised or not; tokenising twice changes nothing.
      lower: turn to lower case.
      split: give suffixes and marks tokens of their own.
      unicode: keep the letters, marks and digits of every script, in Unicode's composed form (NFC); ’ is read as ',
        and each Chinese character is a token. False for Kim's own rule, which keeps those of English (ASCII). On
        ASCII text both are the same.
    """
    if unicode:
        text = unicodedata.normalize("NFC", text).translate(_EVERY_SCRIPT)
        text = _HAN.sub(r" \1 ", text)
    else:
        text = _FOREIGN.sub(" ", text)
    if split:
        text = _SUFFIX.sub(r" \1", text)
        text = _PUNCTUATION.sub(r" \1 ", text)
    if lower:
        text = text.lower()
    return text.split()


def share_dropped(texts: Iterable[str], unicode: bool = True) -> float:
    """Share of the characters, punctuation and white space left out, that `tokenise` drops.

    >>> share_dropped(["José!"], unicode=False)
    0.25
    """
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(text)
    counted = {c: n for c, n in counts.items() if unicodedata.category(c)[0] not in "PZC"}
    dropped = sum(n for c, n in counted.items() if not tokenise(c, unicode=unicode))
    return dropped / max(1, sum(counted.values()))


def from_files(
    train: PathLike,
    test: PathLike,
    name: Optional[str] = None,
    *,
    text_column: str = "text",
    label_column: str = "label",
    encoding: str = "utf-8",
    allow_unseen_labels: bool = False,
    unicode: bool = True,
) -> TextDataset:
    """Reads one table for training and one for test; the format goes by the extension.

    `.csv` (quoted as spreadsheets do) and `.tsv` (cut at each tab, no quoting) have a first line that names
    the columns; `.jsonl` has an object a line. Other columns are left alone.

    `text_column` and `label_column` are names of columns or keys; `encoding` is that of both files, whose byte-order
    mark is dropped; `name` is by default that of the training file's folder. The other options are those of
    `from_texts`.

    Shown with `load`.

    Raises:
      DatasetError: a missing file, column or field, a malformed line, a wrong encoding, or an empty part.
    """
    train_rows, test_rows = (read_rows(path, text_column, label_column, encoding) for path in (train, test))
    name = name if name is not None else Path(train).resolve().parent.name
    return from_texts(train_rows, test_rows, name=name, allow_unseen_labels=allow_unseen_labels, unicode=unicode)


def from_directory(folder: PathLike, **options: Any) -> TextDataset:
    """Reads `train.*` and `test.*` of a folder, or one table; options as in `from_files`.

    Of one table every fifth row of each label is for testing.

    Shown with `load`.
    """
    folder = Path(folder)
    if os.path.isfile(folder):
        columns = {name: options.pop(name) for name in ("text_column", "label_column", "encoding") if name in options}
        rows = read_rows(folder, **columns)
        tested = tested_rows([label for _, label in rows], folder)
        train, test = ([row for row, chosen in zip(rows, tested) if chosen == part] for part in (False, True))
        options.setdefault("name", folder.stem)
        return from_texts(train, test, **options)
    options.setdefault("name", folder.resolve().name)
    train_table, test_table = raw_files.train_and_test(folder, _ENDINGS)
    return from_files(train_table, test_table, **options)


def is_dataset_directory(folder: PathLike) -> bool:
    """Whether `from_directory` would find both files, or one table."""
    folder = Path(folder)
    whole = folder.suffix.lower() in _ENDINGS and os.path.isfile(folder)
    return whole or all(len(raw_files.part_tables(folder, part, _ENDINGS)) == 1 for part in ("train", "test"))


def read_rows(
    path: PathLike, text_column: str = "text", label_column: str = "label", encoding: str = "utf-8"
) -> list[Row]:
    """(text, label) rows of one table."""
    ending = Path(path).suffix.lower()
    if ending not in _ENDINGS:
        raise DatasetError(f"{path}: unknown format; the extension must be one of {', '.join(_ENDINGS)}")
    content = raw_files.read_text(path, encoding)
    if ending == ".jsonl":
        cells = _read_jsonl(content, path, text_column, label_column)
    else:
        if ending == ".csv":
            table = _read_csv(content, path)
        else:
            table = [(number, line.split("\t")) for number, line in enumerate(raw_files.split_lines(content), 1)]
        cells = _pick(table, path, text_column, label_column)
    rows: list[Row] = []
    for line, text, label in cells:
        # what `from_texts` would refuse too, but naming the file and line
        if not isinstance(text, str):
            raise DatasetError(f"{path}, line {line}: the text must be a string, found {text!r:.60}")
        if isinstance(label, bool) or not isinstance(label, (str, int)) or not str(label).strip():
            raise DatasetError(
                f"{path}, line {line}: the label must be a non-empty string or an integer, found {label!r:.60}"
            )
        rows.append((text, label))
    if not rows:
        raise DatasetError(f"{path}: holds no rows")
    return rows


def _read_csv(text: str, path: PathLike) -> list[tuple[int, list[str]]]:
    """(line number, fields) of each record."""
    # cut at LF only, each line with its end: csv itself knows CR LF and quoted line ends
    reader = csv.reader((line + "\n" for line in text.removesuffix("\n").split("\n")), strict=True)
    records, line = [], 1
    usual = csv.field_size_limit(len(text) + 1)  # of the whole process; 131,072 characters are no long document
    try:
        for fields in reader:
            records.append((line, fields))
            line = reader.line_num + 1
    except csv.Error as error:
        raise DatasetError(f"{path}, line {line}: not CSV ({error})") from None
    finally:
        csv.field_size_limit(usual)
    return records


def _read_jsonl(text: str, path: PathLike, text_column: str, label_column: str) -> Iterator[tuple[int, Any, Any]]:
    for number, line in enumerate(raw_files.split_lines(text), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{path}, line {number}: not JSON ({error})") from None
        if not isinstance(record, dict) or not {text_column, label_column} <= record.keys():
            raise DatasetError(
                f"{path}, line {number}: expected an object with {text_column!r} and {label_column!r}, "
                f"found {line[:60]!r}"
            )
        yield number, record[text_column], record[label_column]


def _pick(
    table: list[tuple[int, list[str]]], path: PathLike, text_column: str, label_column: str
) -> Iterator[tuple[int, str, str]]:
    """The two columns; empty lines are skipped, a row of another width is an error."""
    records = ((line, fields) for line, fields in table if any(fields))
    first, header = next(records, (0, []))
    header = [name.strip() for name in header]
    for column in (text_column, label_column):
        if header and header.count(column) != 1:
            raise DatasetError(f"{path}, line {first}: expected one column {column!r}, found columns {header}"[:300])
    for line, fields in records:
        if len(fields) != len(header):
            raise DatasetError(f"{path}, line {line}: expected {len(header)} fields, found {len(fields)}")
        yield line, fields[header.index(text_column)], fields[header.index(label_column)].strip()
