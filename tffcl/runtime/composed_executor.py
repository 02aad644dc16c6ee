"""An executor, in TFF's sense, that spreads the clients of a call over workers."""

from __future__ import annotations

import concurrent.futures
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.executors import executor_base, executor_value_base

from tffcl import errors
from tffcl.runtime import composed_values as values
from tffcl.runtime.composed_plans import ComposedPlanner
from tffcl.runtime.composed_values import Cohort
from tffcl.runtime.plans import Plan
from tffcl.runtime.remote_workers import Deadline, RemoteWorker

# A process has a handful of computations, each in a form of its own for no clients at all.
_MAX_KEPT_PLANS = 64


class ComposedExecutor(executor_base.Executor):
    """Runs computations over one cohort."""

    def __init__(self, cohort: Cohort, plan: Callable[[Any], Plan]) -> None:
        self.cohort, self._plan = cohort, plan

    async def create_value(self, value: Any, type_spec: Any = None) -> _Value:
        """A value spread over the workers, or the plan of a computation."""
        if isinstance(value, tff.framework.ConcreteComputation):
            return _Value(self._plan(value)(self.cohort, {}), value.type_signature, self)
        return _Value(values.ingest(self.cohort, value, type_spec), type_spec, self)

    async def create_call(self, comp: _Value, arg: Any = None) -> _Value:
        """Runs a computation; what does not depend on results that have to move is not waited for."""
        given = () if arg is None else (arg.value,)
        return _Value(comp.value.call(*given), comp.type_signature.result, self)

    async def create_struct(self, elements: Any) -> _Value:
        """A structure of values."""
        items = tff.structure.to_elements(tff.structure.from_container(elements))
        kind = tff.StructType(
            [(name, each.type_signature) if name else each.type_signature for name, each in items]
        )
        return _Value(tuple(each.value for _, each in items), kind, self)

    async def create_selection(self, source: _Value, index: int) -> _Value:
        """An element of a structure."""
        value, kind = source.value, source.type_signature[index]
        chosen = value[index] if isinstance(value, tuple) else value.element(self.cohort, index)
        return _Value(chosen, kind, self)

    def close(self) -> None:
        """Nothing: the workers' executors are their own."""


class _Value(executor_value_base.ExecutorValue):
    """A value of a cohort, or a function."""

    def __init__(self, value: Any, kind: tff.Type, executor: ComposedExecutor) -> None:
        self.value, self._kind, self._executor = value, kind, executor

    @property
    def type_signature(self) -> tff.Type:
        return self._kind

    @property
    def reference(self) -> Any:
        return self.value

    async def compute(self) -> Any:
        return values.to_python(self._executor.cohort, self.value, self._kind)


class ComposedExecutorFactory(tff.framework.ExecutorFactory):
    """Executors over all workers that are there.

    TFF calls a computation again, with a new executor from here, when a worker gets lost. A computation is a pure
    function of its arguments, so nothing is counted twice.
    """

    def __init__(self, workers: Sequence[RemoteWorker], deadline: Deadline) -> None:
        self._workers, self._deadline = workers, deadline
        self._pool = concurrent.futures.ThreadPoolExecutor(len(workers), "tffcl-part")
        self._planner = ComposedPlanner()
        self._plans: OrderedDict[int, tuple[Any, Plan]] = OrderedDict()

    def create_executor(self, cardinalities: tff.framework.CardinalitiesType) -> ComposedExecutor:
        """An executor for these numbers of participants.

        Raises:
          RunError: No worker is left.
          WorkerLost: A worker is gone since it was last used.
        """
        for worker in self._workers:
            worker.revive()
        present = [worker for worker in self._workers if worker.reason is None]
        if not present:
            lost = "; ".join(f"{worker.address}: {worker.reason}" for worker in self._workers)
            raise errors.RunError(f"lost all workers ({lost})")
        self._deadline.start()
        sizes = _sizes(cardinalities.get(tff.CLIENTS, 0), len(present))
        parts = [worker.executor(size) for worker, size in zip(present, sizes)]
        return ComposedExecutor(Cohort(present[0].executor(0), parts, sizes, self._pool), self._plan)

    def clean_up_executor(self, cardinalities: tff.framework.CardinalitiesType) -> None:
        """Frees what the workers hold of a call that failed."""
        for worker in self._workers:
            if worker.reason is None:
                for size in {0, *_sizes(cardinalities.get(tff.CLIENTS, 0), len(self._workers))}:
                    worker.forget(size)

    def _plan(self, computation: Any) -> Plan:
        key = id(computation)  # stays its own as long as the entry holds the computation
        if key not in self._plans:
            self._plans[key] = computation, self._planner.plan(computation.to_building_block())
            if len(self._plans) > _MAX_KEPT_PLANS:
                self._plans.popitem(last=False)
        self._plans.move_to_end(key)
        return self._plans[key][1]

    def close(self) -> None:
        """Ends the threads, once nothing is waited for."""
        self._pool.shutdown(wait=False)


def _sizes(num_clients: int, num_workers: int) -> list[int]:
    """Clients of each worker, contiguous and as equal as can be; workers without clients have no part."""
    whole, more = divmod(num_clients, num_workers)
    return [size for size in (whole + (index < more) for index in range(num_workers)) if size]
