"""A run stopped anywhere and gone on with ends as one that was never stopped."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from run_directories import StopAfter, StopError, history, results

from tffcl import storage
from tffcl.errors import InputError, RunError
from tffcl.program import ClientFiles, cohorts, driver, state

NUM_EVENTS = 3 * (2 + 1)  # tasks x (rounds + the task's end)


@pytest.fixture(scope="module")
def straight(tiny, process, tmp_path_factory):
    """The directory of an undisturbed run."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    tiny.run(process, folder, clients_per_round=2)
    return folder


@pytest.fixture(scope="module")
def stopped(tiny, process, tmp_path_factory):
    """Gives a directory of the test's own with a run that was stopped after some events."""
    made = {}

    def stop(count, folder):
        if count not in made:
            made[count] = tmp_path_factory.mktemp("stopped") / "run"
            with pytest.raises(StopError):
                tiny.run(process, made[count], clients_per_round=2, reporters=[StopAfter(count)])
        return shutil.copytree(made[count], folder / "run")

    return stop


def same(folder, straight):
    assert results(folder) == results(straight)
    assert history(folder) == history(straight)


def test_stopped_after_every_event(tiny, process, straight, tmp_path):
    for _ in range(NUM_EVENTS):
        with pytest.raises(StopError):
            tiny.run(process, tmp_path, clients_per_round=2, reporters=[StopAfter(1)], resume=True)
    tiny.run(process, tmp_path, clients_per_round=2, resume=True)
    same(tmp_path, straight)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 6])
def test_stopped_between_the_line_of_history_and_the_checkpoint(tiny, process, straight, tmp_path, monkeypatch, stop):
    from tffcl.program.run_directory import RunDirectory

    save, calls = RunDirectory.save, []

    def failing_save(self, state):
        calls.append(state)
        if len(calls) == stop:
            raise StopError
        save(self, state)

    monkeypatch.setattr(RunDirectory, "save", failing_save)
    with pytest.raises(StopError):
        tiny.run(process, tmp_path, clients_per_round=2)
    assert len(history(tmp_path)) == stop  # a line that no checkpoint knows of
    tiny.run(process, tmp_path, clients_per_round=2, resume=True)
    same(tmp_path, straight)


def test_another_seed_is_another_run(tiny, process, straight, tmp_path):
    tiny.run(process, tmp_path / "other", clients_per_round=2, seed=8)
    assert history(tmp_path / "other") != history(straight)


def test_a_finished_run_resumed_stays_as_it_is(tiny, process, straight):
    before = (straight / "results.json").read_bytes()
    tiny.run(process, straight, clients_per_round=2, resume=True)
    assert (straight / "results.json").read_bytes() == before


