"""IDX files, whole and broken."""

import gzip
import struct

import numpy as np
import pytest

from tffcl.datasets import read_idx
from tffcl.errors import DatasetError

PIXELS = bytes(range(24))
IMAGES = struct.pack(">IIII", 0x00000803, 2, 3, 4) + PIXELS
LABELS = struct.pack(">II", 0x00000801, 3) + bytes([7, 0, 9])


@pytest.mark.parametrize("name", ["x.gz", "x"])
@pytest.mark.parametrize("zipped", [False, True])
def test_images_by_hand(tmp_path, name, zipped):
    path = tmp_path / name
    path.write_bytes(gzip.compress(IMAGES, mtime=0) if zipped else IMAGES)
    images = read_idx(path, 3)
    assert images.dtype == np.uint8
    assert images.tolist() == [[[12 * n + 4 * row + column for column in range(4)] for row in range(3)] for n in (0, 1)]
    with pytest.raises(ValueError, match="read-only"):
        images[0, 0, 0] = 1


def test_labels_by_hand(tmp_path):
    (tmp_path / "labels").write_bytes(LABELS)
    assert read_idx(tmp_path / "labels", 1).tolist() == [7, 0, 9]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(IMAGES, mtime=0)[:-9], "not a whole gzip file .*; fetch it again"),
        (gzip.compress(IMAGES, mtime=0)[:12], "not a whole gzip file"),
        (gzip.compress(IMAGES, mtime=0)[:-8] + b"\0" * 8, "not a whole gzip file .*CRC"),
        (LABELS, "3 dimensions, magic number 0x00000803, found 0x00000801"),
        (b"<html>", "magic number 0x00000803, found 0x3C68746D"),
        (b"", r"found 0x\(nothing\)"),
        (IMAGES[:2], "found 0x0000;"),
        (IMAGES[:13], "breaks off within its header; expected 16 bytes, found 13"),
        (IMAGES[:-1], "promises 2 x 3 x 4 = 24 bytes of data, found 23"),
        (IMAGES + b"\0", "promises 2 x 3 x 4 = 24 bytes of data, found more"),
        (struct.pack(">IIII", 0x00000803, 0, 3, 4), "its header says 0 x 3 x 4"),
        (b"\0\0\x0d\x03" + IMAGES[4:], "found 0x00000D03"),
    ],
)
def test_broken_files_are_named(tmp_path, content, message):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=message) as caught:
        read_idx(path, 3)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_file(tmp_path):
    with pytest.raises(DatasetError, match="no such file"):
        read_idx(tmp_path / "x", 1)
