"""The run directory: who may read it, what stands where it should be, and what is derived from the history."""

from __future__ import annotations

import collections
import csv
import errno
import gc
import os
import stat

import numpy as np
import pytest
import tensorflow as tf
from run_directories import StopAfter, StopError, history

from tffcl import runtime
from tffcl.errors import RunError
from tffcl.program import ClientFiles, reporters, write_client_data
from tffcl.program.run_directory import RunDirectory, open_run


@pytest.mark.slow
@pytest.mark.parametrize("where", ["local", "in-process"])
def test_all_that_a_run_leaves_is_for_its_owner_alone(tiny, process, tmp_path, open_mask, where):
    def everything():
        data, files = tiny.TinyData(3, 1), ClientFiles(str(tmp_path / "clients"))
        tiny.run(process, tmp_path / "runs" / "run", data, client_files=files, reporters=None, num_rounds=1)
        write_client_data(data, tmp_path / "data", process=process)

    if where == "local":
        everything()
    else:
        with runtime.in_process():
            everything()
    left = [path for path in tmp_path.rglob("*") if path != tmp_path / "runs"]
    assert {path.parent.name for path in left} > {"run", "checkpoints", "tensorboard", "clients", "data", "client-0002"}
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in left}
    assert modes == {(True, 0o700), (False, 0o600)}
    assert os.umask(0) == 0  # as it was


def steps_on_the_board(folder):
    """How often each tag stands there at each step, and its last value."""
    found, values = collections.Counter(), {}
    for path in (folder / "tensorboard").iterdir():
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found[value.tag, event.step] += 1
                values[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    return found, values


@pytest.mark.slow
def test_a_run_that_goes_on_again_and_again_has_one_value_a_step(tiny, process, tmp_path):
    folder = tmp_path / "run"
    for _ in range(4):
        told = [*reporters.default_reporters(folder), StopAfter(2)]
        with pytest.raises(StopError):
            tiny.run(process, folder, reporters=told, resume=True)
        with open(folder / "metrics.csv", "a") as torn:
            torn.write('99,"0.')  # as a kill leaves it
    tiny.run(process, folder, reporters=reporters.default_reporters(folder), resume=True)
    gc.collect()  # closes TensorFlow's writers
    found, values = steps_on_the_board(folder)
    assert set(found.values()) == {1}
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["round"]) for row in rows] == list(range(1, 7))
    rounds = [event for event in history(folder) if event["event"] == "round"]
    assert {step for _, step in found} == set(range(1, 7))
    for number, (event, row) in enumerate(zip(rounds, rows), start=1):
        for client, loss in event["loss"].items():
            assert values[f"loss/client_{client}", number] == np.float32(loss)
            assert float(row[f"loss/client_{client}"]) == loss
    assert ("accuracy/client_0/task_2", 6) in found  # of the end of the last task


CONTENTS = {
    "null": b"null",
    "a list": b"[]",
    "a number": b"3",
    "text": b'"x"',
    "nothing": b"",
    "cut short": b'{"seed": 7',
    "nested": b"[" * 100_000,
    "nested objects": b'{"a":' * 100_000,
    "no text": b"\xff\xfe\x00",
}
PLACES = {
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a dangling link": lambda path: path.symlink_to("gone"),
    **{name: lambda path, content=content: path.write_bytes(content) for name, content in CONTENTS.items()},
}


@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES)
def test_a_configuration_that_is_none_is_one_line_at_once(tmp_path, make):
    make(tmp_path / "config.json")
    with pytest.raises(RunError, match=r"config\.json: ") as caught, open_run(tmp_path, {"seed": 7}, True):
        pass
    assert "\n" not in str(caught.value)
    with pytest.raises(RunError, match="holds a run already"), open_run(tmp_path, {"seed": 7}, False):
        pass


@pytest.mark.parametrize("make", [os.mkdir, lambda path: path.symlink_to("../elsewhere")])
def test_a_lock_that_is_no_file_of_the_run_is_one_line(tmp_path, make):
    (tmp_path / "run").mkdir()
    make(tmp_path / "run" / ".lock")
    with pytest.raises(RunError, match=r"cannot write .*\.lock: "), open_run(tmp_path / "run", {"seed": 7}, False):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_the_history_is_written_to_is_a_file(tmp_path):
    os.mkfifo(tmp_path / "history.jsonl")
    with pytest.raises(RunError, match=r"cannot write .*history\.jsonl: No such device"):
        RunDirectory(tmp_path).history.append({"event": "round"})


@pytest.mark.parametrize("name", ["file", "file/below", "dangling", "n" * 300, "\udfff"], ids=ascii)
def test_where_no_run_can_be_nobody_is_told_of_checkpoints(tmp_path, name):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("gone")
    with pytest.raises(RunError) as caught, open_run(tmp_path / name, {"seed": 7}, False):
        pass
    assert "checkpoint" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "file"]


@pytest.mark.parametrize("what", ["config.json", "history.jsonl", "00000001.json", "metrics.csv"])
def test_without_a_checkpoint_nobody_is_told_to_go_on_from_it(tiny, process, tmp_path, monkeypatch, what):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    whole, opened = os.replace, os.open
    monkeypatch.setattr(os, "replace", lambda a, b: full(b) if str(b).endswith(what) else whole(a, b))
    monkeypatch.setattr(os, "open", lambda a, *b, **c: full(a) if str(a).endswith(what) else opened(a, *b, **c))
    if what == "metrics.csv":
        monkeypatch.setattr(reporters.tff.program, "CSVFileReleaseManager", lambda path, **_: full(path))
    told = reporters.default_reporters(tmp_path / "run")[1:]
    with pytest.raises(RunError, match=f"{what}: No space left on device; make room$"):
        tiny.run(process, tmp_path / "run", reporters=told)
