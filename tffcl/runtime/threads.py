"""Clients side by side: a function over many values in threads, results in order, an end at the first error."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any, Optional

import tensorflow as tf
from tensorflow.python.eager import cancellation


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

        The first error, Ctrl-C included, stops the operations that still run. Therefore a single value has a
        thread of its own, too: Python hears of no signal while the main thread is in TensorFlow.
        """
        canceller = cancellation.CancellationManager()

        def one(value: Any) -> Any:
            with tf.device(self.device), cancellation.CancellationManagerContext(canceller):
                return function(value)

        futures = [self._pool.submit(one, value) for value in values]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            canceller.start_cancel()
            concurrent.futures.wait(futures)
            raise

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()
