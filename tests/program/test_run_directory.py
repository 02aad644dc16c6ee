"""The run directory: who may read it, what stands where it should be, what follows from the history; and checkpoints.

A checkpoint that is not as it was written is passed over, or named in one line; nothing outside is opened.
"""

from __future__ import annotations

import collections
import csv
import errno
import json
import os
import shutil
import stat

import numpy as np
import pytest
import tensorflow as tf
import tree
from run_directories import StopAfter, StopError, history

from tffcl import runtime
from tffcl.errors import RunError
from tffcl.program import ClientFiles, reporters, results, run_directory, state, write_client_data
from tffcl.program.results import Settings
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
    """How often each tag stands there at each step, and its last value, as any reader of simple values finds them."""
    found, values = collections.Counter(), {}
    for path in (folder / "tensorboard").iterdir():
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                assert value.WhichOneof("value") == "simple_value"
                found[value.tag, event.step] += 1
                values[value.tag, event.step] = value.simple_value
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
    found, values = steps_on_the_board(folder)
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [*rows[0]] == list(results.TIDY)
    rounds = [event for event in history(folder) if event["event"] == "round"]
    losses = {(int(row["round"]), row["client"]): float(row["value"]) for row in rows if row["metric"] == "loss"}
    assert sum(row["metric"] == "loss" for row in rows) == len(losses) == 18  # each once
    for number, event in enumerate(rounds, start=1):
        assert {client: losses[number, client] for client in event["loss"]} == event["loss"]
        assert values["loss/mean", number] == pytest.approx(np.mean(list(event["loss"].values())))
        assert found["loss/mean", number] == 1
    ends = [event for event in history(folder) if event["event"] == "task_end"]
    means = [100 * np.mean([one for row in event["accuracy"] for one in row]) for event in ends]
    for task, number in enumerate((2, 4, 6)):  # once for the round, once for what the end of the task is scored
        assert found["accuracy/mean", number] == 2
        assert values["accuracy/mean", number] == pytest.approx(means[task])
        assert values["accuracy/average_so_far", number] == pytest.approx(np.mean(means[: task + 1]))
    sent = sum(sum(event["bytes_up"].values()) for event in history(folder)) / 1e6
    assert values["bytes/up_MB", 6] == pytest.approx(sent)
    tensor = np.full([3, 3, 3], np.nan)
    for task, event in enumerate(ends):
        tensor[:, task, : task + 1] = event["accuracy"]
    lost = np.mean(np.max(np.nan_to_num(tensor, nan=-1)[:, :2, :2], axis=1) - tensor[:, 2, :2])
    assert values["accuracy/forgetting", 6] == pytest.approx(100 * lost)


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
    told = reporters.default_reporters(tmp_path / "run")[1:]
    with pytest.raises(RunError, match=f"{what}: No space left on device; make room$"):
        tiny.run(process, tmp_path / "run", reporters=told)


STEPS = 5  # two rounds and the end of the first task, two rounds of the second one


