"""Tables of results, as aligned text, Markdown, LaTeX or HTML, and what noise guarantees, in words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tffcl import metrics
from tffcl.errors import InputError

NO_DATA = "-"
# Figures of one growing head (`tffcl.metrics.incremental_figures`), and what every table calls them, in per cent.
FIGURES = {
    "last_accuracy": "A_T %",
    "average_incremental_accuracy": "average A_t %",
    "forgetting": "forgotten %",
    "plasticity": "plasticity %",
    "worst_client_accuracy": "worst client %",
}
TASK_AT_TEST = "task at test"  # what is known of a test example's task: `KNOWN`, `INFERRED` or `unknown`
KNOWN, INFERRED = "known", "inferred"
# ConFedMADE, figures 3 and 5: NLL after each task.
NLL_FIGURES = {
    "All tasks so far": metrics.average_nll,
    "The first task": metrics.base_task_nll,
    "The newest task": metrics.new_task_nll,
}


def results_table(results: Sequence[Mapping[str, Any]], *, form: str = "text") -> str:
    """One row a run: what it was, how well it did, what it forgot, what it sent.

    Accuracies in %, forgetting in percentage points (for densities: NLL and its rise in nats), bytes summed
    over clients and rounds. The seconds are those of rounds and ends of tasks: compilation, training, evaluation,
    checkpoints; imports, data, tables and plots are none of them. A density is scored without task label, with the task
    known, and with the newest parameters; where all tasks were pooled, on each of the original ones alone. One growing
    head has A_T, its accuracy on all classes, the average of A_t after each task, plasticity (accuracy on tasks just
    learned), and accuracy on the classes as the worst client had them; so have methods with parameters for each task,
    whose `task at test` is known or inferred. A column that no run has a value for is left out.

    Shown in docs/runs.md.

    Raises:
      InputError: no results.
    """
    if not results:
        raise InputError("results_table needs the results of at least one run, got none")
    columns = {
        "method": [str(run.get("method", NO_DATA)) for run in results],
        "dataset": [str(run.get("dataset", NO_DATA)) for run in results],
        "seed": [str(run.get("seed", NO_DATA)) for run in results],
        "clients x tasks": [_extent(run) for run in results],
        TASK_AT_TEST: [task_at_test(run.get("config") or {}) for run in results],
        "TTA %": [_percent(run.get("task_averaged_test_accuracy")) for run in results],
        "NLL nats": [_nll(run, "average_nll") for run in results],
        "task known": [_nll(run, "average_nll_task_known") for run in results],
        "newest": [_nll(run, "average_nll_newest") for run in results],
        "forgotten %": [_percent(None if _is_density(run) else forgetting(run)) for run in results],
        "forgotten nats": [_number(run.get("forgetting") if _is_density(run) else None) for run in results],
        "(known)": [_number(run.get("forgetting_nll_task_known")) for run in results],
        "(newest)": [_number(run.get("forgetting_nll_newest")) for run in results],
        **{
            called: [_percent(incremental(run, name)) for run in results]
            for name, called in FIGURES.items()
            if name != "forgetting"
        },
        "epsilon": [_epsilon(run) for run in results],
        "sent up": [_bytes(run.get("bytes_up")) for run in results],
        "sent down": [_bytes(run.get("bytes_down")) for run in results],
        "seconds in rounds": [_seconds(run.get("seconds")) for run in results],
    }
    return _render_columns(columns, ("method", "dataset"), form)


def incremental(run: Mapping[str, Any], name: str) -> Any:
    """A figure of one growing head (`tffcl.metrics.incremental_figures`); None of other runs."""
    return (run.get("incremental") or {}).get(name)


def task_at_test(config: Mapping[str, Any]) -> str:
    """`known` or `inferred`, by the configuration of a run with parameters for each task of new classes.

    >>> task_at_test({"task_at_test": "entropy"}), task_at_test({})
    ('inferred', '-')
    """
    chosen = config.get("task_at_test") or NO_DATA
    return INFERRED if chosen == "entropy" else str(chosen)


def forgetting(run: Mapping[str, Any]) -> Any:
    """Of one growing head that of its one model, tasks counted alike; of other runs the mean over clients and tasks."""
    own = incremental(run, "forgetting")
    return run.get("forgetting") if own is None else own


def _render_columns(columns: Mapping[str, Sequence[str]], text: Sequence[str], form: str) -> str:
    """Lays out the columns that have data; those named in `text` come first, and stand to the left."""
    kept = {name: cells for name, cells in columns.items() if any(cell != NO_DATA for cell in cells)}
    num_text_columns = sum(name in kept for name in text)
    return render(list(kept), list(zip(*kept.values())), form=form, num_text_columns=num_text_columns)


def accuracy_matrix_table(results: Mapping[str, Any], *, client: int | None = None, form: str = "text") -> str:
    """Accuracy (%) or NLL (nats) on each task, a row for the time after each task.

    Shown with `results_table`.

    Args:
      results: what `load_results` gives.
      client: 0 .. C-1, or None for the mean over clients.
      form: one of `FORMS`.

    Raises:
      InputError: no `accuracy` or `nll` in the results, or no such client.
    """
    key, tensor = scores_of(results)
    if client is not None and not 0 <= client < len(tensor):
        raise InputError(f"client {client} is not in the results; clients are 0..{len(tensor) - 1}")
    chosen = tensor if client is None else tensor[client : client + 1]
    num_tasks = tensor.shape[1]
    cell = _percent if key == "accuracy" else _number
    rows = [[f"after task {t + 1}", *map(cell, row)] for t, row in enumerate(metrics.accuracy_by_task(chosen).tolist())]
    header = ["accuracy %" if key == "accuracy" else "NLL nats", *(f"task {i + 1}" for i in range(num_tasks))]
    return render(header, rows, form=form)


def nll_by_task_table(results: Mapping[str, Any], *, form: str = "text") -> str:
    """What `plot_nll_by_task` draws of one run's "nll", as numbers.

    Shown with `results_table`.

    Raises:
      InputError: results without NLL.
    """
    if not results.get("nll"):
        raise InputError("the results have no 'nll' [clients, tasks, tasks]")
    columns = [of(results["nll"]) for of in NLL_FIGURES.values()]
    rows = [
        [f"after task {task + 1}", *(NO_DATA if np.isnan(value) else f"{value:.2f}" for value in values)]
        for task, values in enumerate(zip(*columns))
    ]
    return render(["NLL nats", "average", "first task", "newest task"], rows, form=form)


def by_task_table(runs: Mapping[str, Mapping[str, Any]], *, form: str = "text") -> str:
    """A row for each run: accuracy (%) on each task at the end and on average, what was forgotten, sent and held.

    Shown in examples/fil_ver_emnist.py.
    """
    most = max(len(results["accuracy_by_task"][-1]) for results in runs.values())
    header = ["accuracy %", *(f"task {task + 1}" for task in range(most)), "average", "forgotten", "sent up",
              "client memory", "server memory"]  # fmt: skip
    rows = []
    for name, results in runs.items():
        by_task = [*results["accuracy_by_task"][-1], *[None] * most][:most]
        memory = results["memory"]
        held = [_held(memory[place]) for place in ("client", "server")]
        percents = [*by_task, results["average_accuracy_by_task"], results["forgetting"]]
        sent = format_bytes(total(results["bytes_up"]))
        rows.append([name, *map(_percent, percents), sent, *held])
    return render(header, rows, form=form)


def _held(count: Optional[int]) -> str:
    return format_bytes(count) if count else NO_DATA


def leak_table(rows: Sequence[Mapping[str, Any]], *, form: str = "text") -> str:
    """A row for each way of sharing: how often what is sent is linked to its source, and how much of it is rebuilt.

    A column that no row has a value for is left out.

    Args:
      rows: each with
        sharing: what is sent, as text;
        beta: of the encoder's pre-training (eq. 9), None where it has none;
        epsilon: of the noise on what is sent, None where there is none;
        times: how often the same example is sent;
        candidates: among how many the source was looked for;
        top1, top5: shares 0 .. 1, and mean_rank, as `tffcl.metrics.LinkResult` has them;
        r2: as `tffcl.metrics.reconstruction_r2` gives it.
        All but sharing, times and top1 may be missing.
      form: one of `FORMS`.

    >>> print(leak_table([{"sharing": "sampled", "beta": 1e-3, "times": 6, "top1": 0.981, "r2": 0.4}]))
    sharing   beta  sent  top-1 %    R2
    -------  -----  ----  -------  ----
    sampled  0.001    6x     98.1  0.40

    Raises:
      InputError: no rows, or one that lacks sharing, times or top1.
    """
    if not rows:
        raise InputError("leak_table needs at least one row, got none")
    for number, row in enumerate(rows, start=1):
        missing = [name for name in ("sharing", "times", "top1") if row.get(name) is None]
        if missing:
            raise InputError(f"row {number} of the leak table has no {', '.join(missing)}")
    columns = {
        "sharing": [str(row["sharing"]) for row in rows],
        "beta": [_leak_cell(row, "beta", "{:g}") for row in rows],
        "epsilon": [_leak_cell(row, "epsilon", "{:.3g}") for row in rows],
        "sent": [_leak_cell(row, "times", "{}x") for row in rows],
        "candidates": [_leak_cell(row, "candidates", "{:,}") for row in rows],
        "top-1 %": [_leak_cell(row, "top1", "{:.1f}", 100) for row in rows],
        "top-5 %": [_leak_cell(row, "top5", "{:.1f}", 100) for row in rows],
        "mean rank": [_leak_cell(row, "mean_rank", "{:.1f}") for row in rows],
        "R2": [_leak_cell(row, "r2", "{:.2f}") for row in rows],
    }
    return _render_columns(columns, ("sharing",), form)


def _leak_cell(row: Mapping[str, Any], name: str, form: str, scale: int = 1) -> str:
    value = row.get(name)
    text = NO_DATA if value is None else form.format(scale * value)
    return "0.00" if text == "-0.00" else text


def scores_of(results: Mapping[str, Any]) -> tuple[str, Any]:
    """("accuracy" or "nll", its tensor, float64 [C, T, T] with NaN for no data).

    Raises:
      InputError: the results have neither.
    """
    for key in ("accuracy", "nll"):
        if results.get(key) is not None:
            return key, metrics.score_tensor(results[key], key)
    raise InputError("the results have neither 'accuracy' nor 'nll' [clients, tasks, tasks]")


FORMS = ("text", "markdown", "latex", "html")
_ESCAPES = {
    "markdown": {"|": r"\|"},
    "latex": {
        "\\": r"\textbackslash{}", **{sign: f"\\{sign}" for sign in "&%$#_{}"}, "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}", "+-": r"$\pm$", "<": "$<$", ">": "$>$",
    },
    "html": {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "+-": "&plusmn;"},
}  # fmt: skip


def escaped(text: str, form: str) -> str:
    r"""A text as it stands in a table of a form.

    >>> print(escaped("50 % +- 1_2", "latex"), escaped("a<b", "html"), escaped("a|b", "markdown"))
    50 \% $\pm$ 1\_2 a&lt;b a\|b
    """
    signs = _ESCAPES.get(form)
    if not signs:
        return text
    return re.sub("|".join(map(re.escape, sorted(signs, key=len, reverse=True))), lambda found: signs[found[0]], text)


def render(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, form: str = "text", num_text_columns: int = 1
) -> str:
    r"""Lays out cells; the first `num_text_columns` columns to the left, numbers to the right.

    LaTeX needs the package booktabs.

    >>> print(render(["run", "TTA"], [["fedseit", "83.6"]], form="markdown"))
    | run     |  TTA |
    |:--------|-----:|
    | fedseit | 83.6 |
    >>> print(render(["run", "TTA %"], [["a_b", "83.6 +- 1"]], form="latex"))
    \begin{tabular}{lr}
    \toprule
    run & TTA \% \\
    \midrule
    a\_b & 83.6 $\pm$ 1 \\
    \bottomrule
    \end{tabular}
    """
    cells = [[escaped(cell, form) for cell in row] for row in [header, *rows]]
    if form == "latex":
        columns = "l" * num_text_columns + "r" * (len(header) - num_text_columns)
        lines = [f"{' & '.join(row)} \\\\" for row in cells]
        return "\n".join(
            [f"\\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule",
             r"\end{tabular}"]
        )  # fmt: skip
    if form == "html":
        lines = []
        for tag, row in zip(["th", *["td"] * len(rows)], cells):
            kinds = [' class="text"' if place < num_text_columns else "" for place in range(len(row))]
            marked = "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, row))
            lines.append(f"<tr>{marked}</tr>")
        return "\n".join(["<table>", f"<thead>{lines[0]}</thead>", "<tbody>", *lines[1:], "</tbody>", "</table>"])
    widths = [max(map(len, column)) for column in zip(*cells)]
    texts = [
        [
            cell.ljust(width) if place < num_text_columns else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths))
        ]
        for row in cells
    ]
    if form == "text":
        lines = ["  ".join(row).rstrip() for row in texts]
        return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
    rule = [
        f":{'-' * (width + 1)}" if place < num_text_columns else f"{'-' * (width + 1)}:"
        for place, width in enumerate(widths)
    ]
    lines = ["| " + " | ".join(row) + " |" for row in texts]
    return "\n".join([lines[0], "|" + "|".join(rule) + "|", *lines[1:]])


def spread(values: Sequence[float], digits: int = 1, signed: bool = False) -> str:
    """Mean over seeds, and the half width of its 95 % interval by Student's t.

    >>> spread([80.0, 84.0]), spread([80.0], 2), spread([])
    ('82.0 +- 25.4', '80.00', '-')
    >>> spread([1.0, 2.0, 3.0, 2.0], signed=True)
    '+2.0 +- 1.3'
    """
    if not values:
        return NO_DATA
    mean = f"{sum(values) / len(values):{'+' if signed else ''}.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} +- {half_width(values):.{digits}f}"


def total(value: Any) -> float:
    """Sum of all numbers in a number, or in nested lists and objects of them; null counts as nothing."""
    if isinstance(value, dict):
        return sum(map(total, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(total, value))
    return 0 if value is None else value


def half_width(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of a mean: t s / sqrt(n), s with n - 1 degrees of freedom; n is 2 or more."""
    from scipy import stats

    return float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


