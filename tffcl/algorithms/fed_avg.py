"""build_fed_avg: FedAvg and FedProx on a sequence of tasks, the baselines that do nothing against forgetting."""

from __future__ import annotations

import tensorflow_federated as tff

from tffcl.aggregators import gated
from tffcl.client_works import LocalTraining, PlainWork
from tffcl.finalizers import build_server_update
from tffcl.models import Network
from tffcl.templates import ContinualProcess, compose_continual_process
from tffcl.templates.compose import AggregationFactory


def build_fed_avg(
    network: Network,
    *,
    training: LocalTraining | None = None,
    proximal: float = 0.0,
    aggregator: AggregationFactory | None = None,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    seed: int = 0,
) -> ContinualProcess:
    """FedAvg (McMahan et al., 2017) of the network's kernels; biases and head belong to each client and task.

    Args:
      network: what the clients train, without places for foreign adaptives.
      training: epochs, batches, learning rate.
      proximal: mu of FedProx (Li et al., 2020), in front of ||B - B_server||^2 / 2; 0 is FedAvg.
      aggregator: None for the mean weighted by examples, or any `tff.aggregators` factory for a float32 vector.
      server_optimizer: None to take the aggregate, or a `tff.learning.optimizers.Optimizer` (FedAdam and others).
      seed: of everything random at the server.
    """
    work = PlainWork(network, training or LocalTraining(), proximal=proximal, seed=seed)
    factory = gated(aggregator or tff.aggregators.MeanFactory(no_nan_division=True))
    return compose_continual_process(work, factory, build_server_update(work.shared_type, server_optimizer))