@pytest.fixture(scope="module")
def stopped(tiny, process, tmp_path_factory):
    """The directory of a run with checkpoints 4 and 5."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(StopError):
        tiny.run(process, folder, reporters=[StopAfter(STEPS)])
    return folder


@pytest.fixture(scope="module")
def first(process):
    return state.first_state(process, 3, Settings(2, 7))


@pytest.fixture(name="folder")
def _folder(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "run")


def manifest_of(folder, step=STEPS):
    return folder / "checkpoints" / f"{step:08d}.json"


def content_of(found):
    clients = [found.store[client] for client in range(len(found.store))]
    return tree.map_structure(np.asarray, (found.server, clients)), found.selections, found.task, found.round


def same(one, other):
    tree.map_structure(np.testing.assert_array_equal, content_of(one), content_of(other))


def restored(folder, first):
    directory = RunDirectory(folder)
    return directory.restore(first), directory.history


def changed(name, value):
    def change(folder):
        path = manifest_of(folder)
        path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))

    return change


def written(content):
    return lambda folder: manifest_of(folder).write_text(content)


def a_history_line_less(folder):
    size, _ = json.loads(manifest_of(folder).read_text())["history"]
    lines = (folder / "history.jsonl").read_bytes().splitlines(keepends=True)
    changed("history", [size - len(lines[-1]), json.loads(manifest_of(folder, 4).read_text())["history"][1]])(folder)


def one_digit_of_the_history(folder):
    path = folder / "history.jsonl"
    *lines, last = path.read_bytes().splitlines(keepends=True)
    place = max(last.rfind(digit) for digit in (b"3", b"4", b"5", b"6"))
    path.write_bytes(b"".join(lines) + last[:place] + b"2" + last[place + 1 :])


def the_last_line_is_cut_short(folder):
    path = folder / "history.jsonl"
    path.write_bytes(path.read_bytes()[:-3])


def two_clients_exchanged(folder):
    clients = json.loads(manifest_of(folder).read_text())["clients"]
    changed("clients", [clients[1], clients[0], clients[2]])(folder)


DAMAGES = {
    "the task": changed("task", 2),
    "the round": changed("round", 0),
    "whether the base is news": changed("fresh", False),
    "no selections": changed("selections", []),
    "one more entry": changed("more", 1),
    "a line of history less": a_history_line_less,
    "no history": changed("history", [0, "e3b0c442"]),
    "clients exchanged": two_clients_exchanged,
    "no clients": changed("clients", []),
    "no knowledge": changed("knowledge", []),
    "another server": changed("server", ["00000004.npz", "00000000"]),
    "another format": changed("format", 5),
    "no checksum": changed("checksum", None),
    "null": written("null"),
    "a list": written("[]"),
    "a number": written("3"),
    "nested": written("[" * 100_000),
    "deep": written('{"format": 4, "task": ' + "[" * 100 + "]" * 100 + "}"),
    "a digit of the history": one_digit_of_the_history,
    "a history cut short": the_last_line_is_cut_short,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_run_goes_on_from_the_checkpoint_before_one_that_is_not_as_it_was_written(
    folder, first, damage, caplog, tmp_path
):
    before = shutil.copytree(folder, tmp_path / "before")
    manifest_of(before).unlink()
    expected, _ = restored(before, first)

    damage(folder)
    found, history = restored(folder, first)
    same(found, expected)
    assert (found.task, found.round) == (1, 1)
    assert len(history.events) == STEPS - 1
    assert history.size == (folder / "history.jsonl").stat().st_size  # what was beyond is cut off
    [warning] = caplog.messages
    assert "going on from the checkpoint before it" in warning
    assert "\n" not in warning


def test_the_bytes_of_clients_are_those_of_their_newest_entries(folder, first):
    """Of a checkpoint in whose files some entries stand twice; one that is not as it was written has none."""
    found, _ = restored(folder, first)
    checkpoints = run_directory.Checkpoints(folder / "checkpoints")
    manifest = json.loads(manifest_of(folder).read_text())
    assert max(map(len, manifest["clients"])) > 1
    expected = [sum(np.asarray(v).nbytes for v in found.store[client].values()) for client in range(3)]
    assert checkpoints.client_bytes() == expected
    changed("task", 2)(folder)
    with pytest.raises(RunError, match="is damaged: its checksum does not fit it"):
        checkpoints.client_bytes()
    assert run_directory.Checkpoints(folder / "none").client_bytes() == []


def test_the_last_checkpoint_is_taken_as_it_stands(folder, first, caplog):
    found, history = restored(folder, first)
    assert (found.task, found.round, len(history.events)) == (1, 2, STEPS)
    assert not caplog.messages


def test_a_history_that_was_changed_before_both_checkpoints_is_one_line(folder, first):
    path = folder / "history.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"round": 0', b'"round": 1', 1))
    with pytest.raises(RunError, match=r"no whole checkpoint in .*history\.jsonl is damaged: it is not what"):
        restored(folder, first)


def lies(folder, **names):
    """Manifests with other values and the checksums that fit them."""
    for path in (folder / "checkpoints").glob("*.json"):
        content = {**json.loads(path.read_text()), **names}
        path.write_text(json.dumps({**content, "checksum": run_directory._checksum(content)}))


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd", "/dev/zero", "../config.json", "./00000005.npz", "sub/00000005.npz", "00000005.npz/", "..", "",
        "00000005.json", "00000005.npz\n", "\uff10" * 8 + ".npz", "x" * 300, "a\0b.npz", None, 3, ["00000005.npz"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["server", "clients", "knowledge"])
def test_a_manifest_names_files_of_its_own_folder_alone(folder, first, monkeypatch, name, where):
    named = {"server": [name, "0"], "clients": [[[name, "0"]]] * 3, "knowledge": [[0, name, "0"]]}[where]
    lies(folder, **{where: named})
    monkeypatch.setattr("tffcl.archive.checksum", lambda path: pytest.fail(f"opened {path}"))
    with pytest.raises(RunError, match="no whole checkpoint in .*(is no file of a checkpoint|no checkpoint of this)"):
        restored(folder, first)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("what", ["manifest", "arrays", "history"])
def test_what_is_no_regular_file_is_one_line_at_once(folder, first, make, what):
    names = {"manifest": "checkpoints/0*.json", "arrays": "checkpoints/0*.npz", "history": "history.jsonl"}
    for path in folder.glob(names[what]):
        path.unlink()
        make(path)
    with pytest.raises(RunError, match="no whole checkpoint in .* in a regular file, found "):
        restored(folder, first)


@pytest.mark.parametrize(
    "names",
    [
        {"selections": []},
        {"selections": 3},
        {"task": "x"},
        {"task": None},
        {"clients": 3},
        {"clients": [[]] * 3},
        {"clients": {}},
        {"knowledge": [[]]},
        {"knowledge": None},
        {"server": None},
        {"history": None},
        {"history": ["x", "y"]},
    ],
    ids=repr,
)
def test_a_manifest_of_another_make_is_one_line(folder, first, names):
    lies(folder, **names)
    with pytest.raises(RunError, match="no whole checkpoint in ") as caught:
        restored(folder, first)
    assert "\n" not in str(caught.value)


def test_names_that_only_look_like_checkpoints_are_left_alone(folder, first):
    for name in ("notes.json", "1.json", "\u0661" * 8 + ".json", "000000099.json"):
        (folder / "checkpoints" / name).write_text("[]")
    found, _ = restored(folder, first)
    assert (found.task, found.round) == (1, 2)
