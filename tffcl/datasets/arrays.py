"""Labelled data sets that are arrays: vectors or tensors of numbers, grey images, rows of zeros and ones."""

from __future__ import annotations

import collections
import dataclasses
import io
import os
import pathlib
import zipfile
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from tffcl import storage
from tffcl.datasets import raw_files
from tffcl.datasets.raw_files import PathLike
from tffcl.errors import DatasetError, InputError

if TYPE_CHECKING:
    import pandas as pd

_SHIPPED = {"iris": "load_iris", "wine": "load_wine", "breast-cancer": "load_breast_cancer"}
_ARRAYS = ("train_x", "train_y", "test_x", "test_y")


def read_only(array: np.ndarray) -> np.ndarray:
    """A view of `array` that refuses to be written to; the caller's own array stays as it is."""
    view = np.asarray(array).view()
    view.setflags(write=False)
    return view


def tested_rows(labels: Sequence[Any], path: PathLike) -> np.ndarray:
    """Which rows of a table without a test part are for testing, bool [N]: every fifth one of each label.

    >>> tested_rows(["a"] * 5 + ["b"] * 4, "").nonzero()[0].tolist()
    [4]
    """
    counts: collections.Counter = collections.Counter()
    tested = np.zeros(len(labels), bool)
    for row, label in enumerate(labels):
        counts[label] += 1
        tested[row] = counts[label] % 5 == 0
    if not tested.any():
        raise DatasetError(
            f"{path}: no label has 5 rows, and every fifth is for testing; give a folder with train.* and test.*"
        )
    return tested


# Arrays have no single truth value, so a generated `==` would raise: data sets compare by identity.
@dataclasses.dataclass(frozen=True, eq=False)
class ArrayDataset:
    """Examples of any shape with labels; label ids index `label_names`.

    Shown with `from_arrays`.

    Attributes:
      name: what reports call the data set.
      train_x: float32 [N, ...], read-only.
      train_labels: int32 [N], each in 0 .. len(label_names) - 1, read-only.
      test_x: float32 [M, ...].
      test_labels: int32 [M].
      label_names: the label space, in the order of the ids.
      columns: names of the D columns of a table; empty for none.
      centre / scale: float32 [D] or [1]: what stands here of a raw value is (value - centre) / scale.
      train_clients: whose each training example is, text [N]; None where nothing says.
    """

    name: str
    train_x: np.ndarray
    train_labels: np.ndarray
    test_x: np.ndarray
    test_labels: np.ndarray
    label_names: tuple[str, ...]
    columns: tuple[str, ...] = ()
    centre: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(1, np.float32))
    scale: np.ndarray = dataclasses.field(default_factory=lambda: np.ones(1, np.float32))
    train_clients: Optional[np.ndarray] = None
    kind = "vector"

    def __post_init__(self) -> None:
        for part in ("train_x", "test_x"):
            x = _array(getattr(self, part), f"{self.name}: {part}")
            if x.dtype.kind not in "biuf" or x.ndim < 2:
                raise DatasetError(f"{self.name}: {part} should be numbers [N, ...], found {x.dtype}{list(x.shape)}")
            x = x.astype(np.float32)
            if not np.isfinite(x).all():
                row = int(np.argwhere(~np.isfinite(x))[0][0])
                raise DatasetError(f"{self.name}: {part} holds a value that is not finite, in row {row}")
            object.__setattr__(self, part, x)
        _freeze(self, "x")


@dataclasses.dataclass(frozen=True, eq=False)
class ImageDataset:
    """Grey images with labels; label ids index `label_names`.

    Shown with `load_images`.

    Attributes:
      name: what reports call the data set.
      train_images: uint8 [N, h, w], 0 (background) .. max_value, read-only.
      train_labels: int32 [N], each in 0 .. len(label_names) - 1, read-only.
      test_images: uint8 [M, h, w].
      test_labels: int32 [M].
      label_names: the label space, in the order of the ids.
      max_value: the value of full intensity: 255, or 16 for scikit-learn's digits.
    """

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    label_names: tuple[str, ...]
    max_value: int = 255
    kind = "image"

    def __post_init__(self) -> None:
        for part in ("train_images", "test_images"):
            images = np.asarray(getattr(self, part))
            if images.dtype != np.uint8 or images.ndim != 3:
                raise DatasetError(
                    f"{self.name}: {part} must be uint8 [N, h, w], found {images.dtype}{list(images.shape)}"
                )
            if images.size and images.max() > self.max_value:
                raise DatasetError(f"{self.name}: {part} hold the value {images.max()}; expected 0..{self.max_value}")
        _freeze(self, "images")


