"""Rows of new data in the form that a run's models take: out of tables, JSON lines, plain lines, arrays."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import pathlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, TextIO

import numpy as np

from tffcl import datasets, storage
from tffcl.datasets import raw_files
from tffcl.errors import DatasetError, InputError, check_choice

if TYPE_CHECKING:
    from tffcl.use.finished import FinishedRun

FORMATS = ("csv", "tsv", "jsonl", "lines", "npz")
_LONGEST_FIELD = 1 << 24


class Row(NamedTuple):
    """A row: where it stands, its fields as they were, what the model takes of it, and its label where it has one."""

    where: str
    fields: Mapping[str, Any]
    example: Any
    label: Optional[str]


class Reader:
    """What a run's models take, read from files.

    Args:
      run: whose models.
      text_column: the column or key of texts.
      label_column: that of labels; None where there are none to be read.
      format: one of `FORMATS`; None goes by the ending, and of standard input by its first line.

    Raises:
      InputError: no such format, or one that does not hold what the run learned.
    """

    def __init__(
        self, run: FinishedRun, text_column: str = "text", label_column: Optional[str] = None,
        format: Optional[str] = None,
    ):  # fmt: skip
        plan = run.plan
        self.kind, self._run, self._format = plan.kind, run, format
        self._text, self._label = text_column, label_column
        if format is not None:
            check_choice("format", format, FORMATS)
        if self.kind == "text":
            return
        data = plan.dataset
        if self.kind == "image":
            self._shape = data.image_size if isinstance(data, datasets.Domains) else data.train_images.shape[1:]
            self._most: Optional[int] = int(data.max_value)
        else:
            self._shape, self._most = data.train_x.shape[1:], 1 if self.kind == "binary" else None
        self._size = int(np.prod(self._shape))
        self._columns = getattr(data, "columns", ())

    def batch(self, examples: Sequence[Any]) -> Any:
        """What a model takes of several examples."""
        if self.kind == "text":
            return np.array(examples, object)
        return np.stack(examples)

    def rows(self, path: str) -> Iterator[Row]:
        """The rows of a file, or of standard input ("-"), read as they are asked for.

        Raises:
          DatasetError: no such file, column or field, a malformed line, a value out of range, or no rows at all.
        """
        count = 0
        with self._opened(path) as (format, source, name):
            self.format = format
            self.columns: list[str] = []
            for row in getattr(self, f"_{format}")(source, name):
                count += 1
                yield row
        if not count:
            raise DatasetError(f"{name}: holds no rows")

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[tuple[str, Any, str]]:
        """Format, lines (or arrays) and name."""
        if path == "-":
            name, raw = "standard input", getattr(sys.stdin, "buffer", None)
            source = sys.stdin if raw is None else io.TextIOWrapper(raw, "utf-8", newline="\n")
            first = next(_decoded(source, name), "").removeprefix("\ufeff")
            try:
                yield self._format or self._guessed(first), itertools.chain([first] if first else [], source), name
            finally:
                if raw is not None:
                    source.detach()  # type: ignore[attr-defined]
            return
        format = self._format or {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".npz": "npz", ".npy": "npz"}.get(
            pathlib.Path(path).suffix.lower(), "lines"
        )
        if format == "npz":
            if self.kind == "text":
                raise InputError(f"{path}: {self._run.directory} learned from text, and this holds arrays of numbers")
            yield format, _arrays(path), path
            return
        with storage.open_regular(path, "new data", max_bytes=None, error=DatasetError) as raw:
            start = raw.read(16)
            raw.seek(raw_files.mark_length(start, path))
            with io.TextIOWrapper(raw, "utf-8", newline="\n") as text:
                yield format, text, path

    def _guessed(self, first: str) -> str:
        """What standard input holds, by its first line."""
        if first.lstrip().startswith("{"):
            return "jsonl"
        names = [each.strip() for each in next(csv.reader([first]), [])]
        wanted = [self._text] if self.kind == "text" else list(self._columns)
        return "csv" if wanted and set(wanted) <= set(names) else "lines"

    # -- formats -----------------------------------------------------------------------------------------------

    def _csv(self, lines: Iterable[str], name: str) -> Iterator[Row]:
        usual = csv.field_size_limit(_LONGEST_FIELD)
        reader = csv.reader(_decoded(lines, name), strict=True)
        try:
            yield from self._table(((reader.line_num, fields) for fields in reader), name)
        except csv.Error as error:
            raise DatasetError(f"{name}, line {reader.line_num}: not CSV ({error})") from None
        finally:
            csv.field_size_limit(usual)

    def _tsv(self, lines: Iterable[str], name: str) -> Iterator[Row]:
        numbered = enumerate(_decoded(lines, name), 1)
        yield from self._table(((number, line.rstrip("\r\n").split("\t")) for number, line in numbered), name)

    def _table(self, records: Iterable[tuple[int, list[str]]], name: str) -> Iterator[Row]:
        header: list[str] = []
        for number, fields in records:
            if not any(fields):
                continue
            if not header:
                header = self.columns = [each.strip() for each in fields]
                self._check_header(header, f"{name}, line {number}")
                continue
            if len(fields) != len(header):
                raise DatasetError(f"{name}, line {number}: expected {len(header)} fields, found {len(fields)}")
            yield self._row(dict(zip(header, fields)), f"{name}, line {number}")

    def _check_header(self, header: list[str], where: str) -> None:
        wanted = [self._text] if self.kind == "text" else [*self._columns]
        wanted += [] if self._label is None else [self._label]
        for column in wanted:
            if header.count(column) != 1:
                shown = ", ".join(header)[:200]
                hint = " (--text-column NAME)" if column == self._text and self.kind == "text" else ""
                raise DatasetError(f"{where}: expected one column {column!r}{hint}, found the columns {shown}")

    def _jsonl(self, lines: Iterable[str], name: str) -> Iterator[Row]:
        for number, line in enumerate(_decoded(lines, name), 1):
            if not line.strip():
                continue
            where = f"{name}, line {number}"
            record = storage.parse_object(line.encode(), where, DatasetError)
            wanted = [self._text] if self.kind == "text" else [] if "x" in record else [*self._columns]
            for key in (*wanted, *(() if self._label is None else (self._label,))):
                if key not in record:
                    raise DatasetError(f"{where}: expected an object with {key!r}, found {', '.join(record)[:200]}")
            yield self._row(record, where)

    def _lines(self, lines: Iterable[str], name: str) -> Iterator[Row]:
        if self._label is not None:
            raise InputError(f"{name}: plain lines have no labels; give a table with the column {self._label!r}")
        for number, line in enumerate(_decoded(lines, name), 1):
            text, where = line.rstrip("\n").removesuffix("\r"), f"{name}, line {number}"
            if self.kind == "text":
                yield Row(where, {self._text: text}, text, None)
            elif text.strip():
                yield Row(where, {"x": text}, self._numbers(text.replace(",", " ").split(), where), None)

    def _npz(self, arrays: Mapping[str, np.ndarray], name: str) -> Iterator[Row]:
        x = np.asarray(arrays["x"])
        if x.shape[1:] != tuple(self._shape) and (x.ndim < 1 or int(np.prod(x.shape[1:])) != self._size):
            raise DatasetError(f"{name}: expected {self.kind} data x [N, {self._shown()}], found {list(x.shape)}")
        if self._label is not None and "y" not in arrays:
            raise DatasetError(f"{name}: has no labels, an array 'y'")
        for number, values in enumerate(x):
            label = str(arrays["y"][number]) if self._label is not None else None
            yield Row(f"{name}, row {number}", {"row": number}, self._numbers(values, f"{name}, row {number}"), label)

    # -- examples ----------------------------------------------------------------------------------------------

    def _row(self, record: Mapping[str, Any], where: str) -> Row:
        label = None
        if self._label is not None:
            found = record[self._label]
            if isinstance(found, bool) or not isinstance(found, (str, int)) or not str(found).strip():
                raise DatasetError(f"{where}: expected a text or a whole number as label, found {found!r:.60}")
            label = str(found).strip()
        if self.kind == "text":
            text = record[self._text]
            if not isinstance(text, str):
                raise DatasetError(f"{where}: the text must be a text, found {text!r:.60}")
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise DatasetError(f"{where}: the text is no Unicode: {text[error.start]!a} by itself") from None
            return Row(where, record, text, label)
        if self._columns:
            values = [record[column] for column in self._columns] if "x" not in record else record["x"]
        elif "x" in record and not isinstance(record["x"], str):
            values = record["x"]
        else:
            values = [value for column, value in record.items() if column != (self._label or "label")]
        return Row(where, record, self._numbers(values, where), label)

    def _shown(self) -> str:
        return ", ".join(map(str, self._shape))

    def _numbers(self, values: Any, where: str) -> np.ndarray:
        try:
            x = np.asarray(values, np.float64).reshape(-1)
        except (TypeError, ValueError) as error:
            raise DatasetError(f"{where}: expected numbers alone ({str(error)[:100]})") from None
        if x.size != self._size:
            raise DatasetError(
                f"{where}: expected {self._size} numbers, {self.kind} data of [{self._shown()}], found {x.size}"
            )
        if not np.isfinite(x).all():
            raise DatasetError(f"{where}: holds a value that is not finite")
        if self._most is None:
            return x.reshape(self._shape).astype(np.float32)
        if ((x < 0) | (x > self._most) | (x != np.round(x))).any():
            raise DatasetError(f"{where}: expected whole numbers from 0 to {self._most}")
        return x.reshape(self._shape).astype(np.uint8)


def _decoded(lines: Iterable[str], name: str) -> Iterator[str]:
    iterator = iter(lines)
    for number in itertools.count(1):
        try:
            line = next(iterator, None)
        except UnicodeDecodeError as error:
            raise DatasetError(
                f"{name}, near line {number}: byte 0x{error.object[error.start]:02X} is not UTF-8; convert the file"
            ) from None
        if line is None:
            return
        yield line


def _arrays(path: str) -> dict[str, np.ndarray]:
    with storage.open_regular(path, "arrays of new data", error=DatasetError) as file:
        try:
            found = np.load(file, allow_pickle=False)
            arrays = {"x": found} if isinstance(found, np.ndarray) else {name: found[name] for name in found.files}
        except Exception as error:  # whatever numpy and zipfile raise for a damaged file
            raise DatasetError(f"{path}: no .npz or .npy file of arrays ({error})") from None
    if "x" not in arrays:
        raise DatasetError(f"{path}: has no array 'x', only {', '.join(arrays)}")
    return arrays


class Writer:
    """Writes rows as they were, with further fields, in the format that they came in.

    Lines and arrays are written as tab-separated and comma-separated tables.

    Args:
      file: where to.
      format: of the rows.
      columns: their fields, in order; those of tables.
    """

    def __init__(self, file: TextIO, format: str, columns: Sequence[str]):
        self._file, self._format, self._columns = file, format, columns
        self._begun = False

    def write(self, fields: Mapping[str, Any], added: Mapping[str, Any]) -> None:
        """Writes a row; a further field whose name is taken is called `predicted_...`."""
        more = {f"predicted_{name}" if name in fields else name: value for name, value in added.items()}
        if self._format == "jsonl":
            self._file.write(json.dumps({**fields, **storage.plain(more)}, ensure_ascii=False) + "\n")
            return
        row = {**fields, **more}
        lines: list[Iterable[Any]] = [row.values()] if self._begun or self._format == "lines" else [row, row.values()]
        self._begun = True
        if self._format in ("tsv", "lines"):
            self._file.writelines("\t".join(map(str, line)) + "\n" for line in lines)
        else:
            csv.writer(self._file, lineterminator="\n").writerows(lines)
