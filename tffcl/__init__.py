"""tffcl: federated continual learning on TensorFlow Federated."""

import atexit
import sys

__version__ = "0.1.0"


def _end_stock_context() -> None:
    if "tensorflow_federated" in sys.modules:
        from tffcl.runtime import stock_context

        stock_context.drop()


# Whether or not a program enters a runtime, and without importing TFF for one that does not use it.
atexit.register(_end_stock_context)
