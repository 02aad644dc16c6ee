"""Runtimes over workers: one or several that this library starts and ends, or several that are there already.

Over several workers an executor, in TFF's sense, spreads the clients of a call, and ends it when a worker gets lost.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import logging
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Optional, overload

import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.executors import executor_base, executor_value_base

from tffcl import errors
from tffcl.runtime import values
from tffcl.runtime import worker as worker_lib
from tffcl.runtime.distributed import Cohort, DistributedPlanner, ingest, take_parts, to_python
from tffcl.runtime.executor import (
    Deadline,
    Recent,
    WorkerConnection,
    WorkerExecutor,
    WorkerExecutorFactory,
    WorkerLost,
    WorkerStub,
)
from tffcl.runtime.in_process_runtime import Plan
from tffcl.runtime.runtime import Runtime, compile_to_native

logger = logging.getLogger(__name__)

# A process has a handful of computations, each in a form of its own for no clients at all.
_MAX_KEPT_PLANS = 64


class DistributedExecutor(executor_base.Executor):
    """Runs computations over one cohort.

    Where clients may be missing and a worker gets lost, it recomputes everything that depends on its clients without
    them. The other clients' work is not done again: each part remembers what it was asked in this call. So the
    aggregate, and whatever follows from it, is that of the clients whose results are returned, and of no others.

    Where no client may be missing or none would be left, `WorkerLost` lets TFF call the computation again, with all
    clients on other workers. The same holds for a worker that is lost before its clients have begun.

    `workers` has the worker of each part, and perhaps others after them. `missing` gets the indices of the clients that
    the call has ended without; it is None where there may be none. The deadline begins again for what is left to do.
    """

    def __init__(
        self,
        cohort: Cohort,
        plan: Callable[[Any], Plan],
        workers: Sequence[WorkerConnection],
        deadline: Deadline,
        missing: Optional[list[int]],
    ) -> None:
        if missing is not None:
            cohort = dataclasses.replace(cohort, parts=[_RememberingPart(part) for part in cohort.parts])
        self._cohort, self._plan = cohort, plan
        self._workers, self._deadline, self._missing = workers, deadline, missing

    async def create_value(self, value: Any, type_spec: Any = None) -> DistributedValue:
        """A value spread over the workers, or the plan of a computation."""
        if isinstance(value, tff.framework.ConcreteComputation):
            return DistributedValue(self._plan(value), value.type_signature)
        return DistributedValue(ingest(self._cohort, value, type_spec), type_spec)

    async def create_call(self, comp: DistributedValue, arg: Optional[DistributedValue] = None) -> DistributedValue:
        """Runs a computation to its end, with all clients or with those that are left; gives its result in Python."""
        type_spec, parts = comp.type_signature.result, list(range(len(self._cohort.parts)))
        while True:
            try:
                cohort = self._cohort_of(parts)
                argument = [] if arg is None else [take_parts(arg.reference, parts)]
                result = comp.reference(cohort, {}).call(*argument)
                result = to_python(cohort, result, type_spec)
                break
            except WorkerLost:
                left = [part for part in parts if self._workers[part].reason is None]
                if self._missing is None or not left or left == parts:
                    raise
                parts = left
                self._deadline.start()
        if self._missing is not None:
            self._missing[:] = self._clients_without(parts)
        return DistributedValue(result, type_spec)

    def _cohort_of(self, parts: Sequence[int]) -> Cohort:
        whole = self._cohort
        if len(parts) == len(whole.parts):
            return whole
        executors, sizes = [whole.parts[part] for part in parts], [whole.sizes[part] for part in parts]
        return Cohort(self._workers[parts[0]].executors.get(0), executors, sizes, whole.pool)

    def _clients_without(self, parts: Sequence[int]) -> list[int]:
        sizes = self._cohort.sizes
        owners = [part for part, size in enumerate(sizes) for _ in range(size)]
        missing = [client for client, part in enumerate(owners) if part not in parts]
        if missing:
            logger.warning("%d of %d clients are left out: their worker got lost", len(missing), len(owners))
        return missing

    async def create_struct(self, elements: Any) -> DistributedValue:
        items = tff.structure.to_elements(tff.structure.from_container(elements))
        types = [(name, item.type_signature) if name else item.type_signature for name, item in items]
        return DistributedValue(tuple(item.reference for _, item in items), tff.StructType(types))

    async def create_selection(self, source: DistributedValue, index: int) -> DistributedValue:
        value = source.reference
        element = value[index] if isinstance(value, tuple) else value.element(self._cohort, index)
        return DistributedValue(element, source.type_signature[index])

    def close(self) -> None:
        """Nothing: the workers' executors are their own."""


