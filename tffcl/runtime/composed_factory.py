"""Which workers a call is spread over, and what becomes of it when one gets lost."""

from __future__ import annotations

import concurrent.futures
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Optional

import tensorflow_federated as tff

from tffcl import errors
from tffcl.runtime.composed_executor import ComposedExecutor
from tffcl.runtime.composed_plans import ComposedPlanner
from tffcl.runtime.composed_values import Cohort
from tffcl.runtime.leaving_out import LeavingOutExecutor
from tffcl.runtime.plans import Plan
from tffcl.runtime.remote_workers import Deadline, RemoteWorker

# A process has a handful of computations, each in a form of its own for no clients at all.
_MAX_KEPT_PLANS = 64


class ComposedExecutorFactory(tff.framework.ExecutorFactory):
    """Executors over all workers that are there.

    TFF calls a computation again, with a new executor from here, when a worker gets lost. A computation is a pure
    function of its arguments, so nothing is counted twice.

    Args:
      workers: The workers.
      deadline: Of a call.
      default_num_clients: Number of clients where a computation's argument does not tell it.

    Attributes:
      missing: None while no client may be missing from a call. A list lets calls end without the clients of lost
        workers, whose places among the call's clients are then its content.
    """

    def __init__(self, workers: Sequence[RemoteWorker], deadline: Deadline, default_num_clients: int = 0) -> None:
        self._workers, self._deadline = workers, deadline
        self.default_num_clients = default_num_clients
        self._pool = concurrent.futures.ThreadPoolExecutor(len(workers), "tffcl-part")
        self._planner = ComposedPlanner()
        self._plans: OrderedDict[int, tuple[Any, Plan]] = OrderedDict()
        self.missing: Optional[list[int]] = None

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
        sizes = _sizes(self._num_clients(cardinalities), len(present))
        parts = [worker.executor(size) for worker, size in zip(present, sizes)]
        cohort = Cohort(present[0].executor(0), parts, sizes, self._pool)
        if self.missing is None:
            return ComposedExecutor(cohort, self._plan)
        return LeavingOutExecutor(cohort, self._plan, present, self._deadline, self.missing)

    def clean_up_executor(self, cardinalities: tff.framework.CardinalitiesType) -> None:
        """Frees what the workers hold of a call that failed."""
        for worker in self._workers:
            if worker.reason is None:
                for size in {0, *_sizes(self._num_clients(cardinalities), len(self._workers))}:
                    worker.forget(size)

    def _num_clients(self, cardinalities: tff.framework.CardinalitiesType) -> int:
        return cardinalities.get(tff.CLIENTS, self.default_num_clients)

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
