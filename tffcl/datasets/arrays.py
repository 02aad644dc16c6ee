"""Arrays of a data set that nobody may write to."""

from __future__ import annotations

import numpy as np


def read_only(array: np.ndarray) -> np.ndarray:
    """A view of `array` that refuses to be written to; the caller's own array stays as it is."""
    view = np.asarray(array).view()
    view.setflags(write=False)
    return view
