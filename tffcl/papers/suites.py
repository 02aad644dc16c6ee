"""Suites of `tffcl benchmark`: one stream, one network and one budget each, and the methods on it.

What a method may choose was chosen by `tffcl sweep` on examples held out of the first two tasks, with seeds 101 and up,
and `chosen` says from what. Seeds decide the order of the classes, who has which rows, and all that is drawn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tffcl.algorithms.registry import find_method


@dataclasses.dataclass(frozen=True)
class Entry:
    """A method of a suite.

    Attributes:
      method: of `tffcl run`.
      flags: besides the suite's.
      paper: authors and year.
      chosen: which of its options were chosen, and of what.
      trained: it trains the suite's network; else its features are frozen.
    """

    method: str
    flags: tuple[str, ...] = ()
    paper: str = ""
    chosen: str = ""
    trained: bool = True


@dataclasses.dataclass(frozen=True)
class Suite:
    """A sealed stream with its rows, the first of which the others are compared with.

    Attributes:
      name: what `--suite` calls it.
      about: one line.
      flags: of `tffcl run`, for all rows alike.
      network: flags of the rows that train a network.
      quick: flags of the small schedule, which stand over them.
      rows: name -> method.
      target: accuracy on the test examples of all classes, 0 .. 1: how many rounds and bytes it takes is measured.
    """

    name: str
    about: str
    flags: tuple[str, ...]
    network: tuple[str, ...]
    quick: tuple[str, ...]
    rows: Mapping[str, Entry]
    target: float = 0.6

    def flags_of(self, name: str, quick: bool) -> tuple[str, ...]:
        """Flags of `tffcl run` of a row, the method first."""
        entry = self.rows[name]
        network = self.network if entry.trained else ()
        flags = (*self.flags, *network, *(self.quick if quick else ()), *entry.flags)
        if find_method(entry.method).pool == "all":  # which has as many rounds as the others have in all
            last = dict(zip(flags, flags[1:]))  # the flag that stands over those before it
            flags = (*flags, "--num-rounds", str(int(last["--num-rounds"]) * int(last["--num-tasks"])))
        return (entry.method, *flags)


def _by_task(*methods: tuple[str, str]) -> dict[str, Entry]:
    """Methods with parameters for each task, by name and paper: with the task of a test example known, and inferred."""
    ways = {"": "known", "-entropy": "entropy"}
    return {
        f"{method}{suffix}": Entry(method, ("--task-at-test", way), paper, "lambda_1, lambda_2 (the defaults)")
        for method, paper in methods
        for suffix, way in ways.items()
    }


_FEDWEIT = ("fedweit", "Yoon et al., 2021")


def _rows(mu: str, ewc: str, curv: str, distillation: str, *by_task: tuple[str, str]) -> dict[str, Entry]:
    """All methods, with the weights of penalties: each a value and, in brackets, what it was chosen of.

    `by_task` are methods with parameters for each task besides FedWeIT.
    """
    proximal, penalty, curvature, distilled = (
        (flag, text.split()[0])
        for flag, text in (
            ("--proximal", mu),
            ("--penalty", ewc),
            ("--penalty", curv),
            ("--distillation", distillation),
        )
    )
    return {
        "finetune": Entry("fedavg", (), "McMahan et al., 2017"),
        "fedprox": Entry("fedprox", proximal, "Li et al., 2020", f"mu {mu}"),
        "ewc": Entry("ewc", penalty, "Kirkpatrick et al., 2017", f"lambda {ewc}"),
        "fedprox-ewc": Entry("fedprox-ewc", (*penalty, *proximal), "", "both as above"),
        "fedcurv": Entry("fedcurv", curvature, "Shoham et al., 2019", f"lambda {curv}"),
        "lwf": Entry("lwf", distilled, "Li and Hoiem, 2016", f"lambda {distillation}"),
        "fot": Entry("fot", (), "Bakman et al., 2024", "energy 0.9 (the default)"),
        "target": Entry("target", (), "Zhang et al., 2023", "lambda 1 (the default)"),
        "er-5": Entry("er", ("--memory-per-class", "5"), "Chaudhry et al., 2019"),
        "er-20": Entry("er", ("--memory-per-class", "20"), "Chaudhry et al., 2019"),
        "glfc": Entry("glfc", (), "Dong et al., 2022", "relation 1 (the default)"),
        **_by_task(_FEDWEIT, *by_task),
        "replay": Entry("replay", (), "keeps all examples"),
        "nearest-mean": Entry("prototypes", ("--covariance", "none"), "", trained=False),
        "prototypes": Entry("prototypes", (), "Fisher, 1936", trained=False),
        "afcl": Entry("afcl", (), "Tang et al., 2025", trained=False),
        "joint": Entry("offline", (), "all data at once"),
    }


def _incremental(num_tasks: int, num_clients: int, alpha: str) -> tuple[str, ...]:
    return (
        "--scenario", "class-incremental", "--num-clients", str(num_clients), "--num-tasks", str(num_tasks),
        "--labels-per-task", "2", "--partition", "dirichlet", "--alpha", alpha, "--evaluate-every", "task",
    )  # fmt: skip


_FASHION_ROWS = _rows("0.01 (of 0.01, 0.1, 1)", "10 (of 10, 1e3, 1e5)", "1 (of 0.01, 1, 100)", "0.1 (of 0.1, 1, 10)")
_FASHION = tuple(
    Suite(
        name,
        f"Fashion-MNIST: 5 tasks of 2 new classes, 5 clients, Dirichlet {alpha}, one head",
        ("--data", "fashion-mnist", *_incremental(5, 5, alpha), "--num-rounds", "5", "--num-epochs", "2"),
        ("--network", "mlp", "--hidden", "256", "--batch-size", "64", "--learning-rate", "1e-3"),
        ("--max-train-documents", "600", "--num-rounds", "3"),
        _FASHION_ROWS,
    )
    for name, alpha in (("fashion", "0.5"), ("fashion-0.1", "0.1"))
)
SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "digits",
            "8 x 8 digits, which ship: 5 tasks of 2 new classes, 5 clients, Dirichlet 0.5, one head",
            ("--data", "digits", *_incremental(5, 5, "0.5"), "--num-rounds", "10", "--num-epochs", "5"),
            (),
            ("--num-rounds", "5", "--num-epochs", "2"),
            _rows(
                "0.01 (of 0.01, 0.1, 1)",
                "1 (of 1, 10, 100, 1e3, 1e4)",
                "0.01 (of 0.01, 0.1, 1, 10)",
                "10 (of 0.3, 1, 3, 10)",
            ),
        ),
        *_FASHION,
        Suite(
            "questions",
            "TREC6's questions: 3 tasks of 2 new classes, 5 clients, Dirichlet 0.5, one head",
            ("--data", "trec6", *_incremental(3, 5, "0.5"), "--num-rounds", "5", "--num-epochs", "2"),
            ("--batch-size", "64", "--learning-rate", "1e-3"),  # of TextCNN; others have the mean of word vectors
            ("--num-rounds", "3", "--num-epochs", "1"),
            _rows(
                "0.01 (of 0.01, 0.1, 1)",
                "100 (of 1, 100, 1e4)",
                "0.1 (of 0.1, 1, 10)",
                "0.1 (of 0.1, 1, 10)",
                ("fedseit", "Chaudhary et al., 2022"),
            ),
        ),
    )
}
