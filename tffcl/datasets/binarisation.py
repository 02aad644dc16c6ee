"""Grey images as zeros and ones, for models of binary vectors."""

from __future__ import annotations

import numpy as np

from tffcl.datasets.settings import check_below_one, check_seed
from tffcl.errors import InputError

_ROWS_AT_ONCE = 4096  # random numbers take eight bytes a pixel


def binarise(images: np.ndarray, threshold: float = 0.5, *, max_value: int = 255) -> np.ndarray:
    """1 where a pixel is brighter than `threshold * max_value`, else 0; a pixel equal to that is 0.

    At 0.5, bytes from 128 on are 1, and of the digits 0..16 those from 9 on.

    >>> binarise(np.array([[0, 127, 128, 255]], np.uint8)).tolist()
    [[0, 0, 1, 1]]
    >>> binarise(np.array([[8, 9]], np.uint8), max_value=16).tolist()
    [[0, 1]]

    Args:
      images: uint8 [N, ...], values 0 .. max_value.
      threshold: share of full intensity, 0 or more and below 1.
      max_value: full intensity.

    Returns:
      uint8 of the same shape.

    Raises:
      InputError: values that are no intensities, or a threshold out of range.
    """
    _check(images, max_value)
    check_below_one("threshold", threshold, zero=True)
    return (images > float(threshold) * max_value).astype(np.uint8)


def binarise_stochastic(images: np.ndarray, seed: int, *, max_value: int = 255) -> np.ndarray:
    """Each pixel is 1 with the probability `value / max_value`: a pixel of 0 never, one of max_value always.

    Salakhutdinov and Murray, On the Quantitative Analysis of Deep Belief Networks, 2008. Drawn once from `seed`;
    the same seed gives the same images on every machine and release.

    Args:
      images: uint8 [N, ...], values 0 .. max_value.
      seed: whole number, 0 or more.
      max_value: full intensity.

    Returns:
      uint8 of the same shape.

    Raises:
      InputError: values that are no intensities, or a seed that is no seed.
    """
    _check(images, max_value)
    check_seed(seed)
    # raw PCG64 output is fixed by its algorithm; numpy lets the methods of Generator change between releases
    source = np.random.PCG64(int(seed))
    ones = np.empty(images.shape, np.uint8)
    for start in range(0, len(images), _ROWS_AT_ONCE):
        block = images[start : start + _ROWS_AT_ONCE]
        bits = source.random_raw(block.size) >> np.uint64(11)
        ones[start : start + len(block)] = bits.reshape(block.shape) * 2.0**-53 * max_value < block
    return ones


def _check(images: np.ndarray, max_value: int) -> None:
    found = getattr(images, "dtype", type(images).__name__)
    if found != np.uint8 or images.ndim == 0:
        raise InputError(f"images must be an array of uint8, found {found}")
    if images.size and images.max() > max_value:
        raise InputError(f"images hold the value {images.max()}; expected 0..{max_value} (max_value)")
