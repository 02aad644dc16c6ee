"""What a run does, and what it tells of it."""

from __future__ import annotations

import asyncio
import collections
import csv
import gc
import io
import json
import math
import signal
import sys
import threading
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import metrics
from tffcl.program import ProgressBar, Released, cohorts, events, reporters, results
from tffcl.program.state import client_key
from tffcl.transfers import PreviousTask


class Recorder:
    """A reporter that keeps what it is told."""

    def __init__(self):
        self.events, self.closed = [], False

    def start(self, num_tasks, num_rounds, past):
        self.started = (num_tasks, num_rounds, len(past))

    def report(self, event):
        self.events.append(event)

    def close(self):
        self.closed = True


@pytest.fixture(scope="module")
def finished(tiny, process):
    """The events and results of a run in memory."""
    recorder = Recorder()
    return recorder, tiny.run(process, reporters=[recorder])


def test_scores_as_just_learnt_are_those_of_each_task_s_last_round(finished):
    recorder, made = finished
    last = [event for event in recorder.events if event["event"] == "round" and event["round"] == 1]
    by_hand = [[event["accuracy"][str(client)][event["task"]] for event in last] for client in range(len(made.scores))]
    np.testing.assert_array_equal(made.just_learnt, by_hand)
    told = made.to_json()
    lost = [[row[task] - made.scores[client, 2, task] for task in (0, 1)] for client, row in enumerate(by_hand)]
    np.testing.assert_allclose(told["forgetting_from_just_learnt"], np.mean(lost))
    np.testing.assert_allclose(told["average_just_learnt"], np.mean(by_hand))


def test_reporters_see_every_event(finished):
    recorder, _ = finished
    assert recorder.started == (3, 2, 0)
    kinds = [(event["event"], event["task"], event.get("round")) for event in recorder.events]
    assert kinds == [
        line for task in range(3) for line in (("round", task, 0), ("round", task, 1), ("task_end", task, None))
    ]
    assert recorder.closed


def test_a_round_has_what_reports_need(finished):
    event = finished[0].events[4]
    assert set(event) >= {
        "participants", "loss", "validation_loss", "epochs", "accuracy", "left_out", "bytes_up", "bytes_up_dense",
        "bytes_down", "bytes_down_dense", "seconds", "extra",
    }  # fmt: skip
    assert event["participants"] == [0, 1, 2]
    assert {client: len(row) for client, row in event["accuracy"].items()} == {"0": 2, "1": 2, "2": 2}
    assert event["examples"] == {"0": 12, "1": 12, "2": 12}


def test_results_follow_from_the_events(finished):
    recorder, results = finished
    ends = [event for event in recorder.events if event["event"] == "task_end"]
    for task, event in enumerate(ends):
        for client, row in enumerate(event["accuracy"]):
            assert results.scores[client, task, : task + 1].tolist() == row
    assert np.isnan(results.scores[:, 0, 1:]).all()
    content = results.to_json()
    assert content["task_averaged_test_accuracy"] == metrics.task_averaged_test_accuracy(content["accuracy"])
    assert content["accuracy"][0][0][1] is None
    assert content["seconds"]["per_client_epoch"]["wall"] > 0
    json.dumps(content, allow_nan=False)


def test_what_the_server_measures_reaches_history_results_and_reporters(tiny, finished):
    recorder, results = finished
    rounds = [event for event in recorder.events if event["event"] == "round"]
    for event in rounds:
        largest = np.mean([event["extra"][str(client)] for client in range(3)])  # about: a mean of maxima
        measured = event["server_metrics"]
        assert set(measured) == {"finalizer/update/largest", "finalizer/update/rejected"}
        assert 0 < measured["finalizer/update/largest"] <= largest + 1e-6
    by_round = results.to_json()["server_metrics"]
    assert by_round == {
        name: [event["server_metrics"][name] for event in rounds] for name in rounds[0]["server_metrics"]
    }
    released = dict(reporters.numbers_of(rounds[-1]))
    name = "finalizer/update/largest"
    assert released[f"server_metrics/{name}"] == by_round[name][-1]


def test_measurements_of_any_form():
    Pair = collections.namedtuple("Pair", "left right")
    measured = {
        "aggregator": tff.structure.Struct([("clip", np.float32(0.5)), (None, (np.int64(3), ()))]),
        "finalizer": Pair([np.zeros(2, np.float32)], {}),
    }
    found = events.by_path(measured)
    assert found == {"aggregator/clip": 0.5, "aggregator/1/0": 3, "finalizer/left/0": [0.0, 0.0]}
    event = {"event": "round", "task": 0, "round": 0, "server_metrics": found}
    assert list(reporters.numbers_of(event)) == [
        ("server_metrics/aggregator/clip", 0.5),
        ("server_metrics/aggregator/1/0", 3.0),
    ]


