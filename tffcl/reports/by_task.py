"""NLL after each task: on all tasks so far, on the first, on the newest (ConFedMADE, figures 3 and 5)."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tffcl import metrics
from tffcl.errors import InputError
from tffcl.reports import figures
from tffcl.reports.run_files import PathLike
from tffcl.reports.tables import NO_DATA, render

# Keys of the results, and what tells the ways of scoring apart.
WAYS = {"nll": "no task label", "nll_task_known": "task known", "nll_newest": "newest parameters"}
_FIGURES = {
    "All tasks so far": metrics.average_nll,
    "The first task": metrics.base_task_nll,
    "The newest task": metrics.new_task_nll,
}


def plot_nll_by_task(results: Mapping[str, Any], path: PathLike, *, key: str = "nll") -> pathlib.Path:
    """Average, base-task and new-task NLL after each task: of one run in all ways of scoring, or of several runs.

    Args:
      results: what `load_results` gives, or several of them by name, to compare runs.
      path: where to write; the ending says the format.
      key: of several runs, the way of scoring.

    Returns:
      The path written.

    Raises:
      InputError: results without NLL.
    """
    single = "nll" in results
    curves = {name: results[way] for way, name in WAYS.items() if results.get(way)} if single else {}
    if not single:
        for name, one in results.items():
            if not one.get(key):
                raise InputError(f"{name}: its results have no {key!r} to plot")
            curves[name] = one[key]
    if not curves:
        raise InputError("no results with an NLL to plot")
    figure, axes = figures.panels(3, most_columns=3, width=2.9, height=2.6, sharey=True)
    for axis, (title, of) in zip(axes, _FIGURES.items()):
        for place, (name, nll) in enumerate(curves.items()):
            values = of(nll)
            axis.plot(np.arange(1, len(values) + 1), values, label=name, **figures.style(place))
        axis.set_title(title, fontsize=9)
        figures.plain_axis(axis)
        figures.round_axis(axis, max(map(len, curves.values())) if not single else len(values))
    title = f"{results.get('method')} on {results.get('dataset')}" if single else ""
    figure.suptitle(f"NLL after each task, mean over clients\n{title}".rstrip(), fontsize=10)
    figure.supxlabel("after learning task", fontsize=9)
    figure.supylabel("NLL (nats)", fontsize=9)
    if len(curves) > 1:
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    return figures.save(figure, path)


def nll_by_task_table(results: Mapping[str, Any], *, markdown: bool = False) -> str:
    """What `plot_nll_by_task` draws of one run's "nll", as numbers.

    Args:
      results: what `load_results` gives.
      markdown: a Markdown table instead of aligned text.

    Raises:
      InputError: results without NLL.
    """
    if not results.get("nll"):
        raise InputError("the results have no 'nll' [clients, tasks, tasks]")
    columns = [of(results["nll"]) for of in _FIGURES.values()]
    rows = [
        [f"after task {task + 1}", *(NO_DATA if np.isnan(value) else f"{value:.2f}" for value in values)]
        for task, values in enumerate(zip(*columns))
    ]
    return render(["NLL nats", "average", "first task", "newest task"], rows, markdown=markdown)
