"""Any aggregator of a vector, for updates that say which of their entries were sent."""

from __future__ import annotations

from typing import Union

import tensorflow_federated as tff

from tffcl import errors
from tffcl.aggregators import sparse_update
from tffcl.templates.placed import at_clients

AggregationFactory = Union[
    tff.aggregators.UnweightedAggregationFactory, tff.aggregators.WeightedAggregationFactory
]


def gated(inner_factory: AggregationFactory) -> AggregationFactory:
    """Lets an aggregator of float32 `[n]` take `<delta=float32[n],sent=bool[n]>`: it aggregates delta * sent.

    An entry that a client did not send counts as a change of zero, so a mean is over all clients, not only
    over the senders as in `SparseMeanFactory`. This is the form for differential privacy, robust clipping
    and the like, whose guarantees rest on one vector per client. A weighted factory stays weighted.

    Noise for differential privacy must not be repeatable, and TFF draws it without a seed; workers that are
    held to repeatable operations refuse that, so start the run with TF_DETERMINISTIC_OPS=0 in the
    environment.

    Args:
      inner_factory: a mean, a `DifferentiallyPrivateFactory`, `tff.learning.robust_aggregator()`, ...

    Raises:
      ContractError: `inner_factory` is not a `tff.aggregators` factory.
    """
    if isinstance(inner_factory, tff.aggregators.WeightedAggregationFactory):
        return _GatedWeighted(inner_factory)
    if isinstance(inner_factory, tff.aggregators.UnweightedAggregationFactory):
        return _GatedUnweighted(inner_factory)
    found = type(inner_factory).__name__
    raise errors.ContractError(f"gated: takes a tff.aggregators factory, found {found}")


class _GatedWeighted(tff.aggregators.WeightedAggregationFactory):
    def __init__(self, inner_factory: tff.aggregators.WeightedAggregationFactory):
        self._inner_factory = inner_factory

    def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        delta_type = sparse_update.delta_type(value_type, "gated aggregator")
        inner = self._inner_factory.create(delta_type, weight_type)
        gate = tff.tensorflow.computation(sparse_update.only_sent, value_type)

        @tff.federated_computation(
            inner.initialize.type_signature.result, at_clients(value_type), at_clients(weight_type)
        )
        def next_step(state: tff.Value, updates: tff.Value, weights: tff.Value) -> tff.Value:
            return inner.next(state, tff.federated_map(gate, updates), weights)

        return tff.templates.AggregationProcess(inner.initialize, next_step)


class _GatedUnweighted(tff.aggregators.UnweightedAggregationFactory):
    def __init__(self, inner_factory: tff.aggregators.UnweightedAggregationFactory):
        self._inner_factory = inner_factory

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        delta_type = sparse_update.delta_type(value_type, "gated aggregator")
        inner = self._inner_factory.create(delta_type)
        gate = tff.tensorflow.computation(sparse_update.only_sent, value_type)

        @tff.federated_computation(inner.initialize.type_signature.result, at_clients(value_type))
        def next_step(state: tff.Value, updates: tff.Value) -> tff.Value:
            return inner.next(state, tff.federated_map(gate, updates))

        return tff.templates.AggregationProcess(inner.initialize, next_step)
