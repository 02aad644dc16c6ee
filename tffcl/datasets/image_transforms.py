"""Fixed changes of grey images, the same for every image: what makes other domains out of one data set.

Every function takes and gives uint8 [N, h, w].
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from scipy import ndimage

from tffcl.errors import InputError


def rotated(images: np.ndarray, degrees: float) -> np.ndarray:
    """Turned counter-clockwise about the middle; what comes in at the corners is 0.

    Exact for multiples of 90, else bilinear and rounded.

    >>> rotated(np.array([[[1, 2], [3, 4]]], np.uint8), 90).tolist()
    [[[2, 4], [1, 3]]]
    """
    quarters, rest = divmod(degrees, 90)
    if rest == 0:
        return np.ascontiguousarray(np.rot90(images, int(quarters), axes=(1, 2)))
    turned = ndimage.rotate(images.astype(np.float32), degrees, axes=(2, 1), reshape=False, order=1)
    return np.clip(np.rint(turned), 0, 255).astype(np.uint8)


def permuted(images: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """The pixels in another order: pixel i, row by row, is pixel `order[i]` of the original.

    >>> permuted(np.array([[[1, 2], [3, 4]]], np.uint8), (3, 0, 1, 2)).tolist()
    [[[4, 1], [2, 3]]]
    """
    return images.reshape(len(images), len(order))[:, list(order)].reshape(images.shape)


def mirrored(images: np.ndarray) -> np.ndarray:
    """Left and right exchanged.

    >>> mirrored(np.array([[[1, 2], [3, 4]]], np.uint8)).tolist()
    [[[2, 1], [4, 3]]]
    """
    return np.ascontiguousarray(images[:, :, ::-1])


def shifted(images: np.ndarray, down: int, right: int) -> np.ndarray:
    """Moved by whole pixels, 0 or more; what comes in is 0, what goes out is lost.

    >>> shifted(np.array([[[1, 2], [3, 4]]], np.uint8), 0, 1).tolist()
    [[[0, 1], [0, 3]]]
    """
    height, width = images.shape[1:]
    moved = np.zeros_like(images)
    moved[:, down:, right:] = images[:, : height - down, : width - right]
    return moved


def less_contrast(images: np.ndarray, max_value: int) -> np.ndarray:
    """Half the contrast about the middle grey: v becomes v / 2 + max_value / 4, rounded down.

    >>> less_contrast(np.array([[[0, 8, 16]]], np.uint8), 16).tolist()
    [[[4, 8, 12]]]
    """
    return ((2 * images.astype(np.uint16) + max_value) // 4).astype(np.uint8)


def random_orders(num_pixels: int, count: int, seed: int) -> list[tuple[int, ...]]:
    """So many random permutations of 0 .. num_pixels - 1; the first ones are the same for any `count`."""
    source = random.Random(seed)  # its shuffle is stable between releases; see `parsers.seeded_split`
    orders = []
    for _ in range(count):
        order = list(range(num_pixels))
        source.shuffle(order)
        orders.append(tuple(order))
    return orders


def require_square(images: np.ndarray, degrees: float) -> None:
    """Raises InputError where a turn by `degrees` would change the shape of the images."""
    height, width = images.shape[1:]
    if height != width and degrees % 180 == 90:
        raise InputError(
            f"a turn by {degrees:g} degrees needs square images, found {height} x {width}; use multiples of 180"
        )
