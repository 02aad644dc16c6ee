"""Federated Orthogonal Training: what a layer gave for the inputs of past tasks stays as it was.

Bakman, Yaldiz, Ezzeldin, Avestimehr: Federated Orthogonal Training: Mitigating Global Catastrophic Forgetting in
Continual Federated Learning, ICLR 2024 (FOT).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Optional

from tffcl import aggregators, client_works, errors, finalizers, models, templates
from tffcl.algorithms.fed_avg import penalties_of
from tffcl.algorithms.method import LABELS, Method
from tffcl.client_works.options import LocalTraining
from tffcl.options import Options, option

if TYPE_CHECKING:
    import tensorflow_federated as tff

    from tffcl.templates import ContinualProcess


@dataclasses.dataclass(frozen=True)
class Orthogonal(Options):
    """FOT."""

    energy: float = option(
        0.9, "epsilon of FOT: share of the energy of a layer's inputs that is kept; 0 for FedAvg.", least=0, most=1
    )
    energy_growth: float = option(
        0.0, "What epsilon of FOT grows by with each task.", least=0, most=1, advanced=True, sparse=True
    )


@errors.checked_arguments
def build_fot(
    network: models.Network,
    *,
    energy: float = 0.9,
    energy_growth: float = 0.0,
    training: Optional[LocalTraining] = None,
    proximal: float = 0.0,
    penalty: client_works.Penalties = None,
    aggregator: Optional[templates.AggregationFactory] = None,
    gram_aggregator: Optional[templates.AggregationFactory] = None,
    server_optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
    seed: int = 0,
) -> ContinualProcess:
    """FOT (Bakman et al., 2024): FedAvg whose server takes off an update what lies in past tasks' layer inputs.

    Shown in docs/methods.md.

    Args:
      network: what the clients train: a `KerasNetwork`, a `TextCNN`, any `tffcl.models.Layered`, or
        `tffcl.models.Whole` of one, of which biases and head are shared, too.
      energy: epsilon, the share of the energy of a layer's inputs that its subspace has; 0 is FedAvg to the bit.
      energy_growth: what epsilon grows by with each task.
      training: epochs, batches, learning rate.
      proximal: mu of FedProx; 0 for none.
      penalty: what else is added to a client's objective, without sums at the server.
      aggregator: of the kernels, see `build_fed_avg`.
      gram_aggregator: of the Gram sums, float32 `[gram_size]`: None for their sum, or any unweighted `tff.aggregators`
        factory that gives one, secure or with noise.
      server_optimizer: of the kernels, see `build_fed_avg`.
      seed: of everything random at the server.
    """
    import tensorflow_federated as tff

    work = client_works.OrthogonalWork(network, training or LocalTraining(), seed, penalties_of(proximal, penalty))
    factory = aggregators.gated(aggregator or tff.aggregators.MeanFactory(no_nan_division=True))
    both = aggregators.by_name(weights=factory, gram=gram_aggregator or tff.aggregators.SumFactory())
    inner = finalizers.build_server_update(work.shared_type, server_optimizer)
    finalizer = finalizers.build_orthogonal_update(inner, work, energy, energy_growth)
    return templates.compose_continual_process(work, both, finalizer)


def _fot(network: models.Network, orthogonal: Orthogonal, **options: Any) -> ContinualProcess:
    return build_fot(network, energy=orthogonal.energy, energy_growth=orthogonal.energy_growth, **options)


FOT = Method("fot", _fot, "FedAvg that leaves what layers gave for past tasks' inputs as it was.",
             "Bakman et al., 2024", learns=(LABELS,), options={"orthogonal": Orthogonal},
             defaults={"train_classes": "own"})  # fmt: skip
METHODS = {FOT.name: FOT}
