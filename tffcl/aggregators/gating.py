"""Any aggregator of a vector, for updates that say which of their entries were sent."""

from __future__ import annotations

import tensorflow_federated as tff

from tffcl import errors
from tffcl.aggregators import sparse_update
from tffcl.aggregators.building import WEIGHTED, factory_of, is_factory, process_of
from tffcl.templates.compose import AggregationFactory


def gated(inner_factory: AggregationFactory) -> AggregationFactory:
    """Lets an aggregator of float32 `[n]` take `<delta=float32[n],sent=bool[n]>`: it aggregates delta * sent.

    An entry that a client did not send counts as a change of zero, so a mean is over all clients, not only
    over the senders as in `SparseMeanFactory`. This is the form for differential privacy, robust clipping
    and the like, whose guarantees rest on one vector per client. A weighted factory stays weighted.

    Noise for differential privacy must not be repeatable, and TFF draws it without a seed. A worker of this library
    refuses that unless it is told otherwise: `tffcl.runtime.local(repeatable=False)`, or TF_DETERMINISTIC_OPS=0 in
    the environment of a worker elsewhere. See `ClientPrivacy` for such an aggregator.

    Args:
      inner_factory: a mean, a `DifferentiallyPrivateFactory`, `tff.learning.robust_aggregator()`, ...

    Raises:
      ContractError: `inner_factory` is not a `tff.aggregators` factory.
    """
    if not is_factory(inner_factory):
        found = type(inner_factory).__name__
        raise errors.ContractError(f"gated: takes a tff.aggregators factory, found {found}")

    def create(value_type: tff.Type, *weight_type: tff.Type) -> tff.templates.AggregationProcess:
        delta_type = sparse_update.delta_type(value_type, "gated aggregator")
        inner = inner_factory.create(delta_type, *weight_type)
        gate = tff.tensorflow.computation(sparse_update.only_sent, value_type)

        def aggregate(state: tff.Value, updates: tff.Value, *weights: tff.Value) -> tff.Value:
            return inner.next(state, tff.federated_map(gate, updates), *weights)

        return process_of(inner.initialize, aggregate, value_type, *weight_type)

    return factory_of(create, isinstance(inner_factory, WEIGHTED))
