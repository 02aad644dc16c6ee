"""Computations whose clients are spread over several workers: their values, and plans of their steps.

What TFF's composing executor does (its wheel has none): a step at the clients becomes one small computation that every
worker runs over its own clients, an aggregation is finished by the computation that merges two partial results, and
a step at the server runs once, in one worker.

A value at the clients is a `Parts` (each worker holds its own clients') or, where all clients have the same, an
`Everyone`; a value at the server, or without a placement, is a `ServerValue` or a tuple of such.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2
from tensorflow_federated.python.core.impl.types import type_analysis

from tffcl import errors
from tffcl.runtime import wire
from tffcl.runtime.executor import WorkerExecutor
from tffcl.runtime.in_process_runtime import UNPLACED_INTRINSICS, Function, Plan, Planner
from tffcl.runtime.values import Everyone, is_all_equal, of_client


@dataclasses.dataclass(frozen=True)
class Cohort:
    """The workers of one call, and the division of its clients."""

    server: WorkerExecutor  # computes what is at the server
    parts: Sequence[Any]  # the executors of the clients' workers; none of them is without clients
    sizes: Sequence[int]  # how many clients each part has, in order
    pool: concurrent.futures.Executor  # at least one thread for each part

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


framework = tff.framework

Names = Mapping[str, Any]


class DistributedPlanner(Planner):
    """Makes plans over values of workers; what their steps share is a `Cohort`."""

    runtime = "a runtime of several workers"

    def _Call(self, block: Any) -> Plan:
        """Functions that an intrinsic takes stand in its call, since TFF's compiler writes it so."""
        if not isinstance(block.function, framework.Intrinsic):
            return super()._Call(block)
        uri = block.function.uri
        if uri in UNPLACED_INTRINSICS:
            run, argument = UNPLACED_INTRINSICS[uri], self.plan(block.argument)
            return lambda cohort, names: run(argument(cohort, names))
        if uri not in _INTRINSICS:
            raise errors.RunError(f"{self.runtime} has no {uri}")
        return _INTRINSICS[uri](self, block)

    def _Intrinsic(self, block: Any) -> Plan:
        raise errors.RunError(f"{self.runtime} cannot pass {block.uri} on as a value")

    def _CompiledComputation(self, block: Any) -> Plan:
        """The plan of a function without placements: it runs in the server's worker."""
        computation, type_spec = _computation(block), block.type_signature

        def run(cohort: Cohort, names: Names) -> Function:
            def call(*argument: Any) -> ServerValue:
                arguments = [at_server(cohort, each) for each in argument]
                result = cohort.server.call(computation, *arguments)
                return ServerValue(type_spec.result, reference=result, home=cohort.server)

            return Function(call, type_spec)

        return run

    def _Literal(self, block: Any) -> Plan:
        return lambda cohort, names: ServerValue(block.type_signature, block.value)

    def _Selection(self, block: Any) -> Plan:
        source, index = self.plan(block.source), block.as_index()

        def run(cohort: Cohort, names: Names) -> Any:
            value = source(cohort, names)
            return value.element(cohort, index) if isinstance(value, ServerValue) else value[index]

        return run

    def plans(self, blocks: list) -> list[Plan]:
        """The plans of several blocks."""
        return [self.plan(block) for block in blocks]

    def arguments(self, block: Any) -> list:
        """The blocks of an intrinsic's argument; a RunError where they do not stand in its call."""
        expected = block.function.type_signature.parameter
        if not isinstance(block.argument, framework.Struct) or len(block.argument) != len(expected):
            raise errors.RunError(f"{self.runtime} cannot run this call of {block.function.uri}")
        return list(block.argument)


def _computation(block: Any) -> Any:
    return framework.ConcreteComputation.from_building_block(block)


def _step(intrinsic: Any, make_argument: Callable[[Any], Any], type_spec: Any) -> Callable[..., list]:
    """An intrinsic as a computation of its own, which runs in each part on the values of that part.

    `make_argument` makes the intrinsic's argument of a reference to the values; without values `type_spec` is None.
    """
    name = None if type_spec is None else "values"
    argument = make_argument(None if type_spec is None else framework.Reference("values", type_spec))
    computation = _computation(framework.Lambda(name, type_spec, framework.Call(intrinsic, argument)))

    def run(cohort: Cohort, value: Any = None) -> list:
        if type_spec is None:
            return cohort.each(lambda part: part.call(computation))
        own = in_parts(cohort, value, type_spec)
        return cohort.each(lambda part, argument: part.call(computation, argument), own)

    return run


