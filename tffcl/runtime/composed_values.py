"""Values of one call that is spread over several workers, and their way in and out.

A value at the clients is a `Parts` (each worker holds its own clients') or, where all clients have the same, an
`Everyone`; a value at the server, or without a place, is a `ServerValue` or a tuple of such.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Optional

import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2
from tensorflow_federated.python.core.impl.executors import remote_executor

from tffcl import errors
from tffcl.runtime import limits, wire
from tffcl.runtime.executor import WorkerExecutor
from tffcl.runtime.values import Everyone


class PartExecutor(WorkerExecutor):
    """TFF's remote executor, called without a loop, and from the threads of a call.

    None of TFF's methods ever waits for a loop: they are coroutines by name only.
    """

    max_kept_computations = 256  # each step of a computation is one; the graphs in them are the same

    def create(self, value: Any, type_spec: tff.Type) -> Any:
        """A value, or a computation, in the worker."""
        return _now(self.create_value(value, type_spec))

    def create_encoded(self, value: bytes, type_spec: tff.Type) -> Any:
        """A value in the worker, from the bytes of an `executor_pb2.Value`."""
        self._check_has_executor_id()
        response = self._worker_stub.create_encoded_value(wire.request_of(self._executor_id, value, type_spec))
        return remote_executor.RemoteValue(response.value_ref, type_spec, self)

    def call(self, computation: Any, *argument: Any) -> Any:
        """What a computation gives in the worker, for an argument there; it need not be ready yet."""
        function = self.create(computation, computation.type_signature)
        return _now(self.create_call(function, *argument))

    def struct(self, elements: Any) -> Any:
        """A structure in the worker of values there."""
        return _now(self.create_struct(elements))

    def select(self, source: Any, index: int) -> Any:
        """An element of a structure in the worker."""
        return _now(self.create_selection(source, index))

    def _dispose(self, value_ref: Any, value_executor_id: Any) -> None:
        """Frees a value at once. Unlike TFF's, with no list that the threads would share."""
        if value_executor_id == self._executor_id and value_executor_id is not None:
            self._stub.dispose(executor_pb2.DisposeRequest(executor=value_executor_id, value_ref=[value_ref]))


@dataclasses.dataclass(frozen=True)
class Parts:
    """A value at the clients: for each worker, a reference to what its clients hold."""

    references: Sequence[Any]


class ServerValue:
    """A value at the server or without a place: as the user gave it, in bytes, or in the server's worker.

    One that was given, or is there in bytes, can move to another worker when the server's gets lost.
    """

    def __init__(
        self,
        kind: tff.Type,
        given: Any = None,
        data: Optional[bytes] = None,
        reference: Any = None,
        home: Optional[PartExecutor] = None,
    ):
        self.kind, self._given, self._data, self._reference, self._home = kind, given, data, reference, home

    def data(self, cohort: Cohort) -> bytes:
        """The bytes of an `executor_pb2.Value`."""
        if self._data is None:
            if self._reference is None:
                self._data = wire.encode_value(self._given, self.kind)
            else:
                self._data = cohort.server.fetch(self._reference.reference).SerializeToString()
        return self._data

    def reference(self, cohort: Cohort) -> Any:
        """The value in the server's worker."""
        if self._reference is None and self._data is None:  # a large structure goes in parts
            self._reference = cohort.server.create(self._given, self.kind)
        elif self._reference is None or self._home is not cohort.server:
            self._reference = cohort.server.create_encoded(self.data(cohort), self.kind)
        self._home = cohort.server
        return self._reference

    def element(self, cohort: Cohort, index: int) -> ServerValue:
        """An element of a structure."""
        kind = self.kind[index]
        if self._reference is None and self._data is None:
            return ServerValue(kind, given=tff.structure.from_container(self._given)[index])
        chosen = cohort.server.select(self.reference(cohort), index)
        return ServerValue(kind, reference=chosen, home=cohort.server)


@dataclasses.dataclass(frozen=True)
class Cohort:
    """What the steps of one call share: who computes, and which clients are whose.

    Attributes:
      server: Computes what is at the server.
      parts: Computes what is at the clients; none of them is without clients.
      sizes: How many clients each part has, in order.
      pool: Threads, at least one for each part.
    """

    server: PartExecutor
    parts: Sequence[Any]
    sizes: Sequence[int]
    pool: concurrent.futures.Executor

    @property
    def num_clients(self) -> int:
        """Number of clients of all parts."""
        return sum(self.sizes)

    def each(self, function: Callable[..., Any], *arguments: Sequence[Any]) -> list:
        """The function's results for all parts at the same time, each with its own of the arguments."""
        futures = [self.pool.submit(function, *given) for given in zip(self.parts, *arguments)]
        concurrent.futures.wait(futures)  # nothing is left running when an error is raised
        return [future.result() for future in futures]


