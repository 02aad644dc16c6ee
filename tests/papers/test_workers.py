"""Runs in processes that stay: as by themselves, and a lost process costs its run alone."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest

from tffcl.flags import parse_run
from tffcl.papers import workers

SMALL = ("fedavg", "--data", "iris", "--num-clients", "2", "--num-tasks", "2", "--labels-per-task", "1", "--num-rounds",
         "1", "--num-epochs", "1", "--quiet")  # fmt: skip


def small(tmp_path, name, *flags):
    return workers.Run(tmp_path / name, (*SMALL, *flags))


def scores(folder):
    results = json.loads((folder / "results.json").read_text())
    return results["accuracy"], results["bytes_up"]


@pytest.fixture(name="finished", scope="module")
def _finished(tmp_path_factory):
    """A process is killed in its first run; the next one has a run, a run that fails, and another run."""
    folder = tmp_path_factory.mktemp("workers")
    runs = [
        small(folder, "long", "--num-rounds", "500"),
        small(folder, "first", "--seed", "1"),
        small(folder, "wrong", "--seed", "1", "--num-tasks", "90"),
        small(folder, "second", "--seed", "2"),
    ]
    failures, started = [], []
    begun = threading.Thread(target=lambda: failures.extend(workers.finish(runs, 1)))
    popen = workers.subprocess.Popen

    def recorded(*args, **options):
        started.append(popen(*args, **options))
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers.subprocess, "Popen", recorded)
        begun.start()
        while not (runs[0].folder / "history.jsonl").exists() and begun.is_alive():
            time.sleep(0.1)
        os.kill(started[0].pid, signal.SIGKILL)
        begun.join()
    return folder, runs, failures, started


@pytest.mark.slow
def test_a_process_that_is_killed_costs_its_run_alone_and_the_run_goes_on_when_asked_again(finished):
    folder, (long, *_), failures, started = finished
    assert f"long ended with exit code -9, see {long.log}" in failures
    assert (folder / "first" / "results.json").exists()
    assert len(started) == 2
    assert long.command[-1] == "--resume"


@pytest.mark.slow
def test_a_run_after_others_in_a_process_is_what_it_is_by_itself_and_a_failure_does_not_end_the_next(finished):
    folder, (_, first, wrong, second), failures, _ = finished
    assert len(failures) == 2
    assert f"wrong ended with exit code 2, see {wrong.log}" in failures
    assert "tffcl: error: " in wrong.log.read_text()
    by_itself = parse_run([*second.flags, "--output-dir", str(folder / "alone")])
    by_itself.run()
    assert scores(folder / "second") == scores(folder / "alone")
    assert "accuracy %" in first.log.read_text()
    assert first.log.stat().st_mode & 0o077 == 0
    assert workers.finish([first, second], 1) == []  # they are there
