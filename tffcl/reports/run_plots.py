"""All plots of one run."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tffcl.reports.attention_maps import attention_of, plot_attention
from tffcl.reports.bars import plot_accuracy_bars
from tffcl.reports.by_round import has_accuracy, plot_accuracy_by_round
from tffcl.reports.by_task import plot_nll_by_task
from tffcl.reports.curves import clients_of, plot_accuracy_per_round, plot_communication
from tffcl.reports.heat_maps import plot_accuracy_matrix
from tffcl.reports.run_files import PathLike, load_history, load_results, reading
from tffcl.reports.sample_grids import load_samples, plot_samples

MOST_CLIENTS = 10  # with a picture of their own
BY_ROUND, BY_TASK = "accuracy-by-round.png", "accuracy-by-task.png"


def write_plots(run_dir: PathLike) -> list[pathlib.Path]:
    """Writes `plots/*.png` in a run directory, each whole or not at all.

    What needs `results.json` or `samples.npz` is left out while the run has not ended. Of more than ten clients, the
    last ten get a picture of accuracy per round.

    Returns:
      The paths written.

    Raises:
      InputError: no history, or one without a round, or a damaged file.
      RunError: the disk is full, or the folder cannot be written to.
    """
    with reading(run_dir):
        return _write_plots(pathlib.Path(run_dir))


def _write_plots(run_dir: pathlib.Path) -> list[pathlib.Path]:
    folder = run_dir / "plots"
    history = load_history(run_dir)
    paths = [plot_communication(history, folder / "communication.png")]
    for client in clients_of(history)[-MOST_CLIENTS:]:
        path = folder / f"accuracy_per_round_client_{client + 1}.png"
        paths.append(plot_accuracy_per_round(history, path, client=client))
    results = load_results(run_dir) if (run_dir / "results.json").exists() else {}
    method, shared_names = str(results.get("method") or ""), task_names([results])
    if has_accuracy(history):
        paths.append(plot_accuracy_by_round({method: history}, folder / BY_ROUND, names=shared_names))
    if results.get("accuracy"):
        paths.append(plot_accuracy_bars([results], [method or "accuracy"], folder / BY_TASK, names=shared_names))
    names = (results.get("config") or {}).get("tasks")
    if results:
        paths.append(plot_accuracy_matrix(results, folder / "accuracy_matrix.png"))
    if results.get("nll"):
        paths.append(plot_nll_by_task(results, folder / "nll_by_task.png"))
    if attention_of(history):
        paths.append(plot_attention(history, folder / "attention.png", names=names))
    if (run_dir / "samples.npz").exists():
        paths.append(plot_samples(load_samples(run_dir), folder / "samples.png", names=names))
    return paths


def task_names(results: Sequence[Mapping[str, Any]]) -> Optional[list[str]]:
    """What the tasks are called, where that is the same for all clients and runs; else None."""
    found = {tuple(map(str, names)) for one in results for names in (one.get("config") or {}).get("tasks") or [()]}
    return list(found.pop()) or None if len(found) == 1 else None
