"""The IDX format of MNIST and its kin: big-endian header, then unsigned bytes; plain or gzipped.

LeCun, Cortes and Burges, The MNIST Database of Handwritten Digits. A header is two zero bytes, a type code (8:
unsigned byte), the number of dimensions, and that many 4-byte sizes.
"""

from __future__ import annotations

import io
import math
import struct

import numpy as np

from tffcl import storage
from tffcl.datasets import raw_files
from tffcl.datasets.raw_files import PathLike
from tffcl.errors import DatasetError

_UNSIGNED_BYTE = 0x08


def read_idx(path: PathLike, num_dimensions: int) -> np.ndarray:
    """Reads an IDX file of unsigned bytes.

    Args:
      path: the file; whether it is gzipped is told by its content, not by its name.
      num_dimensions: 3 for images, 1 for labels.

    Returns:
      uint8 of `num_dimensions` dimensions, read-only.

    Raises:
      DatasetError: no regular file, a gzip file cut short, another magic number, an empty dimension, or fewer or
        more bytes than the header promises; no more of them are read.
    """
    with raw_files.open_unzipped(path, "an IDX file") as file:
        sizes = _read_sizes(file, path, num_dimensions)
        expected = math.prod(sizes)
        content = file.read(expected + 1)  # one more, which reaches the checksum of a gzip file
    if len(content) != expected:
        found = len(content) if len(content) < expected else "more"
        raise DatasetError(
            f"{path}: its header promises {_by(sizes)} = {expected} bytes of data, found {found}; fetch it again"
        )
    return np.frombuffer(content, np.uint8).reshape(sizes)


def _read_sizes(file: io.BufferedReader, path: PathLike, num_dimensions: int) -> tuple[int, ...]:
    """The sizes that the header promises, checked."""
    magic, length = _UNSIGNED_BYTE << 8 | num_dimensions, 4 * (1 + num_dimensions)
    header = file.read(length)
    if header[:4] != magic.to_bytes(4, "big"):
        raise DatasetError(
            f"{path}: expected an IDX file of {num_dimensions} dimension{'s' * (num_dimensions > 1)}, magic number "
            f"0x{magic:08X}, found 0x{header[:4].hex().upper() or '(nothing)'}; is it another file?"
        )
    if len(header) < length:
        raise DatasetError(f"{path}: breaks off within its header; expected {length} bytes, found {len(header)}")
    sizes = struct.unpack(f">{num_dimensions}I", header[4:])
    if 0 in sizes:
        raise DatasetError(f"{path}: its header says {_by(sizes)}, which is nothing; expected at least one of each")
    if math.prod(sizes) > storage.MAX_BYTES:
        raise DatasetError(
            f"{path}: its header promises {_by(sizes)} bytes of data; at most {storage.MAX_BYTES} are read"
        )
    return sizes


def _by(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))
