"""Pictures that hold several runs against each other."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tffcl.errors import InputError
from tffcl.reports.bars import final_accuracies, plot_accuracy_bars
from tffcl.reports.by_round import has_accuracy, plot_accuracy_by_round
from tffcl.reports.run_files import PathLike, load_history, load_results
from tffcl.reports.run_plots import BY_ROUND, BY_TASK, task_names


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
    found = [load_results(folder) for folder in folders]
    results = dict(zip(_labels(folders, found), found))
    references = {label: one for label, one in results.items() if _is_pooled(one)}
    if len(references) == len(results):
        references = {}
    shown = {label: one for label, one in results.items() if label not in references}
    names, output = task_names(found), pathlib.Path(output)
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


def _is_pooled(results: Mapping[str, Any]) -> bool:
    """Whether a run learned as one task what it is scored on as several."""
    return len(final_accuracies(results)) > (results.get("num_tasks") or 1)
