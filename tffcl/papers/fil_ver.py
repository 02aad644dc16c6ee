"""`tffcl reproduce fil-ver`: figures 5, 7 and 8 of Park et al., 2021 (FIL-VER), as tables.

The paper prints figures only. The last column is what an independent version in plain TensorFlow, without any
federation framework, gave on Fashion-MNIST, give or take 3 points: the average over the tasks after the last one.

Where each figure comes from:
- task 1, task 2, ...: accuracy (%) on a task after the last one, mean over the clients that have it; of pooled tasks,
  of the one model on each original one. "average" is their mean.
- MB up: all that all clients sent in the whole run.
- client kB, server kB: what the client with most, and the server, hold for rehearsal at the end, as they hold it;
  "as raw images" is one byte for each pixel of as many images.
- epsilon: at delta 1e-5, of each vector by itself.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Optional

from tffcl import reports
from tffcl.algorithms.fil_ver import STUDY
from tffcl.experiment.groups import ENROLLMENTS
from tffcl.papers.tables import Found, Measure, Row, Table, megabytes_up, percent

_METHODS = ("vanilla", "ver", "ver-stats", "fil-ver", "ebr-no-sst", "ebr", "offline", "offline-ebr",
            "offline-end-to-end")  # fmt: skip
_PLAIN = {
    "rotations": ("31-36", "51-53", "56-59", "57-65", "-", "64-67", "62-68", "76", "80"),
    "permutations": ("43", "49", "54", "53-54", "-", "62", "61", "72", "79"),
    "mild": ("69", "70", "-", "72", "-", "-", "77", "-", "-"),
}
_CLASSES = ("--data", "mnist+fashion")
_FASHION = ("--data", "fashion-mnist")
# The standard deviation of the noise on each vector, in units of the norm that it is clipped to.
_NOISE = ("0.02", "0.1", "0.5")
_CLIP = "10"


def table(name: str) -> Table:
    """One of `tffcl.papers.FIL_VER_TABLES` but "leak", which takes no runs (`tffcl.papers.leak`)."""
    if name == "enrollment":
        return _enrollment()
    if name == "permuted":
        return _permuted()
    if name == "privacy":
        return _privacy()
    data = _CLASSES if name == "classes" else (*_FASHION, "--domains", name)
    printed: list[tuple[str, ...]] = [(each,) for each in _PLAIN.get(name, ())] or [()] * len(_METHODS)
    rows = [Row(method, (method,), (*_run(method), *data), plain, name) for method, plain in zip(_METHODS, printed)]
    return _table(
        ("method",),
        ("task 1", "task 2", "task 3", "task 4", "average", "forgotten", "MB up", "client kB", "server kB"),
        rows,
    )


def _run(method: str) -> tuple[str, ...]:
    return ("fil-ver", "--method", method)


def _enrollment() -> Table:
    """Figure 8: who is there when."""
    rows = [
        Row(
            f"{scenario}-{method}",
            (scenario, method),
            (*_run(method), *_CLASSES, "--enrollment", scenario),
            group=scenario,
        )
        for scenario in ENROLLMENTS
        for method in ("vanilla", "ver", "fil-ver")
    ]
    measures = ("task 1", "task 2", "task 3", "task 4", "average", "forgotten", "MB up")
    return _table(("scenario", "method"), measures, rows)


def _permuted() -> Table:
    """Figure 5: one client, ten permutations of MNIST."""
    rows = [Row(method, (method,), (*_run(method), "--data", "mnist"), group="permuted") for method in STUDY]
    measures = ("task 1", "task 5", "task 10", "average", "forgotten", "rows", "client kB", "as raw images kB")
    return _table(("rehearsal",), measures, rows)


def _privacy() -> Table:
    """What noise on the vectors that are sent guarantees, and what it costs."""
    flags = (*_FASHION, "--domains", "rotations")
    rows = [Row("fil-ver", ("fil-ver",), (*_run("fil-ver"), *flags), group="privacy")]
    rows += [
        Row(
            f"noise-{noise}",
            (f"clip {_CLIP}, noise {noise}",),
            (*_run("fil-ver"), *flags, "--dp-clip", _CLIP, "--dp-noise-multiplier", noise),
            group="privacy",
        )
        for noise in _NOISE
    ]
    rows.append(Row("ver", ("no SST",), (*_run("ver"), *flags), group="privacy"))
    return _table(("sent",), ("epsilon", "average", "forgotten"), rows)


def _table(left: Sequence[str], measures: Sequence[str], rows: Sequence[Row]) -> Table:
    chosen = {name: (_MEASURES[name], 2 if name == "MB up" else 1) for name in measures}
    return Table(tuple(left), chosen, ("plain TensorFlow",), tuple(rows), _draw)


def _draw(found: Found, root: pathlib.Path) -> list[pathlib.Path]:
    """The runs of the first seed of each group side by side."""
    groups: dict[str, list[pathlib.Path]] = {}
    for row, folders in found.items():
        if folders:
            groups.setdefault(row.group, []).append(folders[0])
    return [
        path for group, folders in groups.items() for path in reports.compare_plots(folders, root / f"plots-{group}")
    ]


def _task(number: int) -> Measure:
    def measure(folder: pathlib.Path) -> Optional[float]:
        row = reports.load_results(folder)["accuracy_by_task"][-1]
        return 100 * row[number - 1] if number <= len(row) and row[number - 1] is not None else None

    return measure


def _memory(name: str, unit: float = 1e3) -> Measure:
    return lambda folder: reports.load_results(folder)["memory"][name] / unit or None


_MEASURES: dict[str, Measure] = {
    **{f"task {number}": _task(number) for number in range(1, 11)},
    "average": percent("average_accuracy_by_task"),
    "forgotten": percent("forgetting"),
    "MB up": megabytes_up,
    "rows": _memory("client_rows", 1),
    "client kB": _memory("client"),
    "server kB": _memory("server"),
    "as raw images kB": _memory("client_raw_images"),
    "epsilon": lambda folder: reports.load_results(folder)["config"]["dp_epsilon"],
}
