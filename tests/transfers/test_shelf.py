"""A shelf is a dictionary of named arrays, whatever memory it may use."""

from __future__ import annotations

import os
import tempfile

import numpy as np
import pytest

from tffcl import errors
from tffcl.transfers import shelf as shelves
from tffcl.transfers.shelf import Shelf


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

    monkeypatch.setattr(shelves.os, "pwrite", full)
    with pytest.raises(errors.RunError, match="cannot write to a temporary file in .*: No space left on device"):
        shelf[1] = {"value": np.ones(2)}


def test_missing_keys():
    with pytest.raises(KeyError):
        Shelf()[0]
