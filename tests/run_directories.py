"""What tests ask of run directories, and what stops a run."""

from __future__ import annotations

import json
import math
import pathlib

import numpy as np


class StopError(Exception):
    """Stands for whatever stops a run."""


class StopAfter:
    """A reporter that stops the run after some events."""

    def __init__(self, count: int):
        self.count = count

    def start(self, num_tasks, num_rounds, past):
        pass

    def report(self, event):
        self.count -= 1
        if self.count == 0:
            self.happen()

    def happen(self):
        raise StopError

    def close(self):
        pass


def results(folder: pathlib.Path) -> dict:
    """What results.json holds, but for what differs between equal runs."""
    content = json.loads((folder / "results.json").read_text())
    del content["seconds"]
    return content


def assert_complete(experiment, scores, measured, lines: list[dict]) -> None:
    """A run of an experiment has scored what was learned, recorded every round and task, and learned something.

    Args:
      experiment: a `tffcl.Experiment`.
      scores: [client, after task, task].
      measured: the accuracies that count; whatever for a density.
      lines: those of history.jsonl.
    """
    pool, clients = experiment.method.pool, experiment.method.clients
    num_clients, num_tasks = (1 if clients == "single" else experiment.num_clients), experiment.num_tasks
    shape = {"all": (1, 1), "clients": (num_clients, 1)}.get(pool, (num_clients, num_tasks))
    assert scores.shape == (*shape, shape[1])
    learned = np.tril(np.ones((shape[1], shape[1]), bool))
    assert np.isfinite(scores[:, learned]).all()
    assert np.isnan(scores[:, ~learned]).all()
    events = [line["event"] for line in lines]
    assert events.count("round") == experiment.num_rounds * shape[1]
    assert events.count("task_end") == shape[1]
    assert not any(line["left_out"] for line in lines if line["event"] == "round")
    # A uniform density has ln 2 nats a pixel; a guess is right once in as many labels as compete.
    if experiment.kind == "binary":
        assert scores[:, learned].max() < 64 * math.log(2)
    else:
        assert np.mean(measured) > 1 / (10 if experiment.scenario == "domains" else experiment.labels_per_task)


def history(folder: pathlib.Path) -> list[dict]:
    """The lines of history.jsonl, but for times."""
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().split("\n") if line]
    return [{key: value for key, value in line.items() if "seconds" not in key} for line in lines]