@pytest.mark.parametrize("keep", ["all", "last", "none"])
def test_a_finished_run_stays_as_it_is_whatever_is_kept_of_its_checkpoints(tiny, process, straight, tmp_path, keep):
    made = tiny.run(process, tmp_path, clients_per_round=2, keep=keep)
    same(tmp_path, straight)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = tiny.run(process, tmp_path, clients_per_round=2, keep=keep, resume=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert again.to_json() == made.to_json()
    manifests = {"all": 2, "last": 1, "none": 0}[keep]
    assert len(list((tmp_path / "checkpoints").glob("*.json"))) == manifests


def test_other_words_for_what_is_kept_are_one_line(tiny, process, tmp_path):
    with pytest.raises(InputError, match="keep: expected one of all, last, none; found 'some'"):
        tiny.run(process, tmp_path, keep="some")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("packed_from", [1, 10**9], ids=["rounded", "as it is"])
def test_the_compact_state_is_the_last_checkpoint_up_to_its_rounding(tiny, process, tmp_path, monkeypatch, packed_from):
    from tffcl import archive
    from tffcl.program.results import Settings
    from tffcl.program.run_directory import Checkpoints, History

    monkeypatch.setattr(archive, "PACKED_FROM", packed_from)
    found = []
    for keep in ("all", "last"):
        folder = tmp_path / keep
        tiny.run(process, folder, clients_per_round=2, keep=keep)
        checkpoints = Checkpoints(folder / "checkpoints")
        first = state.first_state(process, 3, Settings(2, 7))
        found.append((checkpoints.restore(first, History(folder / "history.jsonl")), checkpoints.client_bytes()))
    (exact, sizes), (compact, same_sizes) = found
    assert sizes == same_sizes
    tolerance = 2**-8 if packed_from == 1 else 0
    pairs = [(exact.server["shared"], compact.server["shared"])]
    for client in range(3):
        assert list(exact.store[client]) == list(compact.store[client])
        pairs += zip(exact.store[client].values(), compact.store[client].values())
    pairs += zip(exact.base.rows(range(9)), compact.base.rows(range(9)))
    for one, other in pairs:
        one, other = np.asarray(one), np.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=0)
    assert exact.base.entries == compact.base.entries
    assert (exact.task, exact.round, exact.selections) == (compact.task, compact.round, compact.selections)
    # Summaries of tasks, which this transfer has none of, are kept too.
    exact.base.add(0, 7, np.ones(exact.base.knowledge_size), {"centroids": np.eye(2, dtype=np.float32)})
    checkpoints = Checkpoints(tmp_path / "summarised")
    history = History(tmp_path / "all" / "history.jsonl")
    content = (tmp_path / "all" / "history.jsonl").read_bytes()
    history.read(len(content), hashlib.sha256(content).hexdigest())
    checkpoints.finish(exact, history, "last")
    again = Checkpoints(tmp_path / "summarised").restore(first, history)
    np.testing.assert_array_equal(again.base.summary(9)["centroids"], np.eye(2))
    assert again.base.summary(8) is None


def test_a_compact_state_without_results_is_one_line(tiny, process, tmp_path):
    tiny.run(process, tmp_path, clients_per_round=2)
    (tmp_path / "results.json").unlink()
    with pytest.raises(RunError, match=r"compact state of a run that had ended, and its results\.json is gone"):
        tiny.run(process, tmp_path, clients_per_round=2, resume=True)


@pytest.mark.parametrize("damage", ["truncate", "flip"])
def test_a_damaged_compact_state_is_one_line(tiny, process, tmp_path, damage):
    from tffcl.program.run_directory import Checkpoints

    tiny.run(process, tmp_path, clients_per_round=2)
    (path,) = (tmp_path / "checkpoints").glob("*.npz")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage == "truncate" else content[:300] + b"\x55" + content[301:])
    with pytest.raises(RunError, match="is damaged"):
        Checkpoints(tmp_path / "checkpoints").client_bytes()


def test_in_memory_equals_on_disk(tiny, process, straight):
    assert tiny.run(process, clients_per_round=2).to_json()["accuracy"] == results(straight)["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncate", "flip", "manifest", "remove"])
def test_a_damaged_checkpoint_is_passed_over(tiny, process, straight, stopped, tmp_path, damage, caplog):
    folder = stopped(5, tmp_path)
    arrays, manifest = sorted((folder / "checkpoints").glob("[0-9]*"))[-2:][::-1]
    content = arrays.read_bytes()
    if damage == "truncate":
        arrays.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        arrays.write_bytes(content[:300] + bytes([content[300] ^ 1]) + content[301:])
    elif damage == "manifest":
        manifest.write_text('{"format": 1')
    else:
        arrays.unlink()
    tiny.run(process, folder, clients_per_round=2, resume=True)
    same(folder, straight)
    assert "going on from the checkpoint before it" in caplog.text


def test_no_whole_checkpoint_is_an_error(tiny, process, stopped, tmp_path):
    folder = stopped(5, tmp_path)
    for path in (folder / "checkpoints").glob("*.npz"):
        path.write_bytes(b"")
    with pytest.raises(RunError, match="no whole checkpoint in .* is damaged"):
        tiny.run(process, folder, clients_per_round=2, resume=True)


