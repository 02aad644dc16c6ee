"""Binary sets from their files, zeros and ones out of intensities, and both as binary vectors, against loops."""

import hashlib
import shutil

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tffcl import datasets
from tffcl.datasets import (
    BinaryDataset,
    ImageDataset,
    available,
    binarise,
    binarise_stochastic,
    load_binary,
    vectors_of_images,
    vectors_of_sets,
)
from tffcl.datasets.binary import read_binary_rows
from tffcl.errors import DatasetError, InputError

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


ALL = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)


@pytest.mark.parametrize("threshold", [0, 0.25, 0.5, 0.999])
def test_only_what_is_brighter_than_the_threshold(threshold):
    ones = binarise(ALL, threshold)
    assert (ones.dtype, ones.shape) == (np.uint8, ALL.shape)
    assert ones.ravel().tolist() == [int(value > threshold * 255) for value in range(256)]


def test_a_pixel_on_the_threshold_is_zero():
    assert binarise(np.array([7, 8, 9], np.uint8), 0.5, max_value=16).tolist() == [0, 0, 1]
    assert binarise(np.array([0, 1], np.uint8), 0).tolist() == [0, 1]
    assert binarise(np.array([127, 128], np.uint8)).tolist() == [0, 1]  # as value / 255 > 0.5


def test_stochastic_frequencies_are_the_intensities():
    images = np.tile(np.array([[0, 1, 4, 8, 15, 16]], np.uint8), (20_000, 1))
    ones = binarise_stochastic(images, 3, max_value=16)
    assert (ones.dtype, set(np.unique(ones))) == (np.uint8, {0, 1})
    assert (ones[:, 0].sum(), ones[:, -1].sum()) == (0, 20_000)
    expected = images[0] / 16
    deviation = np.sqrt(expected * (1 - expected) / 20_000)
    assert (np.abs(ones.mean(axis=0) - expected) <= 5 * deviation).all()
    # neighbours in a row, and rows that follow each other, are independent
    half = ones[:, 3].astype(float)
    assert abs(np.corrcoef(half, ones[:, 2])[0, 1]) < 0.04
    assert abs(np.corrcoef(half[1:], half[:-1])[0, 1]) < 0.04


def test_the_seed_decides_every_pixel(monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (50, 7, 7)).astype(np.uint8)
    first = binarise_stochastic(images, 1)
    np.testing.assert_array_equal(binarise_stochastic(images, 1), first)
    assert (binarise_stochastic(images, 2) != first).any()
    monkeypatch.setattr("tffcl.datasets.binary._ROWS_AT_ONCE", 7)  # a matter of memory alone
    np.testing.assert_array_equal(binarise_stochastic(images, 1), first)
    # a change here changes every figure on stochastically binarised images
    assert hashlib.sha256(binarise_stochastic(ALL, 1).tobytes()).hexdigest()[:8] == "60ef4f6d"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: binarise(ALL / 255), "images must be an array of uint8, found float64"),
        (lambda: binarise([[0, 1]]), "images must be an array of uint8, found list"),
        (lambda: binarise(ALL, max_value=16), r"the value 255; expected 0..16 \(max_value\)"),
        (lambda: binarise(ALL, 1), "threshold must be a number from 0 to below 1; got 1"),
        (lambda: binarise(ALL, float("nan")), "threshold must be"),
        (lambda: binarise(ALL, "half"), "threshold must be"),
        (lambda: binarise_stochastic(ALL, -1), "seed must be a whole number, 0 or more; got -1"),
        (lambda: binarise_stochastic(ALL, True), "seed must be"),
        (lambda: binarise_stochastic(ALL, 1, max_value=254), "the value 255"),
    ],
)
def test_what_cannot_be_binarised(call, message):
    with pytest.raises(InputError, match=message):
        call()


def images(name="own", size=(2, 3), labels=("a", "b"), max_value=255):
    rng = np.random.default_rng(len(name))
    train, test = (rng.integers(0, max_value + 1, (n, *size)).astype(np.uint8) for n in (5, 3))
    return ImageDataset(name, train, np.arange(5) % 2, test, np.arange(3) % 2, labels, max_value)


def binary_set(name, width, **counts):
    rng = np.random.default_rng(width)
    splits = {split: rng.integers(0, 2, (count, width)).astype(np.uint8) for split, count in counts.items()}
    return BinaryDataset(name, width, splits)


def test_images_row_by_row():
    data = images(max_value=16)
    vectors = vectors_of_images(data, 0.25)
    for found, pictures in ((vectors.train_x, data.train_images), (vectors.test_x, data.test_images)):
        assert found.tolist() == [[int(v > 4) for row in picture for v in row] for picture in pictures.tolist()]
    assert vectors.train_labels.tolist() == [0, 1, 0, 1, 0]
    assert (vectors.width, vectors.widths, vectors.label_names) == (6, (6, 6), ("a", "b"))


