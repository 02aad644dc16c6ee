"""What all figures share: colours, drawing without global state, writing whole files."""

from __future__ import annotations

import io
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from tffcl import storage
from tffcl.errors import InputError
from tffcl.reports.run_files import PathLike

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
    try:
        figure.savefig(buffer, format=path.suffix.lstrip(".").lower() or "png")
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    storage.make_folder(path.parent, "a folder of plots")
    storage.write_whole(path, buffer.getvalue())
    return path
