"""The process as a whole: quiet logs, garbage that is collected seldom, a quiet end; no import of TensorFlow."""

from __future__ import annotations

import gc
import logging
import os
import sys
import warnings
from typing import Any

_QUIET_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",  # even its ERRORs are noise: absent GPUs, plugins registered twice
    "GRPC_VERBOSITY": "NONE",  # else every ended worker prints connection errors
    "ABSL_MIN_LOG_LEVEL": "3",
}

# Libraries that warn about their own dependencies, or about Python's age.
_NOISY_MODULES = (r"tensorflow", r"tensorflow_federated", r"keras", r"jax", r"google\.")


def quiet_logs() -> None:
    """Silences TensorFlow, gRPC and absl; variables that the user has set win.

    Has to run before the first import of TensorFlow, which reads them only then.

    Shown in docs/papers.md.
    """
    for name, value in _QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for pattern in _NOISY_MODULES:
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", category=category, module=pattern)
    warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
    warnings.filterwarnings("ignore", message="IProgress not found")  # progress comes in lines then


def announce_import(quiet: bool = False) -> None:
    """Says that TensorFlow is imported now, which takes seconds, and silences it; nothing where it is there already.

    Where nobody shows what is logged, in a script or a notebook, it says so on stderr, as the progress of a run does.
    """
    if "tensorflow" in sys.modules:
        return
    logger, line = logging.getLogger("tffcl"), "importing TensorFlow ..."
    logger.info(line)
    if not (quiet or logger.hasHandlers()):
        sys.stderr.write(f"{line}\n")
    quiet_logs()  # in a notebook too


# Importing TensorFlow and tracing make millions of objects that stay, and the usual collection of garbage looks through
# them again and again: 2.2 of the 11 CPU seconds of an import, 0.6 at this threshold.
_USUAL, _SELDOM = gc.get_threshold(), 100_000


def collect_seldom() -> None:
    """For imports and tracing, until `collect_as_usual`."""
    gc.set_threshold(_SELDOM)


def collect_as_usual() -> None:
    """For the rounds of a run: what they leave behind may hold large arrays, and goes soon."""
    if gc.get_threshold()[0] == _SELDOM:
        gc.set_threshold(*_USUAL)


def drop_stock_context() -> None:
    """Drops TFF's own default context, which its import makes, before the interpreter takes its modules down.

    That context's destructor looks for `subprocess` among its globals; left to the very end of the process it finds
    None, and Python prints a traceback.
    """
    import tensorflow_federated as tff

    class Ended(tff.framework.SyncContext):
        def invoke(self, comp: Any, arg: Any) -> Any:
            raise RuntimeError("the process is ending: no computation can run any more")

    tff.framework.set_default_context(Ended())
