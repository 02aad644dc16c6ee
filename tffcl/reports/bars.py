"""Accuracy on each task at the end, and on average, as bars: a colour for each method (FIL-VER, figures 5 and 8)."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tffcl import metrics
from tffcl.errors import InputError
from tffcl.reports import figures
from tffcl.reports.run_files import PathLike

MOST_NUMBERS = 48  # bars up to which the numbers stand above them
GROUP = 0.8  # width of the bars of a task; from a task to the next it is 1


def plot_accuracy_bars(
    results: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    path: PathLike,
    *,
    names: Optional[Sequence[str]] = None,
    references: Optional[Mapping[str, Mapping[str, Any]]] = None,
) -> pathlib.Path:
    """Test accuracy on each task after the last one, mean over the clients that have data, and the mean over tasks.

    Args:
      results: what `load_results` gives, of one run or several.
      labels: what each is called; runs of one name (seeds) share a bar, their mean, with their standard deviation.
      path: where to write; the ending says the format.
      names: what the tasks are called; None for their numbers.
      references: results of other runs by name, for example offline ones, drawn as lines over the bars.

    Returns:
      The path written.

    Raises:
      InputError: no results, other than one label for each, a label that a reference has, or results without accuracy.
    """
    clash = sorted(set(labels) & set(references or {}))
    if not results or len(labels) != len(results) or clash:
        raise InputError(
            f"expected results and a label for each, got {len(results)} and {len(labels)} labels"
            + (f", of which references have {', '.join(clash)} as well" if clash else "")
        )
    accuracies = _by_label([100 * final_accuracies(one) for one in results], labels)
    lines = {name: 100 * final_accuracies(one)[None] for name, one in (references or {}).items()}
    num_tasks = max(rows.shape[1] for rows in [*accuracies.values(), *lines.values()])
    ticks = [_broken(figures.numbered_name(names, task)) for task in range(num_tasks)] + ["Average"]
    group = max(0.35 + 0.17 * len(accuracies), 0.085 * max(map(_width, ticks)))
    figure = figures.new_figure(max(4.6, 2 + len(ticks) * group), 3.3)
    axis = figure.subplots()
    drawn = {
        label: _draw_bars(axis, place, len(accuracies), _with_average(rows, num_tasks))
        for place, (label, rows) in enumerate(accuracies.items())
    }
    for place, (name, rows) in enumerate(lines.items()):
        drawn[name] = _draw_line(axis, place, _with_average(rows, num_tasks)[0])
    axis.set_xticks(range(len(ticks)), ticks)
    axis.set_xlim(-0.55, len(ticks) - 0.45)
    axis.set_ylim(0, 104)  # room for numbers
    axis.set_ylabel("Test accuracy (%)", fontsize=9)
    figures.plain_axis(axis)
    title = "Test accuracy on each task after the last one,\nmean over clients"
    figure.suptitle(title if len(drawn) > 1 else f"{title}: {labels[0]}", fontsize=10)
    if len(drawn) > 1:
        figure.legend(drawn.values(), drawn, loc="outside right center", fontsize=8, frameon=False)
    return figures.save(figure, path)


def final_accuracies(results: Mapping[str, Any]) -> np.ndarray:
    """Accuracy on each task after the last one, 0 .. 1, mean over the clients that have data: float64 [T].

    NaN where none has. Where all tasks were pooled: on each of the original ones, `accuracy_by_task` of the results.

    Raises:
      InputError: the results have no accuracy.
    """
    if results.get("accuracy_by_task"):
        return np.array(results["accuracy_by_task"][-1], np.float64)
    if not results.get("accuracy"):
        raise InputError(f"{results.get('method', 'a run')}: its results have no 'accuracy' to plot")
    return metrics.accuracy_by_task(results["accuracy"])[-1]


def _by_label(rows: Sequence[np.ndarray], labels: Sequence[str]) -> dict[str, np.ndarray]:
    """Label -> the runs of that name, [runs, tasks]; NaN for tasks that a run does not have."""
    most = max(map(len, rows))
    found: dict[str, list[np.ndarray]] = {}
    for label, row in zip(labels, rows):
        found.setdefault(label, []).append(_filled(row, most))
    return {label: np.array(runs) for label, runs in found.items()}


def _filled(row: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([row, np.full(size - len(row), np.nan)])


def _with_average(rows: np.ndarray, num_tasks: int) -> np.ndarray:
    """[runs, tasks] -> [runs, num_tasks + 1], the last column being the mean over the tasks of a run."""
    return np.array([[*_filled(row, num_tasks), metrics.mean_of_known(row)] for row in rows])


def _draw_bars(axis: Any, place: int, num_bars: int, rows: np.ndarray) -> Any:
    heights = np.array([metrics.mean_of_known(column) for column in rows.T])
    spread = np.std(rows, axis=0, ddof=1) if len(rows) > 1 else None
    width = GROUP / num_bars
    bars = axis.bar(
        np.arange(len(heights)) - GROUP / 2 + (place + 0.5) * width,
        heights,
        0.92 * width,
        yerr=spread,
        error_kw={"linewidth": 0.8},
        color=figures.COLOURS[place % len(figures.COLOURS)],
        hatch=("", "//", "..")[place // len(figures.COLOURS) % 3],
        edgecolor="white",
        linewidth=0,
    )
    if num_bars * len(heights) <= MOST_NUMBERS:
        numbers = ["" if np.isnan(height) else f"{height:.0f}" for height in heights]
        for text in axis.bar_label(bars, numbers, fontsize=6, padding=1):
            text.set_zorder(4)  # in front of the lines
    return bars


def _draw_line(axis: Any, place: int, heights: np.ndarray) -> Any:
    starts = np.arange(len(heights)) - 0.5
    return axis.hlines(heights, starts, starts + 1, zorder=2.5, **figures.reference_style(place))


def _broken(tick: str) -> str:
    """A tick's number, and its name below, cut short."""
    number, _, name = tick.partition(": ")
    return f"{number}\n{name if len(name) <= 14 else name[:11] + '...'}".rstrip()


def _width(tick: str) -> int:
    return max(map(len, tick.split("\n")))
