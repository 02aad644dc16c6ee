"""`tffcl benchmark`: suites of methods on one sealed stream, and the leaderboard that they make.

A suite fixes data, tasks, network, rounds and steps for all its rows. What a method may choose is chosen on examples
held out of the first two tasks (`tffcl sweep`), and the suite says what was tried. Rows have at least two seeds, for a
row without an interval says nothing. A row that is told the task of each test example stands for itself: it has no
difference from others, which are not told, and no place above them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import click
import numpy as np

from tffcl import metrics, reports, storage
from tffcl.algorithms.registry import find_method
from tffcl.errors import InputError, RunError
from tffcl.experiment import record
from tffcl.flags import parse_run
from tffcl.papers import tables, workers
from tffcl.papers.suites import Entry, Suite
from tffcl.papers.tables import Found, Measure, Row, Table, Values, megabytes_up, seeded, write_table
from tffcl.papers.workers import Run
from tffcl.reports import leaderboard
from tffcl.reports.runs import reading
from tffcl.reports.tables import FIGURES, KNOWN, TASK_AT_TEST, half_width, incremental, task_at_test

logger = logging.getLogger(__name__)

FORMAT = 2
NAME = "leaderboard.json"
AVERAGE = FIGURES["average_incremental_accuracy"]
CPU = "CPU s"  # which no two machines have alike
ROUNDS_TO, MB_TO = "rounds to target", "MB up to target"  # they turn on a single example


def _kept(folder: pathlib.Path) -> Optional[float]:
    """MB that a client holds at the end, its state and the raw examples that it remembers; the mean over clients."""
    memory = incremental(reports.load_results(folder), "memory")
    return None if memory is None else memory["client_bytes"] / 1e6


def _as_examples(folder: pathlib.Path) -> Optional[float]:
    """As many raw examples take as much."""
    memory = incremental(reports.load_results(folder), "memory")
    return None if memory is None else memory["as_examples"]


def _reached(name: str, target: float, unit: float) -> Measure:
    """What it took to the suite's target; None where a run never gets there."""

    def measure(folder: pathlib.Path) -> Optional[float]:
        by_round = incremental(reports.load_results(folder), "by_round")
        found = None if by_round is None else metrics.reached(by_round, target)
        return None if found is None else found[name] / unit

    return measure


def _cpu_seconds(folder: pathlib.Path) -> float:
    """CPU seconds of training: of all rounds together."""
    rounds = [event for event in reports.load_history(folder) if event["event"] == "round"]
    return float(sum(event["training_seconds"]["cpu"] for event in rounds))


def measures_of(target: float) -> dict[str, tuple[Measure, int]]:
    """Of a leaderboard whose suite has this target."""
    return {
        **{called: (tables.incremental(name), 1) for name, called in FIGURES.items()},
        "MB up": (megabytes_up, 2),
        ROUNDS_TO: (_reached("rounds", target, 1.0), 1),
        MB_TO: (_reached("bytes_up", target, 1e6), 2),
        "MB kept": (_kept, 2),
        "as examples": (_as_examples, 1),
        CPU: (_cpu_seconds, 1),
    }


def table_of(suite: Suite, quick: bool) -> Table:
    """The suite as a table, whose rows are compared with the first, but those with the task known."""
    first, rows = next(iter(suite.rows)), []
    for name, entry in suite.rows.items():
        told = _task_at_test(entry)
        control = first if is_compared(name, told, first) else ""
        rows.append(Row(name, (name, told), suite.flags_of(name, quick), control=control))
    left = ("method", TASK_AT_TEST)
    return Table(left, measures_of(suite.target), (), tuple(rows), compared={AVERAGE: f"over {first}"})


def benchmark(
    suite: Suite,
    rows: Sequence[str],
    seeds: Sequence[int],
    passed: Sequence[str],
    root: pathlib.Path,
    jobs: int,
    quick: bool,
    page: Optional[str] = None,
) -> None:
    """Runs what the rows still need, prints the table, and writes leaderboard.json, .csv, .md and .html into `root`.

    Args:
      suite: the suite.
      rows: names of rows, or how they begin; all for none.
      seeds: two or more.
      passed: flags that decide nothing of the figures (`--data-dir`, `--runtime`).
      root: the folder of all runs.
      jobs: runs at a time.
      quick: the small schedule.
      page: FILE.md#NAME, where the table stands on a page, see `write_table`.

    Raises:
      InputError: no such row, one seed alone, or no such place on the page.
      RunError: a run failed, or rows did not have the same stream; what is finished is shown first.
    """
    if len(set(seeds)) < 2:
        raise InputError("--seed: a row has an interval, so give two seeds or more")
    table = table_of(suite, quick)
    chosen = table.chosen(rows)
    if page is not None:
        write_table(page)
    storage.make_folder(root, "the folder of all runs")
    runs = {
        row: [Run(root / f"{row.name}-seed{each}", (*row.flags, *passed, *seeded(each)), False) for each in seeds]
        for row in chosen
    }
    failures = workers.finish([each for of_row in runs.values() for each in of_row], jobs)
    found: dict[Row, list[pathlib.Path]] = {}
    for row, of_row in runs.items():
        folders = [each.folder for each in of_row if each.finished]
        if len(folders) > 1:
            found[row] = folders
        elif folders:
            logger.warning("%s: one finished seed, and so no interval: left out", row.name)
    with reading(root):
        values = table.values(found)
        board = board_of(suite, quick, table, found, values)
    shown = table.markdown(found, values)
    click.echo(shown)
    if page is not None:
        write_table(page, shown)
    paths = leaderboard.write(board, root, shown)
    click.echo(f"\nwritten: {', '.join(map(str, paths))}")
    if failures:
        total = sum(map(len, runs.values()))
        raise RunError(f"{len(failures)} of {total} runs failed; the first: {failures[0]}")


