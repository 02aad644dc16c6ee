"""Data sets that are arrays: checks, joins, and tables of numbers from memory, frames and files."""

import io
import zipfile

import numpy as np
import pandas as pd
import pytest

from tffcl import datasets
from tffcl.datasets import (
    ArrayDataset,
    BinaryVectors,
    ImageDataset,
    as_arrays,
    from_arrays,
    from_frames,
    join_vectors,
    load_arrays,
    vectors_of_images,
    with_features,
)
from tffcl.errors import DatasetError, InputError


def test_arrays_are_read_only_and_checked():
    images, labels = np.zeros((2, 3, 3), np.uint8), np.array([0, 1])
    data = ImageDataset("own", images, labels, images, labels, ("a", "b"))
    with pytest.raises(ValueError, match="read-only"):
        data.train_images[0] = 1
    images[0] = 1  # the caller's own array stays writable
    with pytest.raises(DatasetError, match=r"own: train_images must be uint8 \[N, h, w\], found float64"):
        ImageDataset("own", images / 2, labels, images, labels, ("a", "b"))
    with pytest.raises(DatasetError, match="test_labels: row 1 has label 1; expected 0..0"):
        ImageDataset("own", images, labels * 0, images, labels, ("a",))
    with pytest.raises(DatasetError, match="hold the value 17; expected 0..16"):
        ImageDataset("own", images + 16, labels, images, labels, ("a", "b"), 16)
    with pytest.raises(DatasetError, match="train_labels must be 2 whole numbers"):
        ImageDataset("own", images, labels[:1], images, labels, ("a", "b"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_x": np.array([[0, 1, 0], [0, 2, 0]], np.uint8)}, "own: train_x holds 2 at row 1, column 1"),
        ({"test_x": np.array([[0, 0, 1]], np.uint8)}, "own: test_x: row 0 has a 1 beyond its 2 columns"),
        ({"train_x": np.zeros((2, 3))}, r"own: train_x must be uint8 \[N, D\]"),
        ({"test_x": np.zeros((1, 4), np.uint8)}, "own: training examples are 3, test examples 4; they must be alike"),
        ({"train_labels": np.array([0, 2])}, "own: train_labels: row 1 has label 2; expected 0..1"),
        ({"train_labels": np.array([0])}, "own: train_labels must be 2 whole numbers"),
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


def images(name, size=(2, 3), labels=("a", "b")):
    rng = np.random.default_rng(len(name))
    train, test = (rng.integers(0, 256, (n, *size)).astype(np.uint8) for n in (5, 3))
    return ImageDataset(name, train, np.arange(5) % 2, test, np.arange(3) % 2, labels)


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


def test_labels_by_value_and_by_name():
    data = from_arrays([[1.0], [2.0], [3.0]], [10, 9, 10], [[4.0]], [9])
    assert data.label_names == ("9", "10")
    assert (data.train_labels.tolist(), data.test_labels.tolist()) == ([1, 0, 1], [0])
    assert (data.train_x.dtype, data.train_labels.dtype) == (np.float32, np.int32)
    named = from_arrays(np.zeros((2, 3, 4)), [1, 0], np.ones((1, 3, 4)), [1], label_names=["a", "b"], name="own")
    assert (named.name, named.label_names, named.train_labels.tolist()) == ("own", ("a", "b"), [1, 0])
    with pytest.raises(ValueError, match="read-only"):
        named.train_x[0] = 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_x": [1.0, 2.0]}, r"arrays: train_x should be numbers \[N, ...\], found float64\[2\]"),
        ({"test_x": [["a"]]}, r"test_x should be numbers \[N, ...\], found <U1"),
        ({"train_x": [[1.0], [1.0, 2.0]]}, "arrays: train_x: no array"),
        ({"train_y": [[0], [0, 1]]}, "arrays: train_y: no array"),
        ({"train_x": [[1.0], [np.nan]]}, "train_x holds a value that is not finite, in row 1"),
        ({"train_x": [[1.0], [1e39]]}, "train_x holds a value that is not finite, in row 1"),
        ({"test_x": [[1.0, 2.0]]}, "training examples are 1, test examples 2; they must be alike"),
        ({"train_y": [0, 1, 1]}, "train_labels must be 2 whole numbers, one for each example, found int32.3."),
        ({"train_y": [0.0, np.nan]}, "train_y: row 1 has no label"),
        ({"test_y": [None]}, "test_y: row 0 has no label"),
        ({"train_y": np.array([1, "a"], object)}, "labels must be all numbers or all strings, found both"),
        ({"label_names": ["a"]}, "train_labels: row 1 has label 1; expected 0..0"),
        ({"train_y": ["0", "1"], "label_names": ["a", "b"]}, "train_labels must be 2 whole numbers"),
    ],
)
def test_what_is_no_array_data(changes, message):
    good = {"train_x": [[1.0], [2.0]], "train_y": [0, 1], "test_x": [[3.0]], "test_y": [1]}
    with np.errstate(over="ignore"), pytest.raises(DatasetError, match=message) as caught:
        from_arrays(**{**good, **changes})
    assert "\n" not in str(caught.value)


