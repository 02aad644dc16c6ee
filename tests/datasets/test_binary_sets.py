"""Comma-separated zeros and ones: whole files against a parser of one line, broken ones by file and line."""

import shutil

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tffcl.datasets import BinaryDataset, available, load_binary
from tffcl.datasets.binary_files import read_binary_rows
from tffcl.errors import DatasetError

REAL = {
    "adult": (123, {"train": 5_000, "valid": 1_414}),
    "connect4": (126, {"train": 16_000, "valid": 4_000}),
    "tretail": (135, {"valid": 2_938, "test": 4_408}),
    "rcv1": (150, {"valid": 10_000}),
    "nltcs": (16, {"train": 16_181, "valid": 2_157, "test": 3_236}),
}


def text_of(rows, end="\n"):
    return end.join(",".join(map(str, row)) for row in rows)


@hypothesis.settings(max_examples=50)
@hypothesis.given(
    arrays.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.integers(0, 1)),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_reads_what_was_written(tmp_path_factory, rows, end, last_end):
    path = tmp_path_factory.mktemp("x") / "x.train.data"
    path.write_bytes((text_of(rows.tolist(), end) + end * last_end).encode())
    found = read_binary_rows(path)
    assert (found.dtype, found.tolist()) == (np.uint8, rows.tolist())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no rows"),
        ("\n\n", "holds no rows"),
        ("0,1\n0,2\n", "line 2: field 2 is '2'; expected 0 or 1"),
        ("0,1\n0,/\n", "line 2: field 2 is '/'"),
        ("0,1\n0;1\n", "line 2: field 1 is '0;1'"),
        ("0,1\n0,10\n", "line 2: field 2 is '10'"),
        ("0,1\n0,1.0\n", "line 2: field 2 is '1.0'"),
        ("0,1\n0, 1\n", "line 2: field 2 is ' 1'"),
        ("0,\n0,1\n", "line 1: field 2 is ''"),
        ("0,1,\n", "line 1: field 3 is ''"),
        ("0,1\n0,1,1\n", "line 2: has 3 fields; line 1 has 2"),
        ("0,1\n0\n0,1\n", "line 2: has 1 fields; line 1 has 2"),
        ("0,1,0\n0,1\n0,1,0,1\n", "line 2: has 2 fields; line 1 has 3"),
        ("0\n0,1\n", "line 2: has 2 fields; line 1 has 1"),
        ("0,1\n\n0,1\n", "line 2: has 0 fields; line 1 has 2"),
        ("01\n", "line 1: field 1 is '01'"),
        ("0 1\n", "line 1: field 1 is '0 1'"),
        ("version https://git-lfs", "line 1: field 1 is 'version"),
        ("0,1\n0,\u00e9\n", "line 2: field 2 is"),
    ],
)
def test_broken_files_are_named_by_line(tmp_path, content, message):
    path = tmp_path / "x.train.data"
    path.write_bytes(content.encode())
    with pytest.raises(DatasetError, match=message) as caught:
        read_binary_rows(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@hypothesis.settings(max_examples=100)
@hypothesis.given(st.integers(0, 59), st.binary(min_size=1, max_size=1))
def test_any_changed_byte_is_noticed(tmp_path_factory, place, byte):
    good = b"0,1,0,1,1,0\n" * 5
    bad = good[:place] + byte + good[place + 1 :]
    hypothesis.assume(bad != good)
    path = tmp_path_factory.mktemp("x") / "x.train.data"
    path.write_bytes(bad)
    plain = [line.split(b",") for line in bad.rstrip(b"\n").split(b"\n")]
    if {len(row) for row in plain} == {6} and {cell for row in plain for cell in row} <= {b"0", b"1"}:
        assert read_binary_rows(path).tolist() == [[int(cell) for cell in row] for row in plain]
    else:
        with pytest.raises(DatasetError, match="line [1-6]: "):
            read_binary_rows(path)


@pytest.mark.parametrize("place", ["", "own", "debd/own", "debd"])
def test_splits_that_are_there(tmp_path, place):
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own.train.data").write_text("0,1\n1,1\n")
    (folder / "own.valid.data").write_text("0,0\n")
    data = load_binary("own", tmp_path)
    assert (data.name, data.width, list(data.splits)) == ("own", 2, ["train", "valid"])
    assert data.split("train").tolist() == [[0, 1], [1, 1]]
    with pytest.raises(DatasetError, match=r"own: has no split 'test', only train, valid; put own.test.data"):
        data.split("test")
    with pytest.raises(ValueError, match="read-only"):
        data.split("train")[0] = 1


def test_wrong_width_and_missing_files(tmp_path):
    assert not available("adult", tmp_path)
    with pytest.raises(DatasetError, match=r"adult: no adult.train.data, .*/DEBD .*known sets are adult, connect4"):
        load_binary("adult", tmp_path)
    (tmp_path / "adult.train.data").write_text("0,1\n")
    assert available("adult", tmp_path)
    with pytest.raises(DatasetError, match="adult.train.data, line 1: has 2 fields; adult has 123"):
        load_binary("adult", tmp_path)
    (tmp_path / "own.train.data").write_text("0,1\n")
    (tmp_path / "own.test.data").write_text("0,1,1\n")
    with pytest.raises(DatasetError, match="own.test.data, line 1: has 3 fields; own has 2"):
        load_binary("own", tmp_path)
    with pytest.raises(DatasetError, match=r"own: split 'train' must be uint8 \[N, 3\], found uint8\[1, 2\]"):
        BinaryDataset("own", 3, {"train": np.zeros((1, 2), np.uint8)})


@pytest.mark.parametrize("name", REAL)
def test_real_sets(data_dir, name):
    width, counts = REAL[name]
    data = load_binary(name, data_dir)
    assert (data.width, {split: len(rows) for split, rows in data.splits.items()}) == (width, counts)
    for split, rows in data.splits.items():
        lines = (data_dir / "debd" / name / f"{name}.{split}.data").read_text().split()
        for place in (0, len(rows) // 2, -1):
            assert rows[place].tolist() == [int(cell) for cell in lines[place].split(",")]


def test_a_real_set_cut_short(data_dir, tmp_path):
    shutil.copy(data_dir / "debd" / "adult" / "adult.valid.data", tmp_path)
    path = tmp_path / "adult.valid.data"
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DatasetError, match="adult.valid.data, line 1414: "):
        load_binary("adult", tmp_path)
