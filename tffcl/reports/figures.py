"""What all figures share: colours, drawing without global state, writing whole files. And pictures of cells.

Those are the accuracy matrix, attention over foreign entries, and samples drawn from a density.
"""

from __future__ import annotations

import io
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tffcl import archive, metrics, storage
from tffcl.errors import InputError, RunError
from tffcl.program.events import Event
from tffcl.reports.tables import scores_of
from tffcl.storage import PathLike

# Okabe and Ito's palette: told apart with every kind of colour vision. Their yellow is too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# A second sign beside the colour, for print in grey.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SHADE = "#E4E4E4"


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib Figure, in inches, that no window, backend or pyplot state knows of.

    Raises:
      InputError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # slow to import, and only plots need it
    except ImportError as error:
        raise InputError("plots need matplotlib, which is not installed: pip install matplotlib") from error
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def panels(count: int, *, most_columns: int, width: float, height: float, **kwargs: Any) -> tuple[Any, list[Any]]:
    """A figure with `count` panels in rows of at most `most_columns`; each is `width` x `height` inches."""
    rows = math.ceil(count / most_columns)
    columns = math.ceil(count / rows)
    figure = new_figure(max(4.2, width * columns), height * rows + 0.8)  # titles need the width
    axes = figure.subplots(rows, columns, squeeze=False, **kwargs).ravel().tolist()
    for axis in axes[count:]:
        axis.remove()
    for axis in axes[max(0, count - columns) : count]:
        axis.tick_params(labelbottom=True)  # also above a gap in the last row
    return figure, axes[:count]


def style(place: int) -> dict[str, Any]:
    """Colour and marker of line number `place`; beyond the seven colours the dashes tell lines apart."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": ("-", "--", ":")[place // len(COLOURS) % 3],
        "linewidth": 1.4,
        "markersize": 3.2,
    }


def numbered_name(names: Optional[Sequence[str]], task: int) -> str:
    """A task's number, from 1, and its name where it has one."""
    return f"Task {task + 1}" + (f": {names[task]}" if names is not None and task < len(names) else "")


def reference_style(place: int) -> dict[str, Any]:
    """The line number `place` of those that others are held against."""
    return {
        "color": ("#555555", "#999999", "#000000")[place // 3 % 3],
        "linestyle": ("--", ":", "-.")[place % 3],
        "linewidth": 1.1,
    }


def dress(axis: Any, title: str = "", num_rounds: int = 0) -> None:
    """A frame on two sides, a faint horizontal grid behind the data; an x axis over rounds 1 .. `num_rounds`."""
    from matplotlib.ticker import MaxNLocator

    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8)
    if title:
        axis.set_title(title, fontsize=9)
    if num_rounds:  # with whole ticks: there is no round 2.5
        axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
        axis.set_xlim(0.5, num_rounds + 0.5)


def spread_out(axis: Any, values: Iterable[float]) -> None:
    """Costs along x, 0 or more: on a log scale, 0 in its place, where the largest is over 20 times the smallest."""
    costs = list(values)
    if max(costs) > 20 * max(1e-9, min(costs)):
        axis.set_xscale("symlog", linthresh=max(1e-3, min((each for each in costs if each > 0), default=1.0)))


def mark_tasks(axis: Any, firsts: Iterable[int]) -> None:
    """Dotted lines where a new task begins, before the round that is its first."""
    for first in firsts:
        if first > 1:
            axis.axvline(first - 0.5, color="#AAAAAA", linewidth=0.8, linestyle=":")


def legend(figure: Any, lines: Mapping[str, Any]) -> None:
    """At the side: below, it would lie on the label of the x axis."""
    figure.legend(lines.values(), lines, loc="outside right center", fontsize=8, frameon=False)


