"""Differential privacy of whole clients: each client's update clipped, Gaussian noise on their sum.

McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models, 2018. The clip that follows
a quantile of the norms: Andrew, Thakkar, McMahan, Ramaswamy: Differentially Private Learning with Adaptive Clipping,
2021.
The mechanism is that of `tff.aggregators.DifferentiallyPrivateFactory`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.aggregators.structures import factory_of, process_of

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
