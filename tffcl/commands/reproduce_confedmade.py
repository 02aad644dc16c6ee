"""`tffcl reproduce confedmade`: the runs behind tables 1 to 4 of the ConFedMADE paper, and its figures 3 and 5.

Where each figure comes from:
- NLL: mean over clients and tasks after the last task, without any task label; of pooled tasks, of the one density on
  each original task. "task known" and "newest" are the other two ways of scoring.
- client, held out (table 2): what each client's own model, as it left its last round of local training, loses on the
  rows that this client holds out; mean over clients. The server's figure is on the test rows, which are others.
- server, one mask: the mean over the masks by themselves, where "server" averages their probabilities.
- % of B: entries of the base that were sent up, of all that there are; mean over clients and rounds.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import click

from tffcl import reports
from tffcl.commands import confedmade_tables
from tffcl.commands.confedmade_flags import POOLED, SINGLE
from tffcl.commands.confedmade_options import ConFedMADEOptions
from tffcl.commands.confedmade_tables import Row, Table
from tffcl.commands.reproduce import Planned, check_names, markdown, reproduce_rows, spread

Results = Mapping[str, Any]


def reproduce(
    number: int,
    only: Sequence[str],
    seeds: Sequence[int],
    flags: Sequence[str],
    output_dir: str,
    jobs: int,
) -> None:
    """Runs what is missing and prints the table; of table 3 also draws NLL after each task, a picture per data set.

    Args:
      number: of the table, 1 to 4.
      only: names, or beginnings of names, of rows; none for all.
      seeds: of training.
      flags: further flags of every run, which stand over the rows' own.
      output_dir: the folder of all runs.
      jobs: runs at a time.

    Raises:
      InputError: no such row, or flags that `tffcl run confedmade` does not take.
      RunError: a run failed; the others are finished first.
    """
    table = confedmade_tables.table(number)
    rows = _chosen(table, only)
    root = pathlib.Path(output_dir) / f"table{number}"

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
            measured = [_measured(MEASURES[name], folders) for name in table.measures]
            rows.append([*row.cells, *measured, str(len(folders)), *row.printed])
    return markdown([*table.left, *table.measures, "seeds", *table.paper], rows)


def _chosen(table: Table, only: Sequence[str]) -> list[Row]:
    known = [row.name for row in table.rows]
    check_names([one for one in only if not any(name.startswith(one) for name in known)], known)
    return [row for row in table.rows if not only or any(row.name.startswith(one) for one in only)]


def _planned(row: Row, seed: int, flags: Sequence[str], root: pathlib.Path) -> Planned:
    whole = (*row.flags, *flags, "--seed", str(seed))
    options = ConFedMADEOptions.parse(whole)  # what is wrong with the flags is said before anything runs
    expected = options.config()
    if options.method in (*SINGLE, *POOLED):  # what they make of these stands in config.json
        expected = {
            name: value for name, value in expected.items() if name not in ("num_clients", "num_tasks")
        }
    needed = ("average_nll_of_tasks",) if options.method in POOLED else ()
    return Planned("confedmade", root / f"{row.name}-seed{seed}", whole, expected, needed)


def _pictures(found: Mapping[Row, Sequence[pathlib.Path]], root: pathlib.Path) -> list[pathlib.Path]:
    """NLL after each task of all methods of a group, at the first seed that each has."""
    groups: dict[str, dict[str, Results]] = {}
    for row, folders in found.items():
        results = reports.load_results(folders[0]) if row.group and folders else {}
        if results.get("nll") and results["num_tasks"] > 1:
            groups.setdefault(row.group, {})[row.cells[-1]] = results
    return [
        reports.plot_nll_by_task(runs, root / f"nll-by-task-{group}.png") for group, runs in groups.items()
    ]


def _measured(measure: Callable[[pathlib.Path], Optional[float]], folders: Sequence[pathlib.Path]) -> str:
    values = [measure(folder) for folder in folders]
    return spread([value for value in values if value is not None], 2)


def _result(*names: str) -> Callable[[pathlib.Path], Optional[float]]:
    """The first of several entries of the results that is there."""

    def measure(folder: pathlib.Path) -> Optional[float]:
        results = reports.load_results(folder)
        return next((results[name] for name in names if results.get(name) is not None), None)

    return measure


def _held_out(folder: pathlib.Path) -> Optional[float]:
    """Mean over clients of the loss on held-out rows at the end of the last round's local training."""
    last = [event for event in reports.load_history(folder) if event.get("event") == "round"][-1]
    values = [value for value in last["validation_loss"].values() if value is not None]
    return sum(values) / len(values) if values else None


def _share_sent(folder: pathlib.Path) -> float:
    """Entries of the base sent up, in per cent of all; a dense message has four bytes for each entry."""
    rounds = [event for event in reports.load_history(folder) if event.get("event") == "round"]
    sent = sum(sum(event["sent"].values()) for event in rounds)
    return 100 * sent / (sum(sum(event["bytes_up_dense"].values()) for event in rounds) / 4)


def _megabytes_up(folder: pathlib.Path) -> float:
    return sum(map(sum, reports.load_results(folder)["bytes_up"])) / 1e6


_OF_TASKS = "average_nll_of_tasks"
MEASURES: dict[str, Callable[[pathlib.Path], Optional[float]]] = {
    "NLL": _result(_OF_TASKS, "average_nll"),
    "task known": _result(_OF_TASKS, "average_nll_task_known"),
    "newest": _result(_OF_TASKS, "average_nll_newest"),
    "forgotten": _result("forgetting"),
    "forgotten, known": _result("forgetting_nll_task_known"),
    "forgotten, newest": _result("forgetting_nll_newest"),
    "server": _result("average_nll"),
    "server, one mask": _result("average_nll_one_mask", "average_nll"),
    "client, held out": _held_out,
    "% of B": _share_sent,
    "MB up": _megabytes_up,
}
