"""What clients made of each other's knowledge: attention over foreign entries (ConFedMADE, figure 4)."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from tffcl.errors import InputError
from tffcl.reports import figures
from tffcl.reports.run_files import Event, PathLike

MOST_CLIENTS = 6  # with a panel each, the first ones
MOST_NUMBERS = 12  # entries up to which the numbers stand in the cells


def plot_attention(
    history: Sequence[Event], path: PathLike, *, names: Optional[Sequence[Sequence[str]]] = None
) -> pathlib.Path:
    """A panel per client: attention of each of its tasks (rows) over each entry that it received (columns).

    alpha is the mean over the kernels of the network, as it stood at the end of the task.

    Args:
      history: events as `load_history` gives them.
      path: where to write; the ending says the format.
      names: `names[client][task]`, what a task is called; None for its number.

    Returns:
      The path written.

    Raises:
      InputError: no end of a task holds attention.
    """
    maps = attention_of(history)
    if not maps:
        raise InputError("the history holds no attention: no task received anything of other clients")
    shown = {client: maps[client] for client in sorted(maps)[:MOST_CLIENTS]}
    most = max(len(columns) for columns, _, _ in shown.values())
    largest = max(float(np.nanmax(np.abs(values))) for _, _, values in shown.values())
    figure, axes = figures.panels(len(shown), most_columns=3, width=max(2.6, 0.34 * most), height=2.4)
    for axis, (client, (entries, tasks, values)) in zip(axes, shown.items()):
        image = axis.imshow(values, cmap="RdBu_r", vmin=-(largest or 1), vmax=largest or 1, aspect="auto")
        columns = [f"{figures.task_name(names, *entry)} (client {entry[0] + 1})" for entry in entries]
        axis.set_xticks(range(len(entries)), columns, fontsize=6, rotation=90)
        axis.set_yticks(range(len(tasks)), [figures.task_name(names, client, task) for task in tasks], fontsize=7)
        axis.set_title(f"Client {client + 1}", fontsize=9)
        axis.spines[:].set_visible(False)
        _write_numbers(axis, values)
    figure.colorbar(image, ax=axes, label="attention", shrink=0.85).ax.tick_params(labelsize=8)
    figure.suptitle("Attention of each task (rows) to what others have learned (columns)", fontsize=10)
    return figures.save(figure, path)


def attention_of(history: Sequence[Event]) -> dict[int, tuple[list[tuple[int, int]], list[int], np.ndarray]]:
    """For each client the entries (client, task) that it ever received, the tasks, and alpha `[tasks, entries]`.

    Mean over kernels; NaN where a task did not receive an entry.
    """
    found: dict[int, dict[int, dict[tuple[int, int], float]]] = {}
    for event in history:
        if event.get("event") == "task_end":
            for client, rows in (event.get("attention") or {}).items():
                entries = [(int(one), int(task)) for one, task in event["selection"][client]]
                if entries:
                    means = [float(np.mean(row)) for row in rows]
                    found.setdefault(int(client), {})[event["task"]] = dict(zip(entries, means))
    maps = {}
    for client, by_task in found.items():
        entries = sorted({entry for one in by_task.values() for entry in one})
        tasks = sorted(by_task)
        values = np.array([[by_task[task].get(entry, np.nan) for entry in entries] for task in tasks])
        maps[client] = (entries, tasks, values)
    return maps


def _write_numbers(axis: Any, values: np.ndarray) -> None:
    if values.shape[1] > MOST_NUMBERS:
        return
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=6)
