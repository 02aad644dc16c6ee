"""Workers that may get lost, and the connections to them."""

from __future__ import annotations

import functools
import logging
import threading
import time
from typing import Any, Callable, Optional

import grpc
import tensorflow_federated as tff

from tffcl.runtime import health, stubs
from tffcl.runtime.composed_values import PartExecutor
from tffcl.runtime.executor import WorkerExecutorFactory

logger = logging.getLogger(__name__)

# A worker that stands still while values are freed is noticed elsewhere.
_DISPOSE_SECONDS = 5.0

# What says that a worker, or the way to it, is gone; not what a computation does wrong.
_LOST = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.FAILED_PRECONDITION,  # it does not know an executor: another process has its address now
    grpc.StatusCode.CANCELLED,  # its channel was closed here, since it does not answer
    grpc.StatusCode.DEADLINE_EXCEEDED,
)


class WorkerLost(tff.framework.RetryableError):
    """A worker is gone; TFF's execution context calls the whole computation again, and other workers do it."""


class Deadline:
    """The time by which the call that runs now has to be done.

    Args:
      seconds: Time for a call; None for as long as it takes.
    """

    def __init__(self, seconds: Optional[float]) -> None:
        self._seconds = seconds
        self._end = float("inf")

    def start(self) -> None:
        """A call begins, or begins again."""
        if self._seconds is not None:
            self._end = time.monotonic() + self._seconds

    def left(self) -> Optional[float]:
        """Seconds for one request; None without a deadline."""
        return None if self._seconds is None else max(self._end - time.monotonic(), 0.001)


class RemoteWorker:
    """A worker somewhere, and whether it is there.

    Attributes:
      address: `host:port`.
      reason: Why it is lost; None while it is not.
    """

    def __init__(
        self,
        address: str,
        deadline: Deadline,
        tell: Callable[[str, str], None],
        describe: Optional[Callable[[], str]] = None,
    ) -> None:
        """Connects to a worker.

        Args:
          address: `host:port`.
          deadline: Of the calls.
          tell: Told the address and the reason, once, when the worker gets lost.
          describe: Says more about how a process on this machine ended.
        """
        self.address, self._deadline, self._tell, self._describe = address, deadline, tell, describe
        self._lock = threading.Lock()
        self._probe = health.Probe(address)
        self._answers_again = False
        self._end = threading.Event()
        self._connect()

    def _connect(self) -> None:
        self.reason: Optional[str] = None
        self._answers_again = False
        self._channel = grpc.insecure_channel(self.address, options=health.CHANNEL_OPTIONS)
        self._executors = _PartExecutorFactory(_Stub(self._channel, self, self._deadline))

    def executor(self, num_clients: int) -> PartExecutor:
        """An executor for some clients.

        Raises:
          WorkerLost: If the worker does not answer.
        """
        return self._executors.create_executor({tff.CLIENTS: num_clients})

    def forget(self, num_clients: int) -> None:
        """Frees all that the worker holds in the executor for some clients."""
        self._executors.clean_up_executor({tff.CLIENTS: num_clients})

    def lose(self, reason: str) -> None:
        """Counts the worker as lost; what still waits for it ends at once."""
        with self._lock:
            if self.reason is not None or self._end.is_set():
                return
            self.reason = self._describe() if self._describe else reason
        self._channel.close()
        self._tell(self.address, self.reason)

    def revive(self) -> bool:
        """Takes a lost worker that answers again back in; False where there is none."""
        if self.reason is None or not self._answers_again:
            return False
        self._connect()
        return True

    def watch(self, interval: float, patience: float) -> None:
        """Asks, in a thread of its own, again and again whether the worker is there.

        Args:
          interval: Seconds from one answer to the next question.
          patience: Seconds for an answer.
        """
        run = functools.partial(self._watch, interval, patience)
        threading.Thread(target=run, name=f"tffcl-watch-{self.address}", daemon=True).start()

    def _watch(self, interval: float, patience: float) -> None:
        while not self._end.wait(interval):
            reason = self._probe.ask(patience)
            self._answers_again = reason is None and self.reason is not None
            if reason is not None:
                self.lose(reason)

    def close(self) -> None:
        """Closes the connections; the worker goes on."""
        self._end.set()
        if self.reason is None:
            self._executors.close()
        self._channel.close()
        self._probe.close()


class _PartExecutorFactory(WorkerExecutorFactory):
    executor_class = PartExecutor

    def close(self) -> None:
        """Frees all that the worker holds."""
        while self._executors:
            self._executors.popitem()[1].close()


class _Timed:
    """The methods of a gRPC stub, each with the time that is left for it."""

    def __init__(self, stub: Any, deadline: Deadline) -> None:
        self._stub, self._deadline = stub, deadline

    def __getattr__(self, name: str) -> Callable[..., Any]:
        timeout = _DISPOSE_SECONDS if name.startswith("Dispose") else self._deadline.left()
        return functools.partial(getattr(self._stub, name), timeout=timeout)


class _Stub(stubs.WorkerStub):
    """A stub that counts its worker as lost when it does not answer."""

    lost_codes = _LOST

    def __init__(self, channel: grpc.Channel, worker: RemoteWorker, deadline: Deadline) -> None:
        super().__init__(channel, lambda: worker.address)
        timed: Any = _Timed(self._stub, deadline)  # type: ignore[has-type]
        self._stub = timed
        self._encoded, self._worker, self._deadline = self._create_encoded_value, worker, deadline
        self._create_encoded_value = lambda request: self._encoded(request, timeout=deadline.left())

    def _when_lost(self, error: Exception) -> Exception:
        self._worker.lose(_reason(error))
        return WorkerLost(f"{self._worker.address}: {self._worker.reason}")


def _reason(error: Exception) -> str:
    if not isinstance(error, grpc.Call):
        return "the connection is closed"
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return "not done within the time for a call"
    return f"{error.code().name}: {' '.join(str(error.details()).split())[:120]}"
