"""Files of images as they are published, for tests: small, and every class to be told by its pixels."""

from __future__ import annotations

import gzip
import pathlib
import struct

import numpy as np


def idx(array, magic=None):
    """An array in the layout of MNIST's files, packed."""
    head = struct.pack(">I", magic or 0x0800 + array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(head + array.astype(np.uint8).tobytes())


def write_images(folder: pathlib.Path, shape, prefixes=("train", "t10k"), classes=10, counts=(30, 10)):
    """`counts` training and test images of each class, all of one grey."""
    folder.mkdir(parents=True)
    for prefix, count in zip(prefixes, counts):
        labels = np.arange(count * classes) % classes
        images = np.broadcast_to(labels[:, None, None], [len(labels), *shape])
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(idx(images))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(idx(labels))


def write_emnist(folder: pathlib.Path):
    """EMNIST balanced as its authors give it out: official names, and images stored column by column.

    Every class has 6 training and 2 test images of 8 x 6 (rows x columns), which show the number of the class as bits
    in the top row; the rest is dark.
    """
    folder.mkdir(parents=True)
    for part, count in (("train", 6), ("test", 2)):
        labels = np.repeat(np.arange(47), count)
        upright = np.zeros([len(labels), 8, 6])
        upright[:, 0] = 255 * (labels[:, None] >> np.arange(6) & 1)
        (folder / f"emnist-balanced-{part}-images-idx3-ubyte.gz").write_bytes(idx(upright.transpose(0, 2, 1)))
        (folder / f"emnist-balanced-{part}-labels-idx1-ubyte.gz").write_bytes(idx(labels))
