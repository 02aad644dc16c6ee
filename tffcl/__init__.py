"""Federated continual learning on TensorFlow Federated.

`tffcl.Experiment("fedseit", data="sample").run()` runs a method on data, `tffcl.load_run(directory)` reads what a run
left; the rooms hold what methods are made of:

  algorithms     published methods and baselines          transfers    who learns from whom
  client_works   what a client trains, keeps and sends    aggregators  how updates become one
  models         networks                                 finalizers   what the server does with the aggregate
  layers         Keras layers                             templates    the contract, and its composition
  datasets       data sets and word vectors               streams      who sees what when
  program        the driver of a run                      runtime      where computations run
  reports        tables and plots of runs                 metrics      accuracy, forgetting, bytes, epsilon
  use            runs read back, models taken out         testing      checks of a method's contract
"""

import atexit
import importlib
import sys
from typing import Any

import lazy_loader

_getattr, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":  # looking it up takes as long as all else that the command line needs
        return importlib.import_module("importlib.metadata").version("tffcl")
    return _getattr(name)


def _end_stock_context() -> None:
    # Whether or not a program enters a runtime, and without importing TFF for one that does not use it.
    if "tensorflow_federated" in sys.modules:
        from tffcl.runtime import quiet

        quiet.drop_stock_context()


atexit.register(_end_stock_context)