@dataclasses.dataclass(frozen=True, eq=False)
class BinaryVectors:
    """Rows of zeros and ones, each with a label that says what it is a picture of, or which set it is from.

    Labels only serve to make tasks: a density is learnt without them.

    Shown with `vectors_of_images`.

    Attributes:
      name: what reports call the data.
      train_x: uint8 [N, D] of 0 and 1, read-only.
      train_labels: int32 [N], each in 0 .. len(label_names) - 1, read-only.
      test_x: uint8 [M, D].
      test_labels: int32 [M].
      label_names: the label space, in the order of the ids.
      widths: for each label how many columns its rows have; the columns from there to D are padding and 0.
    """

    name: str
    train_x: np.ndarray
    train_labels: np.ndarray
    test_x: np.ndarray
    test_labels: np.ndarray
    label_names: tuple[str, ...]
    widths: tuple[int, ...]
    kind = "binary"

    def __post_init__(self) -> None:
        if len(self.widths) != len(self.label_names):
            raise InputError(
                f"{self.name}: needs a width for each of {len(self.label_names)} labels, found {len(self.widths)}"
            )
        for part in ("train_x", "test_x"):
            x = np.asarray(getattr(self, part))
            if x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] == 0:
                raise DatasetError(
                    f"{self.name}: {part} must be uint8 [N, D], D at least 1; found {x.dtype}{list(x.shape)}"
                )
            if x.size and x.max() > 1:
                row, column = np.argwhere(x > 1)[0]
                raise DatasetError(
                    f"{self.name}: {part} holds {x[row, column]} at row {row}, column {column}; expected 0 or 1: "
                    "binarise it first"
                )
        _freeze(self, "x")
        if max(self.widths) > self.width or min(self.widths) < 1:
            raise DatasetError(f"{self.name}: widths must be 1..{self.width}, found {self.widths}")
        for part in ("train", "test"):
            x, widths = getattr(self, f"{part}_x"), np.asarray(self.widths)[getattr(self, f"{part}_labels")]
            wrong = np.flatnonzero((x.astype(bool) & (np.arange(self.width) >= widths[:, None])).any(axis=1))
            if wrong.size:
                raise DatasetError(
                    f"{self.name}: {part}_x: row {wrong[0]} has a 1 beyond its {widths[wrong[0]]} columns; padding "
                    "must be 0"
                )

    @property
    def width(self) -> int:
        """D, the width of the widest rows."""
        return self.train_x.shape[1]


def _freeze(data: Any, field: str) -> None:
    """Checks the labels of a data set against its examples, and makes both read-only."""
    for part in ("train", "test"):
        x, labels = np.asarray(getattr(data, f"{part}_{field}")), np.asarray(getattr(data, f"{part}_labels"))
        if labels.shape != (len(x),) or labels.dtype.kind not in "iu":
            raise DatasetError(
                f"{data.name}: {part}_labels must be {len(x)} whole numbers, one for each example, found "
                f"{labels.dtype}{list(labels.shape)}"
            )
        wrong = np.flatnonzero((labels < 0) | (labels >= len(data.label_names)))
        if wrong.size:
            raise DatasetError(
                f"{data.name}: {part}_labels: row {wrong[0]} has label {labels[wrong[0]]}; expected "
                f"0..{len(data.label_names) - 1}"
            )
        object.__setattr__(data, f"{part}_{field}", read_only(x))
        object.__setattr__(data, f"{part}_labels", read_only(labels.astype(np.int32)))
    train, test = (" x ".join(map(str, getattr(data, f"{part}_{field}").shape[1:])) for part in ("train", "test"))
    if train != test:
        raise DatasetError(f"{data.name}: training examples are {train}, test examples {test}; they must be alike")


