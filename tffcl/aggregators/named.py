"""An aggregator of its own for each entry of what clients send."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import tensorflow_federated as tff

from tffcl import errors
from tffcl.aggregators.building import WEIGHTED, factory_of, is_factory, process_of
from tffcl.templates.compose import AggregationFactory
from tffcl.templates.tff_types import entries


def by_name(**factories: AggregationFactory) -> AggregationFactory:
    """Aggregates `<name=value,...>` entry by entry; the result has the same names, in the order given here.

    It is weighted if one of the factories is.

    Raises:
      ContractError: a factory is none of `tff.aggregators`, or none is given; `create` takes a value with other names.
    """
    if not factories:
        raise errors.ContractError("by_name: needs at least one tff.aggregators factory")
    for name, factory in factories.items():
        if not is_factory(factory):
            found = type(factory).__name__
            raise errors.ContractError(f"by_name: {name} should be a tff.aggregators factory, found {found}")
    takes_weight = {name: isinstance(factory, WEIGHTED) for name, factory in factories.items()}

    def create(value_type: tff.Type, *weight_type: tff.Type) -> tff.templates.AggregationProcess:
        parts = entries(value_type) if isinstance(value_type, tff.StructType) else {}
        if list(parts) != list(factories):
            raise errors.ContractError(f"by_name: takes <{','.join(factories)}>, found {value_type}")
        processes = {
            name: factory.create(parts[name], *(weight_type if takes_weight[name] else ()))
            for name, factory in factories.items()
        }

        @tff.federated_computation
        def initialize() -> tff.Value:
            return tff.federated_zip(OrderedDict((name, process.initialize()) for name, process in processes.items()))

        def aggregate(state: tff.Value, values: tff.Value, *weights: tff.Value) -> Any:
            outputs = OrderedDict()
            for name, process in processes.items():
                weight = weights if takes_weight[name] else ()
                outputs[name] = process.next(getattr(state, name), getattr(values, name), *weight)
            return tff.templates.MeasuredProcessOutput(
                state=_zipped(outputs, "state"),
                result=_zipped(outputs, "result"),
                measurements=_zipped(outputs, "measurements"),
            )

        return process_of(initialize, aggregate, value_type, *weight_type)

    return factory_of(create, any(takes_weight.values()))


def _zipped(outputs: OrderedDict, part: str) -> tff.Value:
    return tff.federated_zip(OrderedDict((name, getattr(one, part)) for name, one in outputs.items()))