def test_a_history_shorter_than_its_checkpoint_is_an_error(tiny, process, stopped, tmp_path):
    folder = stopped(5, tmp_path)
    (folder / "history.jsonl").write_text("")
    with pytest.raises(RunError, match=r"history.jsonl is damaged: it has 0 bytes"):
        tiny.run(process, folder, clients_per_round=2, resume=True)


def test_only_the_last_two_checkpoints_stay(tiny, process, straight, tmp_path):
    whole, straight = straight, tmp_path
    tiny.run(process, straight, clients_per_round=2, keep="all")
    same(whole, straight)
    names = sorted(path.name for path in (straight / "checkpoints").iterdir())
    steps = [NUM_EVENTS - 1, NUM_EVENTS]
    assert [name for name in names if name[0].isdigit()] == [
        f"{step:08d}.{ending}" for step in steps for ending in ("json", "npz")
    ]
    # What entered the knowledge base with each task stays; of each client, what a state in use has entries in.
    assert [name for name in names if name.startswith("knowledge")] == [
        f"knowledge-{entries:06d}.npz" for entries in (0, 3, 6, 9)
    ]
    of_clients = [name for name in names if name.startswith("client")]
    assert {name.split("-")[1] for name in of_clients} == {"0000", "0001", "0002"}
    used = {
        name
        for step in steps
        for parts in json.loads((straight / "checkpoints" / f"{step:08d}.json").read_text())["clients"]
        for name, _ in parts
    }
    assert set(of_clients) == used
    assert len(of_clients) <= 3 * 3  # written when the task began, in the last round, and in the end


def test_a_checkpoint_of_another_format_is_one_clear_line(tiny, process, stopped, tmp_path):
    folder = stopped(5, tmp_path)
    for path in (folder / "checkpoints").glob("*.json"):
        path.write_text(json.dumps(dict(json.loads(path.read_text()), format=2)))
    with pytest.raises(RunError, match="a checkpoint of another version of tffcl: format 2, expected 4"):
        tiny.run(process, folder, clients_per_round=2, resume=True)


def test_a_round_writes_what_changed_at_those_that_took_part_and_nothing_of_the_knowledge_base(tiny, process, tmp_path):
    written, entries = [], {}

    class Watch:
        """Names of the files that stand after each event."""

        def start(self, num_tasks, num_rounds, past):
            pass

        def report(self, event):
            paths = list((tmp_path / "run/checkpoints").iterdir())
            written.append((event, {path.name for path in paths}))
            entries.update({path.name: set(np.load(path)) for path in paths if "client" in path.name})

        def close(self):
            pass

    tiny.run(process, tmp_path / "run", clients_per_round=1, reporters=[Watch()])
    for (_, before), (event, after) in itertools.pairwise(written):
        if event["event"] == "round" and event["round"] > 0:
            new = {name for name in after - before if not name[0].isdigit()}
            assert {name.rsplit("-", 1)[0] for name in new} == {
                f"client-{client:04d}" for client in event["participants"]
            }
            assert [entries[name] for name in new] == [set(tiny.TinyWork.train_writes)] * len(new)


def test_without_room_in_memory_the_results_are_the_same(tiny, process, straight, tmp_path, monkeypatch):
    from tffcl import archive

    monkeypatch.setattr(archive, "MEMORY_BYTES", 0)
    monkeypatch.setattr(driver, "_PREPARED_AT_ONCE", 2)
    monkeypatch.setattr(cohorts, "MESSAGE_BYTES", 1)
    monkeypatch.setattr(state, "_INITIALIZED_AT_ONCE", 2)
    with pytest.raises(StopError):
        tiny.run(process, tmp_path / "run", clients_per_round=2, reporters=[StopAfter(5)])
    tiny.run(process, tmp_path / "run", clients_per_round=2, resume=True)
    same(tmp_path / "run", straight)


def test_another_configuration_is_named(tiny, process, straight):
    with pytest.raises(RunError, match="another configuration: num_rounds is 2 there and 3 here"):
        tiny.run(process, straight, clients_per_round=2, num_rounds=3, resume=True)