def join_vectors(first: BinaryVectors, *others: BinaryVectors) -> BinaryVectors:
    """Several data sets as one: labels follow each other, rows are padded at the right to the widest.

    Label k of the second set becomes label K + k, where K is the number of labels of the first, and so on; the
    names say which set a label is from ("mnist 3").

    >>> from tffcl.datasets import binary, images
    >>> vectors = binary.vectors_of_images(images.load_images("digits"))
    >>> join_vectors(vectors, vectors).train_x.shape
    (2884, 64)
    """
    sets = (first, *others)
    width = max(data.width for data in sets)
    starts = np.cumsum([0] + [len(data.label_names) for data in sets[:-1]])
    return BinaryVectors(
        name="+".join(data.name for data in sets),
        train_x=np.concatenate([pad(data.train_x, width) for data in sets]),
        train_labels=np.concatenate([data.train_labels + start for data, start in zip(sets, starts)]),
        test_x=np.concatenate([pad(data.test_x, width) for data in sets]),
        test_labels=np.concatenate([data.test_labels + start for data, start in zip(sets, starts)]),
        label_names=tuple(f"{data.name} {label}" for data in sets for label in data.label_names),
        widths=sum((data.widths for data in sets), ()),
    )


def pad(x: np.ndarray, width: int) -> np.ndarray:
    """uint8 [N, D] -> [N, width], with zeros at the right."""
    return np.pad(x, [(0, 0), (0, width - x.shape[1])])


def as_arrays(data: Any) -> ArrayDataset:
    """Images or binary vectors as vectors of numbers, images scaled to [0, 1].

    >>> from tffcl.datasets import images
    >>> as_arrays(images.load_images("digits")).train_x.dtype
    dtype('float32')

    Raises:
      InputError: other data.
    """
    if isinstance(data, ArrayDataset):
        return data
    if isinstance(data, ImageDataset):
        train, test = (x.reshape(len(x), -1) / data.max_value for x in (data.train_images, data.test_images))
        made = ArrayDataset(data.name, train, data.train_labels, test, data.test_labels, data.label_names)
        return dataclasses.replace(made, scale=np.full(1, data.max_value, np.float32))
    elif hasattr(data, "train_x"):
        train, test = data.train_x, data.test_x
    else:
        raise InputError(f"data: expected images, binary vectors or arrays, found {type(data).__name__}")
    return ArrayDataset(data.name, train, data.train_labels, test, data.test_labels, data.label_names)


def with_features(data: Any, path: PathLike) -> ArrayDataset:
    """A data set whose examples are features from elsewhere, in the place of texts, images or numbers.

    Shown in docs/methods.md.

    Args:
      data: what has the labels, one of each example.
      path: an .npz file with `train` `[N, d]` and `test` `[M, d]`, or a Keras model (.keras) that gives `[N, d]` of
        images `[N, h, w, 1]` in [0, 1] or of rows of numbers. Neither can run code.

    Raises:
      DatasetError: a file that is neither, other numbers of rows than the data have, or other widths.
    """
    path = pathlib.Path(path)
    if path.suffix == ".npz":
        parts = _read_npz(path, ("train", "test"))
    elif path.suffix == ".keras":
        parts = _through_model(path, data)
    else:
        raise DatasetError(f"{path}: features come from an .npz file, or from a Keras model in a file .keras")
    for name, part, labels in zip(("train", "test"), parts, (data.train_labels, data.test_labels)):
        if np.ndim(part) != 2 or len(part) != len(labels):
            raise DatasetError(
                f"{path}: {name} has shape {list(np.shape(part))}; expected [{len(labels)}, d], a row of features for "
                f"each {name} example of {data.name}"
            )
    train, test = parts
    name = f"{data.name}+{path.stem}"
    clients = getattr(data, "train_clients", None)
    made = ArrayDataset(name, train, data.train_labels, test, data.test_labels, tuple(data.label_names))
    return dataclasses.replace(made, train_clients=clients)


