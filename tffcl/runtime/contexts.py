"""TFF execution contexts over workers that this library starts and ends itself."""

from __future__ import annotations

from typing import Any, Callable, Optional, overload

import grpc
import tensorflow_federated as tff

from tffcl.runtime import compiling, executor, ingestion, stubs
from tffcl.runtime import worker as worker_lib
from tffcl.runtime.runtime import Runtime, check_default_num_clients

_CHANNEL_OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


class WorkerContext(tff.framework.SyncExecutionContext):
    """TFF's execution context over executors that use workers; entries of arguments go by their names."""

    def __init__(self, factory: tff.framework.ExecutorFactory) -> None:
        super().__init__(
            executor_fn=factory,
            compiler_fn=compiling.to_native,
            transform_args=tff.tensorflow.transform_args,
            transform_result=tff.tensorflow.transform_result,
        )

    def invoke(self, comp: Any, arg: Any) -> Any:
        """Runs a computation, as TFF does.

        Raises:
          ArgumentError: If the argument has other entries than its type, or in another order.
        """
        if comp.type_signature.parameter is not None:
            ingestion.check_entries(arg, comp.type_signature.parameter)
        return super().invoke(comp, arg)


def create_context(channel: grpc.Channel, describe: Callable[[], str], default_num_clients: int = 0) -> WorkerContext:
    """An execution context that runs computations in the worker at the other end of `channel`.

    Args:
      channel: Channel to a TFF worker, without limits on the length of messages.
      describe: Gives one line on how the worker stands, for the error when it does not answer.
      default_num_clients: See `local`.
    """
    return WorkerContext(executor.WorkerExecutorFactory(stubs.WorkerStub(channel, describe), default_num_clients))


class LocalRuntime(Runtime):
    """A worker on this machine together with the TFF context that uses it; closing it ends the worker."""

    def __init__(
        self, num_threads: Optional[int] = None, repeatable: bool = True, default_num_clients: int = 0
    ) -> None:
        """Starts the worker, which takes about a second.

        Args:
          num_threads: Threads that the worker may use; None leaves it to TensorFlow.
          repeatable: See `local`.
          default_num_clients: See `local`.
        """
        check_default_num_clients(default_num_clients)
        self.worker = worker_lib.Worker(num_threads, repeatable=repeatable)
        self._channel = grpc.insecure_channel(self.worker.address, options=_CHANNEL_OPTIONS)
        super().__init__(create_context(self._channel, self.worker.describe, default_num_clients))

    def close(self) -> None:
        """Ends the worker; computations in this runtime's context then raise `RunError`."""
        self._channel.close()
        self.worker.close()


@overload
def local(
    num_threads: Optional[int] = None, *, repeatable: bool = True, default_num_clients: int = 0
) -> LocalRuntime: ...


@overload
def local(
    num_threads: Optional[int] = None, *, num_workers: int, repeatable: bool = True, default_num_clients: int = 0
) -> Runtime: ...


def local(
    num_threads: Optional[int] = None, *, num_workers: int = 1, repeatable: bool = True, default_num_clients: int = 0
) -> Runtime:
    """Starts a worker on this machine: `with tffcl.runtime.local(): ...` runs computations there.

    Args:
      num_threads: Threads that a worker may use; None leaves it to TensorFlow.
      num_workers: With more than one, the clients of a computation are spread over them as `remote` does it.
      repeatable: Whether all results repeat to the bit; then operations that draw without a seed or read the clock are
        refused. The noise of differential privacy needs False. TF_DETERMINISTIC_OPS in the environment goes before it.
      default_num_clients: Number of clients of a computation whose arguments do not tell it, for want of values at the
        clients.

    Returns:
      A runtime; leaving its `with` block restores the context before it and ends the worker.

    Raises:
      InputError: If there cannot be so many threads, workers or clients.
      RunError: If the worker cannot be started.
    """
    if num_workers == 1:
        return LocalRuntime(num_threads, repeatable, default_num_clients)
    from tffcl.runtime import remote_runtime

    return remote_runtime.LocalWorkers(num_workers, num_threads, repeatable, default_num_clients=default_num_clients)


def set_local(
    num_threads: Optional[int] = None, *, repeatable: bool = True, default_num_clients: int = 0
) -> LocalRuntime:
    """Makes a worker on this machine TFF's default context, for scripts and notebooks.

    Args:
      num_threads: Threads that the worker may use; None leaves it to TensorFlow.
      repeatable: See `local`.
      default_num_clients: See `local`.

    Returns:
      The runtime; its worker ends with this process at the latest.
    """
    return LocalRuntime(num_threads, repeatable, default_num_clients).set_default()
