"""`tffcl reproduce fil-ver`: the runs behind figures 5, 7 and 8 of the FIL-VER paper, as tables, and the leak table.

Where each figure comes from:
- task 1, task 2, ...: accuracy (%) on a task after the last one, mean over the clients that have it; of pooled tasks,
  of the one model on each original one. "average" is their mean.
- MB up: all that all clients sent in the whole run.
- client kB, server kB: what the client with most, and the server, hold for rehearsal at the end, as they hold it;
  "as raw images" is one byte for each pixel of as many images.
- epsilon: at delta 1e-5, of each vector by itself.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import click

from tffcl import reports
from tffcl.commands import fil_ver_tables
from tffcl.commands.fil_ver_flags import OFFLINE
from tffcl.commands.fil_ver_options import FilVerOptions
from tffcl.commands.fil_ver_tables import Row, Table
from tffcl.commands.reproduce import Planned, check_names, markdown, reproduce_rows, spread
from tffcl.reports.run_files import total

Results = Mapping[str, Any]


def reproduce(
    name: str, only: Sequence[str], seeds: Sequence[int], flags: Sequence[str], output_dir: str, jobs: int
) -> None:
    """Runs what is missing, prints the table, and draws the runs of the first seed of each group side by side.

    Args:
      name: of the table.
      only: names, or beginnings of names, of rows; none for all.
      seeds: of training.
      flags: further flags of every run, which stand over the rows' own.
      output_dir: the folder of all runs.
      jobs: runs at a time.

    Raises:
      InputError: no such row, or flags that `tffcl run fil-ver` does not take.
      RunError: a run failed; the others are finished first.
    """
    root = pathlib.Path(output_dir) / name
    if name == "leak":
        from tffcl.commands import fil_ver_leak

        fil_ver_leak.reproduce(only, seeds, flags, root)
        return
    table = fil_ver_tables.table(name)
    rows = _chosen(table, only)

    def show(found: Mapping[Row, Sequence[pathlib.Path]]) -> None:
        click.echo(as_markdown(table, found))
        for path in _pictures(found, root):
            click.echo(f"plot: {path}")

    reproduce_rows(rows, seeds, lambda row, seed: _planned(row, seed, flags, root), root, jobs, show)


def as_markdown(table: Table, found: Mapping[Row, Sequence[pathlib.Path]]) -> str:
    """The table, with the folders of finished runs of each row; rows without any are left out."""
    rows = []
    for row, folders in found.items():
        if folders:
            measured = [_measured(name, folders) for name in table.measures]
            rows.append([*row.cells, *measured, str(len(folders)), *([row.plain] if table.compared else [])])
    plain = ["plain TensorFlow"] if table.compared else []
    return markdown([*table.left, *table.measures, "seeds", *plain], rows)


def _chosen(table: Table, only: Sequence[str]) -> list[Row]:
    """The rows that are called so, or else whose names begin so."""
    known = [row.name for row in table.rows]
    check_names([one for one in only if not any(name.startswith(one) for name in known)], known)
    wanted = {
        name for one in only for name in known if name == one or (one not in known and name.startswith(one))
    }
    return [row for row in table.rows if not only or row.name in wanted]


def _planned(row: Row, seed: int, flags: Sequence[str], root: pathlib.Path) -> Planned:
    whole = (*row.flags, *flags, "--seed", str(seed))
    options = FilVerOptions.parse(whole)  # what is wrong with the flags is said before anything runs
    # What the driver makes of these stands in config.json.
    other = {"enrollment"} | ({"num_clients", "num_tasks"} if options.method in OFFLINE else set())
    expected = {key: value for key, value in options.config().items() if key not in other}
    return Planned("fil-ver", root / f"{row.name}-seed{seed}", whole, expected, ("memory",))


def _pictures(found: Mapping[Row, Sequence[pathlib.Path]], root: pathlib.Path) -> list[pathlib.Path]:
    groups: dict[str, list[pathlib.Path]] = {}
    for row, folders in found.items():
        if folders:
            groups.setdefault(row.group, []).append(folders[0])
    return [
        path
        for group, folders in groups.items()
        for path in reports.compare_plots(folders, root / f"plots-{group}")
    ]


def _measured(name: str, folders: Sequence[pathlib.Path]) -> str:
    values = [MEASURES[name](reports.load_results(folder)) for folder in folders]
    return spread([value for value in values if value is not None], 2 if name == "MB up" else 1)


def _task(number: int) -> Callable[[Results], Optional[float]]:
    def measure(results: Results) -> Optional[float]:
        row = results["accuracy_by_task"][-1]
        return 100 * row[number - 1] if number <= len(row) and row[number - 1] is not None else None

    return measure


def _percent(name: str) -> Callable[[Results], Optional[float]]:
    return lambda results: None if results.get(name) is None else 100 * results[name]


def _memory(name: str, unit: float = 1e3) -> Callable[[Results], Optional[float]]:
    return lambda results: results["memory"][name] / unit or None


MEASURES: dict[str, Callable[[Results], Optional[float]]] = {
    **{f"task {number}": _task(number) for number in range(1, 11)},
    "average": _percent("average_accuracy_by_task"),
    "forgotten": _percent("forgetting"),
    "MB up": lambda results: total(results["bytes_up"]) / 1e6,
    "rows": _memory("client_rows", 1),
    "client kB": _memory("client"),
    "server kB": _memory("server"),
    "as raw images kB": _memory("client_raw_images"),
    "epsilon": lambda results: results["config"]["dp_epsilon"],
}
