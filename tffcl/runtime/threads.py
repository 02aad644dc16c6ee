"""Clients side by side: a function over many values in threads, results in order, an end at the first error."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any, Optional

import tensorflow as tf
from tensorflow.python.eager import cancellation

# TensorFlow keeps the canceller in use in a variable of the whole process, not of a thread. So it is set around all
# clients together, by one runtime at a time: a client that set it for itself would take it from the others.
_one_cohort = threading.Lock()


class ClientThreads:
    """A pool of threads whose TensorFlow operations run on one device.

    Attributes:
      device: Name of a TensorFlow device, or None for TensorFlow's own choice.
      at_once: How many clients run at the same time.
    """

    def __init__(self, device: Optional[str], at_once: int) -> None:
        self.device, self.at_once = device, at_once
        self._pool = concurrent.futures.ThreadPoolExecutor(at_once, "tffcl-client")

    def run_each(self, function: Callable[[Any], Any], values: list) -> list:
        """The function's results, in the order of the values.

        The first error, Ctrl-C included, stops the operations that still run and is raised. Therefore a single
        value has a thread of its own, too: Python hears of no signal while the main thread is in TensorFlow.
        """

        def one(value: Any) -> Any:
            with tf.device(self.device):
                return function(value)

        canceller = cancellation.CancellationManager()
        with _one_cohort, cancellation.CancellationManagerContext(canceller):
            futures = [self._pool.submit(one, value) for value in values]
            try:
                concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
            finally:  # also of Ctrl-C
                if not all(future.done() and future.exception() is None for future in futures):
                    for future in futures:
                        future.cancel()
                    canceller.start_cancel()
                    concurrent.futures.wait(futures)
        _raise_the_cause(futures)
        return [future.result() for future in futures]

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()


def _raise_the_cause(futures: list[concurrent.futures.Future]) -> None:
    """Raises a client's own error before those of the clients that it stopped: TensorFlow stops them at once, too."""
    found = [future.exception() for future in futures if not future.cancelled()]
    errors = [error for error in found if error is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, tf.errors.CancelledError)), errors[0])
