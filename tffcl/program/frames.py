"""A run's numbers to work with: tidy pandas frames, a short table, and HTML with a curve for notebooks.

A tidy frame has a row for each number, and columns that say what it is: runs are put side by side with `pandas.concat`.
Nothing here imports TensorFlow, and pandas only when a frame is asked for.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tffcl import metrics

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from tffcl.program.events import Event

TIDY = ("method", "seed", "client", "task", "round", "metric", "value")
NO_NUMBERS = (  # entries of an event that are no measurements
    "event", "task", "round", "participants", "left_out", "left_out_reasons", "not_reported", "nothing_learned",
    "selection", "attention",
)  # fmt: skip
_ASIDE = (*NO_NUMBERS, "worker_failures", "seconds", "training_seconds", "server_metrics")


def history_of(config: Mapping[str, Any], events: Sequence[Event], scores_are: str) -> pd.DataFrame:
    """What was measured, a row for each number but the scores.

    Columns: `method`, `seed`; `client`, missing for what the server measured; `task`, the one that is learned; `round`
    of it, missing for what belongs to the task's end; `metric`; `value`.
    """

    def rows() -> Iterator[tuple]:
        for event in events:
            for name, entry in event.items():
                if name in _ASIDE or name.startswith(scores_are):
                    continue
                values = entry.items() if isinstance(entry, Mapping) else ((None, entry),)
                yield from (
                    (_number(client), event["task"], event.get("round"), name, value) for client, value in values
                )
            for path, value in event.get("server_metrics", {}).items():
                yield None, event["task"], event.get("round"), path, value
            yield None, event["task"], event.get("round"), "seconds", event.get("seconds")

    return _frame(config, rows(), TIDY)


def scores_of(config: Mapping[str, Any], events: Sequence[Event], scores_are: str) -> pd.DataFrame:
    """Every score, a row for each client and task that is scored.

    Columns: `method`, `seed`, `client`; `task`, the one that is scored; `after_task`, the newest that was learned;
    `round` of that, missing for its end; `metric`, "accuracy" or "nll..."; `value`, missing for no test examples.
    """

    def rows() -> Iterator[tuple]:
        for event in events:
            for name in (name for name in event if name.startswith(scores_are)):
                entry = event[name]
                clients = entry.items() if isinstance(entry, Mapping) else enumerate(entry)
                for client, scores in clients:
                    for task, score in enumerate(scores):
                        yield int(client), task, event["task"], event.get("round"), name, score

    return _frame(config, rows(), ("method", "seed", "client", "task", "after_task", *TIDY[4:]))


def _number(client: Any) -> Any:
    return None if client is None else int(client)


def _frame(config: Mapping[str, Any], rows: Iterator[tuple], columns: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    numbers = [row for row in rows if row[-1] is None or isinstance(row[-1], (int, float))]
    frame = pd.DataFrame([(config.get("method"), config.get("seed"), *row) for row in numbers], columns=list(columns))
    whole = [name for name in columns if name in ("client", "task", "after_task", "round")]
    return frame.astype({**dict.fromkeys(whole, "Int64"), "value": "float64"})


def config_of(config: Mapping[str, Any]) -> pd.DataFrame:
    """The settings of a run: one row, a column for each."""
    import pandas as pd

    return pd.DataFrame([dict(config)])


# -- to look at ---------------------------------------------------------------------------------------------------


def _headline(
    config: Mapping[str, Any], events: Sequence[Event], scores_are: str, scores: np.ndarray
) -> list[tuple[str, str]]:
    """(name, value) of what a run is first asked for."""
    score, number = metrics.SCORES[scores_are], metrics.SCORES[scores_are].number
    clients, tasks = scores.shape[:2]
    ended = sum(event["event"] == "task_end" for event in events)
    shown = scores[:, : ended or 1, : ended or 1]

    return [
        ("method", str(config.get("method") or "-")),
        ("dataset", str(config.get("dataset") or "-")),
        ("seed", str(config.get("seed", "-"))),
        ("clients x tasks", f"{clients} x {tasks}" + ("" if ended == tasks else f" ({ended} learned)")),
        ("accuracy %" if score.unit == "%" else "NLL (nats)", number(metrics.task_averaged_test_accuracy(shown))),
        ("forgotten %" if score.unit == "%" else "forgotten",
         number(metrics.forgetting(shown, higher_is_better=score.higher_is_better))),
    ]  # fmt: skip


_CURVE = "mean of the tasks so far, after each task"


def text_of(config: Mapping[str, Any], events: Sequence[Event], scores_are: str, scores: np.ndarray) -> str:
    """A short table: what ran, its mean score at the end, and after each task."""
    lines = _headline(config, events, scores_are, scores)
    curve = " ".join(map(metrics.SCORES[scores_are].number, metrics.average_accuracy(scores)))
    widths = [max(len(name), len(value)) for name, value in lines]
    cells = [[part[place].rjust(width) for part, width in zip(lines, widths)] for place in (0, 1)]
    table = ["  ".join(cells[0]), "  ".join("-" * width for width in widths), "  ".join(cells[1])]
    return "\n".join([*table, f"{_CURVE}: {curve}"])


def html_of(config: Mapping[str, Any], events: Sequence[Event], scores_are: str, scores: np.ndarray) -> str:
    """The same for a notebook, with the curve as a picture."""
    cells = _headline(config, events, scores_are, scores)
    head, body = ("".join(f"<{tag}>{html.escape(part)}</{tag}>" for part in parts) for tag, parts in
                  (("th", [name for name, _ in cells]), ("td", [value for _, value in cells])))  # fmt: skip
    table = f"<table><thead><tr>{head}</tr></thead><tbody><tr>{body}</tr></tbody></table>"
    return table + _curve(metrics.average_accuracy(scores).tolist(), cells[4][0])


def _curve(means: Sequence[float], name: str, width: int = 260, height: int = 90) -> str:
    """An SVG of a mean after each task; nothing where fewer than two are known."""
    known = [(task, mean) for task, mean in enumerate(means) if math.isfinite(mean)]
    if len(known) < 2:
        return ""
    accuracy = name.startswith("accuracy")
    low, high = (0.0, 1.0) if accuracy else (min(mean for _, mean in known), max(mean for _, mean in known))
    left, top, right, bottom = 40, 8, width - 8, height - 18

    def place(task: float, mean: float) -> tuple[float, float]:
        share = (mean - low) / (high - low) if high > low else 0.5
        return left + (right - left) * task / max(1, len(means) - 1), bottom - (bottom - top) * share

    def label(value: float) -> str:
        return f"{100 * value:.0f}" if accuracy else f"{value:.1f}"

    points = [place(*each) for each in known]
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="#1f77b4"/>' for x, y in points)
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    ticks: list[tuple[float, float, str, str]] = [
        (left - 4, bottom + 4, "end", label(low)), (left - 4, top + 4, "end", label(high)),
        (left, height - 4, "middle", "task 1"), (right, height - 4, "end", f"task {len(means)}"),
    ]  # fmt: skip
    words = "".join(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in ticks)
    form = f'width="{width}" height="{height}" font-size="10" fill="currentColor" role="img"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {form}>'
        f"<title>{html.escape(name)}, {_CURVE}</title>"
        f'<path d="M{left},{top}V{bottom}H{right}" fill="none" stroke="#888"/>'
        f'<polyline points="{line}" fill="none" stroke="#1f77b4" stroke-width="1.5"/>{dots}{words}</svg>'
        f"<div><small>{html.escape(name)}, {_CURVE}</small></div>"
    )
