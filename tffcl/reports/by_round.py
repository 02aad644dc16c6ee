"""Accuracy of every task after every round, mean over clients: a panel for each run (FIL-VER, figure 7)."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np

from tffcl import metrics
from tffcl.errors import InputError
from tffcl.reports import figures
from tffcl.reports.bars import final_accuracies
from tffcl.reports.curves import History, accuracy_curve, clients_of, rounds_of, task_spans
from tffcl.reports.run_files import Event, PathLike

MOST_MARKERS = 12  # on a line


def plot_accuracy_by_round(
    history: Union[History, Mapping[str, History]],
    path: PathLike,
    *,
    names: Optional[Sequence[str]] = None,
    references: Optional[Mapping[str, Mapping[str, Any]]] = None,
) -> pathlib.Path:
    """Test accuracy of each task from the first round that learns it on, mean over the clients that have data.

    Dotted marks stand where a new task begins; a line that falls behind one is a task that is forgotten.

    Args:
      history: events as `load_history` gives them, or several histories by name, with a panel each.
      path: where to write; the ending says the format.
      names: what the tasks are called; None for their numbers.
      references: results of other runs by name, for example offline ones; their average over the tasks is a
        horizontal line.

    Returns:
      The path written.

    Raises:
      InputError: no rounds, no accuracy in any round of a run, or references without accuracy.
    """
    runs = {name: rounds_of(events) for name, events in _by_name(history).items()}
    if not runs:
        raise InputError("no history to plot")
    for name, rounds in runs.items():
        if not has_accuracy(rounds):
            raise InputError(f"{name or 'the history'}: no round holds an accuracy; nothing to plot")
    figure, axes = figures.panels(
        len(runs),
        most_columns=2 if len(runs) <= 4 else 3,
        width=3.4 if len(runs) > 1 else 5.6,  # the legend stands beside it
        height=2.5,
        sharey=True,
    )
    lines = {}
    for axis, (title, rounds) in zip(axes, runs.items()):
        lines.update(_draw(axis, rounds, names))
        for place, (name, results) in enumerate((references or {}).items()):
            average = 100 * metrics.mean_of_known(final_accuracies(results))
            lines[name] = axis.axhline(average, **figures.reference_style(place))
        axis.set_title(title, fontsize=9)
        figures.plain_axis(axis)
        figures.round_axis(axis, len(rounds))
    figure.suptitle(
        "Test accuracy of each task after each round,\nmean over clients (dotted: a new task begins)", fontsize=10
    )
    figure.supxlabel("Round, all tasks", fontsize=9)
    figure.supylabel("Test accuracy (%)", fontsize=9)
    figure.legend(lines.values(), lines, loc="outside right center", fontsize=8, frameon=False)
    return figures.save(figure, path)


def has_accuracy(history: History) -> bool:
    """Whether any round holds an accuracy; where only the ends of tasks are scored, none does."""
    return any(event.get("event") == "round" and event.get("accuracy") for event in history)


def mean_curve(rounds: Sequence[Event], task: int) -> tuple[list[int], list[float]]:
    """Accuracy of a task in %, mean over the clients that have data, and the rounds (from 1) that it is known for.

    What a task scored before it was first learned is left out.
    """
    first = task_spans(rounds)[task][0]
    curves = np.array([accuracy_curve(rounds, client, task) for client in clients_of(rounds)])
    means = [metrics.mean_of_known(column) for column in curves.T]
    known = [(number, mean) for number, mean in enumerate(means, start=1) if number >= first and mean == mean]
    return [number for number, _ in known], [mean for _, mean in known]


def _draw(axis: Any, rounds: Sequence[Event], names: Optional[Sequence[str]]) -> dict[str, Any]:
    """The lines of a panel by the names of their tasks."""
    lines = {}
    for task, (first, _) in task_spans(rounds).items():
        numbers, means = mean_curve(rounds, task)
        every = max(1, len(numbers) // MOST_MARKERS)
        label = figures.numbered_name(names, task)
        (lines[label],) = axis.plot(numbers, means, markevery=every, **figures.style(task))
        if first > 1:
            axis.axvline(first - 0.5, color="#AAAAAA", linewidth=0.8, linestyle=":")
    return lines


def _by_name(history: Union[History, Mapping[str, History]]) -> Mapping[str, History]:
    return history if isinstance(history, Mapping) else {"": history}