def test_stochastic_images():
    data = images()
    first, again, other = (vectors_of_images(data, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.test_x, again.test_x)
    assert (first.train_x != other.train_x).any()
    assert set(np.unique(first.train_x)) == {0, 1}
    # training and test images are drawn apart, though both from one seed
    same = ImageDataset("same", *(np.full((40, 4, 4), 128, np.uint8), np.zeros(40, int)) * 2, ("a",))
    drawn = vectors_of_images(same, seed=1)
    assert (drawn.train_x != drawn.test_x).any()


def test_pooled_sets_keep_every_row_once():
    sets = [binary_set("p", 12, train=20, valid=10, test=5), binary_set("q", 9, valid=14), binary_set("r", 15, test=7)]
    vectors = vectors_of_sets(sets)
    assert (vectors.width, vectors.widths, vectors.label_names) == (15, (12, 9, 15), ("p", "q", "r"))
    for label, one in enumerate(sets):
        rows = np.concatenate(list(one.splits.values()))
        train, test = (vectors.train_x[vectors.train_labels == label], vectors.test_x[vectors.test_labels == label])
        assert len(test) == round(len(rows) / 7)
        padded = [bytes(row) + bytes(15 - one.width) for row in rows]
        assert sorted(map(bytes, [*train, *test])) == sorted(padded)
    again, other = vectors_of_sets(sets), vectors_of_sets(sets, seed=1)
    np.testing.assert_array_equal(again.train_x, vectors.train_x)
    assert (other.train_x != vectors.train_x).any()


def test_pooled_rows_stay_as_they_are():
    rows = np.unpackbits(np.arange(14, dtype=np.uint8)[:, None], axis=1)
    vectors = vectors_of_sets([BinaryDataset("numbers", 8, {"train": rows})])
    # a change here changes every figure on binary sets
    assert np.packbits(vectors.test_x, axis=1).ravel().tolist() == [8, 12]


def test_official_rows():
    whole, no_test = binary_set("p", 3, train=6, valid=4, test=2), binary_set("q", 2, train=3, valid=2)
    vectors = vectors_of_sets([whole, no_test], rows="official")
    assert np.bincount(vectors.train_labels).tolist() == [6, 3]
    assert np.bincount(vectors.test_labels).tolist() == [2, 2]
    assert vectors.test_x[:2].tolist() == whole.split("test").tolist()
    assert vectors.test_x[2:, :2].tolist() == no_test.split("valid").tolist()
    with pytest.raises(DatasetError, match="r: has no split 'train', only valid"):
        vectors_of_sets([whole, binary_set("r", 2, valid=3)], rows="official")
    with pytest.raises(DatasetError, match="r: has no split 'test', only train"):
        vectors_of_sets([binary_set("r", 2, train=3)], rows="official")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sets": []}, "sets is empty"),
        ({"sets": [binary_set("p", 2, train=5)] * 2}, "sets must be different ones, found p, p"),
        ({"rows": "all"}, "rows: expected one of pooled, official, found 'all'"),
        ({"test_share": 0}, "test_share: expected a number between 0 and 1, found 0"),
        ({"test_share": 0.01}, "p: test_share=0.01 of 5 rows leaves nothing"),
        ({"seed": 0.5}, "seed must be a whole number"),
    ],
)
def test_wrong_settings(arguments, message):
    with pytest.raises(InputError, match=message):
        vectors_of_sets(**{"sets": [binary_set("p", 2, train=5)], **arguments})


def test_the_binary_sequence_of_real_sets(data_dir):
    names = ("adult", "connect4", "tretail", "rcv1")
    vectors = vectors_of_sets([datasets.load_binary(name, data_dir) for name in names])
    assert (vectors.width, vectors.widths, vectors.label_names) == (150, (123, 126, 135, 150), names)
    totals = np.bincount(vectors.train_labels) + np.bincount(vectors.test_labels)
    assert totals.tolist() == [6_414, 20_000, 7_346, 10_000]
    np.testing.assert_allclose(np.bincount(vectors.test_labels) / totals, 1 / 7, atol=1e-4)


def test_real_mnist_brightness(data_dir):
    data = datasets.load_images("mnist", data_dir)
    fixed, drawn = vectors_of_images(data), vectors_of_images(data, seed=0)
    assert fixed.train_x.shape == (7_996, 784)
    assert fixed.train_x.mean() == (data.train_images >= 128).mean()
    assert drawn.train_x.mean() == pytest.approx(data.train_images.mean() / 255, abs=1e-3)
