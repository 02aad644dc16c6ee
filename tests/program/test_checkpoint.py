"""Checkpoints: what is not as it was written is passed over, or named in one line; nothing outside is opened."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import tree
from run_directories import StopAfter, StopError

from tffcl.errors import RunError
from tffcl.program import checkpoint, state
from tffcl.program.results import Settings
from tffcl.program.run_directory import RunDirectory

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
        path.write_text(json.dumps({**content, "checksum": checkpoint._checksum(content)}))


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
