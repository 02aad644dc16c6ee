"""What `tffcl reproduce` does for every paper: each cell a `tffcl run ...` of its own, and what comes of it in a table.

Every run has its own folder and its own process. What is finished is not run again and what was interrupted goes
on, so the command may be stopped and given again at any time; the table shows what there is.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from tffcl import reports, storage
from tffcl.commands.entry import say
from tffcl.commands.run_options import flag_of
from tffcl.errors import InputError, RunError
from tffcl.reports import run_files


@dataclasses.dataclass(frozen=True)
class Planned:
    """A run that a table needs.

    Attributes:
      command: of `tffcl run`.
      folder: its run directory; the log stands beside it.
      flags: what the command is given besides the folder.
      expected: settings, of those in config.json, that a run found finished must have had; None counts as any.
      results: keys that its results must have; one that was stopped between its end and these goes on to them.
    """

    command: str
    folder: pathlib.Path
    flags: tuple[str, ...]
    expected: Mapping[str, Any]
    results: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether its results are there."""
        if not (self.folder / "results.json").exists():
            return False
        return not self.results or set(self.results) <= set(reports.load_results(self.folder))


def run_all(runs: Sequence[Planned], root: pathlib.Path, jobs: int) -> list[str]:
    """Runs what is not finished, `jobs` at a time, and says of each that failed what went wrong.

    Raises:
      RunError: the folder of all runs cannot be made.
    """
    storage.make_folder(root, "the folder of all runs")
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return [failure for failure in pool.map(_run, runs) if failure]


def reproduce_rows(
    rows: Sequence[Any],
    seeds: Sequence[int],
    planned: Callable[[Any, int], Planned],
    root: pathlib.Path,
    jobs: int,
    show: Callable[[Mapping[Any, Sequence[pathlib.Path]]], None],
) -> None:
    """Runs what a table's rows (each with a `name`) still need, and shows what there is.

    Args:
      rows: of the table.
      seeds: of training.
      planned: the run of a row and a seed.
      root: the folder of all runs.
      jobs: runs at a time.
      show: given the folders of the finished runs of each row.

    Raises:
      RunError: a run failed; the others are finished and shown first.
    """
    runs = {(row.name, seed): planned(row, seed) for row in rows for seed in seeds}
    failures = run_all(list(runs.values()), root, jobs)
    with run_files.reading(root):
        show({row: [runs[row.name, s].folder for s in seeds if runs[row.name, s].finished] for row in rows})
    fail_if_any(failures, len(runs))


def fail_if_any(failures: Sequence[str], count: int) -> None:
    """Raises RunError where one of `count` runs failed."""
    if failures:
        raise RunError(f"{len(failures)} of {count} runs failed; the first: {failures[0]}")


def check_names(given: Sequence[str], known: Sequence[str]) -> None:
    """Raises InputError where something is not known."""
    for name in given:
        if name not in known:
            raise InputError(f"{name!r} is none of {', '.join(known)}")


def _run(planned: Planned) -> Optional[str]:
    """Runs one unless it is finished; returns what went wrong, in one line."""
    folder = planned.folder
    if planned.finished:
        return _other_settings(planned)
    resume = ["--resume"] if (folder / "config.json").exists() else []
    command = [sys.executable, "-m", "tffcl.cli", "run", planned.command, *planned.flags]
    say(f"running {folder.name}")
    log_path = folder.with_name(f"{folder.name}.log")
    with storage.private(), log_path.open("ab") as log:
        done = subprocess.run(
            [*command, "--output-dir", str(folder), *resume], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    if done.returncode:
        return f"{folder.name} ended with exit code {done.returncode}, see {log_path}"
    return None


def _other_settings(planned: Planned) -> Optional[str]:
    """What is wrong with a finished run if it had other settings than are asked for now."""
    there = storage.read_object(planned.folder / "config.json", "the configuration of a run")
    for name, asked in json.loads(json.dumps(planned.expected)).items():
        found = there.get(name)
        if asked is not None and found != asked:
            return f"{planned.folder} was run with {flag_of(name)} {found}, not {asked}: give another --output-dir"
    return None


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:]])


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean and standard deviation over seeds.

    >>> spread([80.0, 84.0]), spread([80.0], 2), spread([])
    ('82.0 +- 2.8', '80.00', '-')
    """
    if not values:
        return "-"
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.{digits}f}"
    deviation = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
    return f"{mean:.{digits}f} +- {deviation:.{digits}f}"
