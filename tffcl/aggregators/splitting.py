"""Two aggregators for one vector: its first entries by one, the rest by another."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.aggregators.building import WEIGHTED, factory_of, is_factory, process_of
from tffcl.aggregators.named import by_name
from tffcl.templates.compose import AggregationFactory


def split_at(size: int, first_factory: AggregationFactory, rest_factory: AggregationFactory) -> AggregationFactory:
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
        if not is_factory(factory):
            found = type(factory).__name__
            raise errors.ContractError(f"split_at: takes tff.aggregators factories, found {found}")
    both = by_name(first=first_factory, rest=rest_factory)

    def create(value_type: tff.Type, *weight_type: tff.Type) -> tff.templates.AggregationProcess:
        sizes = (size, _length(value_type, size) - size)
        types = [tff.TensorType(np.float32, [n]) for n in sizes]
        inner = both.create(tff.to_type(OrderedDict(zip(("first", "rest"), types))), *weight_type)
        cut = tff.tensorflow.computation(
            lambda values: OrderedDict(first=values[:size], rest=values[size:]), value_type
        )
        join = tff.tensorflow.computation(
            lambda parts: tf.concat([parts["first"], parts["rest"]], 0), cut.type_signature.result
        )

        def aggregate(state: tff.Value, values: tff.Value, *weights: tff.Value) -> Any:
            output = inner.next(state, tff.federated_map(cut, values), *weights)
            return tff.templates.MeasuredProcessOutput(
                output.state, tff.federated_map(join, output.result), output.measurements
            )

        return process_of(inner.initialize, aggregate, value_type, *weight_type)

    return factory_of(create, isinstance(both, WEIGHTED))


def _length(value_type: tff.Type, size: int) -> int:
    if isinstance(value_type, tff.TensorType) and value_type.dtype == np.float32:
        shape = value_type.shape
        if shape is not None and len(shape) == 1 and shape[0] is not None and shape[0] > size:
            return shape[0]
    raise errors.ContractError(f"split_at: takes float32[n] with n above {size}, found {value_type}")
