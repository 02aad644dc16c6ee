"""Archives of arrays: what is read is what was written, whatever happened to the file."""

from __future__ import annotations

import numpy as np
import pytest

from tffcl.errors import RunError
from tffcl.transfers import archive

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
