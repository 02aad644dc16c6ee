"""IDX files written byte by byte, as their description says, for the tests that read them."""

from __future__ import annotations

import gzip
import struct

import numpy as np


def idx(sizes, data, kind=8):
    """The bytes of an IDX file."""
    return struct.pack(">BBBB", 0, 0, kind, len(sizes)) + b"".join(struct.pack(">I", n) for n in sizes) + data


def write_part(folder, prefix, images, labels, zipped=True):
    """Writes the two files of one part; `images` are nested lists [N][h][w]."""
    sizes = (len(images), len(images[0]), len(images[0][0]))
    pixels = bytes(pixel for image in images for row in image for pixel in row)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        (f"{prefix}-images-idx3-ubyte", idx(sizes, pixels)),
        (f"{prefix}-labels-idx1-ubyte", idx((len(labels),), bytes(labels))),
    ):
        path = folder / (name + ".gz" * zipped)
        path.write_bytes(gzip.compress(content) if zipped else content)


def random_images(count, height, width, seed=0):
    """Nested lists of pixels."""
    return np.random.default_rng(seed).integers(0, 256, (count, height, width)).tolist()