def format_bytes(count: float) -> str:
    """A number of bytes for people, in powers of 1000.

    >>> format_bytes(999), format_bytes(1_234_567)
    ('999 B', '1.23 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count / size:.0f} {unit}"
    return f"{count:.0f} B"


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _number(value: Any) -> str:
    return NO_DATA if _missing(value) else f"{value:.2f}"


def _nll(run: Mapping[str, Any], name: str) -> str:
    return _number(run.get("average_nll_of_tasks", run.get(name)))


def _epsilon(run: Mapping[str, Any]) -> str:
    updates = (run.get("privacy") or {}).get("base_updates")
    return NO_DATA if updates is None else f"{updates['epsilon']:.3g}"


def _percent(value: Any) -> str:
    return NO_DATA if _missing(value) else f"{100 * value:.1f}"


def _bytes(value: Any) -> str:
    return NO_DATA if value is None else format_bytes(total(value))


def _seconds(value: Any) -> str:
    seconds = value.get("total") if isinstance(value, Mapping) else value
    return NO_DATA if _missing(seconds) else f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.1f}"


def _extent(run: Mapping[str, Any]) -> str:
    clients, tasks = run.get("num_clients"), run.get("num_tasks")
    return NO_DATA if clients is None or tasks is None else f"{clients} x {tasks}"


def _is_density(run: Mapping[str, Any]) -> bool:
    return run.get("accuracy") is None and (run.get("nll") is not None or run.get("average_nll") is not None)


# -- privacy ------------------------------------------------------------------------------------------------------


def privacy_lines(results: Mapping[str, Any]) -> list[str]:
    """A line for each thing that was noised, with its epsilon, what that means and what it leaves out.

    >>> privacy_lines({"accuracy": []})
    []

    """
    accounts = results.get("privacy") or {}
    makers = {"base_updates": _of_updates, "summaries": _of_summaries}
    return [make(accounts[name]) for name, make in makers.items() if name in accounts]


def _of_updates(account: Mapping[str, Any]) -> str:
    hidden = account["epsilon_participants_hidden"]
    lower = hidden is not None and hidden < account["epsilon"]
    less = f"; {hidden:.3g} for whoever cannot know who took part" if lower else ""
    return (
        f"privacy: the updates of the base are ({account['epsilon']:.3g}, {account['delta']:g})-differentially private "
        f"for a whole client ({account['neighbouring']}) over {account['rounds']} rounds, {account['sampling']}{less}; "
        f"not covered, nor what it tells: {', '.join(account['uncovered'])}"
    )


def _of_summaries(account: Mapping[str, Any]) -> str:
    return (
        f"privacy: what a client tells of a task is ({account['epsilon']:.3g}, {account['delta']:g})-differentially "
        f"private for each of its documents ({account['neighbouring']}); its adaptives, trained on the same documents, "
        "are not"
    )
