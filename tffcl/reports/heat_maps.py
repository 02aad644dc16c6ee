"""The accuracy matrix as a picture."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tffcl import metrics
from tffcl.reports import figures
from tffcl.reports.run_files import PathLike
from tffcl.reports.tables import scores_of

MOST_CLIENTS = 5  # with a panel each; more clients show as their mean only
MOST_NUMBERS = 12  # tasks up to which the numbers stand in the cells


def plot_accuracy_matrix(results: Mapping[str, Any], path: PathLike) -> pathlib.Path:
    """Accuracy (%) or NLL (nats) on each task after each task: the mean over clients, then each client.

    A column that keeps its colour downwards is a task that is not forgotten. Empty cells: not learned yet;
    a dash: no data.

    Args:
      results: what `load_results` gives.
      path: where to write; the ending says the format.

    Returns:
      The path written.

    Raises:
      InputError: no `accuracy` or `nll` in the results.
    """
    key, tensor = scores_of(results)
    tensor = 100 * tensor if key == "accuracy" else tensor
    maps = _maps(tensor)
    unit, scheme = ("Test accuracy (%)", "cividis") if key == "accuracy" else ("NLL (nats)", "cividis_r")
    figure, axes = figures.panels(len(maps), most_columns=3, width=2.9, height=2.6)
    low, high = _limits(list(maps.values()))
    for axis, (title, values) in zip(axes, maps.items()):
        image = _draw(axis, values, low, high, scheme)
        axis.set_title(title, fontsize=9)
    figure.colorbar(image, ax=axes, label=unit, shrink=0.85).ax.tick_params(labelsize=8)
    name = " on ".join(str(results[field]) for field in ("method", "dataset") if results.get(field))
    figure.suptitle(f"{unit.split(' (')[0]} on each task after each task" + (f"\n{name}" if name else ""), fontsize=10)
    return figures.save(figure, path)


def _maps(tensor: np.ndarray) -> dict[str, np.ndarray]:
    """Title -> [T, T] to show."""
    clients, size = tensor.shape[:2]
    if clients == 1:
        return {"Client 1": tensor[0]}
    mean = [[metrics.mean_of_known(tensor[:, t, i]) for i in range(size)] for t in range(size)]
    maps = {f"Mean of {clients} clients": np.array(mean)}
    if clients <= MOST_CLIENTS:
        maps.update({f"Client {client + 1}": tensor[client] for client in range(clients)})
    return maps


def _limits(maps: list[np.ndarray]) -> tuple[float, float]:
    """Ends of the colour scale: at least 10 apart, so that differences of no account look like none."""
    shown = np.concatenate([values[np.tril_indices(len(values))] for values in maps])
    known = shown[~np.isnan(shown)]
    if not known.size:
        return 0.0, 100.0
    low, high = float(known.min()), float(known.max())
    margin = max(0.0, 10 - (high - low)) / 2
    return low - margin, high + margin


def _draw(axis: Any, values: np.ndarray, low: float, high: float, scheme: str) -> Any:
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
    step = max(1, -(-size // 10))
    ticks = list(range(0, size, step))
    axis.set_xticks(ticks, [str(tick + 1) for tick in ticks], fontsize=8)
    axis.set_yticks(ticks, [str(tick + 1) for tick in ticks], fontsize=8)
    axis.set_xlabel("Accuracy on task" if not scheme.endswith("_r") else "NLL on task", fontsize=9)
    axis.set_ylabel("after learning task", fontsize=9)
    axis.spines[:].set_visible(False)
    return image
