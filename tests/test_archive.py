"""Archives: what is read is what was written, whatever happened to the file. A shelf is a dictionary of arrays."""

from __future__ import annotations

import os
import struct
import tempfile
import zipfile

import numpy as np
import pytest

from tffcl import archive
from tffcl.archive import Shelf
from tffcl.errors import RunError

ARRAYS = {
    "base": np.arange(6, dtype=np.float32).reshape(2, 3),
    "server/0": np.array(7, np.int32),
    "past": np.zeros([0, 3], np.float32),
    "name": np.array("a run"),
}


@pytest.fixture(name="path")
def _path(tmp_path):
    archive.write(tmp_path / "some.npz", ARRAYS)
    return tmp_path / "some.npz"


def same(found):
    return list(found) == list(ARRAYS) and all(
        found[name].dtype == value.dtype and found[name].shape == value.shape and (found[name] == value).all()
        for name, value in ARRAYS.items()
    )


def test_what_was_written_is_read_and_numpy_reads_it_too(path):
    assert same(archive.read(path))
    with np.load(path) as loaded:
        assert same({name: loaded[name] for name in loaded.files})


def test_the_checksum_is_that_of_the_content(path, tmp_path):
    archive.write(tmp_path / "again.npz", iter(ARRAYS.items()))
    assert archive.checksum(tmp_path / "again.npz") == archive.checksum(path)
    for changed in (
        {**ARRAYS, "base": ARRAYS["base"] + 1},
        {**ARRAYS, "base": ARRAYS["base"].T},
        {**ARRAYS, "more": ARRAYS["base"]},
        {f"{name}_": value for name, value in ARRAYS.items()},
    ):
        archive.write(tmp_path / "changed.npz", changed)
        assert archive.checksum(tmp_path / "changed.npz") != archive.checksum(path)