def test_what_the_server_rejects_is_told_and_a_round_of_nobody_has_no_measurements():
    shown = io.StringIO()
    bar = ProgressBar(shown)
    events_of = [
        {"event": "round", "task": 0, "round": place, "server_metrics": measured}
        for place, measured in enumerate(
            ({"finalizer/rehearsal/rejected": 1, "aggregator/rejected": 0, "finalizer/rejected_count": 2}, {})
        )
    ]
    bar.start(1, 2, [])
    for event in events_of:
        bar.report(event)
    bar.close()
    assert shown.getvalue().count("did not take") == 1
    assert "task 0, round 0: finalizer/rehearsal at the server did not take" in shown.getvalue()
    assert results.measured_by_round(events_of)["aggregator/rejected"] == [0, None]


def test_previous_tasks_are_selected(finished):
    ends = [event for event in finished[0].events if event["event"] == "task_end"]
    assert ends[0]["selection"] == {"0": [], "1": [], "2": []}
    assert ends[2]["selection"]["1"] == [[0, 1], [2, 1]]


def test_attention_stands_beside_the_selection():
    event = {}
    events.add_attention(event, [[3], []], [np.array([[0.5, 1.0], [7.0, 7.0]]), np.zeros([2, 2])])
    assert event == {"attention": {"0": [[0.5, 1.0]], "1": []}}
    for selection, attention in (([[], []], [np.zeros([2, 2])] * 2), ([[3]], [None])):
        nothing = {}
        events.add_attention(nothing, selection, attention)
        assert nothing == {}


def test_bytes(finished):
    recorder, results = finished
    size = 6
    first, second, end, third = recorder.events[:4]
    assert first["bytes_up"]["0"] == metrics.sparse_bytes(size - 1, size)
    assert first["bytes_up_dense"]["0"] == metrics.dense_bytes(size)
    assert first["bytes_down"]["0"] == 0  # the first shared value is all zeros
    assert second["bytes_down"]["0"] == metrics.dense_bytes(size)
    assert end["bytes_up"]["0"] == metrics.dense_bytes(size)
    assert third["bytes_down"]["0"] == 3 * metrics.dense_bytes(size)  # the shared value, and two entries
    assert results.bytes_up[0][1] == second["bytes_up"]["0"] + end["bytes_up"]["0"]
    assert len(results.bytes_down[2]) == 6


def test_partial_participation(tiny, process):
    recorder = Recorder()
    results = tiny.run(process, clients_per_round=1, num_rounds=6, reporters=[recorder])
    rounds = [event for event in recorder.events if event["event"] == "round"]
    assert all(len(event["participants"]) == len(event["loss"]) == 1 for event in rounds)
    assert len({event["participants"][0] for event in rounds}) == 3
    assert not np.isnan(results.scores[:, -1]).any()  # everybody is evaluated


def test_evaluation_at_the_end_of_tasks_only(tiny, process, finished):
    recorder = Recorder()
    results = tiny.run(process, evaluate_every="task", reporters=[recorder])
    assert "accuracy" not in recorder.events[0]
    assert np.array_equal(results.scores, finished[1].scores, equal_nan=True)


def test_a_task_without_test_examples_has_no_accuracy(tiny, process):
    empty = {"test": {"x": np.zeros((0, 3), np.float32), "label": np.zeros(0, np.int32)}}
    results = tiny.run(process, data=tiny.TinyData(client_1_task_0=empty))
    assert np.isnan(results.scores[1, :, 0]).all()
    assert results.to_json()["accuracy"][1][2][0] is None
    assert math.isfinite(results.final_score)


def test_one_client_and_one_task(tiny, process):
    class Nobody(PreviousTask):
        def num_foreign(self, num_clients):
            return 2

    content = tiny.run(process, data=tiny.TinyData(1, 1), transfer=Nobody()).to_json()
    assert (content["forgetting"], content["backward_transfer"]) == (None, None)


