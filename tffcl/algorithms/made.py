"""MADE in federated continual learning: FedMADE, FedWeIT-MADE and ConFedMADE.

Paul, Frey, Kamath, Kersting, Mundt: Masked Autoencoders are Efficient Continual Federated Learners, 2023.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tffcl import errors
from tffcl.algorithms.decomposed import build_decomposed
from tffcl.algorithms.fed_avg import build_fed_avg
from tffcl.client_works import Decomposition, LocalTraining
from tffcl.models import MADEConfig, MADENetwork
from tffcl.templates import ContinualProcess

# What these builders take where nothing else is said, as `tffcl run confedmade` does: appendix B.1 and section 4.1, and
# for A = B / 3 the published code.
# The learning rate is not the paper's 1e-3: a task has about 160 steps on the published schedule, with which that
# trains nothing out.
TRAINING = LocalTraining(num_epochs=1, batch_size=100, learning_rate=5e-3, patience=1)
DECOMPOSITION = Decomposition(sparsity=1e-4, retention=100.0, adaptive_factor=3.0)


@errors.checked_arguments
def build_fed_made(
    config: MADEConfig, *, training: LocalTraining | None = None, **options: Any
) -> ContinualProcess:
    """FedMADE (section 3.2): FedAvg of a whole MADE, its biases too; also the model of the paper's baselines.

    Synchronised or distinct masks, direct connections (DC), connectivity- (CA) and order-agnostic training (OA)
    are the configuration's.

    Args:
      config: sizes and masks.
      training: epochs, batches, learning rate.
      **options: see `build_fed_avg`: FedProx, EWC and FedCurv among them.
    """
    network = MADENetwork(dataclasses.replace(config, share_biases=True))
    return build_fed_avg(network, training=training or TRAINING, **options)


@errors.checked_arguments
def build_fedweit_made(
    config: MADEConfig,
    *,
    num_foreign: int,
    synchronised: bool = False,
    training: LocalTraining | None = None,
    decomposition: Decomposition | None = None,
    **options: Any,
) -> ContinualProcess:
    """FedWeIT on a MADE as it stands (eq. 2); with `synchronised` the paper's FedWeIT-MADE*.

    Args:
      config: sizes and masks.
      num_foreign: K, places for foreign adaptives.
      synchronised: whether all clients go by the server's masks, or each by its own.
      training: epochs, batches, learning rate.
      decomposition: lambda_1, lambda_2 and the other choices of the method.
      **options: see `build_decomposed`.
    """
    network = MADENetwork(dataclasses.replace(config, synchronised=synchronised), num_foreign)
    chosen = dataclasses.replace(decomposition or DECOMPOSITION, connectivity_aware=False)
    return build_decomposed(network, training=training or TRAINING, decomposition=chosen, **options)


@errors.checked_arguments
def build_confedmade(
    config: MADEConfig,
    *,
    num_foreign: int,
    training: LocalTraining | None = None,
    decomposition: Decomposition | None = None,
    **options: Any,
) -> ContinualProcess:
    """ConFedMADE (eq. 5 and 6): masks from the server, over everything that is trained, penalised and sent.

    Args:
      config: sizes and masks.
      num_foreign: K, places for foreign adaptives; (clients - 1) * (tasks - 1) for all there can be.
      training: epochs, batches, learning rate.
      decomposition: lambda_1, lambda_2 and the other choices of the method.
      **options: see `build_decomposed`.
    """
    network = MADENetwork(dataclasses.replace(config, synchronised=True), num_foreign)
    chosen = dataclasses.replace(decomposition or DECOMPOSITION, connectivity_aware=True)
    return build_decomposed(network, training=training or TRAINING, decomposition=chosen, **options)
