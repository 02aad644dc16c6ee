"""Factories and processes with and without weights, from one function for both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow_federated as tff

from tffcl.templates.compose import AggregationFactory
from tffcl.templates.tff_types import at_clients

WEIGHTED, UNWEIGHTED = (tff.aggregators.WeightedAggregationFactory, tff.aggregators.UnweightedAggregationFactory)
_Create = Callable[..., tff.templates.AggregationProcess]


def is_factory(value: Any) -> bool:
    """Whether it is a `tff.aggregators` factory, of either kind."""
    return isinstance(value, (WEIGHTED, UNWEIGHTED))


def factory_of(create: _Create, weighted: bool) -> AggregationFactory:
    """A factory whose `create` is the given function, of (value type) or of (value type, weight type)."""
    return _Weighted(create) if weighted else _Unweighted(create)


def process_of(
    initialize: tff.Computation, aggregate: Callable[..., Any], *types: tff.Type
) -> tff.templates.AggregationProcess:
    """The process whose `next` is `aggregate`, of (state, values) or of (state, values, weights).

    Args:
      initialize: makes the first state.
      aggregate: gives a `tff.templates.MeasuredProcessOutput`.
      *types: of a client's value, and of its weight where there are weights.
    """
    parameters = (initialize.type_signature.result, *map(at_clients, types))
    if len(types) == 1:

        @tff.federated_computation(*parameters)
        def without_weights(state: tff.Value, values: tff.Value) -> Any:
            return aggregate(state, values)

        return tff.templates.AggregationProcess(initialize, without_weights)

    @tff.federated_computation(*parameters)
    def with_weights(state: tff.Value, values: tff.Value, weights: tff.Value) -> Any:
        return aggregate(state, values, weights)

    return tff.templates.AggregationProcess(initialize, with_weights)


class _Weighted(tff.aggregators.WeightedAggregationFactory):
    def __init__(self, create: _Create):
        self._create = create

    def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        return self._create(value_type, weight_type)


class _Unweighted(tff.aggregators.UnweightedAggregationFactory):
    def __init__(self, create: _Create):
        self._create = create

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        return self._create(value_type)
