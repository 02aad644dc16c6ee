"""Pictures drawn from a model."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Optional

import numpy as np

from tffcl import archive
from tffcl.errors import RunError
from tffcl.reports import figures
from tffcl.reports.run_files import PathLike


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


def plot_samples(
    samples: np.ndarray, path: PathLike, *, names: Optional[Sequence[Sequence[str]]] = None
) -> pathlib.Path:
    """A panel per client with a row of pictures for each of its tasks, drawn with the task's own parameters.

    Args:
      samples: numbers from 0 to 1, `[clients, tasks, n, height, width]`.
      path: where to write; the ending says the format.
      names: `names[client][task]`, what a task is called; None for its number.

    Returns:
      The path written.
    """
    num_tasks, count = samples.shape[1:3]
    size = 0.32
    figure, axes = figures.panels(
        len(samples), most_columns=2, width=max(2.2, count * size + 0.6), height=max(1, num_tasks * size + 0.4)
    )
    for client, (axis, one) in enumerate(zip(axes, samples)):
        axis.imshow(_tiled(one), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
        height = one.shape[2] + 1
        labels = [figures.task_name(names, client, task) for task in range(num_tasks)]
        shown = [label if len(label) <= 12 else f"{label[:11]}..." for label in labels]
        axis.set_yticks([height * (task + 0.5) for task in range(num_tasks)], shown, fontsize=7)
        axis.set_xticks([])
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
        axis.set_title(f"Client {client + 1}", fontsize=9)
    figure.suptitle("Drawn from the model, a row for each task", fontsize=10)
    return figures.save(figure, path)


def _tiled(pictures: np.ndarray) -> np.ndarray:
    """[tasks, n, height, width] -> one picture, with lines of a pixel between them."""
    framed = np.pad(pictures.astype(np.float32), [(0, 0), (0, 0), (0, 1), (0, 1)], constant_values=0.15)
    tasks, count, height, width = framed.shape
    return framed.transpose(0, 2, 1, 3).reshape(tasks * height, count * width)
