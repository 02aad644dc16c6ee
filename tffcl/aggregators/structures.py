"""Aggregators of structures and of rows: each entry by a factory of its own, rows one after the other."""

from __future__ import annotations

import typing
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.templates import AggregationFactory
from tffcl.templates.messages import at_clients, entries, ordered

_Create = Callable[..., tff.templates.AggregationProcess]


def by_name(**factories: AggregationFactory) -> AggregationFactory:
    """Aggregates `<name=value,...>` entry by entry; the result has the same names, in the order given here.

    It is weighted if one of the factories is.

    Shown in docs/contract.md.

    Raises:
      ContractError: a factory is none of `tff.aggregators`, or none is given; `create` takes a value with other names.
    """
    if not factories:
        raise errors.ContractError("by_name: needs at least one tff.aggregators factory")
    weighted = {name: takes_weights(factory, f"by_name: {name}") for name, factory in factories.items()}

    def create(value_type: tff.Type, *weight_type: tff.Type) -> tff.templates.AggregationProcess:
        parts = entries(value_type) if isinstance(value_type, tff.StructType) else {}
        if list(parts) != list(factories):
            raise errors.ContractError(f"by_name: takes <{','.join(factories)}>, found {value_type}")
        processes = {
            name: factory.create(parts[name], *(weight_type if weighted[name] else ()))
            for name, factory in factories.items()
        }

        @tff.federated_computation
        def initialize() -> tff.Value:
            return tff.federated_zip(OrderedDict((name, process.initialize()) for name, process in processes.items()))

        def aggregate(state: tff.Value, values: tff.Value, *weights: tff.Value) -> Any:
            outputs = OrderedDict()
            for name, process in processes.items():
                weight = weights if weighted[name] else ()
                outputs[name] = process.next(getattr(state, name), getattr(values, name), *weight)
            zipped = (
                tff.federated_zip(OrderedDict((name, getattr(output, part)) for name, output in outputs.items()))
                for part in ("state", "result", "measurements")
            )
            return tff.templates.MeasuredProcessOutput(*zipped)

        return process_of(initialize, aggregate, value_type, *weight_type)

    return factory_of(create, any(weighted.values()))


def split_at(size: int, first_factory: AggregationFactory, rest_factory: AggregationFactory) -> AggregationFactory:
    """Aggregates float32 `[n]`, n > size, into float32 `[n]`: FedCurv's kernels by a mean, what follows by a sum.

    The process reports `first` and `rest`, the measurements of the two. It is weighted if one of them is.

    Shown in docs/contract.md.

    Args:
      size: entries that the first factory aggregates.
      first_factory: for float32 `[size]`.
      rest_factory: for float32 `[n - size]`.

    Raises:
      ContractError: a factory is none of `tff.aggregators`; `create` takes another type than float32 `[n]`.
      InputError: size is not positive.
    """
    errors.check_whole("split_at: size", size, 1)
    weighted = [takes_weights(factory, "split_at") for factory in (first_factory, rest_factory)]
    both = by_name(first=first_factory, rest=rest_factory)

    def create(value_type: tff.Type, *weight_type: tff.Type) -> tff.templates.AggregationProcess:
        vector = isinstance(value_type, tff.TensorType) and value_type.dtype == np.float32
        length = value_type.shape[0] if vector and value_type.shape and len(value_type.shape) == 1 else None
        if length is None or length <= size:
            raise errors.ContractError(f"split_at: takes float32[n] with n above {size}, found {value_type}")
        cut = tff.tensorflow.computation(
            lambda values: OrderedDict(first=values[:size], rest=values[size:]), value_type
        )
        inner = both.create(cut.type_signature.result, *weight_type)
        join = tff.tensorflow.computation(
            lambda parts: tf.concat([parts["first"], parts["rest"]], 0), cut.type_signature.result
        )

        def aggregate(state: tff.Value, values: tff.Value, *weights: tff.Value) -> Any:
            output = inner.next(state, tff.federated_map(cut, values), *weights)
            return tff.templates.MeasuredProcessOutput(
                output.state, tff.federated_map(join, output.result), output.measurements
            )

        return process_of(inner.initialize, aggregate, value_type, *weight_type)

    return factory_of(create, any(weighted))


class ConcatenationFactory(tff.aggregators.UnweightedAggregationFactory):
    """Gathers rows: `<name=T[None,...],...>@CLIENTS` into the same type at the server, in the order of the clients.

    For what cannot be averaged, such as vectors to rehearse on. It hides nothing: the server sees every row, though
    not whose it is.

    Shown in docs/contract.md.
    """

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        """A process without state.

        Raises:
          ContractError: the value is no struct of named tensors `[None, ...]`.
        """
        types = OrderedDict(entries(value_type)) if isinstance(value_type, tff.StructType) else OrderedDict()
        open_rows = all(
            isinstance(entry, tff.TensorType) and entry.shape and entry.shape[0] is None and None not in entry.shape[1:]
            for entry in types.values()
        )
        if not types or None in types or not open_rows:
            raise errors.ContractError(f"concatenation: takes <name=T[None,...],...>, found {value_type}")

        @tff.tensorflow.computation
        def nothing() -> OrderedDict:
            none = {name: tf.zeros([0, *entry.shape[1:]], entry.dtype) for name, entry in types.items()}
            return ordered("concatenation", none, types)

        @tff.tensorflow.computation(value_type, value_type)
        def join(first: OrderedDict, rest: OrderedDict) -> OrderedDict:
            joined = {name: tf.concat([first[name], rest[name]], 0) for name in types}
            return ordered("concatenation", joined, types)

        report = tff.tensorflow.computation(lambda rows: rows, value_type)

        @tff.federated_computation
        def initialize() -> tff.Value:
            return tff.federated_value((), tff.SERVER)

        @tff.federated_computation(initialize.type_signature.result, at_clients(value_type))
        def next_step(state: tff.Value, values: tff.Value) -> Any:
            rows = tff.federated_aggregate(values, nothing(), join, join, report)
            return tff.templates.MeasuredProcessOutput(state, rows, tff.federated_value((), tff.SERVER))

        return tff.templates.AggregationProcess(initialize, next_step)


def takes_weights(factory: Any, where: str) -> bool:
    """Whether a factory is weighted; raises ContractError for what is no `tff.aggregators` factory."""
    if not isinstance(factory, typing.get_args(AggregationFactory)):
        raise errors.ContractError(f"{where}: expected a tff.aggregators factory, found {type(factory).__name__}")
    return isinstance(factory, tff.aggregators.WeightedAggregationFactory)


def factory_of(create: _Create, weighted: bool) -> AggregationFactory:
    """A factory whose `create` is the given function, of (value type) or of (value type, weight type)."""
    base = tff.aggregators.WeightedAggregationFactory if weighted else tff.aggregators.UnweightedAggregationFactory
    return type("Factory", (base,), {"create": lambda self, *types: create(*types)})()


def process_of(
    initialize: tff.Computation, aggregate: Callable[..., Any], *types: tff.Type
) -> tff.templates.AggregationProcess:
    """The process whose `next` is `aggregate`, of (state, values) or of (state, values, weights).

    Args:
      initialize: returns the first state.
      aggregate: returns a `tff.templates.MeasuredProcessOutput`.
      *types: of a client's value, and of its weight where there are weights (TFF takes no variable arguments).
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
