"""Aggregators of clients' updates: the mean of what was sent, any other of a gated update, noise on whole clients.

A sparse update is `<delta=float32[n],sent=bool[n]>`: what changed, and which entries were sent. FedSeIT's algorithm 1,
line 14, averages B * m over all clients, which shrinks the base by the mask in every round. Here a mask gates which
entries a client sends, and `SparseMeanFactory` averages each entry over its senders.

Noise: McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models, 2018. The clip that
follows a quantile of the norms: Andrew, Thakkar, McMahan, Ramaswamy: Differentially Private Learning with Adaptive
Clipping, 2021. The mechanism is that of `tff.aggregators.DifferentiallyPrivateFactory`.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any

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


LARGEST = 1e15  # of an entry: the squares of a million of these still are finite float32


@dataclasses.dataclass(frozen=True)
class ClientPrivacy:
    """Clipping and noise on the sum of the clients' updates, and what its account needs.

    The server learns sum_c clip(update_c) + N(0, (noise_multiplier clip)^2) in every entry, and divides it by
    `clients_per_round`, a number that it knew before. No weight and no count of senders takes part: a client counts the
    same whatever the number of its examples, an entry that it does not send is a change of zero, and noise is on every
    entry, also on one that nobody sent. So a client moves the sum by at most `clip`, and by at most 2 `clip` if
    its update is replaced by any other. `tffcl.metrics.client_epsilon` says what that guarantees over a run.

    Noise is drawn anew in every call, without a seed: such a run cannot be repeated to the bit. It comes from
    TensorFlow's float32 generator, which is made for simulation: not a cryptographic one, and not proof against an
    attacker who sees its lowest bits.

    Shown in docs/contract.md.

    Attributes:
      clip: the largest Euclidean norm of an update; with `quantile` the first one.
      noise_multiplier: standard deviation of the noise on the sum / clip.
      clients_per_round: clients that take part in a round, by which the noised sum is divided. With fewer the mean is
        that much smaller; the guarantee is the same.
      quantile: None for a fixed clip; else the clip goes to this quantile of the norms, and a part of the noise is
        spent on the count of clients below it: `noise_multiplier` is that of both together.
      delta: at which epsilon is reported.
      uncovered: what else clients of the method send, for the record beside epsilon.

    Raises:
      InputError: a number out of its range.
    """

    clip: float
    noise_multiplier: float
    clients_per_round: int
    quantile: float | None = None
    delta: float = 1e-5
    uncovered: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("clip", "noise_multiplier", "clients_per_round"):
            errors.check_above_zero(name, getattr(self, name))
        if self.quantile is not None:
            errors.check_between_0_and_1("quantile", self.quantile)
        errors.check_between_0_and_1("delta", self.delta)

    def factory(self) -> tff.aggregators.UnweightedAggregationFactory:
        """An aggregator of float32 `[n]`, for `gated` or a builder's `aggregator`.

        A vector with NaN or an infinite entry counts as zeros, so that it leaves nothing but noise behind.
        """

        def create(value_type: tff.Type) -> tff.templates.AggregationProcess:
            inner, tame = self._private().create(value_type), tff.tensorflow.computation(tamed, value_type)

            def aggregate(state: tff.Value, values: tff.Value) -> Any:
                return inner.next(state, tff.federated_map(tame, values))

            return process_of(inner.initialize, aggregate, value_type)

        return factory_of(create, weighted=False)

    def _private(self) -> tff.aggregators.UnweightedAggregationFactory:
        clip, noise, clients = float(self.clip), float(self.noise_multiplier), float(self.clients_per_round)
        if self.quantile is None:
            return tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(noise, clients, clip)
        return tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(
            noise,
            clients,
            initial_l2_norm_clip=clip,
            target_unclipped_quantile=float(self.quantile),
            # TFF's own choice, 0.05 * clients, is too little for the noise of small federations; with at least so
            # much the noise on the vectors is at most 1.16 times that with a fixed clip.
            clipped_count_stddev=max(0.05 * clients, noise),
        )


def tamed(vector: tf.Tensor) -> tf.Tensor:
    """A vector whose norm float32 can hold: zeros in the place of one that is not finite, a very large one scaled."""
    finite = tf.reduce_all(tf.math.is_finite(vector))
    vector = tf.where(finite, vector, tf.zeros_like(vector))
    largest = tf.reduce_max(tf.abs(vector))
    return vector * tf.where(largest > LARGEST, LARGEST / largest, 1.0)
