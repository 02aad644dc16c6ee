"""Files from outside: only regular ones of bounded size are opened, whatever stands at the path."""

import os
import socket

import pytest

from tffcl import storage
from tffcl.errors import DatasetError, InputError

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
