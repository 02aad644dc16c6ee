"""Users' own data: CSV, TSV and JSONL files with the columns `text` and `label`."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any, Callable, Optional

from tffcl.datasets import raw_files
from tffcl.datasets.arrays import every_fifth
from tffcl.datasets.raw_files import PathLike
from tffcl.datasets.text_dataset import Row, TextDataset, from_texts
from tffcl.errors import DatasetError

Rows = list[Row]
_PARTS = ("train", "test")


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

    Args:
      train: the file of training rows.
      test: the file of test rows.
      name: what reports call the data set; None takes the training file's folder.
      text_column: column or key of the text.
      label_column: column or key of the label.
      encoding: of both files; a byte-order mark is dropped.
      allow_unseen_labels: as in `from_texts`.
      unicode: as in `from_texts`.

    Returns:
      The data set.

    Raises:
      DatasetError: a missing file, column or field, a malformed line, a wrong encoding, or an empty part.
    """
    train_rows, test_rows = (read_rows(path, text_column, label_column, encoding) for path in (train, test))
    name = name if name is not None else Path(train).resolve().parent.name
    return from_texts(train_rows, test_rows, name=name, allow_unseen_labels=allow_unseen_labels, unicode=unicode)


def from_directory(folder: PathLike, **options: Any) -> TextDataset:
    """Reads `train.*` and `test.*` of a folder, or one table; options as in `from_files`.

    Of one table every fifth row of each label is for testing.
    """
    folder = Path(folder)
    if os.path.isfile(folder):
        named = {name: options.pop(name) for name in ("text_column", "label_column", "encoding") if name in options}
        rows = read_rows(folder, **named)
        tested = every_fifth([label for _, label in rows])
        if not tested.any():
            raise DatasetError(
                f"{folder}: no label has 5 rows, and every fifth is for testing; give a folder with train.* and test.*"
            )
        train, test = ([row for row, chosen in zip(rows, tested) if chosen == part] for part in (False, True))
        options.setdefault("name", folder.stem)
        return from_texts(train, test, **options)
    options.setdefault("name", folder.resolve().name)
    return from_files(_only_table(folder, "train"), _only_table(folder, "test"), **options)


def is_dataset_directory(folder: PathLike) -> bool:
    """Whether `from_directory` would find both files."""
    return all(len(_tables(Path(folder), part)) == 1 for part in _PARTS)


def read_rows(path: PathLike, text_column: str = "text", label_column: str = "label", encoding: str = "utf-8") -> Rows:
    """(text, label) rows of one table."""
    reader = _READERS.get(Path(path).suffix.lower())
    if reader is None:
        raise DatasetError(f"{path}: unknown format; the extension must be one of {', '.join(_READERS)}")
    rows = reader(raw_files.read_text(path, encoding), path, text_column, label_column)
    if not rows:
        raise DatasetError(f"{path}: holds no rows")
    return rows


def _tables(folder: Path, part: str) -> list[Path]:
    return [path for path in (folder / (part + ending) for ending in _READERS) if os.path.isfile(path)]


def _only_table(folder: Path, part: str) -> Path:
    found = _tables(folder, part)
    if len(found) != 1:
        what = " and ".join(path.name for path in found) if found else "none"
        raise DatasetError(f"{folder}: expected one of {part}{f', {part}'.join(_READERS)}, found {what}")
    return found[0]


def _read_csv(text: str, path: PathLike, text_column: str, label_column: str) -> Rows:
    # io.StringIO with newline="" would be cut as files are; csv itself knows LF, CR LF and quoted line ends
    reader = csv.reader(_keep_ends(text), strict=True)
    rows: list[tuple[int, list[str]]] = []
    line = 1
    usual = csv.field_size_limit(len(text) + 1)  # of the whole process; 131,072 characters are no long document
    try:
        for fields in reader:
            rows.append((line, fields))
            line = reader.line_num + 1
    except csv.Error as error:
        raise DatasetError(f"{path}, line {line}: not CSV ({error})") from None
    finally:
        csv.field_size_limit(usual)
    return _pick(rows, path, text_column, label_column)


def _read_tsv(text: str, path: PathLike, text_column: str, label_column: str) -> Rows:
    rows = [(number, line.split("\t")) for number, line in enumerate(raw_files.split_lines(text), 1)]
    return _pick(rows, path, text_column, label_column)


def _read_jsonl(text: str, path: PathLike, text_column: str, label_column: str) -> Rows:
    rows = []
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
        rows.append((record[text_column], record[label_column]))
        _check_field(*rows[-1], f"{path}, line {number}")
    return rows


def _check_field(text: object, label: object, place: str) -> None:
    """What `from_texts` would refuse too, but naming the file and line."""
    if not isinstance(text, str):
        raise DatasetError(f"{place}: the text must be a string, found {text!r:.60}")
    if isinstance(label, bool) or not isinstance(label, (str, int)) or not str(label).strip():
        raise DatasetError(f"{place}: the label must be a non-empty string or an integer, found {label!r:.60}")


def _pick(rows: list[tuple[int, list[str]]], path: PathLike, text_column: str, label_column: str) -> Rows:
    """The two columns; empty lines are skipped, a row of another width is an error."""
    rows = [(line, fields) for line, fields in rows if any(fields)]
    if not rows:
        return []
    header = [name.strip() for name in rows[0][1]]
    for column in (text_column, label_column):
        if header.count(column) != 1:
            raise DatasetError(
                f"{path}, line {rows[0][0]}: expected one column {column!r}, found columns {header}"[:300]
            )
    text_at, label_at = header.index(text_column), header.index(label_column)
    picked: Rows = []
    for line, fields in rows[1:]:
        if len(fields) != len(header):
            raise DatasetError(f"{path}, line {line}: expected {len(header)} fields, found {len(fields)}")
        picked.append((fields[text_at], fields[label_at].strip()))
        _check_field(*picked[-1], f"{path}, line {line}")
    return picked


def _keep_ends(text: str) -> list[str]:
    """Lines cut at LF only, each with its end, as csv.reader wants them."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + [line for line in lines[-1:] if line]


_READERS: dict[str, Callable[[str, PathLike, str, str], Rows]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
}
