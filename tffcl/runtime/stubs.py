"""A gRPC stub that says in one line that its worker is gone; TFF's own tries again for ever."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Callable

import grpc
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2, executor_pb2_grpc

from tffcl import errors
from tffcl.runtime.runtime import operation_error

# How a call to a worker fails; a closed channel is a ValueError.
_FAILURES = (tff.framework.RetryableError, grpc.RpcError, ValueError)
_FAILED = "Failed to run computation: "  # what the worker puts before the words of TensorFlow


class WorkerStub(tff.framework.RemoteExecutorGrpcStub):
    """A `RemoteExecutorGrpcStub` that raises `RunError` where TFF would ask for another try.

    Attributes:
      lost_codes: what says that the worker is gone. A closed channel is a ValueError without a code.
    """

    lost_codes: tuple[grpc.StatusCode, ...] = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION)

    def __init__(self, channel: grpc.Channel, describe: Callable[[], str]) -> None:
        """Connects to a worker.

        Args:
          channel: Channel to the worker.
          describe: Gives one line on how the worker stands; called when it does not answer.
        """
        # Not TFF's own: it has a thread watch the channel, which ends in an exception of its own when that is closed.
        self._channel, self._stub = channel, executor_pb2_grpc.ExecutorGroupStub(channel)
        self._create_encoded_value = channel.unary_unary(
            "/tensorflow_federated.v0.ExecutorGroup/CreateValue",
            response_deserializer=executor_pb2.CreateValueResponse.FromString,
        )
        self._describe = describe

    @contextlib.contextmanager
    def _no_retry(self) -> Iterator[None]:
        try:
            yield
        except _FAILURES as error:
            if isinstance(error, grpc.Call) and error.code() not in self.lost_codes:
                text = str(error.details())
                if text.startswith(_FAILED):
                    raise operation_error(
                        "a TensorFlow operation failed in the worker", text[len(_FAILED) :]
                    ) from error
                raise
            raise self._when_lost(error) from error

    def _when_lost(self, error: Exception) -> Exception:
        """What is raised in the place of an error that says that the worker does not answer."""
        return errors.RunError(f"lost the worker during a computation: {self._describe()}")

    def get_executor(self, request: Any) -> Any:
        with self._no_retry():
            return super().get_executor(request)

    def create_value(self, request: Any) -> Any:
        with self._no_retry():
            return super().create_value(request)

    def create_encoded_value(self, request: bytes) -> executor_pb2.CreateValueResponse:
        """As `create_value`, for a request that is already in bytes."""
        with self._no_retry():
            return self._create_encoded_value(request)

    def create_struct(self, request: Any) -> Any:
        with self._no_retry():
            return super().create_struct(request)

    def create_call(self, request: Any) -> Any:
        with self._no_retry():
            return super().create_call(request)

    def create_selection(self, request: Any) -> Any:
        with self._no_retry():
            return super().create_selection(request)

    def compute(self, request: Any) -> Any:
        with self._no_retry():
            return super().compute(request)

    def dispose(self, request: Any) -> None:
        """Frees values in the worker; one that is gone has nothing left to free, and one that is busy will do so."""
        with contextlib.suppress(*_FAILURES):
            super().dispose(request)

    def dispose_executor(self, request: Any) -> None:
        """Frees an executor and all its values, as `dispose`."""
        with contextlib.suppress(*_FAILURES):
            super().dispose_executor(request)