def test_frames_are_scaled_by_the_training_set():
    train = pd.DataFrame({"label": ["x", "y"], "size": [1, 3], "same": [5.0, 5.0]})
    test = pd.DataFrame({"same": [7.0], "size": [5], "label": ["y"]})
    data = from_frames(train, test)
    assert data.train_x.tolist() == [[-1, 0], [1, 0]]
    assert data.test_x.tolist() == [[3, 2]]
    assert data.label_names == ("x", "y")


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ({"size": [1]}, {"size": [1]}, "frames: train has no column 'label', only size"),
        ({"size": [1], "label": [1]}, {"size": [1]}, "frames: test has no column 'label'"),
        ({"size": [1], "label": [1]}, {"label": [1]}, "frames: test has no column 'size'"),
        ({"size": ["big"], "label": [1]}, {"size": [1], "label": [1]}, "column 'size' of train is not numeric"),
        ({"size": [1], "label": [1]}, {"size": ["big"], "label": [1]}, "column 'size' of test is not numeric"),
        ({"label": [1]}, {"label": [1]}, "no columns of numbers"),
    ],
)
def test_frames_that_do_not_fit(train, test, message):
    with pytest.raises(DatasetError, match=message):
        from_frames(pd.DataFrame(train), pd.DataFrame(test))


@pytest.mark.parametrize(("ending", "separator"), [("csv", ","), ("tsv", "\t")])
def test_tables_and_archives_are_read(tmp_path, ending, separator):
    for part, rows in (("train", ["0,x", "2,y"]), ("test", ["4,y"])):
        text = "\n".join(["size,label", *rows]).replace(",", separator)
        (tmp_path / f"{part}.{ending}").write_text(text)
    data = load_arrays(str(tmp_path))
    assert (data.train_x.tolist(), data.test_x.tolist(), data.name) == ([[-1], [1]], [[3]], tmp_path.name)
    np.savez(tmp_path / "own.npz", train_x=[[1.0]], train_y=["a"], test_x=[[2.0]], test_y=["a"])
    data = load_arrays(str(tmp_path / "own.npz"))
    assert (data.train_x.tolist(), data.label_names, data.name) == ([[1]], ("a",), "own")


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_one_table_and_a_folder_of_two(ending, tmp_path):
    table = pd.DataFrame({"a": np.arange(12.0), "label": ["u", "v"] * 6})
    separator = "\t" if ending == "tsv" else ","
    table.to_csv(tmp_path / f"whole.{ending}", sep=separator, index=False)
    data = load_arrays(str(tmp_path / f"whole.{ending}"))
    tested = np.isin(np.arange(12), (8, 9))  # the fifth of each label
    mean, deviation = table["a"][~tested].mean(), table["a"][~tested].std(ddof=0)
    np.testing.assert_allclose(data.test_x[:, 0], (table["a"][tested] - mean) / deviation, rtol=1e-5)
    assert (len(data.train_x), data.name) == (10, "whole")
    for part, rows in (("train", ~tested), ("test", tested)):
        table[rows].to_csv(tmp_path / f"{part}.{ending}", sep=separator, index=False)
    both = load_arrays(str(tmp_path))
    np.testing.assert_array_equal(both.test_x, data.test_x)
    np.testing.assert_array_equal(both.train_labels, data.train_labels)