class DistributedValue(executor_value_base.ExecutorValue):
    """A value of a cohort, a plan, or the result of a call."""

    def __init__(self, value: Any, type_spec: tff.Type) -> None:
        self._value, self._type_spec = value, type_spec

    @property
    def type_signature(self) -> tff.Type:
        return self._type_spec

    @property
    def reference(self) -> Any:
        return self._value

    async def compute(self) -> Any:
        return self._value


class _RememberingPart:
    """A part of the clients whose worker is asked everything once in a call: the same question has the same answer.

    It keeps every value of the call in the worker until the call ends.
    """

    def __init__(self, executor: WorkerExecutor) -> None:
        self._executor = executor
        self.create, self.fetch = executor.create, executor.fetch
        self._answers: dict[Hashable, tuple[Any, Any]] = {}

    def create_encoded(self, value: bytes, type_spec: tff.Type) -> Any:
        key = ("value", hashlib.blake2b(value).digest(), type_spec)
        return self._once(key, None, lambda: self._executor.create_encoded(value, type_spec))

    def call(self, computation: Any, *argument: Any) -> Any:
        key = ("call", id(computation), *map(id, argument))
        return self._once(key, (computation, argument), lambda: self._executor.call(computation, *argument))

    def struct(self, elements: Sequence[Any]) -> Any:
        key = ("struct", *map(id, elements))
        return self._once(key, elements, lambda: self._executor.struct(elements))

    def _once(self, key: Hashable, held: Any, make: Callable[[], Any]) -> Any:
        """The answer of a key; `held` lives as long as the entry, so that no other object gets its id."""
        if key not in self._answers:
            self._answers[key] = make(), held
        return self._answers[key][0]


class DistributedExecutorFactory(tff.framework.ExecutorFactory):
    """Executors over all workers that are there.

    TFF calls a computation again, with a new executor from here, when a worker gets lost. A computation is a pure
    function of its arguments, so nothing is counted twice.

    Attributes:
      missing: None while no client may be missing from a call. A list lets calls end without the clients of lost
        workers, whose indices among the call's clients are then its content.
    """

    def __init__(self, workers: Sequence[WorkerConnection], deadline: Deadline, default_num_clients: int = 0) -> None:
        self._workers, self._deadline = workers, deadline
        self.default_num_clients = default_num_clients
        self.missing: Optional[list[int]] = None
        self._pool = concurrent.futures.ThreadPoolExecutor(len(workers), "tffcl-part")
        self._planner = DistributedPlanner()
        self._plans: Recent[tuple[Any, Plan]] = Recent(_MAX_KEPT_PLANS)

    def create_executor(self, cardinalities: tff.framework.CardinalitiesType) -> DistributedExecutor:
        """An executor for these numbers of participants; RunError if no worker is left, WorkerLost if one is gone."""
        for worker in self._workers:
            worker.revive()
        present = [worker for worker in self._workers if worker.reason is None]
        if not present:
            lost = "; ".join(f"{worker.address}: {worker.reason}" for worker in self._workers)
            raise errors.RunError(f"lost all workers ({lost})")
        self._deadline.start()
        sizes = self._sizes(cardinalities, len(present))
        parts = [worker.executors.get(size) for worker, size in zip(present, sizes)]
        cohort = Cohort(present[0].executors.get(0), parts, sizes, self._pool)
        return DistributedExecutor(cohort, self._plan, present, self._deadline, self.missing)

    def clean_up_executor(self, cardinalities: tff.framework.CardinalitiesType) -> None:
        """Frees what the workers hold of a call that failed."""
        for worker in self._workers:
            if worker.reason is None:
                for size in {0, *self._sizes(cardinalities, len(self._workers))}:
                    worker.executors.forget(size)

    def _sizes(self, cardinalities: tff.framework.CardinalitiesType, num_workers: int) -> list[int]:
        """Clients of each worker, contiguous and as equal as can be; workers without clients have no part."""
        whole, more = divmod(cardinalities.get(tff.CLIENTS, self.default_num_clients), num_workers)
        return [size for size in (whole + (index < more) for index in range(num_workers)) if size]

    def _plan(self, computation: Any) -> Plan:
        # An entry holds its computation, so that no other object gets the same id.
        return self._plans.get(
            id(computation), lambda: (computation, self._planner.plan(computation.to_building_block()))
        )[1]

    def close(self) -> None:
        """Ends the threads, once nothing is waited for."""
        self._pool.shutdown(wait=False)


