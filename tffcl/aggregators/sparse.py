"""Aggregators of sparse updates `<delta=float32[n],sent=bool[n]>`: what changed, and which entries were sent.

FedSeIT's algorithm 1, line 14, averages B * m over all clients, which shrinks the base by the mask in every round. Here
a mask gates which entries a client sends, and `SparseMeanFactory` averages each entry over its senders.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.aggregators.structures import factory_of, process_of, takes_weights
from tffcl.templates import AggregationFactory
from tffcl.templates.messages import at_clients, entries


class SparseMeanFactory(tff.aggregators.UnweightedAggregationFactory):
    """Aggregates `<delta=float32[n],sent=bool[n]>` into float32 `[n]`.

    An entry of the result is the mean of `delta` over the clients whose `sent` is true there, a delta of zero included;
    it is 0 where nobody sent, so that a server that adds it keeps its old value. A client without an update (no data,
    values that are not finite) sends `sent` all false.

    The process reports `sent`: `entries_sent` (over all clients) and `entries_covered` (sent by a client or more); and
    `values` and `counts`, the measurements of the two sums.

    Shown in docs/contract.md.

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
        """Builds the process; raises ContractError for updates of another type."""
        delta_type = _delta_type(value_type, "sparse mean")
        values = self._value_sum_factory.create(delta_type)
        counts = self._count_sum_factory.create(tff.TensorType(np.int32, delta_type.shape))
        sums = [process.next.type_signature.result.result.member for process in (values, counts)]

        @tff.tensorflow.computation(value_type)
        def split(update: OrderedDict) -> tuple[tf.Tensor, tf.Tensor]:
            return _only_sent(update), tf.cast(update["sent"], tf.int32)

        @tff.tensorflow.computation(*sums)
        def mean(total: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
            return total / tf.cast(tf.maximum(count, 1), tf.float32)  # where the count is 0 so is the total

        @tff.tensorflow.computation(sums[1])
        def tally(count: tf.Tensor) -> OrderedDict:
            sent = tf.reduce_sum(tf.cast(count, tf.int64))
            return OrderedDict(entries_sent=sent, entries_covered=tf.math.count_nonzero(count))

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


def gated(inner_factory: AggregationFactory) -> AggregationFactory:
    """Lets an aggregator of float32 `[n]` take `<delta=float32[n],sent=bool[n]>`: it aggregates delta * sent.

    An entry that a client did not send counts as a change of zero, so a mean is over all clients, not only over the
    senders as in `SparseMeanFactory`. This is the form for differential privacy, robust clipping and the like, whose
    guarantees rest on one vector per client. A weighted factory stays weighted.

    Noise for differential privacy must not be repeatable, and TFF draws it without a seed. A worker of this library
    refuses that by default; allow it with `tffcl.runtime.local(repeatable=False)`, or TF_DETERMINISTIC_OPS=0 in
    the environment of a worker elsewhere. See `ClientPrivacy` for such an aggregator.

    Shown in docs/contract.md.

    Args:
      inner_factory: a mean, a `DifferentiallyPrivateFactory`, `tff.learning.robust_aggregator()`, ...

    Raises:
      ContractError: `inner_factory` is not a `tff.aggregators` factory.
    """
    weighted = takes_weights(inner_factory, "gated")

    def create(value_type: tff.Type, *weight_type: tff.Type) -> tff.templates.AggregationProcess:
        delta_type = _delta_type(value_type, "gated aggregator")
        inner = inner_factory.create(delta_type, *weight_type)
        gate = tff.tensorflow.computation(_only_sent, value_type)

        def aggregate(state: tff.Value, updates: tff.Value, *weights: tff.Value) -> tff.Value:
            return inner.next(state, tff.federated_map(gate, updates), *weights)

        return process_of(inner.initialize, aggregate, value_type, *weight_type)

    return factory_of(create, weighted)


def _delta_type(update_type: tff.Type, aggregator: str) -> tff.TensorType:
    """The type of `delta` in an update; ContractError names the aggregator where the update is of another type."""
    parts = entries(update_type) if isinstance(update_type, tff.StructType) else {}
    if list(parts) == ["delta", "sent"] and all(isinstance(part, tff.TensorType) for part in parts.values()):
        delta, sent = parts["delta"], parts["sent"]
        known = delta.shape is not None and None not in delta.shape and delta.shape == sent.shape
        if known and delta.dtype == np.float32 and sent.dtype == np.bool_:
            return delta
    raise errors.ContractError(f"{aggregator}: takes updates of <delta=float32[n],sent=bool[n]>, found {update_type}")


def _only_sent(update: dict[str, tf.Tensor]) -> tf.Tensor:
    """`delta` where it was sent, else 0: an entry that was not sent has no effect, not even as NaN."""
    return tf.where(update["sent"], update["delta"], tf.zeros_like(update["delta"]))