def _fields(values: Any, count: int) -> list:
    return [framework.Selection(values, index=index) for index in range(count)]


def _aggregate(planner: DistributedPlanner, block: Any) -> Plan:
    value, zero, accumulate, merge, report = planner.arguments(block)
    total = accumulate.type_signature.result
    identity = framework.Lambda("total", total, framework.Reference("total", total))
    functions, parameter = [accumulate, merge, identity], block.function.type_signature.parameter
    intrinsic_type = tff.FunctionType(
        tff.StructType([parameter[0], parameter[1], *[each.type_signature for each in functions]]),
        tff.FederatedType(total, tff.SERVER),
    )
    partial = _step(
        framework.Intrinsic("federated_aggregate", intrinsic_type),
        lambda own: framework.Struct([*_fields(own, 2), *functions]),
        tff.StructType([value.type_signature, zero.type_signature]),
    )
    placed, start, merging, reporting = planner.plans([value, zero, merge, report])

    def run(cohort: Cohort, names: Names) -> Any:
        first = start(cohort, names)
        merged: Optional[ServerValue] = None
        references = partial(cohort, (placed(cohort, names), first))
        for message in cohort.each(lambda part, own: part.fetch(own.reference).federated.value[0], references):
            of_part = ServerValue(total, data=message.SerializeToString())
            merged = of_part if merged is None else merging(cohort, names).call((merged, of_part))
        return reporting(cohort, names).call(first if merged is None else merged)

    return run


def _eval_at_clients(planner: DistributedPlanner, block: Any) -> Plan:
    evaluated = _step(block.function, lambda _: block.argument, None)
    return lambda cohort, names: Parts(evaluated(cohort))


def _map(planner: DistributedPlanner, block: Any) -> Plan:
    function, value = planner.arguments(block)
    mapped = _step(block.function, lambda own: framework.Struct([function, own]), value.type_signature)
    placed = planner.plan(value)
    return lambda cohort, names: Parts(mapped(cohort, placed(cohort, names)))


def _select(planner: DistributedPlanner, block: Any) -> Plan:
    """Every part gets the whole value to select from, and looks up what its own clients ask for."""
    *arguments, function = planner.arguments(block)
    selected = _step(
        block.function,
        lambda own: framework.Struct([*_fields(own, len(arguments)), function]),
        tff.StructType([each.type_signature for each in arguments]),
    )
    plans = planner.plans(arguments)
    return lambda cohort, names: Parts(selected(cohort, tuple(plan(cohort, names) for plan in plans)))


def _sequence(planner: DistributedPlanner, block: Any) -> Plan:
    """A step over a sequence without a placement, as a function of what is no function in its argument."""
    arguments = planner.arguments(block)
    kept = [each for each in arguments if not isinstance(each.type_signature, tff.FunctionType)]
    type_spec = tff.StructType([each.type_signature for each in kept])
    fields = iter(_fields(framework.Reference("values", type_spec), len(kept)))
    argument = framework.Struct([next(fields) if each in kept else each for each in arguments])
    function = planner._CompiledComputation(
        framework.Lambda("values", type_spec, framework.Call(block.function, argument))
    )
    plans = planner.plans(kept)
    return lambda cohort, names: function(cohort, names).call(tuple(plan(cohort, names) for plan in plans))


def _zip_at_clients(planner: DistributedPlanner, block: Any) -> Plan:
    value = planner.plan(block.argument)
    zipped = _step(block.function, lambda own: own, block.argument.type_signature)

    def run(cohort: Cohort, names: Names) -> Any:
        placed = value(cohort, names)
        return Everyone(of_client(placed, 0)) if is_all_equal(placed) else Parts(zipped(cohort, placed))

    return run


_INTRINSICS: dict[str, Callable[[DistributedPlanner, Any], Plan]] = {
    "federated_aggregate": _aggregate,
    "federated_eval_at_clients": _eval_at_clients,
    "federated_map": _map,
    "federated_select": _select,
    "federated_zip_at_clients": _zip_at_clients,
    "sequence_map": _sequence,
    "sequence_reduce": _sequence,
}