@pytest.mark.slow
@pytest.mark.parametrize("bit", [0, 3, 6])
def test_any_byte_that_is_not_what_was_written_is_found_or_plays_no_part(path, bit):
    content, whole, missed, told = path.read_bytes(), archive.checksum(path), 0, set()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
        try:
            found = archive.read(path) if archive.checksum(path) == whole else None
        except RunError as error:
            told.add(str(error).partition(":")[0])
            continue
        assert found is None or same(found), place
        missed += found is not None
    assert told == {f"{path} is damaged, or no archive of arrays"}
    assert missed < len(content) / 3  # dates, versions and lengths that are told twice


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_file_cut_short_is_damaged(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    for function in (archive.read, archive.checksum):
        with pytest.raises(RunError, match="is damaged, or no archive of arrays"):
            function(path)


def test_no_file_is_one_line(tmp_path):
    for function in (archive.read, archive.checksum):
        with pytest.raises(RunError, match="none.npz: no such file; expected an archive of arrays"):
            function(tmp_path / "none.npz")


def header(shape, dtype="<f4"):
    """An array in numpy's format, up to its first value."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def packed(path, content, how=zipfile.ZIP_STORED, times=1):
    """An archive with one array, or with several that are the same bytes of the file."""
    with zipfile.ZipFile(path, "w", how) as made:
        made.writestr("a.npy", content)
        for number in range(1, times):
            again = zipfile.ZipInfo(f"a{number}.npy")
            first = made.infolist()[0]
            for name in ("CRC", "file_size", "compress_size", "header_offset", "external_attr"):
                setattr(again, name, getattr(first, name))
            made.filelist.append(again)


LIARS = {
    "more than memory has": lambda path: packed(path, header((1 << 40,))),
    "more than there is": lambda path: packed(path, header((1000,)) + b"0" * 40),
    "less than there is": lambda path: packed(path, header((1,)) + b"0" * 40),
    "less than nothing": lambda path: packed(path, header((-1,)) + b"0" * 40),
    "compressed": lambda path: packed(path, header((1 << 20,)) + bytes(4 << 20), zipfile.ZIP_DEFLATED),
    "the same bytes again and again": lambda path: packed(path, header((1 << 10,)) + bytes(4 << 10), times=9),
    "Python objects": lambda path: packed(path, header((1,), "|O") + b"cos\nos\n."[:8]),
    "no array": lambda path: packed(path, b"text"),
    "nothing": lambda path: packed(path, b""),
}


@pytest.mark.parametrize("make", LIARS.values(), ids=LIARS)
def test_no_more_is_read_than_the_file_holds(tmp_path, make, monkeypatch):
    path = tmp_path / "x.npz"
    make(path)
    room = []
    monkeypatch.setattr(np.lib.format, "read_array", lambda file, **_: room.append(file))
    with pytest.raises(RunError, match=r"x\.npz is damaged, or no archive of arrays") as caught:
        archive.read(path)
    assert "\n" not in str(caught.value)
    assert not room  # it was found out before numpy made room


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_one_line(tmp_path, make):
    make(tmp_path / "x.npz")
    for function in (archive.read, archive.checksum):
        with pytest.raises(RunError, match="expected an archive of arrays in a regular file"):
            function(tmp_path / "x.npz")


def test_arrays_that_are_needed_are_named(path):
    assert list(archive.read(path, "past", "base")) == list(ARRAYS)
    with pytest.raises(RunError, match=r"expected the arrays \['past', 'none'\], found \['base', 'name', 'past'"):
        archive.read(path, "past", "none")


def some_arrays(rng) -> dict[str, np.ndarray]:
    count = int(rng.integers(0, 40))
    return {
        "matrix": rng.normal(size=(count, 3)).astype(np.float32),
        "number": np.int32(count),
        "flags": rng.normal(size=count) > 0,
        "text": np.array(f"run-{count}"),
    }


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == np.asarray(array).dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("memory", [0, 600, 2**20])
def test_equals_a_dictionary(memory):
    rng = np.random.default_rng(0)
    shelf, model = Shelf(memory), {}
    for _ in range(400):
        key = int(rng.integers(0, 12))
        action = rng.integers(0, 4)
        if action == 0 and key in model:
            del shelf[key], model[key]
        elif action < 3:
            model[key] = some_arrays(rng)
            shelf[key] = model[key]
        elif key in model:
            assert_same(shelf[key], model[key])
        assert shelf.memory_used <= max(memory, 1000)
        assert set(shelf) == set(model)
    for key, arrays in model.items():
        assert_same(shelf[key], arrays)
        assert shelf.num_bytes(key) == sum(np.asarray(array).nbytes for array in arrays.values())


def test_room_in_the_file_is_used_again():
    shelf = Shelf(0)
    for _ in range(50):
        for key in range(4):
            shelf[key] = {"value": np.full(100, key, np.int64)}
    assert os.fstat(shelf._file._file.fileno()).st_size <= 5 * 800


def test_the_file_has_no_name_and_is_closed_with_its_shelf(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shelf = Shelf(0)
    for key in range(3):
        shelf[key] = {"value": np.ones(10)}
    assert os.listdir(tmp_path) == []
    file = shelf._file._file
    del shelf
    assert file.closed


def test_wrong_values_and_a_full_disk(monkeypatch):
    with pytest.raises(TypeError, match="'value' under 'key' holds Python objects"):
        Shelf()["key"] = {"value": np.array([object()])}
    shelf = Shelf(0)
    shelf[0] = {"value": np.ones(2)}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive.os, "pwrite", full)
    with pytest.raises(RunError, match="cannot write to a temporary file in .*: No space left on device"):
        shelf[1] = {"value": np.ones(2)}


def test_missing_keys():
    with pytest.raises(KeyError):
        Shelf()[0]


def test_rounding_is_that_of_bfloat16():
    rng = np.random.default_rng(1)
    values = (rng.normal(size=10_000) * 10.0 ** rng.integers(-30, 30, 10_000)).astype(np.float32)
    values = np.concatenate(
        [values, np.float32([0.0, -0.0, 1.0, 1.00390625, 1.01171875, np.inf, -np.inf, np.nan, 1e-45])]
    )
    import tensorflow as tf

    expected = tf.cast(tf.cast(values, tf.bfloat16), tf.float32).numpy()
    np.testing.assert_array_equal(archive.rounded(values), expected)
    largest = np.float32([np.finfo(np.float32).max])
    np.testing.assert_array_equal(archive.rounded(largest), largest)  # rather than infinite


PACKED = {
    "dense": np.random.default_rng(2).normal(size=(3, 5000)).astype(np.float32),
    "sparse": np.random.default_rng(3).normal(size=9000).astype(np.float32) * (np.arange(9000) % 7 == 0),
    "zeros": np.zeros([2, 4096], np.float32),
    "no rows": np.zeros([0, 5000], np.float32),
    "few": np.float32([[1.001, -2.0]]),
    "numbers": np.arange(10_000),
    "negative zero": np.full(5000, -0.0, np.float32),
    "three axes": np.random.default_rng(4).normal(size=(2, 50, 60)).astype(np.float32),
}


def test_what_is_packed_comes_back_in_its_form_and_equal_rows_stand_once(tmp_path):
    path = tmp_path / "a.npz"
    archive.write(path, archive.packed([*PACKED.items(), ("again", PACKED["dense"][1]), ("alike", PACKED["dense"])]))
    found = archive.Packed(path)
    assert set(found.names) == {*PACKED, "again", "alike"}
    for name, array in PACKED.items():
        large = array.dtype == np.float32 and array.size >= archive.PACKED_FROM
        expected = archive.rounded(array) if large else array
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name].view(np.uint8), np.ascontiguousarray(expected).view(np.uint8))
        assert found.num_bytes(name) == array.nbytes
    np.testing.assert_array_equal(found["again"], found["dense"][1])
    assert sum(name.startswith("row/") for name in np.load(path)) == 3 + 1 + 1 + 1 + 2


@pytest.mark.parametrize(
    "changed",
    [
        {"index": np.frombuffer(b"[1", np.uint8)},
        {"index": np.frombuffer(b'{"dense": [[3, 5000], [0, 1, 99]]}', np.uint8)},
        {"index": np.frombuffer(b'{"dense": [[3, 9000], [0, 1, 2]]}', np.uint8)},
        {"index": np.frombuffer(b'{"dense": [[3, 5000], []]}', np.uint8)},
        {"row/0": np.zeros(3, np.uint8)},
        {"row/0": np.frombuffer(b"\x05\x00\x00\x00" * 3 + b"x" * 15, np.uint8)},
    ],
    ids=str,
)
def test_a_packed_archive_of_another_make_is_one_line(tmp_path, changed):
    path = tmp_path / "a.npz"
    stored = dict(archive.packed([("dense", PACKED["dense"])]))
    archive.write(path, {**stored, **changed})
    with pytest.raises(RunError, match="is damaged, or no archive of a finished run"):
        archive.Packed(path)["dense"]
