"""`tffcl reproduce fedseit`: the runs behind table 2 of the FedSeIT paper."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Optional

import click

from tffcl import reports
from tffcl.commands.reproduce import Planned, check_names, fail_if_any, markdown, run_all, spread

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

    def planned(self, root: pathlib.Path, seed: int, schedule: Sequence[str]) -> Planned:
        """The run of one seed."""
        flags = (*self.flags(seed), *schedule)
        return Planned("fedseit", self.folder(root, seed), flags, _asked(schedule))


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
    check_names(datasets, DATASETS)
    check_names(variants, tuple(VARIANTS))
    root = pathlib.Path(output_dir)
    cells = [Cell(d, r, v) for d in datasets for r in retentions for v in variants]
    runs = [cell.planned(root, seed, schedule) for cell in cells for seed in seeds]
    failures = run_all(runs, root, jobs)
    click.echo(table(cells, seeds, root))
    fail_if_any(failures, len(runs))


def _asked(schedule: Sequence[str]) -> dict[str, int]:
    """Rounds and epochs that a schedule names."""
    flags = {"num_rounds": "--num-rounds", "num_epochs": "--num-epochs"}
    return {
        name: int(schedule[list(schedule).index(flag) + 1])
        for name, flag in flags.items()
        if flag in schedule
    }


def table(cells: Sequence[Cell], seeds: Sequence[int], root: pathlib.Path) -> str:
    """A Markdown table: mean and standard deviation of TTA over the seeds that are there, the paper's beside."""
    header = ("data set", "lambda_2", "method", "TTA %", "seeds", "forgotten %", "paper")
    rows = []
    for cell in cells:
        folders = [cell.folder(root, seed) for seed in seeds]
        found = [reports.load_results(f) for f in folders if (f / "results.json").exists()]
        if not found:
            continue
        scores = [100 * r["task_averaged_test_accuracy"] for r in found]
        forgotten = [100 * r["forgetting"] for r in found if r["forgetting"] is not None]
        measured = (spread(scores), str(len(found)), spread(forgotten))
        printed = "-" if cell.printed is None else str(cell.printed)
        rows.append((cell.dataset, f"{cell.retention:g}", cell.variant, *measured, printed))
    return markdown(header, rows)
