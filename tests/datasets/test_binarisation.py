"""Zeros and ones out of intensities."""

import hashlib

import numpy as np
import pytest

from tffcl.datasets import binarise, binarise_stochastic
from tffcl.errors import InputError

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


def test_the_seed_decides_everything(monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (50, 7, 7)).astype(np.uint8)
    first = binarise_stochastic(images, 1)
    np.testing.assert_array_equal(binarise_stochastic(images, 1), first)
    assert (binarise_stochastic(images, 2) != first).any()
    monkeypatch.setattr("tffcl.datasets.binarisation._ROWS_AT_ONCE", 7)  # a matter of memory alone
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
def test_wrong_input(call, message):
    with pytest.raises(InputError, match=message):
        call()
