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


@pytest.mark.slow
def test_a_run_after_others_in_a_process_is_what_it_is_by_itself_and_a_failure_does_not_end_the_next(tmp_path):
    runs = [
        small(tmp_path, "first", "--seed", "1"),
        small(tmp_path, "wrong", "--seed", "1", "--num-tasks", "90"),
        small(tmp_path, "second", "--seed", "2"),
    ]
    (failure,) = workers.finish(runs, 1)
    assert failure == f"wrong ended with exit code 2, see {tmp_path / 'wrong.log'}"
    assert "tffcl: error: " in (tmp_path / "wrong.log").read_text()
    by_itself = parse_run([*runs[2].flags, "--output-dir", str(tmp_path / "alone")])
    by_itself.run()
    assert scores(tmp_path / "second") == scores(tmp_path / "alone")
    assert "accuracy %" in (tmp_path / "first.log").read_text()
    assert (tmp_path / "first.log").stat().st_mode & 0o077 == 0
    assert workers.finish(runs[::2], 1) == []  # they are there


@pytest.mark.slow
def test_a_process_that_is_killed_costs_its_run_alone_and_the_run_goes_on_when_asked_again(tmp_path):
    long = small(tmp_path, "long", "--num-rounds", "500")
    found = []
    begun = threading.Thread(target=lambda: found.extend(workers.finish([long, small(tmp_path, "next")], 1)))
    started = []
    popen = workers.subprocess.Popen

    def recorded(*args, **options):
        started.append(popen(*args, **options))
        return started[-1]

    workers.subprocess.Popen = recorded
    try:
        begun.start()
        while not (long.folder / "history.jsonl").exists() and begun.is_alive():
            time.sleep(0.1)
        os.kill(started[0].pid, signal.SIGKILL)
        begun.join()
    finally:
        workers.subprocess.Popen = popen
    assert found == [f"long ended with exit code -9, see {long.log}"]
    assert (tmp_path / "next" / "results.json").exists()
    assert len(started) == 2
    assert long.command[-1] == "--resume"
