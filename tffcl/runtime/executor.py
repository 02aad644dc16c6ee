"""A remote executor that moves large arrays in one copy and sends a computation to its worker once."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2
from tensorflow_federated.python.core.impl.executors import remote_executor

from tffcl.runtime import limits, stubs, wire

# One for each number of clients that was seen lately.
_MAX_EXECUTORS = 10


class WorkerExecutor(tff.framework.RemoteExecutor):
    """TFF's remote executor with a faster way in; what it computes is the same."""

    # Each is a graph that the worker keeps in memory; a process has a handful of computations.
    max_kept_computations = 16

    def __init__(self, stub: stubs.WorkerStub) -> None:
        # Every value is freed as soon as nobody needs it: batches of them would keep megabytes each.
        super().__init__(stub, dispose_batch_size=1)
        self._worker_stub = stub
        self._kept: OrderedDict[int, tuple[Any, Any]] = OrderedDict()

    async def create_value(self, value: Any, type_spec: Any = None) -> Any:
        """Creates a value in the worker.

        Args:
          value: A computation, or a value of type `type_spec`.
          type_spec: Type of the value; None only for a computation.

        Raises:
          MessageTooLarge: The value, or one element of a structure, is larger than a message can be.
        """
        self._check_has_executor_id()
        if isinstance(value, tff.framework.ConcreteComputation):
            return await self._create_computation(value, type_spec)
        if type_spec is None or isinstance(type_spec, tff.FunctionType):
            return await super().create_value(value, type_spec)
        try:
            request = wire.encode_create_value(self._executor_id, value, type_spec)
        except limits.MessageTooLarge:
            if not isinstance(type_spec, tff.StructType):
                raise
            return await self._create_in_parts(value, type_spec)
        response = self._worker_stub.create_encoded_value(request)
        return remote_executor.RemoteValue(response.value_ref, type_spec, self)

    def fetch(self, value_ref: Any) -> executor_pb2.Value:
        """A value that is in the worker; waits until it is ready."""
        self._check_has_executor_id()
        request = executor_pb2.ComputeRequest(executor=self._executor_id, value_ref=value_ref)
        return self._stub.compute(request).value

    async def _compute(self, value_ref: Any, type_spec: tff.Type) -> Any:
        if limits.comes_in_parts(type_spec):
            return await self._compute_stream_structs(value_ref, type_spec)
        return wire.decode_value(self.fetch(value_ref), type_spec)

    def close(self) -> None:
        """Frees everything that the worker holds for this executor."""
        self._kept.clear()
        super().close()

    async def _create_in_parts(self, value: Any, type_spec: tff.StructType) -> Any:
        """A structure whose elements go one by one, and are put together in the worker."""
        values = tff.structure.from_container(value)
        kinds = tff.structure.to_elements(type_spec)
        parts = [(name, await self.create_value(values[number], kind)) for number, (name, kind) in enumerate(kinds)]
        return await self.create_struct(tff.structure.Struct(parts))

    async def _create_computation(self, computation: Any, type_spec: Any) -> Any:
        """The computation as it stands in the worker; one that the worker has is not sent again."""
        key = id(computation)  # stays its own as long as the entry holds the computation
        if key not in self._kept:
            self._kept[key] = computation, await super().create_value(computation, type_spec)
            if len(self._kept) > self.max_kept_computations:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key][1]


class WorkerExecutorFactory(tff.framework.ExecutorFactory):
    """Executors by number of clients; unlike in TFF's own factory, one that is dropped is also closed.

    Args:
      stub: Of the worker.
      default_num_clients: Number of clients where a computation's argument does not tell it.
    """

    executor_class = WorkerExecutor

    def __init__(self, stub: stubs.WorkerStub, default_num_clients: int = 0) -> None:
        self._stub, self.default_num_clients = stub, default_num_clients
        self._executors: OrderedDict[Any, Any] = OrderedDict()

    def create_executor(self, cardinalities: tff.framework.CardinalitiesType) -> Any:
        """The executor for these numbers of participants, made where there is none yet."""
        key = self._key(cardinalities)
        if key not in self._executors:
            executor = self.executor_class(self._stub)
            executor.set_cardinalities(dict(key))
            self._executors[key] = executor
            if len(self._executors) > _MAX_EXECUTORS:
                self._executors.popitem(last=False)[1].close()
        self._executors.move_to_end(key)
        return self._executors[key]

    def clean_up_executor(self, cardinalities: tff.framework.CardinalitiesType) -> None:
        """Closes the executor for these numbers of participants, if there is one."""
        executor = self._executors.pop(self._key(cardinalities), None)
        if executor is not None:
            executor.close()

    def _key(self, cardinalities: tff.framework.CardinalitiesType) -> tuple[tuple[Any, int], ...]:
        # Arguments without values at the clients say nothing about their number.
        found = {tff.CLIENTS: self.default_num_clients, **cardinalities}
        return tuple(sorted(found.items(), key=lambda item: item[0].uri))
