"""A run over `tffcl worker` programs that are killed in mid-round, from the command line to the results."""

from __future__ import annotations

import pytest
from command_line import built_once, small_vectors
from serving import Accident, assert_same_results, children, events, needs_network, serve

pytestmark = [needs_network, pytest.mark.slow]

# Two clients: their sums are the same to the bit, whoever makes them.
RUN = (
    "run", "fedseit", "--method", "fedavg", "--dataset", "sample", "--num-clients", "2", "--num-tasks", "2",
    "--num-rounds", "2", "--num-epochs", "10", "--patience", "0", "--evaluate-every", "task", "--output-dir", "run",
)  # fmt: skip


@pytest.fixture(scope="module", name="start")
def _start(run, tmp_path_factory):
    """Starts a run of small word vectors over workers; what this process has started since has to end with it."""
    from tffcl.reports import summary

    vectors = small_vectors(tmp_path_factory.mktemp("vectors"))

    def start(folder, workers, *more):
        before = children()
        addresses = ",".join(worker.address for worker in workers)
        where = ("--embeddings", vectors, "--runtime", "remote", "--workers", addresses)
        done = run(*RUN, *where, *more, cwd=folder)
        assert children() <= before
        return done

    with pytest.MonkeyPatch.context() as patch, built_once():
        patch.setattr(summary, "write_plots", lambda *_: [])
        yield start


@pytest.fixture(scope="module", name="survivor")
def _survivor():
    """A worker that nothing happens to."""
    with serve("--port", "0") as served:
        yield served


@pytest.fixture(scope="module", name="straight")
def _straight(start, survivor, tmp_path_factory):
    """The folder of a run that nobody disturbs, in one worker."""
    folder = tmp_path_factory.mktemp("straight")
    done = start(folder, [survivor])
    assert done.returncode == 0, done.stderr
    return folder


def history(folder):
    return events(folder / "run" / "history.jsonl")


def lost(folder):
    """The addresses of the workers that the history says were lost."""
    return [one["worker"] for event in history(folder) for one in event.get("worker_failures", [])]


def test_one_of_two_workers_is_killed(start, survivor, straight, tmp_path):
    with serve("--port", "0") as other, Accident(other.address, other.kill, tmp_path / "run" / "history.jsonl", 1):
        done = start(tmp_path, [survivor, other])
    assert done.returncode == 0, done.stderr
    assert lost(tmp_path) == [other.address]
    assert "worker_failures" in history(tmp_path)[1]
    assert_same_results(tmp_path / "run", straight / "run")
    survivor.wait_for(r"busy for .* s: .* of CPU, .* MB in, .* MB out")


def test_the_round_ends_without_the_clients_of_a_killed_worker(start, survivor, straight, tmp_path):
    with serve("--port", "0") as other, Accident(other.address, other.kill, tmp_path / "run" / "history.jsonl", 1):
        done = start(tmp_path, [survivor, other], "--on-lost-worker", "leave-out")
    assert done.returncode == 0, done.stderr
    assert lost(tmp_path) == [other.address]
    assert done.stderr.count("task 0, round 1: client(s) 1 left out: its worker got lost") == 1
    lines = history(tmp_path)
    assert [line.get("not_reported") for line in lines] == [None, [1], None, None, None, None]
    assert [line.get("left_out") for line in lines] == [[], [1], None, [], [], None]
    assert list(lines[1]["loss"]) == ["0"]
    # What client 0 did in that round, it had begun with the same values as in the undisturbed run.
    assert lines[1]["loss"]["0"] == pytest.approx(history(straight)[1]["loss"]["0"], rel=1e-6)


def test_all_workers_are_killed_and_the_run_goes_on_with_another(start, survivor, straight, tmp_path):
    with serve("--port", "0") as one, serve("--port", "0") as other:
        path = tmp_path / "run" / "history.jsonl"
        with Accident(other.address, lambda: (one.kill(), other.kill()), path, 4):
            done = start(tmp_path, [one, other])
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().split("\n")[-1]
    assert last.startswith("tffcl: error: lost all workers (")
    assert one.address in last
    assert other.address in last
    assert "Traceback" not in done.stderr
    before = history(tmp_path)
    assert len(before) == 4
    done = start(tmp_path, [survivor], "--resume")
    assert done.returncode == 0, done.stderr
    assert history(tmp_path)[:4] == before
    assert_same_results(tmp_path / "run", straight / "run")
