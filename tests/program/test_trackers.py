"""Trackers get the headline: each of ours in its offline mode where its package is there, and one of one's own."""

from __future__ import annotations

import importlib.util
import json
import pathlib

import pytest

from tffcl.errors import InputError
from tffcl.program import trackers
from tffcl.program.events import Headline

EVENTS = [
    {"event": "round", "task": 0, "round": 0, "loss": {"0": 1.0, "1": 3.0}, "accuracy": {"0": [0.5], "1": [0.7]},
     "bytes_up": {"0": 1_000_000}, "seconds": 2.0},
    {"event": "task_end", "task": 0, "accuracy": [[0.8], [None]], "bytes_up": {"0": 500_000}, "seconds": 1.0},
    {"event": "round", "task": 1, "round": 0, "loss": {"0": None}, "seconds": 1.0},
    {"event": "task_end", "task": 1, "accuracy": [[0.6, 1.0], [None, 0.5]], "seconds": 1.0},
]  # fmt: skip
CONFIG = {"method": "fedavg", "seed": 3, "hidden": [64]}


def headline():
    found = Headline(2, 1)
    return [found.add(event) for event in EVENTS]


def test_the_headline_by_hand():
    (first, of_round), (_, of_end), (third, unscored), (_, last) = headline()
    assert (first, third) == (1, 2)
    assert of_round == pytest.approx(
        {"loss/mean": 2.0, "accuracy/mean": 60.0, "accuracy/task_1": 60.0, "bytes/up_MB": 1.0, "bytes/down_MB": 0.0,
         "seconds": 2.0}
    )  # fmt: skip
    assert of_end["bytes/up_MB"] == 1.5
    assert of_end["accuracy/average_so_far"] == pytest.approx(80.0)
    assert "accuracy/forgetting" not in of_end  # of one task
    assert set(unscored) == {"bytes/up_MB", "bytes/down_MB", "seconds"}
    assert last["accuracy/forgetting"] == pytest.approx(20.0)
    assert last["accuracy/mean"] == pytest.approx(70.0)
    assert last["accuracy/average_so_far"] == pytest.approx(75.0)
    assert last["accuracy/task_2"] == pytest.approx(75.0)


def report_to(tracker):
    tracker.start(2, 1, EVENTS[:1])
    for event in EVENTS[1:]:
        tracker.report(event)
    tracker.close()


def test_a_tracker_of_ones_own_needs_three_methods(monkeypatch, tmp_path):
    class Mine(trackers.Tracker):
        package = "json"

        def open(self):
            self.told = []

        def log(self, step, numbers):
            self.told.append((step, numbers))

        def close(self):
            self.told.append("closed")

    mine = Mine(CONFIG, tmp_path / "run")
    report_to(mine)
    assert mine.told == [*headline(), "closed"]
    assert mine.name == "run"
    assert mine.identity == Mine(CONFIG, tmp_path / "run").identity != Mine(CONFIG, tmp_path / "other").identity


@pytest.mark.parametrize("name", trackers.TRACKERS)
def test_a_package_that_is_missing_is_one_line(name, monkeypatch):
    def missing(module):
        raise ImportError(f"No module named {module!r}")

    monkeypatch.setattr(trackers.importlib, "import_module", missing)
    with pytest.raises(InputError, match=rf"--track {name}: .* pip install 'tffcl\[{name}\]'"):
        trackers.tracker(name, CONFIG, None)
    with pytest.raises(InputError, match="expected one of wandb, mlflow; found 'x'"):
        trackers.tracker("x", CONFIG, None)


needs_wandb = pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="the extra tffcl[wandb] is missing")
needs_mlflow = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="the extra tffcl[mlflow] is missing"
)


@needs_mlflow
def test_mlflow_without_a_server(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    report_to(trackers.tracker("mlflow", CONFIG, tmp_path / "run"))
    report_to(trackers.tracker("mlflow", CONFIG, tmp_path / "run"))  # as resumed: the same run
    (forgetting,) = (tmp_path / "mlruns").glob("*/*/metrics/accuracy/forgetting")
    assert [float(line.split()[1]) for line in forgetting.read_text().splitlines()] == pytest.approx([20.0, 20.0])
    (method,) = (tmp_path / "mlruns").glob("*/*/params/method")
    assert method.read_text() == "fedavg"


@needs_wandb
def test_weights_and_biases_offline(monkeypatch, tmp_path):
    import wandb
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    report_to(trackers.tracker("wandb", CONFIG, tmp_path / "run"))
    wandb.teardown()  # its service writes the file when it ends
    (path,) = pathlib.Path(tmp_path).glob("wandb/offline-run-*/*.wandb")
    store, told, settings = DataStore(), [], {}
    store.open_for_scan(str(path))
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            told.append(items)
        if record.HasField("run"):
            settings = {item.key: json.loads(item.value_json) for item in record.run.config.update}
    assert [one["round"] for one in told] == [1, 1, 2, 2]
    assert told[-1]["accuracy/forgetting"] == pytest.approx(20.0)
    assert settings["method"] == "fedavg"