def test_an_existing_run_is_not_overwritten(tiny, process, straight):
    with pytest.raises(RunError, match="holds a run already: go on with it"):
        tiny.run(process, straight, clients_per_round=2)


def test_a_directory_with_other_things_is_refused(tiny, process, tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RunError, match=r"holds no run \(thesis.tex stands there\)"):
        tiny.run(process, tmp_path)


def test_resume_without_a_directory(tiny, process):
    with pytest.raises(RunError, match="resume needs the directory"):
        tiny.run(process, resume=True)


def test_resume_of_a_run_that_never_began_is_the_same_run(tiny, process, straight, tmp_path):
    tiny.run(process, tmp_path / "new", clients_per_round=2, resume=True)
    same(tmp_path / "new", straight)


def test_two_processes_cannot_share_a_directory(tiny, process, tmp_path):
    from tffcl.program.run_directory import open_run

    with open_run(tmp_path, {}, False), pytest.raises(RunError, match="another process is at work"):
        tiny.run(process, tmp_path, resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["checkpoint", "knowledge", "manifest", "history"])
def test_a_full_disk_leaves_the_last_checkpoint_whole(tiny, process, straight, stopped, tmp_path, monkeypatch, what):
    folder = stopped(5, tmp_path)  # the next event ends a task, with which the knowledge base grows
    full = OSError(errno.ENOSPC, "No space left on device")

    def fail(*_args, **_kwargs):
        raise full

    with monkeypatch.context() as patch:
        if what == "checkpoint":
            patch.setattr("numpy.lib.format.write_array", fail)
        elif what == "knowledge":
            real = os.replace
            patch.setattr("os.replace", lambda a, b: fail() if "knowledge" in str(b) else real(a, b))
        elif what == "manifest":
            patch.setattr("tffcl.storage.write_json", lambda path, _: storage.write_whole(path, fail))
        else:
            patch.setattr("tffcl.program.run_directory._open", fail)
        advice = "cannot write .*: No space left on device; make room; the last checkpoint is whole: resume"
        with pytest.raises(RunError, match=advice):
            tiny.run(process, folder, clients_per_round=2, resume=True)
    tiny.run(process, folder, clients_per_round=2, resume=True)
    same(folder, straight)


_SCRIPT = """
import importlib.util, sys
from tffcl import runtime
runtime.quiet_logs()
spec = importlib.util.spec_from_file_location("tiny", sys.argv[1])
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)
with runtime.local():
    from tffcl.program import ClientFiles

    options = {"clients_per_round": 2, "client_files": ClientFiles(sys.argv[2] + "-clients")}
    tiny.run_enrolled(tiny.build_process(), sys.argv[3:], sys.argv[2], **options)
"""


@pytest.mark.slow
def test_killed_at_an_odd_moment(tiny, process, tmp_path):
    """With clients that come and go, and keep their states in files; otherwise it is the same driver."""
    table, straight, folder = ("**o", "x**", "***"), tmp_path / "straight", tmp_path / "run"
    files = ClientFiles(str(tmp_path / "straight-clients"))
    tiny.run_enrolled(process, table, straight, clients_per_round=2, client_files=files)
    path, log = pathlib.Path(__file__).with_name("tiny.py"), folder / "history.jsonl"
    with open(tmp_path / "output", "wb") as output:
        command = [sys.executable, "-c", _SCRIPT, str(path), str(folder), *table]
        child = subprocess.Popen(command, stdout=output, stderr=output)
        deadline = time.monotonic() + 240
        while not (log.exists() and log.read_bytes().count(b"\n") >= 5):
            assert child.poll() is None, (tmp_path / "output").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.003)
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert not (folder / "results.json").exists()
    files = ClientFiles(f"{folder}-clients")
    tiny.run_enrolled(process, table, folder, clients_per_round=2, client_files=files, resume=True)
    same(folder, straight)
