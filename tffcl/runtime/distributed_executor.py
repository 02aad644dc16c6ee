"""Executors, in TFF's sense, that spread the clients of a call over workers, and end it when one gets lost."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Optional

import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.executors import executor_base, executor_value_base

from tffcl import errors
from tffcl.runtime import distributed_values
from tffcl.runtime.distributed_plans import DistributedPlanner
from tffcl.runtime.distributed_values import Cohort
from tffcl.runtime.executor import Deadline, Recent, WorkerConnection, WorkerExecutor, WorkerLost
from tffcl.runtime.plans import Plan

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

    Args:
      cohort: Workers and clients.
      plan: The plan of a computation.
      workers: The worker of each part, and perhaps others after them.
      deadline: Of the call; begins again for what is left to do without a lost worker.
      missing: Filled with the indices, among the clients of the call, of those that it has ended without; None where
        there may be none.
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
        return DistributedValue(distributed_values.ingest(self._cohort, value, type_spec), type_spec)

    async def create_call(self, comp: DistributedValue, arg: Optional[DistributedValue] = None) -> DistributedValue:
        """Runs a computation to its end, with all clients or with those that are left; gives its result in Python."""
        type_spec, parts = comp.type_signature.result, list(range(len(self._cohort.parts)))
        while True:
            try:
                cohort = self._cohort_of(parts)
                argument = [] if arg is None else [distributed_values.take_parts(arg.reference, parts)]
                result = comp.reference(cohort, {}).call(*argument)
                result = distributed_values.to_python(cohort, result, type_spec)
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
