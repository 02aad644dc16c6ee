"""Plans of computations whose clients are spread over several workers.

What TFF's composing executor does (its wheel has none): a step at the clients becomes one small computation that every
worker runs over its own clients, an aggregation is finished by the computation that merges two partial results, and
what is at the server runs once, in one worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow_federated as tff

from tffcl import errors
from tffcl.runtime import composed_values as values
from tffcl.runtime.composed_values import Cohort, Parts, ServerValue
from tffcl.runtime.intrinsics import Function
from tffcl.runtime.plans import Plan, Planner
from tffcl.runtime.values import Everyone

framework = tff.framework


class ComposedPlanner(Planner):
    """Makes plans over the values of `tffcl.runtime.composed_values`."""

    runtime = "a runtime of several workers"

    def __init__(self) -> None:
        super().__init__(None)

    def _call(self, block: Any) -> Plan:
        """Functions that an intrinsic takes stand in its call, since TFF's compiler writes it so."""
        if not isinstance(block.function, framework.Intrinsic):
            return super()._call(block)
        make = _INTRINSICS.get(block.function.uri)
        if make is None:
            raise errors.RunError(f"{self.runtime} has no {block.function.uri}")
        return make(self, block)

    def _intrinsic(self, block: Any) -> Plan:
        raise errors.RunError(f"{self.runtime} cannot pass {block.uri} on as a value")

    def _compiled(self, block: Any) -> Plan:
        return self.at_server(block)

    def at_server(self, block: Any) -> Plan:
        """The plan of a function without places: it runs in the server's worker."""
        computation, kind = _computation(block), block.type_signature

        def run(cohort: Cohort, names: Mapping[str, Any]) -> Function:
            def call(*given: Any) -> ServerValue:
                arguments = [values.reference_of(cohort, each) for each in given]
                found = cohort.server.call(computation, *arguments)
                return ServerValue(kind.result, reference=found, home=cohort.server)

            return Function(call, kind)

        return run

    def _literal(self, block: Any) -> Plan:
        return lambda cohort, names: ServerValue(block.type_signature, given=block.value)

    def _selection(self, block: Any) -> Plan:
        source, index = self.plan(block.source), block.as_index()

        def run(cohort: Cohort, names: Mapping[str, Any]) -> Any:
            value = source(cohort, names)
            return value.element(cohort, index) if isinstance(value, ServerValue) else value[index]

        return run

    def split(self, block: Any, length: int) -> list:
        """The blocks of an intrinsic's argument.

        Raises:
          RunError: They do not stand in its call.
        """
        argument = block.argument
        if not isinstance(argument, framework.Struct) or len(argument) != length:
            raise errors.RunError(f"{self.runtime} cannot run this call of {block.function.uri}")
        return list(argument)


def _computation(block: Any) -> Any:
    return framework.ConcreteComputation.from_building_block(block)


def _at_parts(block: Any, make_argument: Callable[[Any], Any], kind: Any) -> tuple[Any, Any]:
    """A computation of its own of an intrinsic of a call, from the values alone.

    Args:
      block: The intrinsic.
      make_argument: From a reference to the values, None where there are none, to the intrinsic's argument.
      kind: Type of the values, None where there are none.

    Returns:
      The computation, and `kind`.
    """
    name = None if kind is None else "values"
    argument = make_argument(None if kind is None else framework.Reference("values", kind))
    return _computation(framework.Lambda(name, kind, framework.Call(block, argument))), kind


def _run(cohort: Cohort, step: tuple[Any, Any], value: Any) -> list:
    """What a computation gives in each part."""
    computation, kind = step
    arguments = values.references_in_parts(cohort, value, kind)
    return cohort.each(lambda part, argument: part.call(computation, argument), arguments)


def _aggregate(planner: ComposedPlanner, block: Any) -> Plan:
    value, zero, accumulate, merge, report = planner.split(block, 5)
    total = accumulate.type_signature.result
    same = framework.Lambda("total", total, framework.Reference("total", total))
    own = [value.type_signature, zero.type_signature]
    functions, formal = [accumulate, merge, same], block.function.type_signature.parameter
    kind = tff.FunctionType(
        tff.StructType([formal[0], formal[1], *[each.type_signature for each in functions]]),
        tff.FederatedType(total, tff.SERVER),
    )
    partial = _at_parts(
        framework.Intrinsic("federated_aggregate", kind),
        lambda given: framework.Struct(
            [framework.Selection(given, index=0), framework.Selection(given, index=1), *functions]
        ),
        tff.StructType(own),
    )
    placed, start, merging, reporting = [planner.plan(each) for each in (value, zero, merge, report)]

    def run(cohort: Cohort, names: Mapping[str, Any]) -> Any:
        first, merged = start(cohort, names), None
        references = _run(cohort, partial, (placed(cohort, names), first))
        for data in cohort.each(lambda part, own: part.fetch(own.reference).federated.value[0], references):
            found = ServerValue(total, data=data.SerializeToString())
            merged = found if merged is None else merging(cohort, names).call((merged, found))
        return reporting(cohort, names).call(first if merged is None else merged)

    return run


