"""Files of comma-separated zeros and ones, a row a line, as the density estimation benchmarks come."""

from __future__ import annotations

import numpy as np

from tffcl.datasets import raw_files
from tffcl.datasets.raw_files import PathLike
from tffcl.errors import DatasetError


def read_binary_rows(path: PathLike) -> np.ndarray:
    """Reads a file of `0,1,...` lines, all of one width; the last line may lack its end.

    Every byte is checked, all rows at once.

    Returns:
      uint8 [N, D] of 0 and 1, read-only.

    Raises:
      DatasetError: an empty file, a value other than 0 or 1, or a row of another width than the first; names
        the line.
    """
    content = raw_files.read_bytes(path)
    content = content[raw_files.mark_length(content[:16], path) :]
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n")
    content = content.rstrip(b"\n") + b"\n"
    if content == b"\n":
        raise DatasetError(f"{path}: holds no rows; expected lines of comma-separated 0 and 1")
    stride = content.index(b"\n") + 1
    if stride % 2 or len(content) % stride:
        raise _first_fault(path, content, stride)
    # a field and what follows it, as one number: b"0," or b"1,", and at the end of a line b"0\n" or b"1\n"
    cells = np.frombuffer(content, "<u2").reshape(-1, stride // 2)
    expected = np.full(stride // 2, ord(",") << 8 | ord("0"), "<u2")
    expected[-1] = ord("\n") << 8 | ord("0")
    values = cells ^ expected
    if values.max() > 1:
        raise _first_fault(path, content, stride)
    rows = values.astype(np.uint8)
    rows.setflags(write=False)
    return rows


def _first_fault(path: PathLike, content: bytes, stride: int) -> DatasetError:
    """What is wrong with the first line that is wrong; such a file is read line by line."""
    width = content.count(b",", 0, stride) + 1
    for number, line in enumerate(content.split(b"\n"), 1):
        fields = line.split(b",")
        for column, field in enumerate(fields, 1):
            if field not in (b"0", b"1") and line:
                found = field.decode("latin-1")[:20]
                return DatasetError(
                    f"{path}, line {number}: field {column} is {found!r}; expected 0 or 1, separated by commas"
                )
        if len(fields) != width or not line:
            found_width = len(fields) if line else 0
            return DatasetError(f"{path}, line {number}: has {found_width} fields; line 1 has {width}")
    return DatasetError(f"{path}: is no table of 0 and 1")
