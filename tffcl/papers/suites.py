"""Suites of `tffcl benchmark`: one stream, one network and one budget each, and the methods on it.

What a method may choose was chosen by `tffcl sweep` on examples held out of the first two tasks, and `chosen` says
from what.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Entry:
    """A method of a suite.

    Attributes:
      method: of `tffcl run`.
      flags: besides the suite's.
      paper: authors and year.
      chosen: which of its options were chosen, and of what.
    """

    method: str
    flags: tuple[str, ...] = ()
    paper: str = ""
    chosen: str = ""


@dataclasses.dataclass(frozen=True)
class Suite:
    """A sealed stream with its rows, the first of which the others are compared with.

    Attributes:
      name: what `--suite` calls it.
      about: one line.
      flags: of `tffcl run`, for all rows alike.
      quick: flags of the small schedule, which stand over them.
      rows: name -> method.
    """

    name: str
    about: str
    flags: tuple[str, ...]
    quick: tuple[str, ...]
    rows: Mapping[str, Entry]


_ROWS = {
    "finetune": Entry("fedavg", (), "McMahan et al., 2017"),
    "fedprox": Entry("fedprox", (), "Li et al., 2020"),
    "ewc": Entry("ewc", (), "Kirkpatrick et al., 2017"),
    "fedprox-ewc": Entry("fedprox-ewc", (), ""),
    "fedcurv": Entry("fedcurv", (), "Shoham et al., 2019"),
    "lwf": Entry("lwf", (), "Li and Hoiem, 2016"),
    "er-5": Entry("er", ("--memory-per-class", "5"), "Chaudhry et al., 2019"),
    "er-20": Entry("er", ("--memory-per-class", "20"), "Chaudhry et al., 2019"),
    "replay": Entry("replay", (), "keeps everything"),
    "prototypes": Entry("prototypes", (), "one Gaussian a class"),
    "afcl": Entry("afcl", (), "Tang et al., 2025"),
    "joint": Entry("offline", (), "all data at once"),
}
_INCREMENTAL = ("--scenario", "class-incremental", "--num-clients", "5", "--num-tasks", "5", "--labels-per-task", "2",
                "--partition", "dirichlet", "--alpha", "0.5")  # fmt: skip
SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "digits",
            "8 x 8 digits, which ship: 5 tasks of 2 new classes, 5 clients, Dirichlet 0.5, one head",
            ("--data", "digits", *_INCREMENTAL, "--num-rounds", "10", "--num-epochs", "5"),
            ("--num-rounds", "5", "--num-epochs", "2"),
            _ROWS,
        ),
    )
}
