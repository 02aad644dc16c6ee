"""A whole run over several workers: the death of one leaves a line, the death of all a run to go on with."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import signal

import numpy as np
import pytest
import tensorflow as tf
from loading import module_at
from run_directories import StopAfter, history

from tffcl import runtime
from tffcl.errors import RunError
from tffcl.program import ProgressBar, driver
from tffcl.runtime import worker_runtimes
from tffcl.runtime.executor import WorkerExecutor

pytestmark = pytest.mark.slow

_TINY = pathlib.Path(__file__).parents[1] / "program" / "tiny.py"


@pytest.fixture(name="tiny", scope="module")
def _tiny():
    return module_at(_TINY)


@pytest.fixture(name="process", scope="module")
def _process(tiny):
    """Its process: computations, which belong to no runtime."""
    return tiny.build_process()


@pytest.fixture(name="straight", scope="module")
def _straight(tiny, process, tmp_path_factory):
    """The history of the run in one worker that nobody disturbs."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    with runtime.local(num_threads=1):
        tiny.run(process, folder)
    return history(folder)


class KillAfter(StopAfter):
    """A reporter that kills workers after some events."""

    def __init__(self, count, workers):
        super().__init__(count)
        self.workers = workers

    def happen(self):
        for worker in self.workers:
            os.kill(worker.pid, signal.SIGKILL)


def assert_same(found, expected):
    found = [{key: value for key, value in event.items() if key != "worker_failures"} for event in found]
    tf.nest.assert_same_structure(found, expected)
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected)):
        if isinstance(other, float):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        else:
            assert one == other


def test_the_history_says_that_a_worker_was_lost(tiny, process, straight, tmp_path):
    with runtime.local(num_threads=1, num_workers=2) as local:
        tiny.run(process, tmp_path, reporters=[KillAfter(2, local.processes[:1])])
        address = local.processes[0].address
    events = history(tmp_path)
    assert_same(events, straight)
    ((index, (failure,)),) = [
        (index, event["worker_failures"]) for index, event in enumerate(events) if "worker_failures" in event
    ]
    assert index == 2
    assert failure["worker"] == address
    assert "SIGKILL" in failure["reason"]


def test_all_workers_gone_and_the_run_goes_on_with_others(tiny, process, straight, tmp_path):
    """It is the run in one worker: a whole task over two, the others over three, of which none is lost."""
    with runtime.local(num_threads=1, num_workers=2) as local:
        killer = KillAfter(4, local.processes)
        with pytest.raises(RunError, match=r"^lost all workers \(.*SIGKILL.*SIGKILL.*\)$"):
            tiny.run(process, tmp_path, reporters=[killer])
    assert len(history(tmp_path)) == 4
    with runtime.local(num_threads=1, num_workers=3):
        tiny.run(process, tmp_path, resume=True)
    assert_same(history(tmp_path), straight)
    assert not any("worker_failures" in event for event in history(tmp_path))


class LoseInRound:
    """Takes the place of `allow_missing_clients`: in one round a worker gets lost when its results are fetched."""

    def __init__(self, number, worker, monkeypatch):
        self.left, self.worker, self.monkeypatch = number, worker, monkeypatch

    @contextlib.contextmanager
    def __call__(self):
        self.left -= 1
        with self.monkeypatch.context() as patch, worker_runtimes.allow_missing_clients() as missing:
            if self.left == 0:
                fetch = WorkerExecutor.fetch

                def lost(executor, value):
                    self.worker.lose("cut off by the test")
                    return fetch(executor, value)

                patch.setattr(WorkerExecutor, "fetch", lost)
            yield missing


def test_a_round_without_the_clients_of_a_lost_worker(tiny, process, tmp_path, monkeypatch):
    """As if they had not been drawn for it; of three clients the second worker has the last."""
    shown, data = io.StringIO(), tiny.TinyData(num_tasks=2)
    with worker_runtimes.LocalWorkers(2, 1, on_lost_worker="leave-out") as local, monkeypatch.context() as patch:
        lose = LoseInRound(2, local.workers[1], monkeypatch)
        patch.setattr(runtime, "allow_missing_clients", lose, raising=False)
        tiny.run(process, tmp_path / "run", data, reporters=[ProgressBar(shown)])
    drawn = driver.state_lib.sample_clients

    def others(settings, active, task, round_num, *secret):
        some = drawn(settings, active, task, round_num, *secret)
        return [client for client in some if (client, task, round_num) != (2, 0, 1)]

    monkeypatch.setattr(driver.state_lib, "sample_clients", others)
    with runtime.local(num_threads=1):
        tiny.run(process, tmp_path / "expected", data)
    events, expected = history(tmp_path / "run"), history(tmp_path / "expected")
    (event,) = [one for one in events if "not_reported" in one]
    assert (event["task"], event["round"]) == (0, 1)
    assert event["participants"] == [0, 1, 2]
    assert event["left_out"] == event.pop("not_reported") == [2]
    assert event.pop("left_out_reasons") == {"2": "its worker got lost"}
    assert [one["worker"] for one in event["worker_failures"]] == [local.workers[1].address]
    assert list(event["loss"]) == ["0", "1"]
    assert event["bytes_up"].pop("2") == 0
    assert event["bytes_down"].pop("2") == event["bytes_down"]["0"]  # it had been told the shared value
    assert event["bytes_up_dense"].pop("2") == 0
    del event["bytes_down_dense"]["2"]
    event.update(participants=[0, 1], left_out=[])
    assert_same(events, expected)
    assert shown.getvalue().count("task 0, round 1: client(s) 2 left out: its worker got lost") == 1
