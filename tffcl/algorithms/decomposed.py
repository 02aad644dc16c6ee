"""build_fedweit and build_fedseit: decomposed weights, shared across clients (FedSeIT, algorithm 1)."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow_federated as tff

from tffcl import errors
from tffcl.aggregators import SparseMeanFactory, gated
from tffcl.client_works import DecomposedWork, Decomposition, LocalTraining
from tffcl.finalizers import build_server_update
from tffcl.models import AlignedTextCNN, Network, TextCNN, TextCNNConfig
from tffcl.templates import ContinualProcess, compose_continual_process
from tffcl.templates.compose import AggregationFactory


@errors.checked_arguments
def build_decomposed(
    network: Network,
    *,
    training: LocalTraining | None = None,
    decomposition: Decomposition | None = None,
    aggregator: AggregationFactory | None = None,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    seed: int = 0,
) -> ContinualProcess:
    """The continual process of any network whose kernels are decomposed into base, mask and adaptive.

    Args:
      network: what the clients train; its `num_foreign` places are what a transfer may fill.
      training: epochs, batches, learning rate.
      decomposition: lambda_1, lambda_2 and the other choices of the method.
      aggregator: None for the mean of each entry over the clients that sent it, a `SparseMeanFactory` with other sums
        (`SparseMeanFactory.secure`), or any `tff.aggregators` factory for a float32 vector (DP, secure, robust), which
        takes an entry that was not sent for a change of zero.
      server_optimizer: None to take the aggregate as the new base, or a `tff.learning.optimizers.Optimizer`.
      seed: of everything random at the server.

    Returns:
      A `ContinualProcess`.
    """
    work = DecomposedWork(network, training or LocalTraining(), decomposition or Decomposition(), seed)
    sparse = isinstance(aggregator, SparseMeanFactory)
    factory = SparseMeanFactory() if aggregator is None else aggregator if sparse else gated(aggregator)
    return compose_continual_process(work, factory, build_server_update(work.shared_type, server_optimizer))


@errors.checked_arguments
def build_fedweit(config: TextCNNConfig, *, num_foreign: int, **options: Any) -> ContinualProcess:
    """FedWeIT (Yoon et al., 2021) for text: foreign adaptives are added into the kernels (FedSeIT eq. 4).

    Args:
      config: sizes of the TextCNN.
      num_foreign: K, places for foreign adaptives.
      **options: see `build_decomposed`.
    """
    return build_decomposed(TextCNN(config, num_foreign), **options)


@errors.checked_arguments
def build_fedseit(config: TextCNNConfig, *, num_foreign: int, **options: Any) -> ContinualProcess:
    """FedSeIT (Chaudhary et al., 2022): foreign adaptives as aligned feature extractors (eq. 1-5).

    Which adaptives arrive is the transfer's choice (`PreviousTask`, `SIT`); DLS is `Decomposition(share_dense=True)`.

    Args:
      config: sizes of the TextCNN.
      num_foreign: K, places for foreign adaptives.
      **options: see `build_decomposed`.
    """
    if num_foreign < 1:
        raise errors.InputError(
            f"num_foreign: FedSeIT needs at least 1 place for foreign adaptives, found {num_foreign}; "
            "build_fedweit and build_local go without"
        )
    return build_decomposed(AlignedTextCNN(config, num_foreign), **options)


@errors.checked_arguments
def build_local(
    config: TextCNNConfig, *, decomposition: Decomposition | None = None, **options: Any
) -> ContinualProcess:
    """Every client by itself with FedWeIT's network: no base, no adaptives of others. The baseline of transfer."""
    alone = dataclasses.replace(decomposition or Decomposition(), exchange=False)
    return build_decomposed(TextCNN(config, 0), decomposition=alone, **options)