def board_of(suite: Suite, quick: bool, table: Table, found: Found, values: Values) -> dict[str, Any]:
    """What leaderboard.json holds.

    Raises:
      RunError: runs of one seed that did not have the same data and tasks.
    """
    streams: dict[str, dict[str, str]] = {}
    for row, folders in found.items():
        kind = parse_run(row.flags).kind
        for folder in folders:
            seed, here = _seed(row, folder), stream_of(folder, kind)
            there = streams.setdefault(seed, {})
            if {**here, **there} != {**there, **here}:
                raise RunError(f"{folder}: other data or tasks than the other rows have with seed {seed}")
            there.update(here)
    first = next(iter(suite.rows))
    rows = [_row(row, folders, values, first, suite) for row, folders in found.items()]
    return {
        "format": FORMAT,
        "suite": suite.name,
        "quick": quick,
        "about": suite.about,
        "flags": [*suite.flags, *suite.network, *(suite.quick if quick else ())],
        "streams": streams,
        **record.makers(),
        "target": suite.target,
        "measures": list(table.measures),
        "against": first,
        "rows": rows,
    }


def _seed(row: Row, folder: pathlib.Path) -> str:
    return folder.name[len(f"{row.name}-seed") :]


def _row(row: Row, folders: Sequence[pathlib.Path], values: Values, first: str, suite: Suite) -> dict[str, Any]:
    own = _by_seed(row.name, values)
    entry = suite.rows[row.name]
    made: dict[str, Any] = {
        "name": row.name,
        "method": row.flags[0],
        "flags": list(row.flags[1:]),
        "own_flags": list(entry.flags),
        "task_at_test": _task_at_test(entry),
        "paper": entry.paper,
        "chosen": entry.chosen,
        "seeds": [_seed(row, folder) for folder in folders],
        "values": own,
        "made_with": {_seed(row, folder): record.made_with(folder) for folder in folders},
        "curves": {_seed(row, folder): _seen_accuracy(folder) for folder in folders},
    }
    against = _by_seed(first, values) if is_compared(row.name, made["task_at_test"], first) else {}
    made.update(statistics(own, against, len(folders)))
    return {**made, "seal": seal(made)}


def _task_at_test(entry: Entry) -> str:
    """What a row knows of a test example's task: `known`, `inferred` or, with one growing head, `unknown`."""
    if not find_method(entry.method).by_task:
        return "unknown"
    return task_at_test({"task_at_test": dict(zip(entry.flags, entry.flags[1:])).get("--task-at-test", KNOWN)})


def is_compared(name: str, told: Any, first: Any) -> bool:
    """Whether a row of a leaderboard has differences from the first: all others have, but those with the task known."""
    return name != first and told != KNOWN


def _by_seed(name: str, values: Values) -> Mapping[str, Mapping[str, float]]:
    """Measure -> seed -> value of the runs of a row; empty for a row that was not run."""
    return {
        measure: {run.rpartition("-seed")[2]: one for run, one in runs.items() if one is not None}
        for measure, runs in values.get(name, {}).items()
        if any(one is not None for one in runs.values())
    }


def _seen_accuracy(folder: pathlib.Path) -> Optional[list[float]]:
    return incremental(reports.load_results(folder), "seen_accuracy")


def statistics(
    values: Mapping[str, Mapping[str, float]], against: Mapping[str, Mapping[str, float]], num_seeds: int
) -> dict[str, Any]:
    """Means over seeds, half the widths of their 95 % intervals, and the same of the paired differences.

    A measure that a seed has no value of has none of these: the mean over those that reached a target is of other runs
    than the row's.

    Args:
      values: measure -> seed -> value.
      against: the same of the row that all are compared with; empty for that row.
      num_seeds: of the row.
    """
    values = {name: measured for name, measured in values.items() if len(measured) == num_seeds}
    whole = max(map(len, against.values()), default=0)
    against = {name: measured for name, measured in against.items() if len(measured) == whole}
    known = {name: list(measured.values()) for name, measured in values.items() if len(measured) > 1}
    pairs = {
        name: [one - against[name][seed] for seed, one in measured.items() if seed in against.get(name, {})]
        for name, measured in values.items()
    }
    return {
        "mean": {name: float(np.mean(each)) for name, each in known.items()},
        "half_width": {name: half_width(each) for name, each in known.items()},
        "difference": {name: [float(np.mean(each)), half_width(each)] for name, each in pairs.items() if len(each) > 1},
    }


def seal(row: Mapping[str, Any]) -> str:
    """SHA-256 of a row without its seal."""
    own = {name: value for name, value in row.items() if name != "seal"}
    return hashlib.sha256(json.dumps(storage.plain(own), sort_keys=True).encode()).hexdigest()


def stream_of(folder: pathlib.Path, kind: str) -> dict[str, str]:
    """Sums over who had which rows when in a run, `tasks`, and over its data as a method has them, by their kind.

    A picture is pixels to one method and a row of numbers to another.
    """
    config = storage.read_object(folder / "config.json", "the configuration of a run")
    total = hashlib.sha256()
    for part in itertools.chain(*record.read_split(folder).tasks):
        for rows in (part.train, part.validation, part.test, part.labels):
            total.update(np.asarray(rows, "<i4").tobytes() + b"|")
    return {"tasks": total.hexdigest()[:16], kind: config["data_fingerprint"]}
