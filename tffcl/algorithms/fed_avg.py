"""FedAvg and what is added to its clients' objective: FedProx, EWC and FedCurv, on a sequence of tasks."""

from __future__ import annotations

import tensorflow_federated as tff

from tffcl import errors
from tffcl.aggregators import gated, split_at
from tffcl.client_works import EWC, FedCurv, LocalTraining, PlainWork
from tffcl.client_works.penalised import Penalties
from tffcl.finalizers import build_server_update
from tffcl.models import Network
from tffcl.templates import ContinualProcess, compose_continual_process
from tffcl.templates.compose import AggregationFactory


@errors.checked_arguments
def build_fed_avg(
    network: Network,
    *,
    training: LocalTraining | None = None,
    proximal: float = 0.0,
    penalty: Penalties = None,
    aggregator: AggregationFactory | None = None,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    seed: int = 0,
) -> ContinualProcess:
    """FedAvg (McMahan et al., 2017) of the network's kernels; biases and head belong to each client and task.

    Without proximal term and penalty it does nothing against forgetting.

    Args:
      network: what the clients train, without places for foreign adaptives.
      training: epochs, batches, learning rate.
      proximal: mu of FedProx (Li et al., 2020), in front of ||B - B_server||^2 / 2; 0 is FedAvg.
      penalty: what else is added to a client's objective: `EWC`, `FedCurv`, any `Penalty`, or several.
      aggregator: of the kernels; None for the mean weighted by examples, or any `tff.aggregators` factory for a
        float32 vector. What penalties upload is summed.
      server_optimizer: of the kernels; None to take the aggregate, or a `tff.learning.optimizers.Optimizer` (FedAdam
        and others).
      seed: of everything random at the server.
    """
    work = PlainWork(network, training or LocalTraining(), proximal=proximal, seed=seed, penalty=penalty)
    size = network.kernels.size
    factory = aggregator or tff.aggregators.MeanFactory(no_nan_division=True)
    if work.shared_type.shape[0] > size:
        factory = split_at(size, factory, tff.aggregators.SumFactory())
    finalizer = build_server_update(work.shared_type, server_optimizer, optimized=size)
    return compose_continual_process(work, gated(factory), finalizer)


@errors.checked_arguments
def build_ewc(
    network: Network,
    *,
    weight: float,
    fisher_examples: int = 256,
    training: LocalTraining | None = None,
    proximal: float = 0.0,
    aggregator: AggregationFactory | None = None,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    seed: int = 0,
) -> ContinualProcess:
    """FedAvg, or FedProx with `proximal`, whose clients hold on to past tasks by EWC (Kirkpatrick et al., 2017).

    With one client it is EWC as published, without any federation.

    Args:
      network: what the clients train, without places for foreign adaptives.
      weight: lambda, see `EWC`.
      fisher_examples: see `EWC`.
      training: epochs, batches, learning rate.
      proximal: as for `build_fed_avg`; so are the others.
      aggregator: of the kernels.
      server_optimizer: of the kernels.
      seed: of everything random at the server.
    """
    return build_fed_avg(
        network,
        training=training,
        proximal=proximal,
        penalty=EWC(weight, fisher_examples),
        aggregator=aggregator,
        server_optimizer=server_optimizer,
        seed=seed,
    )


@errors.checked_arguments
def build_fed_curv(
    network: Network,
    *,
    weight: float,
    fisher_examples: int = 256,
    training: LocalTraining | None = None,
    aggregator: AggregationFactory | None = None,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    seed: int = 0,
) -> ContinualProcess:
    """FedCurv (Shoham et al., 2019): FedAvg whose clients stay near each other where it matters to the others.

    Args:
      network: what the clients train, without places for foreign adaptives.
      weight: lambda, see `FedCurv`.
      fisher_examples: see `FedCurv`; the Fisher information is measured in every round.
      training: epochs, batches, learning rate.
      aggregator: of the kernels, as for `build_fed_avg`; so are the others.
      server_optimizer: of the kernels.
      seed: of everything random at the server.
    """
    return build_fed_avg(
        network,
        training=training,
        penalty=FedCurv(weight, fisher_examples),
        aggregator=aggregator,
        server_optimizer=server_optimizer,
        seed=seed,
    )