# A stopped or cut-off worker is lost after at most the sum of the two.
_PROBE_EVERY_SECONDS = 10.0
_PATIENCE_SECONDS = 60.0
_START_SECONDS = 10.0

Event = dict[str, str]

ON_LOST_WORKER = ("retry", "leave-out")


class WorkerContext(tff.framework.SyncExecutionContext):
    """TFF's execution context over executors that use workers; entries of arguments go by their names."""

    def __init__(self, factory: tff.framework.ExecutorFactory, remote: Optional[RemoteRuntime] = None) -> None:
        self.remote = remote
        super().__init__(
            executor_fn=factory,
            compiler_fn=compile_to_native,
            transform_args=tff.tensorflow.transform_args,
            transform_result=tff.tensorflow.transform_result,
        )

    def invoke(self, comp: Any, arg: Any) -> Any:
        """Runs a computation, as TFF does; an ArgumentError if entries of the argument are not those of its type."""
        if comp.type_signature.parameter is not None:
            values.check_entries(arg, comp.type_signature.parameter)
        return super().invoke(comp, arg)


class LocalRuntime(Runtime):
    """A worker on this machine together with the TFF context that uses it; closing it ends the worker.

    Shown with `local`.
    """

    def __init__(
        self, num_threads: Optional[int] = None, repeatable: bool = True, default_num_clients: int = 0
    ) -> None:
        """Starts the worker, which takes about a second. See `local`."""
        errors.check_whole("default_num_clients", default_num_clients, 0)
        self.worker = worker_lib.start(num_threads, repeatable)
        self._stub = WorkerStub(self.worker.address, self._lost)
        super().__init__(WorkerContext(WorkerExecutorFactory(self._stub, default_num_clients)))

    def _lost(self, reason: str) -> errors.RunError:
        return errors.RunError(f"lost the worker during a computation: {self.worker.describe()}")

    def close(self) -> None:
        """Ends the worker; computations in this runtime's context then raise `RunError`."""
        self._stub.close()
        self.worker.close()


class RemoteRuntime(Runtime):
    """Spreads the clients of every computation over workers: `with tffcl.runtime.remote(["a:9000", "b:9000"]): ...`.

    Each worker (`tffcl worker`) has a contiguous part of the clients; partial aggregates are merged by the computation
    that the aggregator has for it. A step at the server runs in the first worker. A worker that dies, hangs or is cut
    off is not asked any more, and the computation in which that happened runs again, whole, on the others; once it
    answers again it takes part in the next one.

    Leaving the `with` block restores the context before it, and leaves the workers running.

    Shown in docs/runtime.md.

    Attributes:
      events: Every loss of a worker so far: `worker` (its address) and `reason`.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        call_timeout: Optional[float] = None,
        on_failure: Optional[Callable[[Event], None]] = None,
        patience: float = _PATIENCE_SECONDS,
        on_lost_worker: str = "retry",
        default_num_clients: int = 0,
    ) -> None:
        """Connects to the workers.

        Args:
          addresses: `host:port` of each worker.
          call_timeout: Seconds within which a computation has to be done; a worker that is not is lost. None for as
            long as it takes.
          on_failure: Called, in any thread, with the `worker` and the `reason` when one gets lost.
          patience: Seconds within which a worker has to answer a probe.
          on_lost_worker: "retry", or "leave-out": a computation that allows it (`allow_missing_clients`; a program's
            rounds do) ends without the clients of a worker that got lost after they had begun. Others are retried.
          default_num_clients: See `local`.

        Raises:
          InputError: An argument cannot be used, such as an address that is none.
          RunError: A worker that does not answer.
        """
        worker_lib.check_addresses(addresses)
        errors.check_above_zero("patience", patience)
        if call_timeout is not None:
            errors.check_above_zero("call_timeout", call_timeout)
        errors.check_whole("default_num_clients", default_num_clients, 0)
        errors.check_choice("on_lost_worker", on_lost_worker, ON_LOST_WORKER)
        for address in addresses:
            reason = worker_lib.probe(address, _START_SECONDS)
            if reason is not None:
                raise errors.RunError(f"no worker answers at {address} ({reason}): start it with `tffcl worker`")
        self.events: list[Event] = []
        self.num_taken = 0  # of the events, by `take_worker_failures`
        self.may_leave_out = on_lost_worker == "leave-out"
        self._on_failure = on_failure
        deadline = Deadline(call_timeout)
        self.workers = [WorkerConnection(address, deadline, self._lose) for address in addresses]
        self.factory = DistributedExecutorFactory(self.workers, deadline, default_num_clients)
        super().__init__(WorkerContext(self.factory, self))
        for worker in self.workers:
            watch = functools.partial(worker.watch, min(_PROBE_EVERY_SECONDS, patience), patience)
            threading.Thread(target=watch, name="tffcl-watch", daemon=True).start()

    def _lose(self, address: str, reason: str) -> None:
        event = {"worker": address, "reason": reason}
        others = "" if self.may_leave_out else "; its clients go to the others"
        logger.warning("lost the worker at %s (%s)%s", address, reason, others)
        self.events.append(event)
        if self._on_failure is not None:
            self._on_failure(event)

    def close(self) -> None:
        """Closes the connections; computations in this runtime's context then raise `RunError`."""
        for worker in self.workers:
            worker.close("this runtime is closed")
        self.factory.close()