def save(figure: Any, path: PathLike, title: str, x: str = "", y: str = "") -> pathlib.Path:
    """Writes the figure in the format that the name of `path` ends in (.png, .pdf, .svg), whole or not.

    Raises:
      InputError: matplotlib does not know the format.
      RunError: the file cannot be written.
    """
    figure.suptitle(title, fontsize=10)
    figure.supxlabel(x, fontsize=9)
    figure.supylabel(y, fontsize=9)
    path, buffer = pathlib.Path(path), io.BytesIO()
    form = path.suffix.lstrip(".").lower() or "png"
    still = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)  # the same run, the same bytes
    try:
        import matplotlib

        with matplotlib.rc_context({"svg.hashsalt": "tffcl"}):
            figure.savefig(buffer, format=form, metadata=still)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    storage.make_folder(path.parent, "a folder of plots")
    storage.write_whole(path, buffer.getvalue())
    return path


MATRIX_CLIENTS = 5  # with a panel each; more clients show as their mean only
ATTENTION_CLIENTS = 6  # with a panel each, the first ones
MOST_NUMBERS = 12  # tasks or entries up to which the numbers stand in the cells
Names = Optional[Sequence[Sequence[str]]]  # [client][task], what a task is called; None for its number


# -- the accuracy matrix ------------------------------------------------------------------------------------------


def plot_accuracy_matrix(
    results: Mapping[str, Any], path: PathLike, *, mean_only: bool = False, beside: Sequence[np.ndarray] = ()
) -> pathlib.Path:
    """Accuracy (%) or NLL (nats) on each task after each task: the mean over clients, then each client.

    A column that keeps its colour downwards is a task that is not forgotten. Empty cells: not learned yet; a dash: no
    data. Colours of accuracies go from 0 to 100 % in every picture, so that runs compare; those of NLL, which has no
    ends, over what this picture and the matrices [T, T] `beside` it hold.

    Shown in docs/runs.md.

    Raises:
      InputError: no `accuracy` or `nll` in the results.
    """
    key, tensor = scores_of(results)
    tensor = 100 * tensor if key == "accuracy" else tensor
    unit, scheme = ("Test accuracy (%)", "cividis") if key == "accuracy" else ("NLL (nats)", "cividis_r")
    digits = 1 if key == "nll" or tensor.shape[1] <= 6 else 0
    matrices = {"Mean": metrics.accuracy_by_task(tensor)} if mean_only else _matrices(tensor)
    size = max(2.4, 0.36 * min(tensor.shape[1], MOST_NUMBERS) + 0.9)
    figure, axes = panels(len(matrices), most_columns=3, width=size + 0.3, height=size)
    low, high = (0.0, 100.0) if key == "accuracy" else _limits([*matrices.values(), *beside])
    for axis, (title, values) in zip(axes, matrices.items()):
        image = _draw_matrix(axis, values, low, high, scheme, digits)
        axis.set_xlabel("Accuracy on task" if key == "accuracy" else "NLL on task", fontsize=9)
        axis.set_title(title, fontsize=9)
    figure.colorbar(image, ax=axes, label=unit, shrink=0.85).ax.tick_params(labelsize=8)
    name = " on ".join(str(results[field]) for field in ("method", "dataset") if results.get(field))
    return save(figure, path, f"{unit.split(' (')[0]} on each task after each task\n{name}".rstrip())


def _matrices(tensor: np.ndarray) -> dict[str, np.ndarray]:
    """Title -> [T, T] to show."""
    clients = len(tensor)
    if clients == 1:
        return {"Client 1": tensor[0]}
    matrices = {f"Mean of {clients} clients": metrics.accuracy_by_task(tensor)}
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


def write_cell(axis: Any, image: Any, row: int, column: int, value: float, text: str, size: float = 8) -> None:
    """A text in a cell of a picture, at that end of the grey scale that the cell's colour is far from."""
    red, green, blue, _ = image.cmap(image.norm(value))
    dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 and not np.isnan(value)
    axis.text(column, row, text, ha="center", va="center", fontsize=size, color="white" if dark else "black")