def ingest(cohort: Cohort, value: Any, kind: tff.Type) -> Any:
    """A value that TFF passes to an executor.

    Raises:
      ArgumentError: If it does not fit its type.
    """
    if isinstance(kind, tff.StructType) and _has_places(kind):
        items = list(tff.structure.from_container(value))
        if len(items) != len(kind):
            raise errors.ArgumentError(f"expected a structure of {len(kind)} elements, found {len(items)}")
        return tuple(ingest(cohort, item, each) for item, each in zip(items, kind))
    if not isinstance(kind, tff.FederatedType):
        return ServerValue(kind, given=value)
    if kind.placement is tff.SERVER:
        return ServerValue(kind.member, given=value)
    if kind.all_equal:
        return Everyone(ServerValue(kind.member, given=value))
    if not isinstance(value, (list, tuple)):
        raise errors.ArgumentError(f"expected a list with a value for each client, found {type(value).__name__}")
    members, slices = list(value), []
    for size in cohort.sizes:
        slices.append(members[:size])
        members = members[size:]
    return Parts(cohort.each(lambda part, own: part.create(own, kind), slices))


def of_parts(value: Any, places: Sequence[int]) -> Any:
    """A value that was ingested, as it is without all parts but those at some places of the cohort."""
    if isinstance(value, tuple):
        return tuple(of_parts(item, places) for item in value)
    return Parts([value.references[place] for place in places]) if isinstance(value, Parts) else value


def _has_places(kind: tff.Type) -> bool:
    if isinstance(kind, tff.StructType):
        return any(map(_has_places, kind))
    return isinstance(kind, tff.FederatedType)


def data_of(cohort: Cohort, value: Any, kind: tff.Type) -> bytes:
    """The bytes of a value at the server."""
    if isinstance(value, ServerValue):
        return value.data(cohort)
    pairs = zip(value, tff.structure.iter_elements(kind))
    return wire.encode_struct((name, data_of(cohort, item, each)) for item, (name, each) in pairs)


def reference_of(cohort: Cohort, value: Any) -> Any:
    """A value at the server, in its worker."""
    if isinstance(value, ServerValue):
        return value.reference(cohort)
    return cohort.server.struct([reference_of(cohort, item) for item in value])


def references_in_parts(cohort: Cohort, value: Any, kind: tff.Type) -> list:
    """A value, for each part where it is: what is not at the clients goes to every part.

    Args:
      cohort: The parts.
      value: Any value.
      kind: Its type.
    """
    if isinstance(value, Parts):
        return list(value.references)
    if isinstance(kind, tff.StructType) and isinstance(value, tuple):
        kinds = list(kind)
        columns = [references_in_parts(cohort, item, each) for item, each in zip(value, kinds)]
        rows = list(zip(*columns)) if columns else [()] * len(cohort.parts)
        return cohort.each(lambda part, row: part.struct(row), rows)
    if isinstance(kind, tff.FederatedType):
        member = value.member if isinstance(value, Everyone) else value
        whole = tff.FederatedType(kind.member, kind.placement, all_equal=True)
        data = wire.encode_placed(data_of(cohort, member, kind.member), whole)
        return cohort.each(lambda part: part.create_encoded(data, whole))
    data = data_of(cohort, value, kind)
    return cohort.each(lambda part: part.create_encoded(data, kind))


def to_python(cohort: Cohort, value: Any, kind: tff.Type) -> Any:
    """A value in the form in which TFF's executors give it; waits until it is ready."""
    if isinstance(kind, tff.FederatedType):
        if isinstance(value, Parts):
            one = tff.FederatedType(kind.member, kind.placement)
            fetched = cohort.each(lambda part, own: wire.decode_value(part.fetch(own.reference), one), value.references)
            return [member for members in fetched for member in members]
        member = to_python(cohort, value.member if isinstance(value, Everyone) else value, kind.member)
        return member if kind.all_equal else [member] * cohort.num_clients
    if isinstance(value, ServerValue) and limits.comes_in_parts(kind):
        value = tuple(value.element(cohort, index) for index in range(len(kind)))
    if isinstance(value, tuple):
        pairs = zip(value, tff.structure.iter_elements(kind))
        return tff.structure.Struct((name, to_python(cohort, item, each)) for item, (name, each) in pairs)
    return wire.decode_value(executor_pb2.Value.FromString(value.data(cohort)), kind)


def _now(coroutine: Coroutine) -> Any:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    coroutine.close()
    raise RuntimeError("a coroutine of TFF's remote executor waits for a loop; this release of TFF is not supported")
