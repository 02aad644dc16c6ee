"""The mean of each entry over the clients that sent it.

FedSeIT's algorithm 1, line 14, averages B * m over all clients, which shrinks the base by the mask in every
round. Here a mask gates which entries a client sends, and each entry is averaged over its senders.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators import sparse_update
from tffcl.templates.tff_types import at_clients


class SparseMeanFactory(tff.aggregators.UnweightedAggregationFactory):
    """Aggregates `<delta=float32[n],sent=bool[n]>` into float32 `[n]`.

    An entry of the result is the mean of `delta` over the clients whose `sent` is true there, a delta of
    zero included; it is 0 where nobody sent, so that a server that adds it keeps its old value. A client
    with nothing to say (no data, values that are not finite) sends `sent` all false.

    The process that `create` returns reports `sent`: `entries_sent` (over all clients) and
    `entries_covered` (sent by at least one); and `values` and `counts`, what the two sums report.

    Args:
      value_sum_factory: sums float32 `[n]` values.
      count_sum_factory: sums int32 `[n]` counts, each 0 or 1 at a client. For differential privacy see
        `ClientPrivacy` instead: exact counts tell who sent what, and noise on a count spoils the division.
    """

    def __init__(
        self,
        value_sum_factory: tff.aggregators.UnweightedAggregationFactory | None = None,
        count_sum_factory: tff.aggregators.UnweightedAggregationFactory | None = None,
    ):
        self._value_sum_factory = value_sum_factory or tff.aggregators.SumFactory()
        self._count_sum_factory = count_sum_factory or tff.aggregators.SumFactory()

    @classmethod
    def secure(cls, bound: float) -> SparseMeanFactory:
        """With secure sums: the server learns the sum of each entry and how many sent it, no client's own.

        A runtime without a protocol for that simulates it and says so, as those of this library do. An entry that only
        one client sent is still seen: its sum is that client's value.

        Args:
          bound: clients clip each entry to [-bound, bound], and send it in 2^32 steps.
        """
        values = tff.aggregators.SecureSumFactory(float(bound), -float(bound))
        return cls(values, tff.aggregators.SecureSumFactory(1, 0))

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        """Builds the process.

        Raises:
          ContractError: `value_type` is not `<delta=float32[n],sent=bool[n]>`.
        """
        delta_type = sparse_update.delta_type(value_type, "sparse mean")
        values = self._value_sum_factory.create(delta_type)
        counts = self._count_sum_factory.create(tff.TensorType(np.int32, delta_type.shape))
        split = tff.tensorflow.computation(_split, value_type)
        sums = [process.next.type_signature.result.result.member for process in (values, counts)]
        mean = tff.tensorflow.computation(_mean, sums)
        tally = tff.tensorflow.computation(_tally, sums[1])

        @tff.federated_computation
        def initialize() -> tff.Value:
            return tff.federated_zip(OrderedDict(values=values.initialize(), counts=counts.initialize()))

        @tff.federated_computation(initialize.type_signature.result, at_clients(value_type))
        def next_step(state: tff.Value, updates: tff.Value) -> tff.templates.MeasuredProcessOutput:
            parts = tff.federated_map(split, updates)
            summed = values.next(state.values, parts[0])
            counted = counts.next(state.counts, parts[1])
            report = OrderedDict(
                sent=tff.federated_map(tally, counted.result), values=summed.measurements, counts=counted.measurements
            )
            return tff.templates.MeasuredProcessOutput(
                state=tff.federated_zip(OrderedDict(values=summed.state, counts=counted.state)),
                result=tff.federated_map(mean, (summed.result, counted.result)),
                measurements=tff.federated_zip(report),
            )

        return tff.templates.AggregationProcess(initialize, next_step)


def _split(update: OrderedDict) -> tuple[tf.Tensor, tf.Tensor]:
    return sparse_update.only_sent(update), tf.cast(update["sent"], tf.int32)


def _mean(total: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    # Where the count is 0 so is the total.
    return total / tf.cast(tf.maximum(count, 1), tf.float32)


def _tally(count: tf.Tensor) -> OrderedDict:
    sent = tf.reduce_sum(tf.cast(count, tf.int64))
    return OrderedDict(entries_sent=sent, entries_covered=tf.math.count_nonzero(count))