def _draw_matrix(axis: Any, values: np.ndarray, low: float, high: float, scheme: str, digits: int) -> Any:
    size = len(values)
    below = np.tril(np.ones((size, size), bool))
    image = axis.imshow(np.where(below, values, np.nan), cmap=scheme, vmin=low, vmax=high)
    for t, i in zip(*np.nonzero(below)):
        value = values[t, i]
        if size <= MOST_NUMBERS or np.isnan(value):
            write_cell(axis, image, t, i, value, "-" if np.isnan(value) else f"{value:.{digits}f}")
    ticks = list(range(0, size, max(1, -(-size // 10))))
    axis.set_xticks(ticks, [str(tick + 1) for tick in ticks], fontsize=8)
    axis.set_yticks(ticks, [str(tick + 1) for tick in ticks], fontsize=8)
    axis.set_ylabel("After learning task", fontsize=9)
    axis.spines[:].set_visible(False)
    return image


# -- attention ----------------------------------------------------------------------------------------------------


def plot_attention(history: Sequence[Event], path: PathLike, *, names: Names = None) -> pathlib.Path:
    """A panel per client: attention of each of its tasks (rows) over each entry that it received (columns).

    ConFedMADE, figure 4. alpha is the mean over the kernels of the network, as it stood at the end of the task.

    Shown with `plot_accuracy_matrix`.

    Raises:
      InputError: no end of a task holds attention.
    """
    maps = attention_of(history)
    if not maps:
        raise InputError("the history holds no attention: no task received anything of other clients")
    shown = {client: maps[client] for client in sorted(maps)[:ATTENTION_CLIENTS]}
    columns, rows = (max(len(one[place]) for one in shown.values()) for place in (0, 1))
    known = np.concatenate([values[~np.isnan(values)] for _, _, values in shown.values()])
    largest = float(np.abs(known).max()) or 1.0
    signed = bool((known < 0).any())
    low, scheme = (-largest, "RdBu_r") if signed else (0.0, "cividis")
    figure, axes = panels(
        len(shown), most_columns=3 if columns <= 8 else 2 if columns <= 16 else 1,
        width=max(2.8, 0.42 * columns + 1.2), height=max(2.2, 0.38 * rows + 1.6),
    )  # fmt: skip
    for axis, (client, (entries, tasks, values)) in zip(axes, shown.items()):
        axis.set_facecolor(SHADE)
        image = axis.imshow(values, cmap=scheme, vmin=low, vmax=largest, aspect="auto")
        labels = [f"client {other + 1}: {_task_name(names, other, task)}" for other, task in entries]
        axis.set_xticks(range(len(entries)), labels, fontsize=8, rotation=90)
        axis.set_yticks(range(len(tasks)), [_task_name(names, client, task) for task in tasks], fontsize=8)
        axis.set_title(f"Client {client + 1}", fontsize=9)
        axis.spines[:].set_visible(False)
        for place, (one, other) in enumerate(zip(entries, entries[1:])):
            if one[0] != other[0]:
                axis.axvline(place + 0.5, color="white", linewidth=2)
        for (row, column), value in np.ndenumerate(values):
            if not np.isnan(value):
                write_cell(axis, image, row, column, value, f"{value:.2f}", 7)
    figure.colorbar(image, ax=axes, label="attention", shrink=0.85).ax.tick_params(labelsize=8)
    title = "Attention of each task (rows) to what others have learned (columns)\n(grey: not received)"
    return save(figure, path, title)


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

    Shown with `plot_accuracy_matrix`.

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

    Shown with `plot_accuracy_matrix`.

    Args:
      samples: numbers from 0 to 1, `[clients, tasks, n, height, width]`.
      path: its ending says the format.
      names: `names[client][task]`, what a task is called; None for its number.
    """
    num_tasks, count = samples.shape[1:3]
    size = 0.32
    figure, axes = panels(
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
    return save(figure, path, "Drawn from the model, a row for each task")


def _tiled(pictures: np.ndarray) -> np.ndarray:
    """[tasks, n, height, width] -> one picture, with lines of a pixel between them."""
    framed = np.pad(pictures.astype(np.float32), [(0, 0), (0, 0), (0, 1), (0, 1)], constant_values=0.15)
    tasks, count, height, width = framed.shape
    return framed.transpose(0, 2, 1, 3).reshape(tasks * height, count * width)