def _through_model(path: pathlib.Path, data: Any) -> list[np.ndarray]:
    """What a model gives of the training and the test examples, float32."""
    if isinstance(data, ImageDataset):
        examples = [x[..., None] / np.float32(data.max_value) for x in (data.train_images, data.test_images)]
    elif hasattr(data, "train_x"):
        examples = [np.asarray(x, np.float32) for x in (data.train_x, data.test_x)]
    else:
        raise DatasetError(
            f"{path}: a model gives features of images or numbers, and {data.name} is neither; take .npz"
        )
    with storage.open_regular(path, "a Keras model", error=DatasetError):
        pass
    import tensorflow as tf

    try:
        model = tf.keras.models.load_model(path, compile=False, safe_mode=True)
        return [np.asarray(model.predict(x, batch_size=256, verbose=0)) for x in examples]
    except Exception as error:  # whatever Keras, or a layer, raises
        line = str(error).strip().partition("\n")[0]
        raise DatasetError(f"{path}: gives no features of {data.name} ({type(error).__name__}: {line})") from error


def from_arrays(
    train_x: Any,
    train_y: Any,
    test_x: Any,
    test_y: Any,
    *,
    name: str = "arrays",
    label_names: Optional[Sequence[str]] = None,
) -> ArrayDataset:
    """Examples and labels that are already in memory; labels are any whole numbers or strings.

    >>> data = from_arrays([[0.0], [1.0]], ["no", "yes"], [[1.0]], ["yes"])
    >>> data.label_names, data.train_labels.tolist()
    (('no', 'yes'), [0, 1])

    `train_x` and `test_x` are numbers [N, ...] and [M, ...]; `label_names` is the label space where labels are ids in
    it, by default the labels that occur, sorted; `name` is what reports call the data set.

    Raises:
      DatasetError: shapes that do not fit, values that are not finite, or labels that are missing or of two types.
    """
    labels = [_array(train_y, f"{name}: train_y"), _array(test_y, f"{name}: test_y")]
    if label_names is None:
        columns = [part.tolist() for part in labels]
        for part, column in zip(("train_y", "test_y"), columns):
            missing = next((row for row, label in enumerate(column) if label is None or label != label), None)
            if missing is not None:
                raise DatasetError(f"{name}: {part}: row {missing} has no label")
        known = set(columns[0]) | set(columns[1])
        if len({isinstance(label, str) for label in known}) > 1:
            raise DatasetError(f"{name}: labels must be all numbers or all strings, found both")
        numbers = {label: number for number, label in enumerate(sorted(known))}
        labels = [np.array([numbers[label] for label in column], np.int32) for column in columns]
        label_names = [str(label) for label in numbers]
    return ArrayDataset(name, train_x, labels[0], test_x, labels[1], tuple(map(str, label_names)))


def _array(values: Any, where: str) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise DatasetError(f"{where}: no array ({error})") from None


def from_frames(train: pd.DataFrame, test: pd.DataFrame, *, label: str = "label", name: str = "frames") -> ArrayDataset:
    """Two pandas frames with the same columns: numeric ones, and `label` with the labels.

    Features are scaled by the training set's mean and standard deviation.

    Shown in docs/own_parts.md.

    Raises:
      DatasetError: a missing column, or one that is not numeric.
    """
    for part, frame in (("train", train), ("test", test)):
        if label not in frame:
            raise DatasetError(f"{name}: {part} has no column {label!r}, only {', '.join(map(str, frame.columns))}")
    columns = [column for column in train.columns if column != label]
    if not columns:
        raise DatasetError(f"{name}: no columns of numbers")
    for column in columns:
        if column not in test:
            raise DatasetError(f"{name}: test has no column {column!r}")
        for part, frame in (("train", train), ("test", test)):
            if frame[column].dtype.kind not in "biuf":
                raise DatasetError(f"{name}: column {column!r} of {part} is not numeric")
    raw = [frame[columns].to_numpy(np.float64) for frame in (train, test)]
    mean, deviation = raw[0].mean(axis=0), raw[0].std(axis=0)
    made = from_arrays(raw[0], train[label], raw[1], test[label], name=name)
    return _scaled(made, mean, np.where(deviation > 0, deviation, 1.0), raw, list(map(str, columns)))


def _scaled(
    made: ArrayDataset, centre: np.ndarray, scale: np.ndarray, raw: Sequence[np.ndarray], columns: Sequence[str]
) -> ArrayDataset:
    """The data set with its raw training and test values scaled, float64 until they are."""
    train, test = ((part - centre) / scale for part in raw)
    known: dict[str, Any] = {"centre": centre.astype(np.float32), "scale": scale.astype(np.float32)}
    return dataclasses.replace(made, train_x=train, test_x=test, columns=tuple(columns), **known)


