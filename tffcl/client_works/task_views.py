"""One task out of what a client keeps: on numpy values, or on tensors where it happens at the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Union

import numpy as np
import tensorflow as tf


def of_task(task: Any, past: Any, current: Union[Any, Callable[[], tf.Tensor]]) -> Any:
    """Row number `task` of the past tasks', or what belongs to the current task, which stands in none.

    Args:
      task: number of the task, an int; int32 [] for tensors.
      past: `[T, ...]`, a row of each past task.
      current: `[...]`, or what makes it out of tensors.

    Returns:
      `[...]`; numpy for numpy.

    >>> of_task(1, np.array([[1.0], [2.0]]), np.array([3.0]))
    array([2.])
    >>> of_task(2, np.array([[1.0], [2.0]]), np.array([3.0]))
    array([3.])
    """
    if tf.is_tensor(past):
        make = current if callable(current) else lambda: tf.identity(current)
        return tf.cond(task < tf.shape(past)[0], lambda: past[task], make)
    if task < len(past):
        return past[task]
    return np.asarray(current()) if callable(current) else current
