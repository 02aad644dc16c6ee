"""Plans of computations whose clients are spread over several workers.

What TFF's composing executor does (its wheel has none): a step at the clients becomes one small computation that every
worker runs over its own clients, an aggregation is finished by the computation that merges two partial results, and
a step at the server runs once, in one worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Optional

import tensorflow_federated as tff

from tffcl import errors
from tffcl.runtime import distributed_values
from tffcl.runtime.distributed_values import Cohort, Parts, ServerValue
from tffcl.runtime.plans import UNPLACED_INTRINSICS, Function, Plan, Planner
from tffcl.runtime.values import Everyone, is_all_equal, of_client

framework = tff.framework

Names = Mapping[str, Any]


class DistributedPlanner(Planner):
    """Makes plans over the values of `tffcl.runtime.distributed_values`; what their steps share is a `Cohort`."""

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
                arguments = [distributed_values.at_server(cohort, each) for each in argument]
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
        own = distributed_values.in_parts(cohort, value, type_spec)
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
