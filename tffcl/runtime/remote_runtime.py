"""The runtime of several workers, on other machines or on this one."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import tensorflow_federated as tff

from tffcl import errors
from tffcl.runtime import contexts, health
from tffcl.runtime import worker as worker_lib
from tffcl.runtime.composed_factory import ComposedExecutorFactory
from tffcl.runtime.remote_workers import Deadline, RemoteWorker
from tffcl.runtime.runtime import Runtime, check_default_num_clients

logger = logging.getLogger(__name__)

# A stopped or cut-off worker is lost after at most the sum of the two.
_ASK_EVERY_SECONDS = 10.0
_PATIENCE_SECONDS = 60.0
_START_SECONDS = 10.0

Event = dict[str, str]

ON_LOST_WORKER = ("retry", "leave-out")


class RemoteContext(contexts.WorkerContext):
    """The context over an executor that spreads clients over workers.

    Attributes:
      failures: Workers that got lost and that nobody has asked about yet: `worker` (its address) and `reason`.
      factory: Of the executors.
      may_leave_out: Whether calls that allow it end without the clients of a lost worker.
    """

    def __init__(self, factory: ComposedExecutorFactory, may_leave_out: bool) -> None:
        super().__init__(factory)
        self.failures: list[Event] = []
        self.factory, self.may_leave_out = factory, may_leave_out


class RemoteRuntime(Runtime):
    """Workers that are there already, and the TFF context that uses them; closing it leaves them running.

    Attributes:
      events: Every loss of a worker so far: `worker` (its address) and `reason`.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        call_timeout: Optional[float] = None,
        on_failure: Optional[Callable[[Event], None]] = None,
        patience: float = _PATIENCE_SECONDS,
        describe: Sequence[Callable[[], str]] = (),
        on_lost_worker: str = "retry",
        default_num_clients: int = 0,
    ) -> None:
        """Connects to the workers.

        Args:
          addresses: See `remote`.
          call_timeout: See `remote`.
          on_failure: See `remote`.
          patience: See `remote`.
          describe: For each worker, what says how it ended, where that can be known.
          on_lost_worker: See `remote`.
          default_num_clients: See `remote`.

        Raises:
          InputError: Addresses that are none, or a choice that is none.
          RunError: A worker that does not answer.
        """
        health.check_addresses(addresses)
        _check_positive("call_timeout", call_timeout)
        _check_positive("patience", patience)
        check_default_num_clients(default_num_clients)
        if on_lost_worker not in ON_LOST_WORKER:
            raise errors.InputError(f"on_lost_worker: expected {' or '.join(ON_LOST_WORKER)}, found {on_lost_worker!r}")
        self.events: list[Event] = []
        self._on_failure, self._lock = on_failure, threading.Lock()
        deadline = Deadline(call_timeout)
        ends: list[Optional[Callable[[], str]]] = [*describe, *[None] * (len(addresses) - len(describe))]
        self.workers = [RemoteWorker(address, deadline, self._tell, end) for address, end in zip(addresses, ends)]
        self._factory = ComposedExecutorFactory(self.workers, deadline, default_num_clients)
        super().__init__(RemoteContext(self._factory, on_lost_worker == "leave-out"))
        for worker in self.workers:
            worker.watch(min(_ASK_EVERY_SECONDS, patience), patience)

    def _tell(self, address: str, reason: str) -> None:
        event = {"worker": address, "reason": reason}
        others = "" if self.context.may_leave_out else "; its clients go to the others"
        logger.warning("lost the worker at %s (%s)%s", address, reason, others)
        with self._lock:
            self.events.append(event)
            self.context.failures.append(event)
        if self._on_failure is not None:
            self._on_failure(event)

    def close(self) -> None:
        """Closes the connections; computations in this runtime's context then raise `RunError`."""
        for worker in self.workers:
            worker.close()
            worker.reason = worker.reason or "this runtime is closed"
        self._factory.close()


