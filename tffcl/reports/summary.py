"""What a run directory gives when its run ends: tables on stdout, all plots, and runs held against each other."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import click
import psutil

from tffcl.errors import InputError
from tffcl.reports.curves import (
    clients_of,
    final_accuracies,
    has_accuracy,
    plot_accuracy_bars,
    plot_accuracy_by_round,
    plot_accuracy_per_round,
    plot_communication,
    plot_nll_by_task,
)
from tffcl.reports.figures import attention_of, load_samples, plot_accuracy_matrix, plot_attention, plot_samples
from tffcl.reports.run_files import PathLike, load_history, load_results, reading
from tffcl.reports.tables import accuracy_matrix_table, by_task_table, nll_by_task_table, privacy_lines, results_table

MOST_CLIENTS = 10  # with a picture of their own
BY_ROUND, BY_TASK = "accuracy-by-round.png", "accuracy-by-task.png"


def show(folder: Union[str, pathlib.Path]) -> None:
    """Prints the results of a run directory as tables, and draws its plots."""
    folder = pathlib.Path(folder)
    results = load_results(folder)
    click.echo(results_table([results]))
    for line in privacy_lines(results):
        click.echo(line)
    click.echo()
    if "memory" in results:
        click.echo(by_task_table({str(results["method"]): results}))
    else:
        click.echo(accuracy_matrix_table(results))
    if results.get("nll"):
        click.echo(f"\n{nll_by_task_table(results)}")
    plots = write_plots(folder)
    whole = time.time() - psutil.Process().create_time()
    click.echo(f"\nrun directory: {folder} ({len(plots)} plots in {folder / 'plots'}); {whole:.0f} s since the start")


def report(
    folders: Sequence[str], *, markdown: bool = False, plots: bool = True, compare: Optional[str] = None
) -> None:
    """Prints one table over all runs, and for a single run its matrices; draws the plots of each.

    `compare` is, for densities, a file for one picture of the NLL of all runs after each task, for classifiers a folder
    for two of their accuracy.

    Raises:
      InputError: a folder that holds no finished run, or other values than a run writes.
      RunError: plots that cannot be written; the tables are shown.
    """
    with reading(", ".join(map(str, folders))):
        results = [load_results(folder) for folder in folders]
        click.echo(results_table(results, markdown=markdown))
        if len(results) == 1:
            click.echo(f"\n{accuracy_matrix_table(results[0], markdown=markdown)}")
            if results[0].get("nll"):
                click.echo(f"\n{nll_by_task_table(results[0], markdown=markdown)}")
        for folder in folders if plots else ():
            write_plots(folder)
            click.echo(f"plots: {pathlib.Path(folder) / 'plots'}")
        paths: list[pathlib.Path] = []
        if compare is not None and any(each.get("nll") for each in results):
            named = {pathlib.Path(folder).name: each for folder, each in zip(folders, results)}
            paths = [plot_nll_by_task(named, compare)]
        elif compare is not None:
            paths = compare_plots(folders, compare)
        for path in paths:
            click.echo(f"plot: {path}")


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


def compare_plots(folders: Sequence[PathLike], output: PathLike) -> list[pathlib.Path]:
    """Accuracy of several runs by round, a panel for each, and by task, a bar for each (FIL-VER, figures 7 and 8).

    Runs that learned all tasks pooled (offline) are lines to hold the others against, unless there are no others.
    A run is called by its method, and by its folder too where several share a method.

    Args:
      folders: run directories.
      output: the folder to write to.

    Returns:
      The paths written; the picture by round is left out where no run was scored after each round.

    Raises:
      InputError: no folders, or one without a finished run with accuracy.
      RunError: the disk is full, or the folder cannot be written to.
    """
    if not folders:
        raise InputError("compare_plots needs at least one run directory, got none")
    loaded = [load_results(folder) for folder in folders]
    results = dict(zip(_labels(folders, loaded), loaded))
    # Those that learned as one task what they are scored on as several.
    references = {
        label: one for label, one in results.items() if len(final_accuracies(one)) > (one.get("num_tasks") or 1)
    }
    if len(references) == len(results):
        references = {}
    shown = {label: one for label, one in results.items() if label not in references}
    names, output = task_names(loaded), pathlib.Path(output)
    paths = [
        plot_accuracy_bars(list(shown.values()), list(shown), output / BY_TASK, names=names, references=references)
    ]
    histories = {label: load_history(folder) for label, folder in zip(results, folders) if label not in references}
    scored = {label: history for label, history in histories.items() if has_accuracy(history)}
    if scored:
        paths.append(plot_accuracy_by_round(scored, output / BY_ROUND, names=names, references=references))
    return paths


def _labels(folders: Sequence[PathLike], results: Sequence[Mapping[str, Any]]) -> list[str]:
    methods = [str(one.get("method")) for one in results]
    labels = [
        method if methods.count(method) == 1 else f"{method} ({pathlib.Path(folder).resolve().name})"
        for folder, method in zip(folders, methods)
    ]
    # Folders of one name in different places, or one folder twice.
    return [label if labels.count(label) == 1 else f"{label} {number}" for number, label in enumerate(labels, start=1)]


def task_names(results: Sequence[Mapping[str, Any]]) -> Optional[list[str]]:
    """What the tasks are called, where that is the same for all clients and runs; else None."""
    found = {tuple(map(str, names)) for one in results for names in (one.get("config") or {}).get("tasks") or [()]}
    return list(found.pop()) or None if len(found) == 1 else None
