"""What `tffcl reproduce` does for every paper: each cell a `tffcl run ...` of its own, and what comes of it in a table.

Every run has its own folder and its own process. What is finished is not run again and an interrupted run is resumed,
so the command may be stopped and given again at any time; the table shows what there is: the mean over seeds with the
half width of its 95 % interval (Student's t), and where rows have a control, so the paired differences from it.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import click

from tffcl import metrics, reports, storage
from tffcl.errors import InputError, RunError
from tffcl.flags import parse_run
from tffcl.papers import workers
from tffcl.papers.workers import Run
from tffcl.program.run_directory import Checkpoints
from tffcl.reports.runs import reading
from tffcl.reports.tables import NO_DATA, spread
from tffcl.reports.tables import incremental as figure_of

Results = Mapping[str, Any]
Measure = Callable[[pathlib.Path], Optional[float]]
Found = Mapping["Row", Sequence[pathlib.Path]]
Values = Mapping[str, Mapping[str, Mapping[str, Optional[float]]]]  # row -> measure -> run -> value


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
      name: what `--row` and folders call it.
      cells: what stands at the left.
      flags: of `tffcl run METHOD`, the method first.
      printed: the paper's figures, or those of another reference.
      group: rows of one group are drawn in one picture.
      control: the name of the row that `Table.compared` compares it with, seed by seed.
    """

    name: str
    cells: tuple[str, ...]
    flags: tuple[str, ...]
    printed: tuple[str, ...] = ()
    group: str = ""
    control: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table: what it measures of each row's runs, and its rows. A measure that a run lacks has no mean.

    Attributes:
      left: what the cells at the left are.
      measures: name -> measure of a run directory, and digits after the point.
      reference: what `Row.printed` are.
      rows: of the table.
      draw: from the folders of each row and the root to pictures.
      compared: measure -> what the column of its differences from the rows' controls is called.
    """

    left: tuple[str, ...]
    measures: Mapping[str, tuple[Measure, int]]
    reference: tuple[str, ...]
    rows: tuple[Row, ...]
    draw: Callable[[Found, pathlib.Path], Sequence[pathlib.Path]] = lambda found, root: ()
    compared: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)

    def markdown(self, found: Found, values: Values) -> str:
        """The table, with the finished runs of each row and their values; rows without any are left out."""
        reference = self.reference if any(row.printed for row in self.rows) else ()
        lines = []
        for row, folders in found.items():
            if folders:
                measured = [
                    NO_DATA if None in (of_runs := values[row.name][name].values()) else spread([*of_runs], digits)  # type: ignore[list-item]
                    for name, (_, digits) in self.measures.items()
                ]
                differences = [self._difference(name, row, values) for name in self.compared]
                printed = row.printed if reference else ()
                lines.append([*row.cells, *measured, *differences, str(len(folders)), *printed])
        return markdown([*self.left, *self.measures, *self.compared.values(), "seeds", *reference], lines)

    def values(self, found: Found) -> Values:
        """Every measure of every finished run, which is called as its folder without the row's name."""
        return {
            row.name: {
                name: {folder.name[len(row.name) :]: measure(folder) for folder in folders}
                for name, (measure, _) in self.measures.items()
            }
            for row, folders in found.items()
        }

    def _difference(self, name: str, row: Row, values: Values) -> str:
        """A measure beside that of the row's control, over the runs that both have."""
        digits = self.measures[name][1]
        own, theirs = values[row.name][name], values.get(row.control, {}).get(name, {})
        pairs = [(own[run], theirs[run]) for run in own if run in theirs]
        return spread([a - b for a, b in pairs if a is not None and b is not None], digits, signed=True)

    def write_values(self, values: Values, path: pathlib.Path) -> None:
        """Every measure of every finished run as CSV: row, run, then the measures."""
        lines = [["row", "run", *self.measures]]
        for row, measured in values.items():
            for run in next(iter(measured.values()), {}):
                numbers = [measured[name][run] for name in self.measures]
                lines.append([row, run.lstrip("-"), *("" if value is None else repr(value) for value in numbers)])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(lines)
        storage.write_whole(path, text.getvalue().encode())

    def chosen(self, only: Sequence[str]) -> list[Row]:
        """The rows that are called so, or else whose names begin so; all for none."""
        known = [row.name for row in self.rows]
        check_names([name for name in only if not any(each.startswith(name) for each in known)], known)
        wanted = {
            each for name in only for each in known if each == name or (name not in known and each.startswith(name))
        }
        return [row for row in self.rows if not only or row.name in wanted]


