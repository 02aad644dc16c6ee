"""`tffcl sweep`: a grid over any options, judged on examples that clients hold out of their tasks."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Sequence
from typing import Optional

import click
import numpy as np

from tffcl import reports
from tffcl.errors import InputError
from tffcl.papers import tables
from tffcl.papers.tables import Measure, Row, Table, Values

HELD_OUT = ("--evaluate-on", "validation")
SCORE = "held out"
_AVERAGE = tables.incremental("average_incremental_accuracy")


def _score(folder: pathlib.Path) -> Optional[float]:
    """Average A_t (%) of one growing head, else TTA (%), else the average NLL (nats)."""
    kinds = (_AVERAGE, tables.percent("task_averaged_test_accuracy"), tables.result("average_nll"))
    return next((score for of in kinds if (score := of(folder)) is not None), None)


def table_of(method: str, grid: Sequence[str]) -> Table:
    """A row for each combination.

    Args:
      method: of `tffcl run`.
      grid: NAME=VALUE,VALUE,... of options, with or without "--".

    Raises:
      InputError: an entry of the grid that is none, or an option twice.
    """
    options: dict[str, list[str]] = {}
    for each in grid:
        name, separator, values = each.lstrip("-").partition("=")
        if not separator or not name or not all(values.split(",")):
            raise InputError(f"--grid: expected NAME=VALUE,VALUE,..., found {each!r}")
        if name in options:
            raise InputError(f"--grid: {name} stands there twice")
        options[name] = values.split(",")
    if not options:
        raise InputError("--grid: nothing to choose from; give --grid NAME=VALUE,VALUE,...")
    rows = []
    for chosen in itertools.product(*options.values()):
        flags = [part for name, value in zip(options, chosen) for part in (f"--{name}", value)]
        called = "+".join(f"{name}={value}".replace("/", "-") for name, value in zip(options, chosen))
        rows.append(Row(f"{method}+{called}".replace("/", "-"), chosen, (method, *flags)))
    measures: dict[str, tuple[Measure, int]] = {SCORE: (_score, 2)}
    return Table(tuple(options), measures, (), tuple(rows))


def best_of(values: Values, higher_is_better: bool) -> Optional[str]:
    """The name of the row with the best mean over the seeds that all rows have; None where they have none in common."""
    common = set.intersection(*(set(measured[SCORE]) for measured in values.values()))
    means = {
        name: float(np.array([measured[SCORE][run] for run in common], np.float64).mean())
        for name, measured in values.items()
        if common
    }
    return (max if higher_is_better else min)(means, key=means.__getitem__) if means else None


def sweep(
    method: str, grid: Sequence[str], seeds: Sequence[int], flags: Sequence[str], root: pathlib.Path, jobs: int
) -> None:
    """Runs the grid, prints the table and the best flags, and writes values.csv into `root`.

    A seed decides the tasks and who has which rows, too, unless the flags have a `--split-seed`.

    Raises:
      InputError: wrong flags or grid.
      RunError: a run failed; what is finished is shown first.
    """
    table = table_of(method, grid)
    own_split = not any(flag.partition("=")[0] == "--split-seed" for flag in flags)
    values = tables.reproduce(table, table.rows, seeds, (*flags, *HELD_OUT), root, jobs, split_by_seed=own_split)
    results = reports.load_results(root / f"{table.rows[0].name}-seed{seeds[0]}")
    best = best_of(values, higher_is_better=results.get("average_nll") is None)
    for row in table.rows:
        if row.name == best:
            click.echo(f"\nbest on held-out examples: {' '.join(row.flags[1:])}")
