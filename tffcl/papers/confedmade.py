"""`tffcl reproduce confedmade`: tables 1 to 4 of Paul et al., 2023 (ConFedMADE), and its figures 3 and 5.

Table `weights` is what the weights of EWC, FedProx and FedCurv are chosen by, which the paper does not name: table 3's
digits, scored on what clients hold out of each task, past ones too. No test row is looked at.

The paper's order-agnostic figures come from masks that let outputs see their own input (table 2, "+Order" rows, and
what of table 3 was trained so): they are no likelihoods, and a valid density cannot be expected to reach them.

Where each figure comes from:
- NLL: mean over clients and tasks after the last task, without any task label; of pooled tasks, of the one density on
  each original task. "task known" and "newest" are the other two ways of scoring.
- client, held out (table 2): what each client's own model, as it left its last round of local training, loses on the
  rows that this client holds out; mean over clients. The server's figure is on the test rows, which are others.
- server, one mask: the mean over the masks by themselves, where "server" averages their probabilities.
- % of B: entries of the base that were sent up, of all that there are; mean over clients and rounds.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, Optional

from tffcl import reports
from tffcl.papers.tables import Found, Row, Table, megabytes_kept, megabytes_up, result

# The digits dealt out in turn, all pictures of a digit to each client that holds it, as the published code does.
_IN_TURN = ("0,3,6,9,2", "1,4,7,0,3", "2,5,8,1,4")
_DIGITS = ("--data", "mnist", "--overlap", "1", *(one for tasks in _IN_TURN for one in ("--assign", tasks)))
# Of the paper's columns in table 3: flags, and (NLL, forgetting) by method. Each client meets a label once, so that
# three of ten digits a task make three tasks, where the paper has five. "mnist+letters" needs EMNIST's files.
DATA = {
    "mnist": _DIGITS,
    "mnist3": ("--data", "mnist", "--labels-per-task", "3", "--num-tasks", "3"),
    "binary": ("--data", "binary"),
    "mnist+letters": ("--data", "mnist+letters"),
}
# method: MNIST NLL, forgetting; binary NLL, forgetting; MNIST and EMNIST NLL, forgetting.
_TABLE_3 = {
    "offline": ("72.68", "-", "38.45", "-", "84.98", "-"),
    "federated-offline": ("79.23", "-", "40.33", "-", "89.66", "-"),
    "cl-replay": ("73.32", "0.00", "39.45", "0.00", "86.66", "0.00"),
    "cl-ewc": ("111.2", "29.33", "79.80", "26.01", "121.03", "27.87"),
    "cl-finetune": ("126.1", "38.62", "81.32", "28.32", "125.3", "30.98"),
    "replay": ("74.47", "0.00", "41.67", "0.00", "87.34", "0.00"),
    "fedprox": ("106.34", "24.35", "73.34", "20.95", "117.67", "22.29"),
    "fedcurv": ("104.94", "22.95", "70.34", "19.12", "116.11", "21.56"),
    "fedprox-ewc": ("105.97", "23.89", "73.04", "20.35", "116.94", "21.98"),
    "finetune": ("115.3", "31.43", "84.45", "29.56", "129.8", "36.98"),
    "fedweit-made": ("99.32", "19.43", "69.23", "18.02", "114.6", "20.24"),
    "fedweit-made-sync": ("93.32", "14.43", "63.83", "12.40", "109.3", "15.11"),
    "confedmade": ("87.12", "8.32", "59.15", "8.12", "104.2", "9.76"),
}
# What stands beside them: (flags), compared with CONTROL.
_CONTROLS = {
    "alone": ("alone",),
    "alone+warm": ("alone", "--warm-start"),
    "store-all": ("store-all",),
    "confedmade+zeros": ("confedmade", "--foreign", "zeros"),
    "confedmade+random": ("confedmade", "--foreign", "random"),
    "confedmade+aligned": ("confedmade", "--share-dense", "start"),
}
CONTROL = "alone"
_PLACE = {"mnist": 0, "mnist3": 0, "binary": 2, "mnist+letters": 4}
# All of MNIST, or three of its digits, over the clients, in one task.
_ONE_TASK = ("finetune", "--data", "mnist", "--num-tasks", "1", "--same-order")
_TABLE_1 = {1: ("75.23", "75.23"), 2: ("76.93", "97.27"), 5: ("83.51", "170.7"), 10: ("86.23", "219.1"),
            20: ("87.89", "264.0"), 40: ("89.89", "301.2")}  # fmt: skip
_DC, _CA, _OA = (), ("--connectivity-agnostic",), ("--order-agnostic",)
_TABLE_2 = {
    "baseline": (("--no-direct",), ("89.66", "100.8")),
    "+DC": (_DC, ("75.66", "84.10")),
    "+CA": (("--no-direct", *_CA), ("98.32", "110.7")),
    "+OA": (("--no-direct", *_OA), ("81.18", "84.78")),
    "+DC+OA": (_OA, ("62.83", "71.42")),
    "+DC+CA": (_CA, ("78.64", "87.12")),
    "+DC+CA+OA": ((*_CA, *_OA), ("103.6", "111.5")),
}
_TABLE_4 = {
    "w/o M, m > 0.1": (("--method", "fedweit-made-sync", "--gate-cutoff", "0.1"), ("88.6", "85.89")),
    "w/ M, m > 0.1": (("--gate-cutoff", "0.1"), ("44.5", "87.12")),
    "w/ M, m > 0.2": (("--gate-cutoff", "0.2"), ("39.4", "88.52")),
    "w/ M, m > 0.3": (("--gate-cutoff", "0.3"), ("34.7", "90.08")),
    "w/ M, m > 0.4": (("--gate-cutoff", "0.4"), ("30.0", "91.12")),
}
# Method: its option, and the weights to choose from.
_WEIGHTS = {
    "fedprox": ("proximal", ("0.01", "0.1", "1", "10")),
    "fedcurv": ("penalty", ("0.1", "1", "10")),
    "fedprox-ewc": ("penalty", ("0.01", "0.1", "1", "10")),
    "cl-ewc": ("penalty", ("0.1", "1", "10", "100")),
}


def _held_out(folder: pathlib.Path) -> Optional[float]:
    """Mean over clients of the loss on held-out rows at the end of the last round's local training."""
    last = [event for event in reports.load_history(folder) if event.get("event") == "round"][-1]
    values = [value for value in last["validation_loss"].values() if value is not None]
    return sum(values) / len(values) if values else None