def _apply(planner: ComposedPlanner, block: Any) -> Plan:
    function, value = [planner.plan(each) for each in planner.split(block, 2)]
    return lambda cohort, names: function(cohort, names).call(value(cohort, names))


def _eval_at_clients(planner: ComposedPlanner, block: Any) -> Plan:
    computation, _ = _at_parts(block.function, lambda _: block.argument, None)
    return lambda cohort, names: Parts(cohort.each(lambda part: part.call(computation)))


def _eval_at_server(planner: ComposedPlanner, block: Any) -> Plan:
    function = planner.plan(block.argument)
    return lambda cohort, names: function(cohort, names).call()


def _everyone(planner: ComposedPlanner, block: Any) -> Plan:
    value = planner.plan(block.argument)
    return lambda cohort, names: Everyone(value(cohort, names))


def _map(planner: ComposedPlanner, block: Any) -> Plan:
    function, value = planner.split(block, 2)
    mapped = _at_parts(block.function, lambda given: framework.Struct([function, given]), value.type_signature)
    placed = planner.plan(value)
    return lambda cohort, names: Parts(_run(cohort, mapped, placed(cohort, names)))


def _map_all_equal(planner: ComposedPlanner, block: Any) -> Plan:
    function, value = [planner.plan(each) for each in planner.split(block, 2)]
    return lambda cohort, names: Everyone(function(cohort, names).call(value(cohort, names).member))


def _select(planner: ComposedPlanner, block: Any) -> Plan:
    """Every part gets the whole value to select from, and looks up what its own clients ask for."""
    *given, function = planner.split(block, 4)
    kind = tff.StructType([each.type_signature for each in given])
    selected = _at_parts(
        block.function,
        lambda own: framework.Struct([*[framework.Selection(own, index=n) for n in range(3)], function]),
        kind,
    )
    plans = [planner.plan(each) for each in given]
    return lambda cohort, names: Parts(_run(cohort, selected, tuple(plan(cohort, names) for plan in plans)))


def _sequence(planner: ComposedPlanner, block: Any) -> Plan:
    """A step over a sequence without a place, as a function of what is no function in its argument."""
    items = planner.split(block, len(block.argument))
    kept = [each for each in items if not isinstance(each.type_signature, tff.FunctionType)]
    kind = tff.StructType([each.type_signature for each in kept])
    own = framework.Reference("values", kind)
    numbers = iter(range(len(kept)))
    argument = framework.Struct(
        [framework.Selection(own, index=next(numbers)) if each in kept else each for each in items]
    )
    function = planner.at_server(framework.Lambda("values", kind, framework.Call(block.function, argument)))
    plans = [planner.plan(each) for each in kept]
    return lambda cohort, names: function(cohort, names).call(tuple(plan(cohort, names) for plan in plans))


def _unchanged(planner: ComposedPlanner, block: Any) -> Plan:
    """Values at the server are plain values, and a structure of them is one too."""
    return planner.plan(block.argument)


def _zip_at_clients(planner: ComposedPlanner, block: Any) -> Plan:
    value = planner.plan(block.argument)
    zipped = _at_parts(block.function, lambda given: given, block.argument.type_signature)

    def run(cohort: Cohort, names: Mapping[str, Any]) -> Any:
        found = value(cohort, names)
        if _all_equal(found):
            return Everyone(_members(found))
        return Parts(_run(cohort, zipped, found))

    return run


def _all_equal(value: Any) -> bool:
    return all(map(_all_equal, value)) if isinstance(value, tuple) else isinstance(value, Everyone)


def _members(value: Any) -> Any:
    return tuple(map(_members, value)) if isinstance(value, tuple) else value.member


_INTRINSICS: dict[str, Callable[[ComposedPlanner, Any], Plan]] = {
    "federated_aggregate": _aggregate,
    "federated_apply": _apply,
    "federated_broadcast": _everyone,
    "federated_eval_at_clients": _eval_at_clients,
    "federated_eval_at_server": _eval_at_server,
    "federated_map": _map,
    "federated_map_all_equal": _map_all_equal,
    "federated_select": _select,
    "federated_value_at_clients": _everyone,
    "federated_value_at_server": _unchanged,
    "federated_zip_at_clients": _zip_at_clients,
    "federated_zip_at_server": _unchanged,
    "sequence_map": _sequence,
    "sequence_reduce": _sequence,
}
