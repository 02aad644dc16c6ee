"""The tables of `tffcl reproduce fil-ver`: which runs stand behind each row.

The paper prints figures only (5, 7 and 8). The last column is what an independent version in plain TensorFlow, without
any federation framework, gave on Fashion-MNIST, give or take 3 points: the average over the tasks after the last one.
"""

from __future__ import annotations

import dataclasses

from tffcl.commands.fil_ver_flags import SCENARIOS, STUDY

_METHODS = ("vanilla", "ver", "ver-stats", "fil-ver", "ebr-no-sst", "ebr", "offline", "offline-ebr",
            "offline-end-to-end")  # fmt: skip
_PLAIN = {
    "rotations": ("31-36", "51-53", "56-59", "57-65", "-", "64-67", "62-68", "76", "80"),
    "permutations": ("43", "49", "54", "53-54", "-", "62", "61", "72", "79"),
    "mild": ("69", "70", "-", "72", "-", "-", "77", "-", "-"),
}
_CLASSES = ("--dataset", "mnist+fashion")
_FASHION = ("--dataset", "fashion-mnist")
NAMES = ("rotations", "permutations", "mild", "classes", "enrollment", "permuted", "privacy", "leak")
# The standard deviation of the noise on each vector, in units of the norm that it is clipped to.
_NOISE = ("0.02", "0.1", "0.5")
_CLIP = "10"


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
      name: what `--row` and folders call it.
      cells: what stands at the left.
      flags: of `tffcl run fil-ver`.
      plain: what the independent version gave, in %.
      group: rows of one group are drawn in one picture.
    """

    name: str
    cells: tuple[str, ...]
    flags: tuple[str, ...]
    plain: str = "-"
    group: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table: what it measures of each row's runs, and its rows.

    Attributes:
      left: what the cells at the left are.
      measures: names, of `tffcl.commands.reproduce_fil_ver.MEASURES`.
      rows: of the table.
    """

    left: tuple[str, ...]
    measures: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def compared(self) -> bool:
        """Whether any row has a figure of the independent version."""
        return any(row.plain != "-" for row in self.rows)


def table(name: str) -> Table:
    """One of `NAMES` but "leak", which takes no runs."""
    if name == "enrollment":
        return _enrollment()
    if name == "permuted":
        return _permuted()
    if name == "privacy":
        return _privacy()
    data = _CLASSES if name == "classes" else (*_FASHION, "--domains", name)
    plain = _PLAIN.get(name, ("-",) * len(_METHODS))
    rows = [
        Row(method, (method,), (*data, "--method", method), printed, name)
        for method, printed in zip(_METHODS, plain)
    ]
    measures = (
        "task 1",
        "task 2",
        "task 3",
        "task 4",
        "average",
        "forgotten",
        "MB up",
        "client kB",
        "server kB",
    )
    return Table(("method",), measures, tuple(rows))


def _enrollment() -> Table:
    """Figure 8: who is there when."""
    rows = [
        Row(
            f"{scenario}-{method}",
            (scenario, method),
            (*_CLASSES, "--enrollment", scenario, "--method", method),
            group=scenario,
        )
        for scenario in SCENARIOS
        for method in ("vanilla", "ver", "fil-ver")
    ]
    measures = ("task 1", "task 2", "task 3", "task 4", "average", "forgotten", "MB up")
    return Table(("scenario", "method"), measures, tuple(rows))


def _permuted() -> Table:
    """Figure 5: one client, ten permutations of MNIST."""
    rows = [
        Row(method, (method,), ("--dataset", "mnist", "--method", method), group="permuted")
        for method in STUDY
    ]
    measures = (
        "task 1",
        "task 5",
        "task 10",
        "average",
        "forgotten",
        "rows",
        "client kB",
        "as raw images kB",
    )
    return Table(("rehearsal",), measures, tuple(rows))


def _privacy() -> Table:
    """What noise on the vectors that are sent guarantees, and what it costs."""
    flags = (*_FASHION, "--domains", "rotations")
    rows = [Row("fil-ver", ("fil-ver",), flags, group="privacy")]
    rows += [
        Row(
            f"noise-{noise}",
            (f"clip {_CLIP}, noise {noise}",),
            (*flags, "--dp-clip", _CLIP, "--dp-noise-multiplier", noise),
            group="privacy",
        )
        for noise in _NOISE
    ]
    rows.append(Row("ver", ("no SST",), (*flags, "--method", "ver"), group="privacy"))
    return Table(("sent",), ("epsilon", "average", "forgotten"), tuple(rows))