def test_calls_are_split_below_the_limit(tiny, process, finished, monkeypatch):
    monkeypatch.setattr(cohorts.prepare_task, "__defaults__", (1,))
    monkeypatch.setattr(cohorts.evaluate_tasks, "__defaults__", (1,))
    assert np.array_equal(tiny.run(process).scores, finished[1].scores, equal_nan=True)


def test_client_keys_differ_and_repeat():
    keys = {(seed, client): tuple(client_key(seed, client)) for seed in range(3) for client in range(3)}
    assert len(set(keys.values())) == 9
    assert client_key(1, 2).dtype == np.int32
    assert tuple(client_key(1, 2)) == keys[1, 2]


def test_a_non_finite_client_is_reported(tiny, tff_context):
    class Broken(tiny.TinyWork):
        def train(self, state, shared, data, round_num):
            changed, update, weight, told = super().train(state, shared, data, round_num)
            told["non_finite"] = tf.cast(data["train"]["x"][0, 0] > 90.0, tf.int32)
            return changed, update, weight, told

    broken = {"train": {"x": np.full((2, 3), 99, np.float32), "label": np.zeros(2, np.int32)}}
    recorder, shown = Recorder(), io.StringIO()
    tiny.run(
        tiny.build_process(Broken()),
        data=tiny.TinyData(client_2_task_0=broken),
        reporters=[recorder, ProgressBar(shown)],
    )
    assert [event["left_out"] for event in recorder.events if event["event"] == "round"] == [[2], [2], [], [], [], []]
    assert shown.getvalue().count("client(s) 2 left out: its training was not finite") == 2


def test_release_managers_of_tff(tiny, process, tmp_path):
    told = [
        Released(tff.program.CSVFileReleaseManager(tmp_path / "metrics.csv", key_fieldname="round")),
        Released(tff.program.TensorBoardReleaseManager(tmp_path / "tensorboard")),
    ]
    tiny.run(process, reporters=told)
    with open(tmp_path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["round"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert float(rows[1]["loss/client_0"]) > 0
    assert rows[5]["accuracy/client_2/task_2"]
    assert not rows[0]["accuracy/client_2/task_2"]
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_a_resumed_reporter_misses_no_round(tmp_path):
    """A kill may fall between a checkpoint and the telling of it: what is past is told again, once."""
    path = tmp_path / "metrics.csv"
    rounds = [{"event": "round", "task": 0, "round": r, "loss": {"0": float(r)}} for r in range(3)]
    first = Released(tff.program.CSVFileReleaseManager(path, key_fieldname="round"))
    first.start(1, 4, [])
    first.report(rounds[0])
    second = Released(tff.program.CSVFileReleaseManager(path, key_fieldname="round"))
    second.start(1, 4, rounds[:2])
    second.report(rounds[2])
    with open(path, newline="") as file:
        assert [row["round"] for row in csv.DictReader(file)] == ["1", "2", "3"]


def test_release_inside_a_running_event_loop(tiny, process, tmp_path):
    manager = tff.program.CSVFileReleaseManager(tmp_path / "metrics.csv", key_fieldname="round")

    async def notebook():
        reporter = Released(manager)
        reporter.start(1, 1, [])
        reporter.report({"event": "round", "task": 0, "round": 0, "loss": {"0": 1.0}})
        reporter.report({"event": "task_end", "task": 0, "accuracy": [[0.5]]})

    asyncio.run(notebook())
    assert "0.5" in (tmp_path / "metrics.csv").read_text()


@pytest.mark.parametrize("moment", ["in the release", "when its thread starts"])
def test_ctrl_c_while_a_round_is_released_leaves_no_loop_and_no_coroutine_behind(monkeypatch, moment):
    """It reaches the main thread alone, which waits until the release is whole."""
    done, complaints = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: complaints.append(told.exc_value))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    class Interrupted:
        async def release(self, value, key):
            if moment == "in the release":
                signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0.01)
            done.append((key, threading.current_thread() is threading.main_thread()))

    start = threading.Thread.start

    def interrupted_start(thread):
        start(thread)
        signal.raise_signal(signal.SIGINT)

    if moment == "when its thread starts":  # nobody knows of the thread yet
        monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    reporter = Released(Interrupted())
    reporter.start(1, 9, [])
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for number in range(3):
                with pytest.raises(KeyboardInterrupt):
                    reporter.report({"event": "round", "task": 0, "round": number, "loss": {"0": 1.0}})
            gc.collect()
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == [(1, False), (2, False), (3, False)]
    assert not complaints
    assert not [one for one in told if "awaited" in str(one.message) or "event loop" in str(one.message)]