def load_arrays(name_or_path: str, *, label_column: str = "label", client_column: Optional[str] = None) -> ArrayDataset:
    """Tables of numbers: `iris`, `wine`, `breast-cancer` (scikit-learn's), .npz, .csv or .tsv files, or a folder.

    >>> load_arrays("iris").label_names
    ('setosa', 'versicolor', 'virginica')

    Args:
      name_or_path: a name, of which every fifth example is for testing; an .npz file with `train_x`, `train_y`,
        `test_x`, `test_y`; a table in CSV or TSV, with a first line of names and a column `label`, of which every fifth
        row of each label is for testing; or a folder with the tables train.* and test.*.
      label_column: what tables call the column of labels.
      client_column: that which says whose a row is; None for none. It is no feature.

    Raises:
      DatasetError: no such data, or malformed ones.
    """
    if client_column is not None and (name_or_path in _SHIPPED or name_or_path.endswith(".npz")):
        raise DatasetError(f"{name_or_path}: no table, and so no column {client_column!r} that names clients")
    if name_or_path in _SHIPPED:
        from sklearn import datasets as sklearn_datasets

        found = getattr(sklearn_datasets, _SHIPPED[name_or_path])()
        x, test = found.data, np.arange(len(found.data)) % 5 == 4
        parts = (x[~test], found.target[~test], x[test], found.target[test])
        made = from_arrays(*parts, name=name_or_path, label_names=[str(name) for name in found.target_names])
        return _scaled(made, x.mean(axis=0), x.std(axis=0), (x[~test], x[test]), list(map(str, found.feature_names)))
    path = pathlib.Path(name_or_path)
    if path.suffix == ".npz":
        return _npz(path)
    if os.path.isfile(path):
        table = _table(path)
        if label_column not in table:
            raise DatasetError(f"{path}: has no column {label_column!r}, only {', '.join(map(str, table.columns))}")
        tested = tested_rows(table[label_column].tolist(), path)
        train, test, name = table[~tested], table[tested], path.stem
    else:
        train, test = map(_table, raw_files.train_and_test(path, (".csv", ".tsv")))
        name = path.resolve().name
    if client_column is None:
        return from_frames(train, test, label=label_column, name=name)
    if client_column not in train or client_column == label_column:
        raise DatasetError(f"{path}: has no column {client_column!r} of clients, only {', '.join(map(str, train))}")
    if train[client_column].isna().any():
        raise DatasetError(f"{path}: a training row has no client in the column {client_column!r}")
    clients = read_only(train[client_column].astype(str).to_numpy(str))
    train, test = (part.drop(columns=client_column, errors="ignore") for part in (train, test))
    return dataclasses.replace(from_frames(train, test, label=label_column, name=name), train_clients=clients)


def _table(path: pathlib.Path) -> pd.DataFrame:
    import pandas as pd

    text = io.StringIO(raw_files.read_text(path))
    try:
        return pd.read_csv(text, sep="\t" if path.suffix == ".tsv" else ",")
    except ValueError as error:
        raise DatasetError(f"{path}: no table ({error})") from error


def _npz(path: pathlib.Path) -> ArrayDataset:
    return from_arrays(*_read_npz(path, _ARRAYS), name=path.stem)


def _read_npz(path: pathlib.Path, names: Sequence[str]) -> list[np.ndarray]:
    """The arrays of these names, never a pickle."""
    with storage.open_regular(path, "an .npz file of arrays", error=DatasetError) as file:
        try:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("a single array")
            size = sum(member.file_size for member in archive.zip.infolist())
            if size > storage.MAX_BYTES:
                raise ValueError(f"{size} bytes of arrays; at most {storage.MAX_BYTES} are read")
            arrays = {name: archive[name] for name in names if name in archive}
        except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
            raise DatasetError(f"{path}: no .npz file of arrays ({error})") from error
    missing = [name for name in names if name not in arrays]
    if missing:
        raise DatasetError(f"{path}: has no array {missing[0]!r}, only {', '.join(archive.files)}")
    return list(arrays.values())