def reproduce(
    table: Table,
    rows: Sequence[Row],
    seeds: Sequence[int],
    flags: Sequence[str],
    root: pathlib.Path,
    jobs: int,
    page: Optional[str] = None,
    splits: Sequence[int] = (),
    split_by_seed: bool = False,
) -> Values:
    """Runs what the rows still need, prints what there is, and writes the values of each run into `root`/values.csv.

    Args:
      table: of a paper.
      rows: of the table.
      seeds: of training.
      flags: further flags of every run, which stand over the rows' own.
      root: the folder of all runs.
      jobs: runs at a time.
      page: FILE.md#NAME, where the table stands on a page, see `write_table`; None to print it alone.
      splits: seeds of the making of tasks, each with every seed of training; none for the usual one.
      split_by_seed: whether a seed decides the making of tasks, too.

    Raises:
      InputError: flags that `tffcl run` does not take, or no such place on the page.
      RunError: a run failed, or the folder cannot be made; the others are finished and shown first.
    """
    runs = {row: runs_of(row, seeds, flags, root, splits, split_by_seed) for row in rows}
    everything = [each for of_row in runs.values() for each in of_row]
    for each in everything:
        parse_run(each.flags)  # what is wrong with the flags is found before anything runs
    if page is not None:
        write_table(page)
    storage.make_folder(root, "the folder of all runs")
    failures = workers.finish(everything, jobs)
    found = {row: [each.folder for each in of_row if each.finished] for row, of_row in runs.items()}
    with reading(root):
        values = table.values(found)
        shown = table.markdown(found, values)
        click.echo(shown)
        table.write_values(values, root / "values.csv")
        if page is not None:
            write_table(page, shown)
        for path in table.draw(found, root):
            click.echo(f"plot: {path}")
    if failures:
        raise RunError(f"{len(failures)} of {len(everything)} runs failed; the first: {failures[0]}")
    return values


def runs_of(
    row: Row,
    seeds: Sequence[int],
    flags: Sequence[str],
    root: pathlib.Path,
    splits: Sequence[int] = (),
    split_by_seed: bool = False,
) -> list[Run]:
    """The runs of a row; arguments as for `reproduce`."""
    places: list[tuple[str, tuple[str, ...]]] = [
        (f"-split{split}", ("--split-seed", str(split))) for split in splits
    ] or [("", ())]
    return [
        Run(
            root / f"{row.name}{place}-seed{seed}",
            (*row.flags, *flags, *more, *(seeded(seed) if split_by_seed else ("--seed", str(seed)))),
        )
        for place, more in places
        for seed in seeds
    ]


def seeded(seed: object) -> tuple[str, ...]:
    """Flags of a seed: of the order of classes, of who has which rows, and of all that is drawn."""
    return ("--seed", str(seed), "--split-seed", str(seed))


def check_names(given: Sequence[str], known: Sequence[str]) -> None:
    """Raises InputError where something is not known."""
    for name in given:
        if name not in known:
            raise InputError(f"{name!r} is none of {', '.join(known)}")


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:]])


def write_table(page: str, table: Optional[str] = None) -> None:
    """Puts a table where a page has `<!-- table: NAME -->`, up to `<!-- end -->`.

    Args:
      page: FILE.md#NAME.
      table: in Markdown; None to look only whether the page has the place.

    Raises:
      InputError: the page cannot be read, or has no such place.
    """
    name, _, section = page.partition("#")
    path = pathlib.Path(name)
    if not section:
        raise InputError(f"--write: expected FILE.md#NAME, found {page}")
    if not path.is_file():
        raise InputError(f"--write: {path} is no file")
    text = path.read_text(encoding="utf-8")
    start, end = f"<!-- table: {section} -->\n", "<!-- end -->"
    before, found, rest = text.partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise InputError(f"--write: {path} has no {start.strip()} with {end} after it")
    if table is not None:
        storage.write_whole(path, f"{before}{start}\n{table}\n\n{end}{after}".encode())


def result(*names: str, unit: float = 1.0) -> Measure:
    """The first of several entries of the results that is there, in units of `unit`."""

    def measure(folder: pathlib.Path) -> Optional[float]:
        results = reports.load_results(folder)
        found = next((results[name] for name in names if results.get(name) is not None), None)
        return None if found is None else found / unit

    return measure


def percent(*names: str) -> Measure:
    """As `result`, a share in per cent."""
    return result(*names, unit=0.01)


def incremental(name: str) -> Measure:
    """A figure of one growing head (`tffcl.metrics.incremental_figures`) in per cent; None of other runs."""

    def measure(folder: pathlib.Path) -> Optional[float]:
        found = figure_of(reports.load_results(folder), name)
        return None if found is None else 100 * found

    return measure


def learned_later(folder: pathlib.Path) -> Optional[float]:
    """`metrics.learning_accuracy` (%) of all tasks but the first; None for one task."""
    accuracy = reports.load_results(folder).get("accuracy")
    learned = None if accuracy is None else metrics.learning_accuracy(accuracy, first=1)
    return None if learned is None or math.isnan(learned) else 100 * learned


def megabytes_kept(folder: pathlib.Path) -> Optional[float]:
    """What a client keeps at the end of a run, the mean over clients; None without checkpoints."""
    sizes = Checkpoints(folder / "checkpoints").client_bytes()
    return sum(sizes) / len(sizes) / 1e6 if sizes else None


def megabytes_up(folder: pathlib.Path) -> float:
    """All that all clients sent in the whole run."""
    return sum(map(sum, reports.load_results(folder)["bytes_up"])) / 1e6
