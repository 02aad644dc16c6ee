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
      path: its ending says the format.
      names: what the tasks are called; None for their numbers.
      references: results of other runs by name, for example offline ones, drawn as lines over the bars.

    Raises:
      InputError: no results, other than one label for each, a label that a reference has, or results without accuracy.
    """
    clash = sorted(set(labels) & set(references or {}))
    if not results or len(labels) != len(results) or clash:
        raise InputError(
            f"expected results and a label for each, got {len(results)} and {len(labels)} labels"
            + (f", of which references have {', '.join(clash)} as well" if clash else "")
        )
    finals: dict[str, list[np.ndarray]] = {label: [] for label in labels}
    for label, one in zip(labels, results):
        finals[label].append(100 * final_accuracies(one))
    pooled = {name: [100 * final_accuracies(one)] for name, one in (references or {}).items()}
    num_tasks = max(len(row) for rows in (*finals.values(), *pooled.values()) for row in rows)
    ticks = [_broken(figures.numbered_name(names, task)) for task in range(num_tasks)] + ["Average"]
    group = max(0.35 + 0.17 * len(finals), 0.085 * max(map(_width, ticks)))
    figure = figures.new_figure(max(4.6, 2 + len(ticks) * group), 3.3)
    axis = figure.subplots()
    drawn = {
        label: _draw_bars(axis, place, len(finals), _with_average(rows, num_tasks))
        for place, (label, rows) in enumerate(finals.items())
    }
    for place, (name, rows) in enumerate(pooled.items()):
        drawn[name] = _draw_line(axis, place, _with_average(rows, num_tasks)[0])
    axis.set_xticks(range(len(ticks)), ticks)
    axis.set_xlim(-0.55, len(ticks) - 0.45)
    axis.set_ylim(0, 104)  # room for numbers
    axis.set_ylabel("Test accuracy (%)", fontsize=9)
    figures.dress(axis)
    title = "Test accuracy on each task after the last one,\nmean over clients"
    if len(drawn) > 1:
        figures.legend(figure, drawn)
    return figures.save(figure, path, title if len(drawn) > 1 else f"{title}: {labels[0]}")


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


def _with_average(rows: Sequence[np.ndarray], num_tasks: int) -> np.ndarray:
    """Runs -> [runs, num_tasks + 1], NaN for tasks that a run does not have; last the mean over its tasks."""
    return np.array([[*row, *[np.nan] * (num_tasks - len(row)), metrics.mean_of_known(row)] for row in rows])


def _draw_bars(axis: Any, place: int, num_bars: int, rows: np.ndarray) -> Any:
    heights = np.array([metrics.mean_of_known(column) for column in rows.T])
    spread = np.std(rows, axis=0, ddof=1) if len(rows) > 1 else None
    width = GROUP / num_bars
    round_of_colours, colour = divmod(place, len(figures.COLOURS))
    look = {"color": figures.COLOURS[colour], "hatch": ("", "//", "..")[round_of_colours % 3], "edgecolor": "white"}
    places = np.arange(len(heights)) - GROUP / 2 + (place + 0.5) * width
    bars = axis.bar(places, heights, 0.92 * width, yerr=spread, error_kw={"linewidth": 0.8}, linewidth=0, **look)
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
