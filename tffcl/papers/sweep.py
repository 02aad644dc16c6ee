"""`tffcl sweep`: a grid, or a search, over any options, judged on examples that clients hold out of their tasks."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Optional

import click
import numpy as np

from tffcl import reports, storage
from tffcl.errors import InputError, RunError
from tffcl.flags import parse_run
from tffcl.papers import tables, workers
from tffcl.papers.tables import Measure, Row, Table, Values
from tffcl.papers.workers import Run

logger = logging.getLogger(__name__)

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
    method: str,
    grid: Sequence[str],
    seeds: Sequence[int],
    flags: Sequence[str],
    root: pathlib.Path,
    jobs: int,
    trials: Optional[int] = None,
) -> None:
    """Runs the grid, prints the table and the best flags, and writes values.csv into `root`.

    A seed decides the tasks and who has which rows, too, unless the flags have a `--split-seed`.

    Args:
      method: of `tffcl run`.
      grid: see `table_of`; with `trials` also NAME=LOW..HIGH.
      seeds: of each combination.
      flags: of all runs.
      root: the folder of all runs.
      jobs: runs at a time.
      trials: combinations that Optuna draws one after another, by the scores of those before; None for all.

    Raises:
      InputError: wrong flags or grid, or Optuna is asked for and not installed.
      RunError: a run failed; what is finished is shown first.
    """
    own_split = not any(flag.partition("=")[0] == "--split-seed" for flag in flags)
    of_all = (*flags, *HELD_OUT)
    if trials is None:
        table = table_of(method, grid)
    else:
        table = _searched(
            method, grid, trials, lambda row: tables.runs_of(row, seeds, of_all, root, (), own_split), jobs
        )
    values = tables.reproduce(table, table.rows, seeds, of_all, root, jobs, split_by_seed=own_split)
    results = reports.load_results(root / f"{table.rows[0].name}-seed{seeds[0]}")
    best = best_of(values, higher_is_better=results.get("average_nll") is None)
    for row in table.rows:
        if row.name == best:
            click.echo(f"\nbest on held-out examples: {' '.join(row.flags[1:])}")


def _searched(
    method: str, grid: Sequence[str], trials: int, runs_of: Callable[[Row], Sequence[Run]], jobs: int
) -> Table:
    """The combinations that Optuna's tree-structured Parzen estimator drew, each once; all runs of them are finished.

    The sampler's seed is fixed and trials come one after another: given again, the same ones are drawn, and what is
    finished is not run again.
    """
    try:
        import optuna
    except ImportError as error:
        raise InputError("--optuna: Optuna is not installed; install the extra `optuna`") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    drawn: dict[str, Row] = {}
    for number in range(1, trials + 1):
        trial = study.ask()
        table = table_of(method, [_drawn(trial, each) for each in grid])
        (row,) = table.rows
        drawn[row.name] = row
        runs = runs_of(row)
        for each in runs:
            parse_run(each.flags)
        storage.make_folder(runs[0].folder.parent, "the folder of all runs")
        failures = workers.finish(runs, jobs)
        if failures:
            raise RunError(f"trial {number}: {failures[0]}")
        found = [_score(each.folder) for each in runs]
        if None in found:
            raise RunError(f"trial {number}: {runs[0].folder} has no score to choose by")
        losses = reports.load_results(runs[0].folder).get("average_nll") is not None
        mean = float(np.mean(np.array(found, np.float64)))
        study.tell(trial, -mean if losses else mean)
        logger.info("trial %d of %d: %s: held out %.2f", number, trials, " ".join(row.flags[1:]), mean)
    return dataclasses.replace(table, rows=tuple(drawn.values()))


def _drawn(trial: Any, entry: str) -> str:
    """NAME=VALUE of an entry of the grid: one of its values, or a number of a range, on a log scale above 0."""
    name, _, values = entry.lstrip("-").partition("=")
    low, is_range, high = values.partition("..")
    if not is_range:
        return f"{name}={trial.suggest_categorical(name, values.split(','))}"
    try:
        if low.isdecimal() and high.isdecimal():
            return f"{name}={trial.suggest_int(name, int(low), int(high), log=int(low) > 0)}"
        return f"{name}={trial.suggest_float(name, float(low), float(high), log=float(low) > 0):.4g}"
    except ValueError as error:
        raise InputError(f"--grid: expected NAME=LOW..HIGH with numbers, LOW below HIGH, found {entry!r}") from error