class LocalWorkers(RemoteRuntime):
    """Workers on this machine together with the TFF context that uses them; closing it ends them.

    Shown with `local`.
    """

    def __init__(
        self, num_workers: int, num_threads: Optional[int] = None, repeatable: bool = True, **options: Any
    ) -> None:
        """Starts the workers. See `local`; `options` are those of `RemoteRuntime`."""
        errors.check_whole("num_workers", num_workers, 1)
        with contextlib.ExitStack() as started:
            self.processes = [
                started.enter_context(worker_lib.start(num_threads, repeatable)) for _ in range(num_workers)
            ]
            super().__init__([process.address for process in self.processes], **options)
            for worker, process in zip(self.workers, self.processes):
                worker.describe = process.describe
            started.pop_all()

    def close(self) -> None:
        """Ends the workers."""
        super().close()
        for process in self.processes:
            process.close()


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

    Shown in docs/runtime.md.

    Args:
      num_threads: Threads that a worker may use; None leaves it to TensorFlow.
      num_workers: With more than one, the clients of a computation are spread over them as `remote` does it.
      repeatable: Whether all results repeat to the bit; then operations that draw without a seed or read the clock are
        refused. The noise of differential privacy needs False. TF_DETERMINISTIC_OPS in the environment goes before it.
      default_num_clients: Number of clients of a computation whose arguments have no values at the clients.

    Returns:
      A runtime; leaving its `with` block restores the context before it and ends the worker.

    Raises:
      InputError: If there cannot be so many threads, workers or clients.
      RunError: If the worker cannot be started.
    """
    if num_workers == 1:
        return LocalRuntime(num_threads, repeatable, default_num_clients)
    return LocalWorkers(num_workers, num_threads, repeatable, default_num_clients=default_num_clients)


def set_local(
    num_threads: Optional[int] = None, *, repeatable: bool = True, default_num_clients: int = 0
) -> LocalRuntime:
    """Makes a worker on this machine TFF's default context; it ends with this process at the latest. See `local`.

    Shown in docs/runtime.md.
    """
    return LocalRuntime(num_threads, repeatable, default_num_clients).set_default()


remote = RemoteRuntime


@contextlib.contextmanager
def allow_missing_clients() -> Iterator[list[int]]:
    """Lets the one computation that is called inside end without clients whose worker gets lost.

    It does so where the runtime was made with `on_lost_worker="leave-out"`. Its aggregates, and all that follows from
    them, are then those of the other clients, and lists of values at the clients have no place for the missing ones:

        with runtime.allow_missing_clients() as missing:
            state, values = computation(state, data)
        reported = [client for index, client in enumerate(clients) if index not in missing]

    Shown in docs/runtime.md.

    Yields:
      The indices of the missing clients among those of the call, once it has ended.
    """
    missing: list[int] = []
    remote = getattr(tff.framework.get_context_stack().current, "remote", None)
    if remote is None or not remote.may_leave_out:
        yield missing
        return
    remote.factory.missing = missing
    try:
        yield missing
    finally:
        remote.factory.missing = None


def take_worker_failures() -> list[Event]:
    """Workers that got lost since this was last called, in the installed context; none in contexts of one worker.

    Shown with `RemoteRuntime`.
    """
    runtime = getattr(tff.framework.get_context_stack().current, "remote", None)
    if runtime is None:
        return []
    failures = runtime.events[runtime.num_taken :]
    runtime.num_taken += len(failures)
    return failures
