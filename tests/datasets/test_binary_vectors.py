"""Binary vectors out of images and sets, joined and padded, against loops."""

import numpy as np
import pytest

from tffcl import datasets
from tffcl.datasets import BinaryDataset, BinaryVectors, ImageDataset, join_vectors, vectors_of_images, vectors_of_sets
from tffcl.errors import DatasetError, InputError


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


def test_two_sets_joined():
    digits, letters = (vectors_of_images(images("digits")), vectors_of_images(images("letters", (2, 4), ("x", "y"))))
    joined = join_vectors(digits, letters)
    assert (joined.name, joined.width, joined.widths) == ("digits+letters", 8, (6, 6, 8, 8))
    assert joined.label_names == ("digits a", "digits b", "letters x", "letters y")
    assert joined.train_labels.tolist() == [0, 1, 0, 1, 0, 2, 3, 2, 3, 2]
    assert joined.test_labels.tolist() == [0, 1, 0, 2, 3, 2]
    assert joined.train_x[:5].tolist() == [[*row, 0, 0] for row in digits.train_x.tolist()]
    assert joined.train_x[5:].tolist() == letters.train_x.tolist()
    three = join_vectors(digits, letters, digits)
    assert three.train_labels.max() == 5


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
        ({"rows": "all"}, "rows must be 'pooled' or 'official', found 'all'"),
        ({"test_share": 0}, "test_share must be a number above 0 and below 1; got 0"),
        ({"test_share": 0.01}, "p: test_share=0.01 of 5 rows leaves nothing"),
        ({"seed": 0.5}, "seed must be a whole number"),
    ],
)
def test_wrong_settings(arguments, message):
    with pytest.raises(InputError, match=message):
        vectors_of_sets(**{"sets": [binary_set("p", 2, train=5)], **arguments})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_x": np.array([[0, 1, 0], [0, 2, 0]], np.uint8)}, "own, train: x holds 2 at row 1, column 1"),
        ({"test_x": np.array([[0, 0, 1]], np.uint8)}, "own, test: row 0 has a 1 beyond its 2 columns"),
        ({"train_x": np.zeros((2, 3))}, r"own, train: x must be uint8 \[N, D\]"),
        ({"test_x": np.zeros((1, 4), np.uint8)}, "training rows have 3 columns, test rows 4"),
        ({"train_labels": np.array([0, 2])}, "own, train: row 1 has label 2; expected 0..1"),
        ({"train_labels": np.array([0])}, "own, train: labels must be 2 whole numbers"),
        ({"widths": (2,)}, "needs a width for each of 2 labels, found 1"),
        ({"widths": (2, 4)}, r"widths must be 1..3, found \(2, 4\)"),
    ],
)
def test_what_is_no_binary_vectors(changes, message):
    good = {
        "name": "own",
        "train_x": np.array([[1, 1, 0], [0, 1, 1]], np.uint8),
        "train_labels": np.array([0, 1]),
        "test_x": np.array([[1, 0, 0]], np.uint8),
        "test_labels": np.array([0]),
        "label_names": ("narrow", "wide"),
        "widths": (2, 3),
    }
    vectors = BinaryVectors(**good)
    assert (vectors.width, vectors.train_labels.dtype) == (3, np.int32)
    with pytest.raises(ValueError, match="read-only"):
        vectors.train_x[0] = 0
    with pytest.raises(InputError, match=message) as caught:
        BinaryVectors(**{**good, **changes})
    assert "\n" not in str(caught.value)


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
