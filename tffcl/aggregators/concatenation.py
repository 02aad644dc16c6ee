"""The rows that clients send, one client's after the other's."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.templates.tff_types import at_clients, entries, ordered


class ConcatenationFactory(tff.aggregators.UnweightedAggregationFactory):
    """Gathers rows: `<name=T[None,...],...>@CLIENTS` into the same type at the server, in the order of the clients.

    For what cannot be averaged, such as vectors to rehearse on. It hides nothing: the server sees every row, though
    not whose it is.
    """

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        """A process without state.

        Raises:
          ContractError: the value is no struct of named tensors `[None, ...]`.
        """
        kinds = _row_types(value_type)

        @tff.tensorflow.computation
        def nothing() -> OrderedDict:
            none = {name: tf.zeros([0, *kind.shape[1:]], kind.dtype) for name, kind in kinds.items()}
            return ordered("concatenation", none, kinds)

        @tff.tensorflow.computation(value_type, value_type)
        def join(one: OrderedDict, other: OrderedDict) -> OrderedDict:
            joined = {name: tf.concat([one[name], other[name]], 0) for name in kinds}
            return ordered("concatenation", joined, kinds)

        report = tff.tensorflow.computation(lambda rows: rows, value_type)

        @tff.federated_computation
        def initialize() -> tff.Value:
            return tff.federated_value((), tff.SERVER)

        @tff.federated_computation(initialize.type_signature.result, at_clients(value_type))
        def next_step(state: tff.Value, values: tff.Value) -> Any:
            rows = tff.federated_aggregate(values, nothing(), join, join, report)
            return tff.templates.MeasuredProcessOutput(state, rows, tff.federated_value((), tff.SERVER))

        return tff.templates.AggregationProcess(initialize, next_step)


def _row_types(value_type: tff.Type) -> OrderedDict:
    kinds = OrderedDict(entries(value_type)) if isinstance(value_type, tff.StructType) else OrderedDict()
    for kind in kinds.values():
        open_rows = isinstance(kind, tff.TensorType) and kind.shape and kind.shape[0] is None
        if not open_rows or None in kind.shape[1:]:
            break
    else:
        if kinds and None not in kinds:
            return kinds
    raise errors.ContractError(f"concatenation: takes <name=T[None,...],...>, found {value_type}")
