"""Values of one call whose clients are spread over several workers, and their way in and out.

A value at the clients is a `Parts` (each worker holds its own clients') or, where all clients have the same, an
`Everyone`; a value at the server, or without a placement, is a `ServerValue` or a tuple of such.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Optional

import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2
from tensorflow_federated.python.core.impl.types import type_analysis

from tffcl import errors
from tffcl.runtime import wire
from tffcl.runtime.executor import WorkerExecutor
from tffcl.runtime.values import Everyone


@dataclasses.dataclass(frozen=True)
class Cohort:
    """The workers of one call, and the division of its clients.

    Attributes:
      server: Computes what is at the server.
      parts: The executors of the clients' workers; none of them is without clients.
      sizes: How many clients each part has, in order.
      pool: Threads, at least one for each part.
    """

    server: WorkerExecutor
    parts: Sequence[Any]
    sizes: Sequence[int]
    pool: concurrent.futures.Executor

    @property
    def num_clients(self) -> int:
        return sum(self.sizes)

    def each(self, function: Callable[..., Any], *arguments: Sequence[Any]) -> list:
        """The function's results for all parts at the same time, each with its own of the arguments."""
        futures = [self.pool.submit(function, *own) for own in zip(self.parts, *arguments)]
        concurrent.futures.wait(futures)  # nothing is left running when an error is raised
        return [future.result() for future in futures]


@dataclasses.dataclass(frozen=True)
class Parts:
    """A value at the clients: for each worker, a reference to its clients' values."""

    references: Sequence[Any]


@dataclasses.dataclass
class ServerValue:
    """A value at the server or without a placement: as the user passed it, in bytes, or in the server's worker.

    One that was passed, or is there in bytes, can move to another worker when the server's gets lost.
    """

    type_spec: tff.Type
    value: Any = None
    data: Optional[bytes] = None
    reference: Any = None
    home: Optional[WorkerExecutor] = None

    def encoded(self, cohort: Cohort) -> bytes:
        """The bytes of an `executor_pb2.Value`."""
        if self.data is None and self.reference is None:
            self.data = wire.encode_value(self.value, self.type_spec)
        elif self.data is None:
            self.data = cohort.server.fetch(self.reference.reference).SerializeToString()
        return self.data

    def remote(self, cohort: Cohort) -> Any:
        """The value in the server's worker."""
        if self.reference is None and self.data is None:  # a large structure goes in parts
            self.reference = cohort.server.create(self.value, self.type_spec)
        elif self.reference is None or self.home is not cohort.server:
            self.reference = cohort.server.create_encoded(self.encoded(cohort), self.type_spec)
        self.home = cohort.server
        return self.reference

    def element(self, cohort: Cohort, index: int) -> ServerValue:
        type_spec = self.type_spec[index]
        if self.reference is None and self.data is None:
            return ServerValue(type_spec, tff.structure.from_container(self.value)[index])
        return ServerValue(type_spec, reference=cohort.server.select(self.remote(cohort), index), home=cohort.server)


def ingest(cohort: Cohort, value: Any, type_spec: tff.Type) -> Any:
    """A value that TFF passes to an executor; an ArgumentError if it does not fit its type."""
    if isinstance(type_spec, tff.StructType) and type_analysis.contains_federated_types(type_spec):
        items = zip(tff.structure.from_container(value), type_spec)  # their entries have been checked
        return tuple(ingest(cohort, item, element) for item, element in items)
    if not isinstance(type_spec, tff.FederatedType):
        return ServerValue(type_spec, value)
    if type_spec.placement is tff.SERVER:
        return ServerValue(type_spec.member, value)
    if type_spec.all_equal:
        return Everyone(ServerValue(type_spec.member, value))
    if not isinstance(value, (list, tuple)):
        raise errors.ArgumentError(f"expected a list with a value for each client, found {type(value).__name__}")
    members = iter(value)
    slices = [list(itertools.islice(members, size)) for size in cohort.sizes]
    return Parts(cohort.each(lambda part, own: part.create(own, type_spec), slices))


def take_parts(value: Any, indices: Sequence[int]) -> Any:
    """An ingested value without all parts of the cohort but some."""
    if isinstance(value, tuple):
        return tuple(take_parts(item, indices) for item in value)
    return Parts([value.references[index] for index in indices]) if isinstance(value, Parts) else value


def encode(cohort: Cohort, value: Any, type_spec: tff.Type) -> bytes:
    """The bytes of a value at the server."""
    if isinstance(value, ServerValue):
        return value.encoded(cohort)
    pairs = zip(value, tff.structure.iter_elements(type_spec))
    return wire.encode_struct((name, encode(cohort, item, element)) for item, (name, element) in pairs)


def at_server(cohort: Cohort, value: Any) -> Any:
    """A value at the server, in its worker."""
    if isinstance(value, ServerValue):
        return value.remote(cohort)
    return cohort.server.struct([at_server(cohort, item) for item in value])


def in_parts(cohort: Cohort, value: Any, type_spec: tff.Type) -> list:
    """A value, for each part in its worker: one that is not at the clients goes to every part."""
    if isinstance(value, Parts):
        return list(value.references)
    if isinstance(type_spec, tff.StructType) and isinstance(value, tuple):
        columns = [in_parts(cohort, item, element) for item, element in zip(value, type_spec)]
        rows = list(zip(*columns)) if columns else [()] * len(cohort.parts)
        return cohort.each(lambda part, row: part.struct(row), rows)
    if isinstance(type_spec, tff.FederatedType):
        member = value.member if isinstance(value, Everyone) else value
        whole = tff.FederatedType(type_spec.member, type_spec.placement, all_equal=True)
        data = wire.encode_placed(encode(cohort, member, type_spec.member), whole)
        return cohort.each(lambda part: part.create_encoded(data, whole))
    data = encode(cohort, value, type_spec)
    return cohort.each(lambda part: part.create_encoded(data, type_spec))


def to_python(cohort: Cohort, value: Any, type_spec: tff.Type) -> Any:
    """A value in the form in which TFF's executors give it; waits until it is ready."""
    if isinstance(type_spec, tff.FederatedType):
        if isinstance(value, Parts):
            of_part = tff.FederatedType(type_spec.member, type_spec.placement)
            fetched = cohort.each(
                lambda part, own: wire.decode_value(part.fetch(own.reference), of_part), value.references
            )
            return [member for members in fetched for member in members]
        member = to_python(cohort, value.member if isinstance(value, Everyone) else value, type_spec.member)
        return member if type_spec.all_equal else [member] * cohort.num_clients
    if isinstance(value, ServerValue) and wire.comes_in_parts(type_spec):
        value = tuple(value.element(cohort, index) for index in range(len(type_spec)))
    if isinstance(value, tuple):
        pairs = zip(value, tff.structure.iter_elements(type_spec))
        return tff.structure.Struct((name, to_python(cohort, item, element)) for item, (name, element) in pairs)
    return wire.decode_value(executor_pb2.Value.FromString(value.encoded(cohort)), type_spec)
