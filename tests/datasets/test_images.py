"""Image sets: IDX files, the layouts of MNIST and EMNIST in files written here, real ones, scikit-learn's digits."""

import gzip
import hashlib
import pathlib
import struct

import numpy as np
import pytest
from loading import module_at

from tffcl.datasets import available, load_images, read_idx
from tffcl.errors import DatasetError

idx = module_at(pathlib.Path(__file__).with_name("idx.py"))


def write_mnist(folder, zipped=True, train_labels=(3, 1, 9), test_labels=(0, 2)):
    train = idx.random_images(len(train_labels), 4, 5)
    test = idx.random_images(len(test_labels), 4, 5, seed=1)
    idx.write_part(folder, "train", train, train_labels, zipped)
    idx.write_part(folder, "t10k", test, test_labels, zipped)
    return train, test


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["mnist", "MNIST/raw"])
def test_mnist_layout(tmp_path, zipped, place):
    train, test = write_mnist(tmp_path / place, zipped)
    data = load_images("mnist", tmp_path)
    assert data.train_images.tolist() == train
    assert data.test_images.tolist() == test
    assert (data.train_labels.tolist(), data.test_labels.tolist()) == ([3, 1, 9], [0, 2])
    assert data.label_names == tuple("0123456789")
    assert (data.train_labels.dtype, data.max_value, data.name) == (np.int32, 255, "mnist")
    assert available("mnist", tmp_path)


def test_mnist_is_not_taken_for_fashion_mnist(tmp_path):
    write_mnist(tmp_path / "mnist")
    assert len(load_images("mnist", tmp_path / "mnist").train_images) == 3
    for folder in (tmp_path, tmp_path / "mnist"):
        assert not available("fashion-mnist", folder)
        with pytest.raises(DatasetError, match=r"not found together in .*fashion-mnist; get them from .*'digits'"):
            load_images("fashion-mnist", folder)


@pytest.mark.parametrize("kind", ["balanced", "byclass", "letters"])
def test_emnist_is_turned_upright(tmp_path, kind):
    upright = idx.random_images(4, 3, 5)
    stored = [[[image[row][column] for row in range(3)] for column in range(5)] for image in upright]
    labels = [1, 26, 2, 1]
    for part in ("train", "test"):
        idx.write_part(tmp_path / "emnist", f"emnist-{kind}-{part}", stored, labels)
    data = load_images(f"emnist-{kind}", tmp_path)
    assert data.train_images.tolist() == upright == data.test_images.tolist()
    names = [data.label_names[label] for label in data.train_labels]
    assert names == (["a", "z", "b", "a"] if kind == "letters" else ["1", "Q", "2", "1"])
    assert len(data.label_names) == {"balanced": 47, "byclass": 62, "letters": 26}[kind]


@pytest.mark.parametrize(("kind", "label", "span"), [("letters", 0, "1..26"), ("balanced", 47, "0..46")])
def test_a_label_out_of_range(tmp_path, kind, label, span):
    for part in ("train", "test"):
        labels = [1, label if part == "test" else 1]
        idx.write_part(tmp_path, f"emnist-{kind}-{part}", idx.random_images(2, 2, 2), labels)
    with pytest.raises(DatasetError, match=rf"-test-labels-idx1-ubyte.gz: label {label} at row 1; expected {span}"):
        load_images(f"emnist-{kind}", tmp_path)


def test_counts_of_images_and_labels_differ(tmp_path):
    write_mnist(tmp_path / "mnist")
    content = gzip.compress(idx.idx((4,), bytes(4)))
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(content)
    with pytest.raises(DatasetError, match=r"labels.*gz: has 4 labels, but train-images-idx3-ubyte.gz has 3 images"):
        load_images("mnist", tmp_path)


def test_train_and_test_of_different_size(tmp_path):
    write_mnist(tmp_path / "mnist")
    idx.write_part(tmp_path / "mnist", "t10k", idx.random_images(2, 5, 5), [1, 2])
    with pytest.raises(DatasetError, match="training examples are 4 x 5, test examples 5 x 5"):
        load_images("mnist", tmp_path)


def test_no_such_set(tmp_path):
    with pytest.raises(DatasetError, match="cifar: no such image set; known sets are digits, mnist, fashion-mnist"):
        load_images("cifar", tmp_path)
    with pytest.raises(DatasetError, match="no such folder"):
        load_images("mnist", tmp_path / "gone")


def test_digits_need_no_files():
    from sklearn import datasets

    data, again = load_images(), load_images("digits")
    assert available("digits")
    np.testing.assert_array_equal(data.train_images, again.train_images)
    assert (data.train_images.shape, data.test_images.shape) == ((1442, 8, 8), (355, 8, 8))
    assert (data.max_value, data.train_images.max()) == (16, 16)
    raw = datasets.load_digits()
    rows = np.concatenate([data.train_images, data.test_images]).reshape(-1, 64)
    labels = np.concatenate([data.train_labels, data.test_labels])
    assert sorted(zip(labels, map(bytes, rows))) == sorted(zip(raw.target, map(bytes, raw.data.astype(np.uint8))))
    counts = np.bincount(raw.target)
    np.testing.assert_array_equal(np.bincount(data.test_labels), counts // 5)
    # a change here changes every figure for digits
    assert hashlib.sha256(data.test_images.tobytes()).hexdigest()[:8] == "784a9ffb"


@pytest.mark.parametrize(("name", "train", "test"), [("mnist", 7_996, 2_004), ("fashion-mnist", 60_000, 10_000)])
def test_real_sets(data_dir, name, train, test):
    data = load_images(name, data_dir)
    assert (data.train_images.shape, data.test_images.shape) == ((train, 28, 28), (test, 28, 28))
    assert set(data.train_labels.tolist()) == set(range(10)) == set(data.test_labels.tolist())
    # the frame of an MNIST image is empty, and its middle is not
    assert data.train_images[:, 12:16, 12:16].mean() > 5 * data.train_images[:, 0].mean()


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


def test_no_idx_file(tmp_path):
    with pytest.raises(DatasetError, match="no such file"):
        read_idx(tmp_path / "x", 1)