class LocalWorkers(RemoteRuntime):
    """Workers on this machine together with the TFF context that uses them; closing it ends them."""

    def __init__(
        self, num_workers: int, num_threads: Optional[int] = None, repeatable: bool = True, **options: Any
    ) -> None:
        """Starts the workers.

        Args:
          num_workers: How many.
          num_threads: Threads of each; None leaves it to TensorFlow.
          repeatable: See `tffcl.runtime.local`.
          **options: See `RemoteRuntime`.
        """
        if num_workers < 1:
            raise errors.InputError(f"num_workers: expected at least 1, found {num_workers}")
        with contextlib.ExitStack() as started:
            self.processes = [
                started.enter_context(worker_lib.Worker(num_threads, repeatable=repeatable)) for _ in range(num_workers)
            ]
            addresses = [process.address for process in self.processes]
            describe = [process.describe for process in self.processes]
            super().__init__(addresses, describe=describe, **options)
            started.pop_all()

    def close(self) -> None:
        """Ends the workers."""
        super().close()
        for process in self.processes:
            process.close()


def remote(
    addresses: Sequence[str],
    *,
    call_timeout: Optional[float] = None,
    on_failure: Optional[Callable[[Event], None]] = None,
    patience: float = _PATIENCE_SECONDS,
    on_lost_worker: str = "retry",
    default_num_clients: int = 0,
) -> RemoteRuntime:
    """Spreads the clients of every computation over workers: `with tffcl.runtime.remote(["a:9000", "b:9000"]): ...`.

    Each worker (`tffcl worker`) has a contiguous part of the clients; partial aggregates are merged by the computation
    that the aggregator has for it. What is at the server runs in the first worker. A worker that dies, hangs or is cut
    off is not asked any more, and the computation in which that happened runs again, whole, on the others; once it
    answers again it takes part in the next one.

    Args:
      addresses: `host:port` of each worker.
      call_timeout: Seconds within which a computation has to be done; a worker that is not is lost. None for as long
        as it takes.
      on_failure: Called, in any thread, with the `worker` and the `reason` when one gets lost.
      patience: Seconds for which a worker may not answer whether it is there.
      on_lost_worker: "retry", or "leave-out": a computation that allows it (`allow_missing_clients`; a program's rounds
        do) ends without the clients of a worker that got lost after they had begun. Others are retried.
      default_num_clients: See `local`.

    Returns:
      A runtime; leaving its `with` block restores the context before it, and leaves the workers running.

    Raises:
      InputError: Addresses that are none, or a choice that is none.
      RunError: A worker that does not answer.
    """
    lost = {address: health.check(address, _START_SECONDS) for address in health.check_addresses(addresses)}
    for address, reason in lost.items():
        if reason is not None:
            raise errors.RunError(f"no worker answers at {address} ({reason}): start it with `tffcl worker`")
    return RemoteRuntime(
        addresses,
        call_timeout,
        on_failure,
        patience,
        on_lost_worker=on_lost_worker,
        default_num_clients=default_num_clients,
    )


@contextlib.contextmanager
def allow_missing_clients() -> Iterator[list[int]]:
    """Lets the one computation that is called inside end without clients whose worker gets lost.

    It does so where the runtime was made with `on_lost_worker="leave-out"`. Its aggregates, and all that follows from
    them, are then those of the other clients, and lists of values at the clients have no place for the missing ones:

        with runtime.allow_missing_clients() as missing:
            state, values = computation(state, data)
        reported = [client for place, client in enumerate(clients) if place not in missing]

    Yields:
      The places of the missing clients among those of the call, once it has ended.
    """
    missing: list[int] = []
    context = tff.framework.get_context_stack().current
    if not (isinstance(context, RemoteContext) and context.may_leave_out):
        yield missing
        return
    context.factory.missing = missing
    try:
        yield missing
    finally:
        context.factory.missing = None


def take_worker_failures() -> list[Event]:
    """Workers that got lost since this was last asked, in the context that is installed; none in other contexts."""
    context = tff.framework.get_context_stack().current
    if not isinstance(context, RemoteContext):
        return []
    failures, context.failures = context.failures, []
    return failures


def _check_positive(name: str, value: Optional[float]) -> None:
    if value is not None and not value > 0:
        raise errors.InputError(f"{name}: expected seconds above 0, found {value}")
