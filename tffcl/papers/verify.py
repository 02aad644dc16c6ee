"""`tffcl verify`: rows of a leaderboard, or a run, computed again and compared.

Scores may differ by a tolerance on another machine: other instructions (AVX-512 or not), other numbers of threads and
other versions of TensorFlow sum float32 in another order, and what a test example is taken for can turn on its last
digit. On one machine they are equal. What does not depend on rounding (bytes, data, tasks) has to be equal.
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
import numpy as np

from tffcl import reports, storage
from tffcl.errors import InputError, RunError
from tffcl.experiment import record
from tffcl.flags import parse_run
from tffcl.papers import workers
from tffcl.papers.benchmark import (
    CPU,
    FORMAT,
    MB_TO,
    NAME,
    ROUNDS_TO,
    is_compared,
    measures_of,
    seal,
    statistics,
    stream_of,
)
from tffcl.papers.tables import seeded
from tffcl.papers.workers import Run
from tffcl.reports.runs import reading

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Checked:
    """What came of computing a row or a run again.

    Attributes:
      name: of it.
      problems: a line each; none if it holds.
      largest: the largest difference of a score, in points (per cent, or nats of a density); NaN where nothing was
        computed.
    """

    name: str
    problems: tuple[str, ...]
    largest: float


@dataclasses.dataclass(frozen=True)
class Check:
    """How to compute again.

    Attributes:
      seeds: of each row of a leaderboard; all that it has for none.
      passed: flags that decide nothing of the figures (`--data-dir`, `--runtime`).
      tolerance: in points: a score may differ by so much.
      jobs: runs at a time.
    """

    seeds: Sequence[int] = ()
    passed: Sequence[str] = ()
    tolerance: float = 1.0
    jobs: int = 1

    def of(self, path: pathlib.Path, rows: Sequence[str] = ()) -> list[Checked]:
        """Computes again.

        Args:
          path: a leaderboard.json or its folder, or a run directory.
          rows: of the leaderboard; all for none.

        Raises:
          InputError: no leaderboard and no run, or it has no such row or seed.
        """
        file = path / NAME if path.is_dir() else path
        if path.is_dir() and not file.exists():
            return [self.of_run(path)]
        board = storage.read_object(file, "a leaderboard")
        if board.get("format") != FORMAT or not isinstance(board.get("rows"), list):
            raise InputError(f"{file}: not a leaderboard of this version of tffcl")
        known = {str(row.get("name")): row for row in board["rows"]}
        wrong = next((name for name in rows if name not in known), None)
        if wrong is not None:
            raise InputError(f"{file}: no row {wrong!r}; there are {', '.join(known)}")
        with reading(file):
            return [self.of_row(known[name], board) for name in rows or known]

    def of_row(self, row: Mapping[str, Any], board: Mapping[str, Any]) -> Checked:
        """A row: its seal, its means by its own seeds, and then its runs."""
        wanted = [str(seed) for seed in self.seeds] or list(row["seeds"])
        missing = next((seed for seed in wanted if seed not in row["seeds"]), None)
        if missing is not None:
            raise InputError(f"row {row['name']} has no seed {missing}; it has {', '.join(row['seeds'])}")
        by_maker: dict[str, list[str]] = {}
        for seed in wanted:
            by_maker.setdefault(_differences((row.get("made_with") or {}).get(seed, board)), []).append(seed)
        for differences, seeds in by_maker.items():
            logger.info("%s, seed %s: made with %s", row["name"], ", ".join(seeds), differences)
        problems = list(_inconsistent(row, board))
        if problems:  # there is nothing to compute again
            return Checked(row["name"], tuple(problems), float("nan"))
        flags = (row["method"], *row["flags"], *self.passed)
        with tempfile.TemporaryDirectory(prefix="tffcl-verify-") as scratch:
            runs = {
                seed: Run(pathlib.Path(scratch) / f"{row['name']}-seed{seed}", (*flags, *seeded(seed)), False)
                for seed in wanted
            }
            problems += workers.finish(list(runs.values()), self.jobs)
            apart = [self._of_seed(seed, run.folder, row, board) for seed, run in runs.items() if run.finished]
        problems += [line for lines, _ in apart for line in lines]
        return Checked(row["name"], tuple(problems), max((largest for _, largest in apart), default=float("nan")))

    def _of_seed(
        self, seed: str, folder: pathlib.Path, row: Mapping[str, Any], board: Mapping[str, Any]
    ) -> tuple[list[str], float]:
        sealed, here = board["streams"].get(seed, {}), stream_of(folder, parse_run([row["method"], *row["flags"]]).kind)
        lines = [] if {**sealed, **here} == sealed else [f"seed {seed}: other data or tasks"]
        largest = 0.0
        for measure, (of, _) in measures_of(board.get("target", 0.0)).items():
            there = row["values"].get(measure, {}).get(seed)
            if measure in (CPU, ROUNDS_TO, MB_TO) or there is None:
                continue
            now = of(folder)
            apart = float("inf") if now is None else abs(there - now)
            score = "%" in measure
            largest = max(largest, apart if score else 0.0)
            if apart > (self.tolerance if score else 1e-9):
                lines.append(f"seed {seed}, {measure}: {there:.6g} there, {now} here")
        return lines, largest

    def of_run(self, folder: pathlib.Path) -> Checked:
        """A run by its experiment.toml: every score of every client and task, and the bytes."""
        there, card, settings = reports.load_results(folder), record.read(folder), folder / "experiment.toml"
        if not settings.exists():
            raise InputError(f"{folder}: no experiment.toml, for its parts are objects that no file can name")
        name = folder.resolve().name
        logger.info("%s: made with %s", name, _differences(card))
        with tempfile.TemporaryDirectory(prefix="tffcl-verify-") as scratch:
            flags = (str(card["method"]), "--config", str(settings.resolve()), *self.passed)
            again = Run(pathlib.Path(scratch) / name, flags, False)
            failures = workers.finish([again], 1)
            if failures:
                last = again.log.read_text(errors="replace").strip().rpartition("\n")[2]
                return Checked(name, (f"it cannot be run: {last}",), float("nan"))
            same = stream_of(again.folder, "data") == stream_of(folder, "data")
            problems = [] if same else ["other data or tasks"]
            here = reports.load_results(again.folder)
        more, largest = self._apart(there, here)
        return Checked(name, (*problems, *more), largest)

    def _apart(self, there: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[list[str], float]:
        key, scale = ("accuracy", 100.0) if there.get("accuracy") is not None else ("nll", 1.0)
        one, other = (scale * np.array(each.get(key), float) for each in (there, here))
        if one.shape != other.shape or (np.isnan(one) != np.isnan(other)).any():
            return [f"{key} of other clients or tasks"], float("nan")
        lines = [f"{name}: not as many" for name in ("bytes_up", "bytes_down") if there.get(name) != here.get(name)]
        apart = np.nan_to_num(abs(one - other))
        largest = float(apart.max(initial=0.0))
        if largest > self.tolerance:
            client, after, task = (int(place) + 1 for place in np.unravel_index(apart.argmax(), apart.shape))
            where = f"most for client {client} on task {task} after task {after}"
            lines.append(f"{key}: up to {largest:.6g} points apart, {where}")
        return lines, largest


def _inconsistent(row: Mapping[str, Any], board: Mapping[str, Any]) -> Iterator[str]:
    """What a row says that does not follow from its own seeds."""
    if row.get("seal") != seal(row):
        yield "its content is not what was sealed: something was changed after it was written"
    first = board.get("against")
    against: Mapping[str, Mapping[str, float]] = next(
        (each["values"] for each in board["rows"] if each["name"] == first), {}
    )
    told_of = statistics(
        row["values"], against if is_compared(row["name"], row.get("task_at_test"), first) else {}, len(row["seeds"])
    )
    for what, figures in told_of.items():
        for measure, value in figures.items():
            told = row[what].get(measure)
            if told is None or not np.allclose(value, told, rtol=1e-9, atol=1e-12):
                yield f"{what} of {measure}: {told} there, {value} by its seeds"


def _differences(made: Mapping[str, Any]) -> str:
    """In what code and packages a run was made with are not those here."""
    here, there = (
        {**one, **(one.get("packages") or {}), "packages": None}
        for one in (record.makers(), {name: made.get(name) for name in record.makers()})
    )
    others = [f"{name} {there.get(name)}, here {value}" for name, value in here.items() if there.get(name) != value]
    return "; ".join(others) if others else "the same code and packages"


def tell(checked: Sequence[Checked]) -> None:
    """Prints a line for each that holds, and a line for each problem.

    Raises:
      RunError: one does not hold.
    """
    for one in checked:
        if not one.problems:
            same = "equal to the digit" if one.largest == 0 else f"scores at most {one.largest:.3g} points apart"
            click.echo(f"{one.name}: holds, {same}")
        for problem in one.problems:
            click.echo(f"{one.name}: {problem}")
    failed = [one.name for one in checked if one.problems]
    if failed:
        raise RunError(f"{len(failed)} of {len(checked)} do not hold: {', '.join(failed)}")
