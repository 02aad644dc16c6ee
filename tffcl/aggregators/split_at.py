"""Two aggregators for one vector: its first entries by one, the rest by another."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.aggregators.gated import AggregationFactory
from tffcl.templates.placed import at_clients

_WEIGHTED = tff.aggregators.WeightedAggregationFactory


def split_at(
    size: int, first_factory: AggregationFactory, rest_factory: AggregationFactory
) -> AggregationFactory:
    """Aggregates float32 `[n]`, n > size, into float32 `[n]`: FedCurv's kernels by a mean, what follows by a sum.

    The process that `create` returns reports `first` and `rest`, what the two aggregators report. It is weighted if
    one of them is.

    Args:
      size: entries that the first factory aggregates.
      first_factory: for float32 `[size]`.
      rest_factory: for float32 `[n - size]`.

    Raises:
      ContractError: a factory is none of `tff.aggregators`; `create` takes another type than float32 `[n]`.
      InputError: size is not positive.
    """
    if size < 1:
        raise errors.InputError(f"split_at: expected a positive size, found {size}")
    for factory in (first_factory, rest_factory):
        if not isinstance(factory, (_WEIGHTED, tff.aggregators.UnweightedAggregationFactory)):
            found = type(factory).__name__
            raise errors.ContractError(f"split_at: takes tff.aggregators factories, found {found}")
    weighted = isinstance(first_factory, _WEIGHTED) or isinstance(rest_factory, _WEIGHTED)
    return (_SplitWeighted if weighted else _SplitUnweighted)(size, first_factory, rest_factory)


class _Split:
    def __init__(self, size: int, first_factory: AggregationFactory, rest_factory: AggregationFactory):
        self._size, self._factories = size, (first_factory, rest_factory)

    def _create(self, value_type: tff.Type, *weight_type: tff.Type) -> tff.templates.AggregationProcess:
        length = _length(value_type, self._size)
        types = [tff.TensorType(np.float32, [n]) for n in (self._size, length - self._size)]
        takes_weight = [isinstance(factory, _WEIGHTED) for factory in self._factories]
        first, rest = [
            factory.create(kind, *(weight_type if weighted else ()))
            for factory, kind, weighted in zip(self._factories, types, takes_weight)
        ]
        size = self._size
        cut = tff.tensorflow.computation(lambda values: (values[:size], values[size:]), value_type)
        join = tff.tensorflow.computation(lambda parts: tf.concat([parts[0], parts[1]], 0), types)

        @tff.federated_computation
        def initialize() -> tff.Value:
            return tff.federated_zip(OrderedDict(first=first.initialize(), rest=rest.initialize()))

        def aggregate(state: tff.Value, values: tff.Value, *weights: tff.Value) -> Any:
            parts = tff.federated_map(cut, values)
            one = first.next(state.first, parts[0], *(weights if takes_weight[0] else ()))
            other = rest.next(state.rest, parts[1], *(weights if takes_weight[1] else ()))
            reported = OrderedDict(first=one.measurements, rest=other.measurements)
            return tff.templates.MeasuredProcessOutput(
                state=tff.federated_zip(OrderedDict(first=one.state, rest=other.state)),
                result=tff.federated_map(join, (one.result, other.result)),
                measurements=tff.federated_zip(reported),
            )

        state_type = initialize.type_signature.result
        return tff.templates.AggregationProcess(
            initialize,
            _next_step(aggregate, state_type, *[at_clients(k) for k in (value_type, *weight_type)]),
        )


class _SplitWeighted(_Split, tff.aggregators.WeightedAggregationFactory):
    def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        return self._create(value_type, weight_type)


class _SplitUnweighted(_Split, tff.aggregators.UnweightedAggregationFactory):
    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        return self._create(value_type)


def _next_step(aggregate: Any, *types: tff.Type) -> tff.Computation:
    """`aggregate` as a computation, of (state, values) or of (state, values, weights)."""
    if len(types) == 2:

        @tff.federated_computation(*types)
        def without_weights(state: tff.Value, values: tff.Value) -> Any:
            return aggregate(state, values)

        return without_weights

    @tff.federated_computation(*types)
    def with_weights(state: tff.Value, values: tff.Value, weights: tff.Value) -> Any:
        return aggregate(state, values, weights)

    return with_weights


def _length(value_type: tff.Type, size: int) -> int:
    if isinstance(value_type, tff.TensorType) and value_type.dtype == np.float32:
        shape = value_type.shape
        if shape is not None and len(shape) == 1 and shape[0] is not None and shape[0] > size:
            return shape[0]
    raise errors.ContractError(f"split_at: takes float32[n] with n above {size}, found {value_type}")
