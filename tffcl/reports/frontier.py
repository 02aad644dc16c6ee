"""`tffcl frontier`: what a method forgets against all that it costs: bytes, memory, epsilon, what an attacker learns.

A row is on the frontier where no other is at least as good in everything and better in something. What is unknown is
taken for the worst: without noise epsilon is infinite, and what nobody has attacked is not thereby safe. Accuracy is
one of the measures, for a method that learns nothing forgets nothing.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tffcl import storage
from tffcl.errors import InputError
from tffcl.reports import figures
from tffcl.reports.runs import MEASURES, Run, find_runs, reading, rows_of
from tffcl.reports.tables import (
    FIGURES,
    INFERRED,
    KNOWN,
    NO_DATA,
    TASK_AT_TEST,
    half_width,
    incremental,
    render,
    task_at_test,
    total,
)
from tffcl.storage import PathLike

FORGOTTEN, EPSILON, ATTACK = FIGURES["forgetting"], "epsilon", "linked %"
Value = tuple[float, Optional[float]]  # mean over seeds, half of its 95 % interval where there are two
Attacks = Mapping[tuple[str, Optional[float]], float]  # what is sent, and beta of its encoder -> share linked, in %


@dataclasses.dataclass(frozen=True)
class Axis:
    """A measure: its label in the picture, digits, and whether more is better."""

    label: str
    digits: int
    higher_is_better: bool = False


AXES = {
    "accuracy %": Axis("Accuracy at the end (%)", 1, True),
    FORGOTTEN: Axis("Forgotten (points)", 1),
    "MB up": Axis("Sent up by all clients (MB)", 2),
    "MB kept": Axis("Kept by a client (MB)", 2),
    EPSILON: Axis("Epsilon of what is noised", 1),
    ATTACK: Axis("Messages linked to their source (%)", 1),
}


@dataclasses.dataclass(frozen=True)
class Point:
    """A row: its name, what is known of `AXES`, and what it is told of a test example's task (`task_at_test`)."""

    name: str
    values: Mapping[str, Value]
    task_at_test: str = NO_DATA


def points_of(paths: Sequence[PathLike], attacks: Attacks) -> list[Point]:
    """Rows of leaderboards (`leaderboard.json`), and of run directories or folders of these, by method.

    Raises:
      InputError: nothing there, other data in one place than in another, or a file that is no leaderboard.
    """
    boards = {
        path: storage.read_object(path, "a leaderboard") for path in map(pathlib.Path, paths) if path.suffix == ".json"
    }
    found = [point for path, board in boards.items() for point in _of_board(path, board)]
    folders = [path for path in map(pathlib.Path, paths) if path.suffix != ".json"]
    rows = [row for row in rows_of(find_runs(folders)) if row.finished] if folders else []
    sets = {str(board["flags"][board["flags"].index("--data") + 1]) for board in boards.values()}
    sets |= {str(row.runs[0].config.get("dataset")) for row in rows}
    if len(sets) > 1:
        raise InputError(f"frontier: costs on other data do not compare; there are {', '.join(sorted(sets))}")
    found += [_of_runs(row.name, row.finished, attacks) for row in rows]
    if not found:
        raise InputError("frontier: no finished run there")
    return found


def _of_board(path: pathlib.Path, board: Mapping[str, Any]) -> list[Point]:
    own = {**{name: name for name in AXES}, "accuracy %": FIGURES["last_accuracy"]}
    with reading(path):
        rows = board["rows"]
        board["flags"].index("--data")
        return [
            Point(
                str(row["name"]),
                {name: (row["mean"][of], row["half_width"][of]) for name, of in own.items() if of in row["mean"]},
                row.get("task_at_test", NO_DATA),
            )
            for row in rows
        ]


def _of_runs(name: str, runs: Sequence[Run], attacks: Attacks) -> Point:
    values: dict[str, Value] = {}
    for axis, measure in _MEASURES.items():
        known = []
        for run in runs:
            with reading(run.folder):
                known.append(measure(run.results))
        _put(values, axis, known)
    _put(values, ATTACK, [_linked(run, attacks) for run in runs])
    return Point(name, values, task_at_test(runs[0].config))


def _put(values: dict[str, Value], axis: str, known: Sequence[Optional[float]]) -> None:
    """The mean of a measure, if all runs have it."""
    numbers = [one for one in known if one is not None]
    if len(numbers) == len(known):
        values[axis] = float(np.mean(numbers)), half_width(numbers) if len(numbers) > 1 else None


def _accuracy(results: Mapping[str, Any]) -> Optional[float]:
    names = ("average_accuracy_by_task", "task_averaged_test_accuracy")
    found = incremental(results, "last_accuracy")
    found = next((results[name] for name in names if results.get(name) is not None), None) if found is None else found
    return None if found is None else 100 * found


def _kept(results: Mapping[str, Any]) -> Optional[float]:
    memory = incremental(results, "memory")
    held = (results.get("memory") or {}).get("client") if memory is None else memory["client_bytes"]
    return None if held is None else held / 1e6


def _epsilon(results: Mapping[str, Any]) -> Optional[float]:
    """Of whatever is noised; the largest, of several things, though they are of different units."""
    accounts = (results.get("privacy") or {}).values()
    known = [account["epsilon"] for account in accounts] + [(results.get("config") or {}).get("dp_epsilon")]
    return max((one for one in known if one is not None), default=None)


