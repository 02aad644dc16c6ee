"""What tests ask of run directories, and what stops a run."""

from __future__ import annotations

import json
import pathlib


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


def history(folder: pathlib.Path) -> list[dict]:
    """The lines of history.jsonl, but for times."""
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().split("\n") if line]
    return [{key: value for key, value in line.items() if "seconds" not in key} for line in lines]