def _share_sent(folder: pathlib.Path) -> float:
    """Entries of the base sent up, in per cent of all; a dense message has four bytes for each entry."""
    rounds = [event for event in reports.load_history(folder) if event.get("event") == "round"]
    sent = sum(sum(event["sent"].values()) for event in rounds)
    return 100 * sent / (sum(sum(event["bytes_up_dense"].values()) for event in rounds) / 4)


_OF_TASKS = "average_nll_of_tasks"
_MEASURES = {
    "NLL": result(_OF_TASKS, "average_nll"),
    "task known": result(_OF_TASKS, "average_nll_task_known"),
    "newest": result(_OF_TASKS, "average_nll_newest"),
    "forgotten": result("forgetting"),
    "forgotten, known": result("forgetting_nll_task_known"),
    "forgotten, newest": result("forgetting_nll_newest"),
    "server": result("average_nll"),
    "server, one mask": result("average_nll_one_mask", "average_nll"),
    "client, held out": _held_out,
    "% of B": _share_sent,
    "MB up": megabytes_up,
    "MB kept": megabytes_kept,
}


def table(name: str) -> Table:
    """Table "1", "2", "3" or "4", or "weights"."""
    return {"1": _masks, "2": _choices, "3": _methods, "4": _cutoffs, "weights": _weights}[name]()


def _table(left: Sequence[str], measures: Sequence[str], reference: Sequence[str], rows: Sequence[Row]) -> Table:
    chosen = {name: (_MEASURES[name], 2) for name in measures}
    return Table(tuple(left), chosen, tuple(reference), tuple(rows), _draw)


def _draw(found: Found, root: pathlib.Path) -> list[pathlib.Path]:
    """NLL after each task of all methods of a group, at the first seed that each has."""
    groups: dict[str, dict[str, Any]] = {}
    for row, folders in found.items():
        results = reports.load_results(folders[0]) if row.group and folders else {}
        if results.get("nll") and results["num_tasks"] > 1:
            groups.setdefault(row.group, {})[row.cells[-1]] = results
    return [reports.plot_nll_by_task(runs, root / f"nll-by-task-{group}.png") for group, runs in groups.items()]


def _masks() -> Table:
    rows = []
    for clients, printed in _TABLE_1.items():
        for place, masks in enumerate(("synchronised", "distinct")):
            flags: tuple[str, ...] = (*_ONE_TASK, "--labels-per-task", "10", "--num-clients", str(clients))
            flags += ("--distinct-masks",) if place else ()
            rows.append(Row(f"{clients}-{masks}", (str(clients), masks), flags, (printed[place],)))
    return _table(("clients", "masks"), ("NLL",), ("paper",), rows)


def _choices() -> Table:
    flags = (*_ONE_TASK, "--labels-per-task", "3")
    rows = [Row(name, (name,), (*flags, *more), printed) for name, (more, printed) in _TABLE_2.items()]
    measures = ("client, held out", "server", "server, one mask")
    return _table(("configuration",), measures, ("paper, client", "paper, server"), rows)


def _methods() -> Table:
    rows = [
        Row(
            f"{data}-{method}",
            (data, method),
            ("confedmade", "--method", *_CONTROLS.get(method, (method,)), *flags),
            _TABLE_3.get(method, ("-",) * 6)[place : place + 2],
            data,
            "" if method == CONTROL else f"{data}-{CONTROL}",
        )
        for data, flags, place in ((data, flags, _PLACE[data]) for data, flags in DATA.items())
        for method in (*_TABLE_3, *_CONTROLS)
    ]
    measures = ("NLL", "task known", "newest", "forgotten", "forgotten, known", "forgotten, newest", "MB kept")
    table = _table(("data", "method"), measures, ("paper, NLL", "paper, forgotten"), rows)
    return dataclasses.replace(table, compared={"NLL": f"over {CONTROL}"})


def _cutoffs() -> Table:
    rows = [
        Row(f"cutoff-{place}", (name,), ("confedmade", *_DIGITS, *flags), printed)
        for place, (name, (flags, printed)) in enumerate(_TABLE_4.items())
    ]
    measures = ("% of B", "MB up", "NLL", "task known", "forgotten")
    return _table(("strategy",), measures, ("paper, % of B", "paper, NLL"), rows)


def _weights() -> Table:
    rows = [
        Row(
            f"{method}-{weight}",
            (method, f"--{option} {weight}"),
            ("confedmade", "--method", method, *_DIGITS, "--evaluate-on", "validation", f"--{option}", weight),
        )
        for method, (option, weights) in _WEIGHTS.items()
        for weight in weights
    ]
    return _table(("method", "weight"), ("NLL", "forgotten"), (), rows)
