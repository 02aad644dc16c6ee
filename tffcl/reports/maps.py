"""Pictures of cells: the accuracy matrix, attention over foreign entries, samples drawn from a density."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tffcl import archive, metrics
from tffcl.errors import InputError, RunError
from tffcl.reports import figures
from tffcl.reports.run_files import Event, PathLike
from tffcl.reports.tables import scores_of

MATRIX_CLIENTS = 5  # with a panel each; more clients show as their mean only
ATTENTION_CLIENTS = 6  # with a panel each, the first ones
MOST_NUMBERS = 12  # tasks or entries up to which the numbers stand in the cells
Names = Optional[Sequence[Sequence[str]]]  # [client][task], what a task is called; None for its number


# -- the accuracy matrix ------------------------------------------------------------------------------------------


def plot_accuracy_matrix(results: Mapping[str, Any], path: PathLike) -> pathlib.Path:
    """Accuracy (%) or NLL (nats) on each task after each task: the mean over clients, then each client.

    A column that keeps its colour downwards is a task that is not forgotten. Empty cells: not learned yet; a dash: no
    data.

    Raises:
      InputError: no `accuracy` or `nll` in the results.
    """
    key, tensor = scores_of(results)
    tensor = 100 * tensor if key == "accuracy" else tensor
    unit, scheme = ("Test accuracy (%)", "cividis") if key == "accuracy" else ("NLL (nats)", "cividis_r")
    panels = _matrices(tensor)
    figure, axes = figures.panels(len(panels), most_columns=3, width=2.9, height=2.6)
    low, high = _limits(list(panels.values()))
    for axis, (title, values) in zip(axes, panels.items()):
        image = _draw_matrix(axis, values, low, high, scheme)
        axis.set_xlabel("Accuracy on task" if key == "accuracy" else "NLL on task", fontsize=9)
        axis.set_title(title, fontsize=9)
    figure.colorbar(image, ax=axes, label=unit, shrink=0.85).ax.tick_params(labelsize=8)
    name = " on ".join(str(results[field]) for field in ("method", "dataset") if results.get(field))
    return figures.save(figure, path, f"{unit.split(' (')[0]} on each task after each task\n{name}".rstrip())


def _matrices(tensor: np.ndarray) -> dict[str, np.ndarray]:
    """Title -> [T, T] to show."""
    clients, size = tensor.shape[:2]
    if clients == 1:
        return {"Client 1": tensor[0]}
    mean = [[metrics.mean_of_known(tensor[:, t, i]) for i in range(size)] for t in range(size)]
    matrices = {f"Mean of {clients} clients": np.array(mean)}
    if clients <= MATRIX_CLIENTS:
        matrices.update({f"Client {client + 1}": tensor[client] for client in range(clients)})
    return matrices


def _limits(matrices: list[np.ndarray]) -> tuple[float, float]:
    """Ends of the colour scale: at least 10 apart, so that differences of no account look like none."""
    shown = np.concatenate([values[np.tril_indices(len(values))] for values in matrices])
    known = shown[~np.isnan(shown)]
    if not known.size:
        return 0.0, 100.0
    low, high = float(known.min()), float(known.max())
    margin = max(0.0, 10 - (high - low)) / 2
    return low - margin, high + margin


def _draw_matrix(axis: Any, values: np.ndarray, low: float, high: float, scheme: str) -> Any:
    size = len(values)
    below = np.tril(np.ones((size, size), bool))
    image = axis.imshow(np.where(below, values, np.nan), cmap=scheme, vmin=low, vmax=high)
    for t, i in zip(*np.nonzero(below)):
        value = values[t, i]
        if size > MOST_NUMBERS and not np.isnan(value):
            continue
        # The text takes the end of the grey scale that its cell is far from.
        red, green, blue, _ = image.cmap(image.norm(value))
        dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 and not np.isnan(value)
        text = "-" if np.isnan(value) else f"{value:.0f}" if abs(value) >= 10 else f"{value:.1f}"
        axis.text(i, t, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    ticks = list(range(0, size, max(1, -(-size // 10))))
    axis.set_xticks(ticks, [str(tick + 1) for tick in ticks], fontsize=8)
    axis.set_yticks(ticks, [str(tick + 1) for tick in ticks], fontsize=8)
    axis.set_ylabel("after learning task", fontsize=9)
    axis.spines[:].set_visible(False)
    return image


# -- attention ----------------------------------------------------------------------------------------------------


def plot_attention(history: Sequence[Event], path: PathLike, *, names: Names = None) -> pathlib.Path:
    """A panel per client: attention of each of its tasks (rows) over each entry that it received (columns).

    ConFedMADE, figure 4. alpha is the mean over the kernels of the network, as it stood at the end of the task.

    Raises:
      InputError: no end of a task holds attention.
    """
    found = attention_of(history)
    if not found:
        raise InputError("the history holds no attention: no task received anything of other clients")
    shown = {client: found[client] for client in sorted(found)[:ATTENTION_CLIENTS]}
    most = max(len(columns) for columns, _, _ in shown.values())
    largest = max(float(np.nanmax(np.abs(values))) for _, _, values in shown.values()) or 1
    figure, axes = figures.panels(len(shown), most_columns=3, width=max(2.6, 0.34 * most), height=2.4)
    for axis, (client, (entries, tasks, values)) in zip(axes, shown.items()):
        image = axis.imshow(values, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto")
        columns = [f"{_task_name(names, *entry)} (client {entry[0] + 1})" for entry in entries]
        axis.set_xticks(range(len(entries)), columns, fontsize=6, rotation=90)
        axis.set_yticks(range(len(tasks)), [_task_name(names, client, task) for task in tasks], fontsize=7)
        axis.set_title(f"Client {client + 1}", fontsize=9)
        axis.spines[:].set_visible(False)
        for (row, column), value in np.ndenumerate(values):
            if values.shape[1] <= MOST_NUMBERS and not np.isnan(value):
                axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=6)
    figure.colorbar(image, ax=axes, label="attention", shrink=0.85).ax.tick_params(labelsize=8)
    return figures.save(figure, path, "Attention of each task (rows) to what others have learned (columns)")


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


def _task_name(names: Names, client: int, task: int) -> str:
    return f"task {task + 1}" if names is None else names[client][task]


# -- samples ------------------------------------------------------------------------------------------------------


def load_samples(run_dir: PathLike) -> np.ndarray:
    """The pictures in `samples.npz` of a run directory, uint8 `[clients, tasks, n, height, width]`.

    Raises:
      RunError: the file is missing or damaged.
    """
    path = pathlib.Path(run_dir) / "samples.npz"
    samples = archive.read(path, "samples")["samples"]
    if samples.ndim != 5 or samples.dtype.kind not in "biuf" or not samples.size:
        found = f"{samples.dtype}{list(samples.shape)}"
        raise RunError(f"{path}: expected numbers [clients, tasks, n, height, width], found {found}")
    return samples


def plot_samples(samples: np.ndarray, path: PathLike, *, names: Names = None) -> pathlib.Path:
    """A panel per client with a row of pictures for each of its tasks, drawn with the task's own parameters.

    Args:
      samples: numbers from 0 to 1, `[clients, tasks, n, height, width]`.
      path: its ending says the format.
      names: `names[client][task]`, what a task is called; None for its number.
    """
    num_tasks, count = samples.shape[1:3]
    size = 0.32
    figure, axes = figures.panels(
        len(samples), most_columns=2, width=max(2.2, count * size + 0.6), height=max(1, num_tasks * size + 0.4)
    )
    for client, (axis, one) in enumerate(zip(axes, samples)):
        axis.imshow(_tiled(one), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
        height = one.shape[2] + 1
        labels = [_task_name(names, client, task) for task in range(num_tasks)]
        shown = [label if len(label) <= 12 else f"{label[:11]}..." for label in labels]
        axis.set_yticks([height * (task + 0.5) for task in range(num_tasks)], shown, fontsize=7)
        axis.set_xticks([])
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
        axis.set_title(f"Client {client + 1}", fontsize=9)
    return figures.save(figure, path, "Drawn from the model, a row for each task")


def _tiled(pictures: np.ndarray) -> np.ndarray:
    """[tasks, n, height, width] -> one picture, with lines of a pixel between them."""
    framed = np.pad(pictures.astype(np.float32), [(0, 0), (0, 0), (0, 1), (0, 1)], constant_values=0.15)
    tasks, count, height, width = framed.shape
    return framed.transpose(0, 2, 1, 3).reshape(tasks * height, count * width)
