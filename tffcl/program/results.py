"""The settings of a run, and what it achieved, forgot, sent and took with them: the content of `results.json`.

They print as a short table, and as HTML with a curve in notebooks; in tidy pandas frames, a row for each number with
columns that say what it is, runs are put side by side with `pandas.concat`. Nothing here imports TensorFlow, what the
settings need no numpy, and pandas is imported when a frame is asked for.
"""

from __future__ import annotations

import dataclasses
import html
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from tffcl import metrics, storage
from tffcl.options import Options, option

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from tffcl.aggregators import ClientPrivacy
    from tffcl.program.events import Event
    from tffcl.streams import Enrollment
    from tffcl.templates import ContinualProcess
    from tffcl.transfers import Transfer

EVALUATE_EVERY = ("round", "task")
_BYTES = ("bytes_up", "bytes_down", "bytes_up_dense", "bytes_down_dense")


@dataclasses.dataclass(frozen=True)
class Settings(Options):
    """What decides the course of a run besides the process, the data and the transfer."""

    num_rounds: int = option(10, "Rounds for each task.", least=1)
    seed: int = option(1, "Of the order of tasks and of everything that is drawn in training.", least=0, most=2**32 - 1)
    clients_per_round: Optional[int] = option(None, "Clients that take part in a round; none for all.", least=1)
    evaluate_every: str = option("round", "When all tasks so far are evaluated.", choices=EVALUATE_EVERY)


@dataclasses.dataclass(frozen=True, repr=False)
class Results:
    """The numbers of a run; printed, a short table of them.

    Shown with `Experiment`.

    Attributes:
      scores: float64 `[C, T, T]`: score of client c on task i after it learned task t; NaN for no data.
      scores_are: "accuracy", or "nll" where the examples have no labels.
      bytes_up / bytes_down: for each client the sparse-coded bytes that it sent or received, a number per round; what
        travels when a task ends counts with its last round, and when one begins with its first.
      bytes_up_dense / bytes_down_dense: likewise, every message dense.
      server_metrics: what the aggregator and the finalizer measured, by path, a value per round; None for a round in
        which nobody took part.
      seconds: `total`, and `per_client_epoch` (`wall` and `cpu`, workers included); the only part that
        differs between two runs with the same seed.
      config: the settings of the run.
      other_scores: `[C, T, T]` of a density scored in other ways, by name (`tffcl.program.cohorts`).
      privacy: what noise guarantees, by what it is on; empty without any.
      more: what the method adds, by name.
      directory: the run directory; None in memory.
      just_learnt: float64 `[C, T]`, scores after a task's last round, before it ended: what its end does to a task
        (pruning, thresholds) is the difference from the diagonal of `scores`. None where rounds were not evaluated.
      events: what `history.jsonl` holds, a mapping a line.
    """

    scores: np.ndarray
    scores_are: str
    bytes_up: list[list[int]]
    bytes_down: list[list[int]]
    bytes_up_dense: list[list[int]]
    bytes_down_dense: list[list[int]]
    server_metrics: dict[str, list[Any]]
    seconds: dict[str, Any]
    config: dict[str, Any]
    other_scores: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    privacy: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    directory: Optional[pathlib.Path] = None
    just_learnt: Optional[np.ndarray] = None
    events: Sequence[Event] = ()

    def __repr__(self) -> str:
        return text_of(self.config, self.events, self.scores_are, self.scores)

    def _repr_html_(self) -> str:
        return html_of(self.config, self.events, self.scores_are, self.scores)

    @property
    def history(self) -> pd.DataFrame:
        """What was measured of each client and of the server in every round (`tffcl.program.results.history_of`)."""
        return history_of(self.config, self.events, self.scores_are)

    @property
    def accuracy(self) -> pd.DataFrame:
        """Every score, by client and task, after every round and task (`tffcl.program.results.scores_of`)."""
        return scores_of(self.config, self.events, self.scores_are)

    @property
    def final_score(self) -> float:
        """Mean over clients and tasks after the last task: task-averaged test accuracy, or average NLL."""
        return metrics.task_averaged_test_accuracy(self.scores)

    @property
    def scores_by_task(self) -> np.ndarray:
        """float64 `[T, T]`: mean over the clients that have data; see `tffcl.metrics.accuracy_by_task`."""
        return metrics.accuracy_by_task(self.scores)

    @property
    def average_by_task(self) -> float:
        """Mean over tasks after the last task, every task alike however many clients have it."""
        return metrics.mean_of_known(self.scores_by_task[-1])

    @property
    def forgetting(self) -> float:
        """See `tffcl.metrics.forgetting`; NaN with one task."""
        return metrics.forgetting(self.scores, higher_is_better=self.scores_are == "accuracy")

    @property
    def backward_transfer(self) -> float:
        """See `tffcl.metrics.backward_transfer`; NaN with one task."""
        return metrics.backward_transfer(self.scores, higher_is_better=self.scores_are == "accuracy")

    def _since_just_learnt(self) -> dict[str, Any]:
        """Scores as just learnt, and what the tasks before the last lost from then to the end."""
        if self.just_learnt is None:
            return {}
        lost = (self.just_learnt - self.scores[:, -1])[:, :-1] * (1 if self.scores_are == "accuracy" else -1)
        return {
            "just_learnt": self.just_learnt,
            "average_just_learnt": metrics.mean_of_known(self.just_learnt),
            "forgetting_from_just_learnt": metrics.mean_of_known(lost),
        }

    def to_json(self) -> dict[str, Any]:
        """The content of `results.json`; NaN is null."""
        final = "task_averaged_test_accuracy" if self.scores_are == "accuracy" else "average_nll"
        num_clients, num_tasks = self.scores.shape[:2]
        others: dict[str, Any] = {}
        for name, scores in self.other_scores.items():
            others[name] = scores
            others[f"average_{name}"] = metrics.task_averaged_test_accuracy(scores)
            others[f"forgetting_{name}"] = metrics.forgetting(scores, higher_is_better=False)
        return storage.plain(
            {
                "method": self.config.get("method"),
                "dataset": self.config.get("dataset"),
                "seed": self.config.get("seed"),
                "num_clients": num_clients,
                "num_tasks": num_tasks,
                self.scores_are: self.scores,
                final: self.final_score,
                f"{self.scores_are}_by_task": self.scores_by_task,
                f"average_{self.scores_are}_by_task": self.average_by_task,
                "forgetting": self.forgetting,
                "backward_transfer": self.backward_transfer,
                **self._since_just_learnt(),
                **others,
                **{name: getattr(self, name) for name in _BYTES},
                "server_metrics": self.server_metrics,
                "seconds": self.seconds,
                **({"privacy": self.privacy} if self.privacy else {}),
                "config": self.config,
                **self.more,
            }
        )