_MEASURES: dict[str, Callable[[Mapping[str, Any]], Optional[float]]] = {
    "accuracy %": _accuracy,
    **{measure.title: measure.value for measure in MEASURES if measure.title == FORGOTTEN},
    "MB up": lambda results: total(results["bytes_up"]) / 1e6,
    "MB kept": _kept,
    EPSILON: _epsilon,
}
# What a method sends of single examples, as `tffcl reproduce fil-ver --table leak` calls it.
_SENT = {"fil-ver": "sampled", "ver-stats": "stats", "ebr": "ebr"}


def _linked(run: Run, attacks: Attacks) -> Optional[float]:
    """What was measured of that which this run sends, without noise, from such an encoder."""
    method = str(run.config.get("method", "")).partition("+")[0]
    if method not in _SENT or (run.results.get("config") or {}).get("dp_epsilon") is not None:
        return None
    sent = _SENT[method]
    return attacks.get((sent, None if sent == "ebr" else run.config.get("beta")))


def attacks_in(folder: Optional[PathLike]) -> dict[tuple[str, Optional[float]], float]:
    """Attacks that `tffcl reproduce fil-ver --table leak` kept in a folder: means over seeds, of what is sent once.

    Raises:
      InputError: a folder without any, or a file that holds something else.
    """
    if folder is None:
        return {}
    found: dict[tuple[str, Optional[float]], list[float]] = {}
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        kept = storage.read_object(path, "kept measurements")
        with reading(path):
            for row in kept["rows"]:
                if row["times"] == 1:
                    found.setdefault((row["name"], row["beta"]), []).append(100 * row["top1"])
    if not found:
        raise InputError(f"{folder}: no attacks there; `tffcl reproduce fil-ver --table leak` measures them")
    return {key: float(np.mean(each)) for key, each in found.items()}


def on_frontier(points: Sequence[Point]) -> list[bool]:
    """Which points no other is at least as good as in every measure, and better than in one.

    One that is told the task of each test example stands above no other that is not.

    >>> a = Point("a", {"accuracy %": (90, None), "MB up": (5, None)})
    >>> b = Point("b", {"accuracy %": (80, None), "MB up": (7, None)})
    >>> c = Point("c", {"accuracy %": (70, None), "MB up": (1, None)})
    >>> on_frontier([a, b, c])
    [True, False, True]
    """
    costs = np.array([[_cost(point, name) for name in AXES] for point in points])
    told = [point.task_at_test == KNOWN for point in points]
    return [
        not any((other <= own).all() and (other < own).any() and one <= known for other, one in zip(costs, told))
        for own, known in zip(costs, told)
    ]


def _cost(point: Point, name: str) -> float:
    """Less is better, and what is unknown is worst; linked in 100 of 100 cases is the worst that an attack can do."""
    known = point.values.get(name)
    if known is None:
        return 100.0 if name == ATTACK else float("inf")
    return -known[0] if AXES[name].higher_is_better else known[0]


def frontier_table(points: Sequence[Point], *, form: str = "text") -> str:
    """A row for each point; `*` is on the frontier."""
    marks = on_frontier(points)
    shown = [name for name in AXES if any(name in point.values for point in points)]
    told = any(point.task_at_test in (KNOWN, INFERRED) for point in points)
    lines = [
        [
            point.name,
            *([point.task_at_test] if told else []),
            "*" if mark else "",
            *(_cell(point.values.get(name), AXES[name].digits) for name in shown),
        ]
        for point, mark in zip(points, marks)
    ]
    return render(["", *([TASK_AT_TEST] if told else []), "frontier", *shown], lines, form=form)


def _cell(value: Optional[Value], digits: int) -> str:
    if value is None:
        return NO_DATA
    mean, half = value
    return f"{mean:.{digits}f}" + ("" if half is None else f" +- {half:.{digits}f}")


def plot_frontier(points: Sequence[Point], path: PathLike) -> pathlib.Path:
    """Forgetting against each cost that is known of two rows or more; filled signs are on the frontier of all measures.

    A line joins the points of a panel that no other of the panel is below and to the left of.

    Raises:
      InputError: nothing to draw.
    """
    costs = [
        name
        for name in AXES
        if name != FORGOTTEN and sum(name in point.values and FORGOTTEN in point.values for point in points) > 1
    ]
    if not costs:
        raise InputError("frontier: no two rows have forgetting and a cost, so there is nothing to draw")
    figure, panels = figures.panels(len(costs), most_columns=3, width=3.0, height=2.6, sharey=True)
    marks, signs = on_frontier(points), {}
    for axis, name in zip(panels, costs):
        drawn = []
        for place, (point, mark) in enumerate(zip(points, marks)):
            if name not in point.values or FORGOTTEN not in point.values:
                continue
            (x, _), (y, _) = point.values[name], point.values[FORGOTTEN]
            look = {**figures.style(place), "linestyle": "none", "markersize": 5}
            (signs[point.name],) = axis.plot([x], [y], **look, **({} if mark else {"markerfacecolor": "white"}))
            drawn.append((-x if AXES[name].higher_is_better else x, x, y))
        best = [each for each in drawn if not any(o[0] <= each[0] and o[2] <= each[2] and o != each for o in drawn)]
        axis.plot(*zip(*[each[1:] for each in sorted(best)]), color="#999999", linewidth=0.8, zorder=0)
        if not AXES[name].higher_is_better:
            figures.spread_out(axis, (each[1] for each in drawn))
        figures.dress(axis)
        axis.set_xlabel(AXES[name].label, fontsize=8)
    figures.legend(figure, signs)
    return figures.save(figure, path, "", "", AXES[FORGOTTEN].label)
