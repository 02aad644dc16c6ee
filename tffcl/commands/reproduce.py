"""`tffcl reproduce fedseit`: the runs behind table 2 of the FedSeIT paper, each a `tffcl run fedseit` of its own.

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
from collections.abc import Sequence
from typing import Optional

import click

from tffcl import reports
from tffcl.commands.entry import say
from tffcl.errors import InputError, RunError

DATASETS = ("r8", "tmn", "trec6", "trec50", "subj")
# Two labels in all, where the other sets have four labels a task (section 3 of the paper).
LABELS = {"subj": 2}
VARIANTS: dict[str, tuple[str, ...]] = {
    "fedweit": ("--method", "fedweit"),
    "fedseit": (),
    "fedseit+sit3": ("--selection", "sit", "--top-k", "3"),
    "fedseit+sit5": ("--selection", "sit", "--top-k", "5"),
    "fedseit+dls": ("--share-dense",),
    "fedseit+sit3+dls": ("--selection", "sit", "--top-k", "3", "--share-dense"),
    "fedseit+sit5+dls": ("--selection", "sit", "--top-k", "5", "--share-dense"),
    "fedseit+zeros": ("--foreign", "zeros"),
    "fedseit+random": ("--foreign", "random"),
    "local": ("--method", "local"),
    "fedavg": ("--method", "fedavg"),
}
# Table 2: TTA in per cent, by lambda_2 and data set, in the order of _PRINTED.
_PRINTED = (
    "fedweit",
    "fedseit",
    "fedseit+sit3",
    "fedseit+sit5",
    "fedseit+dls",
    "fedseit+sit3+dls",
    "fedseit+sit5+dls",
)
_TABLE_2 = {
    (1.0, "r8"): (79.1, 90.5, 90.5, 90.6, 83.1, 82.3, 82.4),
    (1.0, "tmn"): (84.2, 88.2, 88.3, 88.6, 84.7, 84.3, 83.6),
    (1.0, "trec6"): (78.2, 83.6, 83.6, 83.3, 78.2, 78.3, 77.7),
    (1.0, "trec50"): (85.1, 88.4, 88.5, 88.7, 86.4, 86.3, 85.2),
    (1.0, "subj"): (86.5, 88.5, 88.6, 89.5, 88.9, 89.7, 89.0),
    (0.1, "r8"): (68.1, 89.9, 89.9, 89.7, 60.7, 61.9, 65.3),
    (0.1, "tmn"): (80.9, 88.5, 88.4, 88.3, 72.8, 73.3, 71.1),
    (0.1, "trec6"): (77.1, 84.7, 84.9, 84.7, 78.3, 78.9, 76.8),
    (0.1, "trec50"): (76.1, 81.2, 81.2, 80.9, 69.8, 69.4, 68.9),
    (0.1, "subj"): (85.6, 89.1, 88.8, 90.4, 88.1, 90.2, 84.2),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of the table: a method on a data set with one lambda_2, over some seeds."""

    dataset: str
    retention: float
    variant: str

    @property
    def printed(self) -> Optional[float]:
        """The paper's TTA in per cent, where it has the cell."""
        row = _TABLE_2.get((self.retention, self.dataset))
        return row[_PRINTED.index(self.variant)] if row and self.variant in _PRINTED else None

    def folder(self, root: pathlib.Path, seed: int) -> pathlib.Path:
        """Where the run of one seed lies."""
        return root / f"{self.dataset}-lambda{self.retention:g}-{self.variant}-seed{seed}"

    def flags(self, seed: int) -> list[str]:
        """What `tffcl run fedseit` is given besides the schedule and the folder."""
        labels = ["--labels-per-task", str(LABELS[self.dataset])] if self.dataset in LABELS else []
        common = ["--dataset", self.dataset, "--retention", str(self.retention), "--seed", str(seed)]
        return [*common, *VARIANTS[self.variant], *labels, "--evaluate-every", "task"]


def reproduce(
    datasets: Sequence[str],
    variants: Sequence[str],
    retentions: Sequence[float],
    seeds: Sequence[int],
    schedule: Sequence[str],
    output_dir: str,
    jobs: int,
) -> None:
    """Runs what is missing and prints the table.

    Args:
      datasets: of `DATASETS`.
      variants: of `VARIANTS`.
      retentions: values of lambda_2.
      seeds: of task order and training.
      schedule: further flags of every run (rounds, epochs, data).
      output_dir: the folder of all runs; all of them have one schedule.
      jobs: runs at a time.

    Raises:
      InputError: no such data set or variant.
      RunError: a run failed; the others are finished first.
    """
    for known, given in ((DATASETS, datasets), (tuple(VARIANTS), variants)):
        for name in given:
            if name not in known:
                raise InputError(f"{name!r} is none of {', '.join(known)}")
    root = pathlib.Path(output_dir)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{root}: cannot be made ({error.strerror})") from error
    cells = [Cell(d, r, v) for d in datasets for r in retentions for v in variants]
    runs = [(cell, seed) for cell in cells for seed in seeds]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        ended = pool.map(lambda run: _run(run[0], run[1], root, schedule), runs)
        failures = [failure for failure in ended if failure]
    click.echo(table(cells, seeds, root))
    if failures:
        raise RunError(f"{len(failures)} of {len(runs)} runs failed; the first: {failures[0]}")


def _run(cell: Cell, seed: int, root: pathlib.Path, schedule: Sequence[str]) -> Optional[str]:
    """Runs one cell and seed unless it is finished; returns what went wrong, in one line."""
    folder = cell.folder(root, seed)
    if (folder / "results.json").exists():
        return _other_schedule(folder, schedule)
    resume = ["--resume"] if (folder / "config.json").exists() else []
    command = [sys.executable, "-m", "tffcl.cli", "run", "fedseit", *cell.flags(seed), *schedule]
    say(f"running {folder.name}")
    with (root / f"{folder.name}.log").open("ab") as log:
        done = subprocess.run(
            [*command, "--output-dir", str(folder), *resume], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    if done.returncode:
        return f"{folder.name} ended with exit code {done.returncode}, see {root / folder.name}.log"
    return None


def _other_schedule(folder: pathlib.Path, schedule: Sequence[str]) -> Optional[str]:
    """What is wrong with a finished run if it had other rounds or epochs than are asked for now."""
    there = json.loads((folder / "config.json").read_text())
    for flag in ("--num-rounds", "--num-epochs"):
        asked = int(schedule[list(schedule).index(flag) + 1]) if flag in schedule else None
        found = there.get(flag[2:].replace("-", "_"))
        if asked is not None and found != asked:
            return f"{folder} was run with {flag} {found}, not {asked}: give another --output-dir"
    return None


def table(cells: Sequence[Cell], seeds: Sequence[int], root: pathlib.Path) -> str:
    """A Markdown table: mean and standard deviation of TTA over the seeds that are there, the paper's beside."""
    lines = [
        "| data set | lambda_2 | method | TTA % | seeds | forgotten % | paper |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        folders = [cell.folder(root, seed) for seed in seeds]
        found = [reports.load_results(f) for f in folders if (f / "results.json").exists()]
        if not found:
            continue
        scores = [100 * r["task_averaged_test_accuracy"] for r in found]
        forgotten = [100 * r["forgetting"] for r in found if r["forgetting"] is not None]
        lines.append(
            f"| {cell.dataset} | {cell.retention:g} | {cell.variant} | {_spread(scores)} | {len(found)} "
            f"| {_spread(forgotten)} | {'-' if cell.printed is None else cell.printed} |"
        )
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.1f}"
    deviation = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
    return f"{mean:.1f} +- {deviation:.1f}"
