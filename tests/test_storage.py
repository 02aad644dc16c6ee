"""Files: only regular ones of bounded size are read, and each is written whole and for its owner alone."""

import os
import socket
import stat
import threading

import pytest

from tffcl import storage
from tffcl.errors import DatasetError, InputError, RunError

OPENERS = [storage.open_regular, storage.read_regular]


def _pipe(path):
    os.mkfifo(path)


def _socket(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


NOT_REGULAR = {
    "a pipe without a writer": _pipe,
    "a folder": os.mkdir,
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "an empty device": lambda path: path.symlink_to("/dev/null"),
    "a socket": _socket,
    "nothing": lambda path: None,
    "a dangling link": lambda path: path.symlink_to(path.parent / "gone"),
    "a link to itself": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("make", NOT_REGULAR.values(), ids=NOT_REGULAR)
def test_what_is_no_regular_file_is_refused_at_once_in_one_line(make, opener, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path may be no longer than 107 bytes
    make(tmp_path / "x")

    with pytest.raises(DatasetError, match=r"/x: .*a table") as caught:
        opener(tmp_path / "x", "a table", error=DatasetError)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("name", ["n" * 300, "a\0b", "\udfff"], ids=["long", "NUL", "not encodable"])
def test_what_cannot_be_a_path_is_refused_in_one_line(name, opener, tmp_path):
    with pytest.raises(InputError, match="a table") as caught:
        opener(tmp_path / name, "a table")

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("opener", OPENERS)
def test_a_file_over_the_bound_is_refused_and_one_at_the_bound_is_not(opener, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"12345")

    with pytest.raises(InputError, match=r"/x: .*a table of at most 4 bytes"):
        opener(path, "a table", max_bytes=4)

    assert storage.read_regular(path, "a table", max_bytes=5) == b"12345"
    with storage.open_regular(path, "a table", max_bytes=None) as file:
        assert file.read() == b"12345"


def test_a_file_that_says_nothing_of_its_size_is_read_within_the_bound():
    # The kernel's own tables are regular files of size 0.
    with pytest.raises(InputError, match="at most 3 bytes"):
        storage.read_regular("/proc/self/status", "a table", max_bytes=3)


def test_a_link_to_a_regular_file_is_followed(tmp_path):
    (tmp_path / "file").write_bytes(b"here")
    (tmp_path / "link").symlink_to("file")

    assert storage.read_regular(tmp_path / "link", "a table") == b"here"


def test_no_descriptor_stays_open_after_a_refusal(tmp_path):
    os.mkfifo(tmp_path / "x")
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(3):
        with pytest.raises(InputError):
            storage.open_regular(tmp_path / "x", "a table")

    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"null", "expected a JSON object, found NoneType"),
        (b"[]", "found list"),
        (b"3", "found int"),
        (b'"x"', "found str"),
        (b"", "not valid JSON"),
        (b'{"a": ', "not valid JSON"),
        (b"\xff\xfe{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a": ' * 100_000, "not valid JSON"),
        (b'{"a": ' * 80 + b"1" + b"}" * 80, "nested more than 64 levels deep"),
        (b'{"a": ' + b"[" * 80 + b"]" * 80 + b"}", "nested more than 64 levels deep"),
    ],
)
def test_json_that_is_no_object_is_one_line(tmp_path, content, words):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(RunError, match=words) as caught:
        storage.read_object(path, "settings", error=RunError)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_json_object_is_read(tmp_path):
    (tmp_path / "x.json").write_bytes(b'{"a": [1, {"b": null}]}')
    assert storage.read_object(tmp_path / "x.json", "settings") == {"a": [1, {"b": None}]}


def _mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_written_is_for_its_owner_alone(tmp_path, open_mask):
    storage.make_folder(tmp_path / "a" / "b", "a folder")
    storage.write_whole(tmp_path / "a" / "b" / "x", b"1")
    storage.write_whole(tmp_path / "a" / "b" / "y", lambda file: file.write(b"2"))
    assert [(path.name, path.read_bytes()) for path in sorted((tmp_path / "a" / "b").iterdir())] == [
        ("x", b"1"),
        ("y", b"2"),
    ]
    assert {_mode(path) for path in (tmp_path / "a", tmp_path / "a" / "b")} == {0o700}
    assert {_mode(path) for path in (tmp_path / "a" / "b").iterdir()} == {0o600}


def test_a_folder_that_stands_keeps_its_permissions(tmp_path, open_mask):
    (tmp_path / "a").mkdir(mode=0o750)
    storage.make_folder(tmp_path / "a", "a folder")
    assert _mode(tmp_path / "a") == 0o750


def test_the_mask_comes_back_when_the_last_of_several_threads_has_left(tmp_path, open_mask):
    first_is_in, second_is_in = threading.Event(), threading.Event()

    def other():
        first_is_in.wait()
        with storage.private():
            second_is_in.set()
            first_is_out.wait()
            (tmp_path / "second").write_text("")

    first_is_out, thread = threading.Event(), threading.Thread(target=other)
    thread.start()
    with storage.private():
        first_is_in.set()
        second_is_in.wait()
    first_is_out.set()
    thread.join()
    (tmp_path / "third").write_text("")
    assert (_mode(tmp_path / "second"), _mode(tmp_path / "third")) == (0o600, 0o666)


@pytest.mark.parametrize("where", ["mkstemp", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, where):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    path = tmp_path / "x"
    storage.write_whole(path, b"old")
    monkeypatch.setattr(storage.tempfile if where == "mkstemp" else os, where, full)
    with pytest.raises(RunError, match=r"cannot write .*/x: No space left on device; make room$"):
        storage.write_whole(path, b"new")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("x", b"old")]


@pytest.mark.parametrize("name", ["none/x", "folder", "x" * 300, "a\0b", "\udfff"])
def test_where_nothing_can_be_written_is_one_line(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError) as caught:
        storage.write_whole(tmp_path / name, b"new")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_the_longest_name_of_a_file_can_be_written(tmp_path):
    storage.write_whole(tmp_path / ("x" * 255), b"1")


NO_FOLDER = {
    "file": "is a file; give another directory",
    "file/below": "/file is a file",
    "file/below/deep": "/file is a file",
    "dangling": "is a link to nothing",
    "dangling/below": "/dangling is a link to nothing",
    "loop/below": "Too many levels|is a link to nothing",
    "n" * 300: "File name too long",
    "new/" + "n" * 300: "File name too long",
    "n" * 300 + "/new": "File name too long",
    "n/" * 3000: "File name too long",
    "a\0b": "holds a NUL",
    "\udfff": "outside of this locale's encoding",
    "\udfff/new": "outside of this locale's encoding",
}


@pytest.mark.parametrize("make", [storage.check_folder, storage.make_folder])
@pytest.mark.parametrize("name", NO_FOLDER, ids=lambda name: ascii(name[:20]))
def test_what_can_be_no_folder_is_one_line_and_nothing_is_made(tmp_path, make, name):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("gone")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(RunError, match=NO_FOLDER[name]) as caught:
        make(tmp_path / name, "a run directory")
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "file", "loop"]


@pytest.mark.parametrize("name", ["", "new", "new/below"])
def test_a_folder_that_is_read_only_is_said_at_once(tmp_path, monkeypatch, name):
    monkeypatch.setattr(os, "access", lambda path, _: str(path) != str(tmp_path))  # whoever the tests run as
    with pytest.raises(RunError, match=f"{tmp_path} is read-only here; give another directory"):
        storage.check_folder(tmp_path / name, "a run directory")


def test_checking_makes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path, tmp_path / "new" / "below", "relative", "."):
        storage.check_folder(path, "a run directory")
    assert not list(tmp_path.iterdir())
