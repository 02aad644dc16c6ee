"""What all runtimes share: a TFF context that is installed and taken away, the compiler, and errors of operations."""

from __future__ import annotations

import abc
import functools
import logging
import re
from typing import Any, TypeVar

import grpc
import tensorflow_federated as tff
from tensorflow_federated.python.core.environments.tensorflow_backend import (
    compiled_computation_transformations,
    tensorflow_tree_transformations,
)

from tffcl import errors

logger = logging.getLogger(__name__)

_Self = TypeVar("_Self", bound="Runtime")

_MAX_COMPILED = 128  # a process has a handful of computations
_SECURE = b"federated_secure_"  # how the names of TFF's secure intrinsics begin

# What TensorFlow and TFF's worker put around an operation's own message.
_AROUND = (
    "Graph execution error", "Detected at node", "<stack traces", "File ", "(most recent call last)",
    "while evaluating", "0 successful operations", "0 derived errors",
)  # fmt: skip
_FIRST_OF_SEVERAL = re.compile(r"\d+ root error\(s\) found\.\s*\(0\)\s*(\w+: )?")
_NODE = re.compile(r"\s*(\[\[.*?\]\]|\{\{.*?\}\}|\[Op:\w+\])")

# TensorFlow says that determinism is enabled, and not by whom.
_REFUSED = (
    "what draws without a seed or reads the clock is refused where results have to repeat; allow it with "
    "runtime.local(repeatable=False), or with TF_DETERMINISTIC_OPS=0 in the environment of the process that computes"
)


class Runtime(abc.ABC):
    """A TFF context and what it needs to run.

    As a context manager it installs its context in the current thread, and on leaving takes it away and closes. TFF's
    contexts belong to threads: another thread has to enter a runtime of its own.

    Attributes:
      context: The TFF context.
    """

    def __init__(self, context: Any) -> None:
        self.context = context
        self._installed: list[Any] = []

    @abc.abstractmethod
    def close(self) -> None:
        """Ends what the context needs; computations in it then raise `RunError`."""

    def set_default(self: _Self) -> _Self:
        """Makes the context TFF's default, for scripts and notebooks; returns this runtime."""
        tff.framework.set_default_context(self.context)
        return self

    def __enter__(self: _Self) -> _Self:
        installed = tff.framework.get_context_stack().install(self.context)
        installed.__enter__()
        self._installed.append(installed)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        try:
            self._installed.pop().__exit__(*exc_info)
        finally:
            self.close()


def compile_to_native(computation: Any) -> Any:
    """Compiles a `tff.framework.ConcreteComputation` for TFF's native runtime, its graphs optimised by TFF.

    Neither that nor this library has a protocol for secure aggregation. Secure sums and secure selections run as the
    plain computations that TFF's test backend has for them: the same results, quantisation and checks of the bounds
    included, and nothing is hidden from the server. Each computation that has one logs a warning.
    """
    return _compiled(_without_secrets(computation))


def native_block(computation: Any) -> Any:
    """As `compile_to_native`, a `tff.framework.ComputationBuildingBlock` whose graphs nobody has optimised yet.

    For this process, where TensorFlow optimises what it calls. No step goes through protocol buffers, whose types TFF
    reads anew each time: a third of the time in which the computations of a process are compiled.
    """
    block = _without_secrets(computation).to_building_block()
    block, _ = tensorflow_tree_transformations.replace_intrinsics_with_bodies(block)
    block = tff.framework.to_call_dominant(block)
    return compiled_computation_transformations.transform_tf_call_ops_to_disable_grappler(block)[0]


def _without_secrets(computation: Any) -> Any:
    if _SECURE not in tff.framework.serialize_computation(computation).SerializeToString():
        return computation
    logger.warning("secure aggregation is simulated: the server here sees every summand; only the sum is the same")
    return tff.backends.test.replace_secure_intrinsics_with_bodies(computation)


@functools.lru_cache(maxsize=_MAX_COMPILED)
def _compiled(computation: Any) -> Any:
    """Equal computations are compiled once in a process, whichever runtimes come and go."""
    return tff.backends.native.desugar_and_transform_to_native(computation)


class FailedOperation(errors.OperationError, grpc.RpcError):
    """As TFF raises it, whose operations all run in workers."""


def operation_error(where: str, text: str) -> FailedOperation:
    """The error for a failed operation, from TensorFlow's message of many lines; `where` begins the error."""
    lines = _FIRST_OF_SEVERAL.sub("", text).split("\n")
    kept = [_NODE.sub("", line).strip() for line in lines if line and not line[0].isspace()]
    words = " ".join(line for line in kept if line and not line.startswith(_AROUND))
    if "determinism is enabled" in words:
        words = f"{words.rstrip('.')}: {_REFUSED}"
    return FailedOperation(where, words)
