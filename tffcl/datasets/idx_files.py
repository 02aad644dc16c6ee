"""The IDX format of MNIST and its kin: big-endian header, then unsigned bytes; plain or gzipped.

LeCun, Cortes and Burges, The MNIST Database of Handwritten Digits. A header is two zero bytes, a type code (8:
unsigned byte), the number of dimensions, and that many 4-byte sizes.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib

import numpy as np

from tffcl.datasets import raw_files
from tffcl.datasets.raw_files import PathLike
from tffcl.errors import DatasetError

_GZIP_START = b"\x1f\x8b"
_UNSIGNED_BYTE = 0x08


def read_idx(path: PathLike, num_dimensions: int) -> np.ndarray:
    """Reads an IDX file of unsigned bytes.

    Args:
      path: the file; whether it is gzipped is told by its content, not by its name.
      num_dimensions: 3 for images, 1 for labels.

    Returns:
      uint8 of `num_dimensions` dimensions, read-only.

    Raises:
      DatasetError: no such file, a gzip file cut short, another magic number, an empty dimension, or fewer or
        more bytes than the header promises.
    """
    content = _plain_content(path)
    magic = _UNSIGNED_BYTE << 8 | num_dimensions
    start = 4 * (1 + num_dimensions)
    found = int.from_bytes(content[:4], "big")
    if len(content) < 4 or found != magic:
        raise DatasetError(
            f"{path}: expected an IDX file of {num_dimensions} dimension{'s' * (num_dimensions > 1)}, magic number "
            f"0x{magic:08X}, found 0x{content[:4].hex().upper() or '(nothing)'}; is it another file?"
        )
    if len(content) < start:
        raise DatasetError(
            f"{path}: breaks off within its header; expected {start} bytes, found {len(content)}"
        )
    sizes = struct.unpack(f">{num_dimensions}I", content[4:start])
    _check_length(path, sizes, len(content) - start)
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


def _check_length(path: PathLike, sizes: tuple[int, ...], found: int) -> None:
    shape = " x ".join(map(str, sizes))
    if 0 in sizes:
        raise DatasetError(
            f"{path}: its header says {shape}, which is nothing; expected at least one of each"
        )
    expected = math.prod(sizes)
    if found != expected:
        raise DatasetError(
            f"{path}: its header promises {shape} = {expected} bytes of data, found {found}; fetch it again"
        )


def _plain_content(path: PathLike) -> bytes:
    content = raw_files.read_bytes(path)
    if not content.startswith(_GZIP_START):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{path}: not a whole gzip file ({error}); fetch it again") from None
