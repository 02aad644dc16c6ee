"""Quiet logs: environment variables that TensorFlow reads once, when it is imported.

Import nothing heavy here: entry points call `quiet_logs()` before TensorFlow comes in.
"""

from __future__ import annotations

import logging
import os
import warnings

_QUIET_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",  # even its ERRORs are noise: absent GPUs, plugins registered twice
    "GRPC_VERBOSITY": "NONE",  # else every ended worker prints connection errors
    "ABSL_MIN_LOG_LEVEL": "3",
}

# Libraries beneath us that warn about their own dependencies, or about Python's age.
_NOISY_MODULES = (r"tensorflow", r"tensorflow_federated", r"keras", r"jax", r"google\.")


def quiet_logs() -> None:
    """Silences TensorFlow, gRPC and absl; variables that the user has set win.

    Has to run before the first import of TensorFlow, which reads them only then.
    """
    for name, value in _QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for pattern in _NOISY_MODULES:
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", category=category, module=pattern)
    warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