def results_of(events: Sequence[Event], scores_are: str, config: Mapping[str, Any]) -> Results:
    """The results of a run from its events; `config` has `num_clients`, `num_tasks` and `num_rounds`."""
    import numpy as np  # not for the help, which reads the settings

    num_clients, num_tasks, num_rounds = (config[name] for name in ("num_clients", "num_tasks", "num_rounds"))
    ends = [event for event in events if event["event"] == "task_end"]
    rounds = [event for event in events if event["event"] == "round"]
    names = {name for event in ends for name in event if name.startswith(scores_are)}
    tensors = {name: np.full([num_clients, num_tasks, num_tasks], np.nan) for name in sorted(names | {scores_are})}
    for name, scores in tensors.items():
        for event in ends:
            for client, row in enumerate(event.get(name, [])):
                scores[client, event["task"], : len(row)] = [np.nan if one is None else one for one in row]
    learnt = np.full([num_clients, num_tasks], np.nan)
    for event in rounds:  # the last of a task stands
        for client, row in event.get(scores_are, {}).items():
            score = row[event["task"]]
            learnt[int(client), event["task"]] = np.nan if score is None else score
    last = max((event["task"] for event in events), default=-1)
    sent = {name: np.zeros([num_clients, (last + 1) * num_rounds], np.int64) for name in _BYTES}
    for event in events:
        column = event["task"] * num_rounds + event.get("round", num_rounds - 1)
        for name, counts in sent.items():
            for client, count in event.get(name, {}).items():
                counts[int(client), column] += count
    epochs = sum(sum(event.get("epochs", {}).values()) for event in rounds)
    spent = {clock: sum(event["training_seconds"][clock] for event in rounds) for clock in ("wall", "cpu")}
    return Results(
        scores=tensors.pop(scores_are),
        scores_are=scores_are,
        server_metrics=measured_by_round(rounds),
        seconds={
            "total": sum(event.get("seconds", 0.0) for event in events),
            "per_client_epoch": {clock: value / epochs if epochs else None for clock, value in spent.items()},
        },
        config=dict(config),
        other_scores=tensors,
        just_learnt=learnt if any(scores_are in event for event in rounds) else None,
        events=tuple(events),
        **{name: counts.tolist() for name, counts in sent.items()},  # type: ignore[arg-type]
    )


def measured_by_round(rounds: Sequence[Event]) -> dict[str, list[Any]]:
    """What the server measured, by path a value for each round; None where there is none, as without participants."""
    measured = [event.get("server_metrics", {}) for event in rounds]
    paths = dict.fromkeys(path for one in measured for path in one)
    return {path: [one.get(path) for one in measured] for path in paths}


def privacy_accounts(
    privacy: Optional[ClientPrivacy],
    events: Sequence[Event],
    enrollment: Enrollment,
    process: ContinualProcess,
    transfer: Transfer,
) -> dict[str, Any]:
    """What the noise of a run guarantees, by what it is on: updates of the base, summaries of tasks.

    `enrollment` says of whom participants were drawn, task by task; without `privacy` updates have no noise.
    """
    accounts: dict[str, Any] = {}
    of_summaries = transfer.account()
    if of_summaries is not None:
        accounts["summaries"] = of_summaries
    if privacy is None:
        return accounts
    rounds = [
        (event["participants"], enrollment.active(event["task"])) for event in events if event["event"] == "round"
    ]
    epsilon = metrics.client_epsilon(privacy.noise_multiplier, rounds, privacy.delta)
    drawn = any(len(took_part) < len(candidates) for took_part, candidates in rounds)
    from tffcl.templates import messages

    update = {} if process.message_type is None else messages.entries(process.message_type[0])
    sent_otherwise = {
        "adaptives in the knowledge base": process.num_foreign > 0,
        "summaries of tasks": transfer.needs_summaries,
        "examples for rehearsal": "rehearsal" in update,
        "Gram sums of layer inputs": "gram" in update,
        "metrics and counts of examples": True,
    }
    accounts["base_updates"] = {
        "epsilon": epsilon.known,
        "epsilon_participants_hidden": epsilon.hidden if drawn else None,
        "delta": privacy.delta,
        "neighbouring": "all that one client has is replaced",
        "sampling": "a fixed number of clients, without replacement" if drawn else "all clients in every round",
        "rounds": sum(bool(took_part) for took_part, _ in rounds),
        "noise_multiplier": privacy.noise_multiplier,
        "clip": privacy.clip,
        "quantile": privacy.quantile,
        "uncovered": [*(name for name, sent in sent_otherwise.items() if sent), *privacy.uncovered],
    }
    return accounts


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
