"""What a run achieved, forgot, sent and took: made from its events, and kept in `results.json`."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tffcl import metrics
from tffcl.program import server_metrics
from tffcl.program.files import plain
from tffcl.program.history import Event


@dataclasses.dataclass(frozen=True)
class Results:
    """The numbers of a run.

    Attributes:
      scores: float64 `[C, T, T]`: score of client c on task i after it learned task t; NaN for no data.
      scores_are: "accuracy", or "nll" where the examples have no labels.
      bytes_up: for each client the sparse-coded bytes that it sent, a number per round; what it sends when a
        task ends counts with the task's last round.
      bytes_down: likewise received; what it receives when a task begins counts with the task's first round.
      bytes_up_dense: as `bytes_up`, every message dense.
      bytes_down_dense: as `bytes_down`, every message dense.
      server_metrics: what the aggregator and the finalizer measured, by path, a value per round; None for a round in
        which nobody took part.
      seconds: `total`, and `per_client_epoch` (`wall` and `cpu`, workers included); the only part that
        differs between two runs with the same seed.
      config: the settings of the run.
      other_scores: `[C, T, T]` of a density scored in other ways, by name (`tffcl.program.scoring`).
      privacy: what noise guarantees, by what it is on; empty without any.
      more: what the method adds, by name.
      directory: the run directory; None in memory.
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

    def to_json(self) -> dict[str, Any]:
        """The content of `results.json`; NaN is null."""
        final = "task_averaged_test_accuracy" if self.scores_are == "accuracy" else "average_nll"
        num_clients, num_tasks = self.scores.shape[:2]
        sent = ("bytes_up", "bytes_down", "bytes_up_dense", "bytes_down_dense")
        return plain(
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
                **self._others(),
                **{name: getattr(self, name) for name in sent},
                server_metrics.NAME: self.server_metrics,
                "seconds": self.seconds,
                **({"privacy": self.privacy} if self.privacy else {}),
                "config": self.config,
                **self.more,
            }
        )

    def _others(self) -> dict[str, Any]:
        """The other scores, each with its final average and its forgetting."""
        others: dict[str, Any] = {}
        for name, scores in self.other_scores.items():
            others[name] = scores
            others[f"average_{name}"] = metrics.task_averaged_test_accuracy(scores)
            others[f"forgetting_{name}"] = metrics.forgetting(scores, higher_is_better=False)
        return others


def results_of(events: Sequence[Event], scores_are: str, config: Mapping[str, Any]) -> Results:
    """The results of a run from its events; `config` has `num_clients`, `num_tasks` and `num_rounds`."""
    num_clients, num_tasks = config["num_clients"], config["num_tasks"]
    ends = [event for event in events if event["event"] == "task_end"]
    names = {name for event in ends for name in event if name.startswith(scores_are)}
    tensors = {name: _tensor(ends, name, num_clients, num_tasks) for name in sorted(names | {scores_are})}
    scores = tensors.pop(scores_are)
    return Results(
        scores=scores,
        scores_are=scores_are,
        server_metrics=server_metrics.of_rounds(events),
        seconds=_seconds(events),
        config=dict(config),
        other_scores=tensors,
        privacy={},
        **{  # type: ignore[arg-type]
            name: _bytes(events, name, num_clients, config["num_rounds"])
            for name in ("bytes_up", "bytes_down", "bytes_up_dense", "bytes_down_dense")
        },
    )


def _tensor(ends: Sequence[Event], name: str, num_clients: int, num_tasks: int) -> np.ndarray:
    """float64 [C, T, T] of one score from the ends of tasks; NaN for no data."""
    scores = np.full([num_clients, num_tasks, num_tasks], np.nan)
    for event in ends:
        for client, row in enumerate(event.get(name, [])):
            scores[client, event["task"], : len(row)] = [np.nan if one is None else one for one in row]
    return scores


def _bytes(events: Sequence[Event], name: str, num_clients: int, num_rounds: int) -> list[list[int]]:
    num_tasks = 1 + max((event["task"] for event in events), default=-1)
    sent = np.zeros([num_clients, num_tasks * num_rounds], np.int64)
    for event in events:
        column = event["task"] * num_rounds + event.get("round", num_rounds - 1)
        for client, count in event.get(name, {}).items():
            sent[int(client), column] += count
    return sent.tolist()


def _seconds(events: Sequence[Event]) -> dict[str, Any]:
    rounds = [event for event in events if event["event"] == "round"]
    epochs = sum(sum(event.get("epochs", {}).values()) for event in rounds)

    def per_epoch(clock: str) -> Optional[float]:
        spent = sum(event["training_seconds"][clock] for event in rounds)
        return spent / epochs if epochs else None

    return {
        "total": sum(event.get("seconds", 0.0) for event in events),
        "per_client_epoch": {"wall": per_epoch("wall"), "cpu": per_epoch("cpu")},
    }
