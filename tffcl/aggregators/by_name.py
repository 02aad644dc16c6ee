"""An aggregator of its own for each entry of what clients send."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import tensorflow_federated as tff

from tffcl import errors
from tffcl.aggregators.gated import AggregationFactory
from tffcl.templates.placed import at_clients, entries

_WEIGHTED = tff.aggregators.WeightedAggregationFactory


def by_name(**factories: AggregationFactory) -> AggregationFactory:
    """Aggregates `<name=value,...>` entry by entry; the result has the same names, in the order given here.

    It is weighted if one of the factories is.

    Raises:
      ContractError: a factory is none of `tff.aggregators`, or none is given; `create` takes a value with other names.
    """
    if not factories:
        raise errors.ContractError("by_name: needs at least one tff.aggregators factory")
    for name, factory in factories.items():
        if not isinstance(factory, (_WEIGHTED, tff.aggregators.UnweightedAggregationFactory)):
            found = type(factory).__name__
            raise errors.ContractError(f"by_name: {name} should be a tff.aggregators factory, found {found}")
    weighted = any(isinstance(factory, _WEIGHTED) for factory in factories.values())
    return (_Weighted if weighted else _Unweighted)(factories)


class _ByName:
    def __init__(self, factories: dict[str, AggregationFactory]):
        self._factories = factories

    def _create(self, value_type: tff.Type, *weight_type: tff.Type) -> tff.templates.AggregationProcess:
        parts = entries(value_type) if isinstance(value_type, tff.StructType) else {}
        if list(parts) != list(self._factories):
            raise errors.ContractError(f"by_name: takes <{','.join(self._factories)}>, found {value_type}")
        takes_weight = {name: isinstance(one, _WEIGHTED) for name, one in self._factories.items()}
        processes = {
            name: factory.create(parts[name], *(weight_type if takes_weight[name] else ()))
            for name, factory in self._factories.items()
        }

        @tff.federated_computation
        def initialize() -> tff.Value:
            return tff.federated_zip(
                OrderedDict((name, process.initialize()) for name, process in processes.items())
            )

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

        state_type = initialize.type_signature.result
        types = (state_type, *[at_clients(kind) for kind in (value_type, *weight_type)])
        if weight_type:

            @tff.federated_computation(*types)
            def with_weights(state: tff.Value, values: tff.Value, weights: tff.Value) -> Any:
                return aggregate(state, values, weights)

            return tff.templates.AggregationProcess(initialize, with_weights)

        @tff.federated_computation(*types)
        def without_weights(state: tff.Value, values: tff.Value) -> Any:
            return aggregate(state, values)

        return tff.templates.AggregationProcess(initialize, without_weights)


def _zipped(outputs: OrderedDict, part: str) -> tff.Value:
    return tff.federated_zip(OrderedDict((name, getattr(one, part)) for name, one in outputs.items()))


class _Weighted(_ByName, tff.aggregators.WeightedAggregationFactory):
    def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        return self._create(value_type, weight_type)


class _Unweighted(_ByName, tff.aggregators.UnweightedAggregationFactory):
    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        return self._create(value_type)