def test_a_table_without_labels_or_too_short(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DatasetError, match=r"t\.csv: has no column 'label', only a, b"):
        load_arrays(str(path))
    path.write_text("a,label\n1,2\n")
    with pytest.raises(DatasetError, match="no label has 5 rows"):
        load_arrays(str(path))


def saved(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def header_alone(shape):
    """An archive with the header of an array that it does not hold."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, archive.open("train_x.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "own.npz: no .npz file of arrays"),
        (b"no archive", "own.npz: no .npz file of arrays"),
        (b"PK\3\4 and no archive", "own.npz: no .npz file of arrays"),
        (saved(train_x=[[1.0]])[:-40], "own.npz: no .npz file of arrays"),
        (saved(train_x=[[1.0]], train_y=[1]), "own.npz: has no array 'test_x', only train_x, train_y"),
        (saved(train_x=np.array([[print]], object)), "own.npz: no .npz file of arrays .*allow_pickle=False"),
        (header_alone((1 << 61,)), "own.npz: no .npz file of arrays"),
        (header_alone((1 << 10,)), "own.npz: no .npz file of arrays"),
    ],
)
def test_archives_that_are_none(tmp_path, content, message):
    (tmp_path / "own.npz").write_bytes(content)
    with pytest.raises(DatasetError, match=message) as caught:
        load_arrays(str(tmp_path / "own.npz"))
    assert "\n" not in str(caught.value)


def test_an_array_alone_is_no_data_set(tmp_path):
    with (tmp_path / "own.npz").open("wb") as file:
        np.save(file, [1.0])
    with pytest.raises(DatasetError, match="no .npz file of arrays .a single array"):
        load_arrays(str(tmp_path / "own.npz"))


def test_a_table_that_is_none(tmp_path):
    (tmp_path / "train.csv").write_text("")
    (tmp_path / "test.csv").write_text("")
    with pytest.raises(DatasetError, match=r"train\.csv: no table \(No columns"):
        load_arrays(str(tmp_path))
    (tmp_path / "train.tsv").write_text("")
    with pytest.raises(DatasetError, match=r"expected one of train\.csv, train\.tsv, found train\.csv and train\.tsv"):
        load_arrays(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "train", "test", "columns"), [("iris", 120, 30, 4), ("wine", 143, 35, 13), ("breast-cancer", 456, 113, 30)]
)
def test_tables_that_ship_with_scikit_learn(name, train, test, columns):
    data = load_arrays(name)
    assert (data.train_x.shape, data.test_x.shape) == ((train, columns), (test, columns))
    whole = np.concatenate([data.train_x, data.test_x])
    np.testing.assert_allclose(whole.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(whole.std(axis=0), 1, atol=1e-5)
    assert not data.label_names[0].isdigit()


def test_other_data_sets_as_arrays():
    digits = datasets.load_images()
    data = as_arrays(digits)
    np.testing.assert_allclose(data.train_x[7], digits.train_images[7].ravel() / 16, rtol=1e-6)
    vectors = vectors_of_images(digits)
    np.testing.assert_array_equal(as_arrays(vectors).test_x, vectors.test_x)
    assert as_arrays(data) is data
    assert isinstance(data, ArrayDataset)
    for other in (datasets.load("sample"), datasets.rotations(digits), [[1.0]]):
        with pytest.raises(InputError, match=f"expected images, .* found {type(other).__name__}"):
            as_arrays(other)


def test_every_data_set_says_what_it_holds():
    digits = datasets.load_images()
    sets = (digits, datasets.rotations(digits), vectors_of_images(digits), as_arrays(digits), datasets.load("sample"))
    assert [data.kind for data in sets] == ["image", "image", "binary", "vector", "text"]


# -- features from elsewhere ----------------------------------------------------------------------------------------


def pictures():
    pixels = np.arange(5 * 4 * 4, dtype=np.uint8).reshape(5, 4, 4) % 16
    return ImageDataset("own", pixels[:3], np.array([0, 1, 1]), pixels[3:], np.array([1, 0]), ("a", "b"), 16)


def test_features_of_a_file_stand_in_the_place_of_the_examples(tmp_path):
    train, test = np.eye(3, 2), np.ones((2, 2))
    np.savez(tmp_path / "deep.npz", train=train, test=test)
    texts = datasets.from_texts([("x", "a"), ("y", "b"), ("y", "b")], [("y", "b"), ("x", "a")])
    for data in (pictures(), texts):
        made = with_features(data, tmp_path / "deep.npz")
        assert np.array_equal(made.train_x, train)
        assert np.array_equal(made.test_x, test)
        assert (made.train_labels.tolist(), made.test_labels.tolist()) == ([0, 1, 1], [1, 0])
        assert (made.label_names, made.name) == (("a", "b"), f"{data.name}+deep")


def test_a_keras_model_gives_features_of_pictures_in_0_to_1_and_of_numbers(tmp_path):
    keras = pytest.importorskip("tensorflow").keras
    weights = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    for shape in ((4, 4, 1), (16,)):
        model = keras.Sequential([keras.layers.Flatten(input_shape=shape), keras.layers.Dense(3, use_bias=False)])
        model.layers[-1].set_weights([weights])
        model.save(tmp_path / f"{len(shape)}.keras")
    data = pictures()
    made = with_features(data, tmp_path / "3.keras")
    np.testing.assert_allclose(made.train_x, data.train_images.reshape(3, 16) / 16 @ weights, rtol=1e-5)
    np.testing.assert_allclose(made.test_x, data.test_images.reshape(2, 16) / 16 @ weights, rtol=1e-5)
    again = with_features(as_arrays(data), tmp_path / "1.keras")
    np.testing.assert_allclose(again.train_x, made.train_x, rtol=1e-5)
    with pytest.raises(DatasetError, match="1.keras: gives no features of own") as refused:
        with_features(data, tmp_path / "1.keras")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "arrays", "message"),
    [
        ("f.npz", {"train": np.eye(3), "test": np.ones((2, 2))}, "training examples are 3, test examples 2"),
        ("f.npz", {"train": np.eye(2), "test": np.eye(2)}, r"train has shape \[2, 2\]; expected \[3, d\]"),
        ("f.npz", {"train": np.eye(3), "test": np.ones(2)}, r"test has shape \[2\]; expected \[2, d\]"),
        ("f.npz", {"train": np.eye(3)}, "has no array 'test', only train"),
        ("f.npz", {"train": np.eye(3) * np.nan, "test": np.ones((2, 3))}, "not finite"),
        ("f.npz", {"train": np.array([[print]], object), "test": np.eye(3)}, "allow_pickle=False"),
        ("f.npz", None, "no such file"),
        ("f.keras", None, "no such file"),
        ("f.h5", None, "features come from an .npz file, or from a Keras model in a file .keras"),
    ],
)
def test_features_that_are_none_are_refused_in_a_line(tmp_path, name, arrays, message):
    if arrays is not None:
        np.savez(tmp_path / name, **arrays)
    with pytest.raises(DatasetError, match=message) as refused:
        with_features(pictures(), tmp_path / name)
    assert "\n" not in str(refused.value)
