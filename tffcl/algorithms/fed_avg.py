"""FedAvg on a sequence of tasks; what is added to its clients' objective (FedProx, EWC, FedCurv); FOT.

McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017 (FedAvg).
Li et al.: Federated Optimization in Heterogeneous Networks, 2020 (FedProx).
Kirkpatrick et al.: Overcoming Catastrophic Forgetting in Neural Networks, 2017 (EWC).
Shoham et al.: Overcoming Forgetting in Federated Learning on Non-IID Data, 2019 (FedCurv).
Bakman, Yaldiz, Ezzeldin, Avestimehr: Federated Orthogonal Training: Mitigating Global Catastrophic Forgetting in
Continual Federated Learning, ICLR 2024 (FOT): what a layer gave for the inputs of past tasks stays as it was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional

from tffcl import aggregators, client_works, errors, finalizers, models, templates
from tffcl.algorithms.method import LABELS, Method
from tffcl.client_works.options import LocalTraining
from tffcl.options import Options, option

if TYPE_CHECKING:
    import tensorflow_federated as tff

    from tffcl.templates import ContinualProcess


@dataclasses.dataclass(frozen=True)
class Proximal(Options):
    """FedProx.

    Attributes:
      proximal: mu, in front of ||B - B_server||^2 / 2.
    """

    proximal: float = option(
        0.01, "mu of FedProx; 0 for FedAvg.", least=0, mark=lambda own: "+prox" if own.proximal > 0 else ""
    )


@dataclasses.dataclass(frozen=True)
class Importance(Options):
    """EWC and FedCurv.

    Attributes:
      penalty: lambda, the weight of the penalty.
      fisher_examples: examples that the Fisher information is a mean over.
    """

    penalty: float = option(100.0, "Weight of EWC or FedCurv.", least=0)
    fisher_examples: int = option(
        256, "Examples that the Fisher information is a mean over.", least=1, advanced=True, sparse=True
    )


def penalties_of(proximal: float, penalty: client_works.Penalties = None) -> list[client_works.Penalty]:
    """FedProx's penalty where mu is not 0, and whatever else is added."""
    others = [] if penalty is None else penalty if isinstance(penalty, (list, tuple)) else [penalty]
    return [*([client_works.Proximal(proximal)] if proximal else []), *others]


@errors.checked_arguments
def build_fed_avg(
    network: models.Network,
    *,
    training: Optional[LocalTraining] = None,
    proximal: float = 0.0,
    penalty: client_works.Penalties = None,
    aggregator: Optional[templates.AggregationFactory] = None,
    server_optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
    seed: int = 0,
    phases: Sequence[client_works.Phase] = (),
    keep_local: bool = False,
) -> ContinualProcess:
    """FedAvg (McMahan et al., 2017) of the network's kernels; biases and head belong to each client and task.

    Without proximal term and penalty it does nothing against forgetting.

    Shown in docs/tutorials/own-method.md.

    Args:
      network: what the clients train, without places for foreign adaptives.
      training: epochs, batches, learning rate.
      proximal: mu of FedProx (Li et al., 2020): the penalty `Proximal`; 0 is FedAvg.
      penalty: what else is added to a client's objective: `EWC`, `FedCurv`, any `Penalty`, or several.
      aggregator: of the kernels; None for the mean weighted by examples, or any `tff.aggregators` factory for a
        float32 vector. What penalties upload is summed.
      server_optimizer: of the kernels; None to take the aggregate, or a `tff.learning.optimizers.Optimizer` (FedAdam
        and others).
      seed: of everything random at the server.
      phases: parts of a client's round, over "base" and "local": FedRep (Collins et al., 2021) trains the head first,
        then the kernels.
      keep_local: biases and head belong to the client alone and go on from task to task, for clients that train on
        their past tasks, too.
    """
    work = client_works.PlainWork(
        network, training or LocalTraining(), seed, penalties_of(proximal, penalty), phases, keep_local
    )
    return compose_plain(work, aggregator, server_optimizer)


def compose_plain(
    work: client_works.PlainWork,
    aggregator: Optional[templates.AggregationFactory],
    server_optimizer: Optional[tff.learning.optimizers.Optimizer],
    around: Callable[[templates.FinalizerProcess], templates.FinalizerProcess] = lambda finalizer: finalizer,
) -> ContinualProcess:
    """The process of a plain work; arguments as for `build_fed_avg`, `around` makes another of its finalizer."""
    import tensorflow_federated as tff

    size = work.network.kernels.size
    factory = aggregator or tff.aggregators.MeanFactory(no_nan_division=True)
    if work.shared_type.shape[0] > size:
        factory = aggregators.split_at(size, factory, tff.aggregators.SumFactory())
    finalizer = finalizers.build_server_update(work.shared_type, server_optimizer, optimized=size)
    return templates.compose_continual_process(work, aggregators.gated(factory), around(finalizer))


@errors.checked_arguments
def build_ewc(
    network: models.Network, *, weight: float, fisher_examples: int = 256, **options: Any
) -> ContinualProcess:
    """FedAvg, or FedProx with `proximal`, whose clients hold on to past tasks by EWC (Kirkpatrick et al., 2017).

    With one client it is EWC as published, without any federation.

    Shown with `build_fed_avg`.

    Args:
      network: what the clients train, without places for foreign adaptives.
      weight: lambda, see `EWC`.
      fisher_examples: see `EWC`.
      **options: see `build_fed_avg`.
    """
    return build_fed_avg(network, penalty=client_works.EWC(weight, fisher_examples), **options)


@errors.checked_arguments
def build_fed_curv(
    network: models.Network, *, weight: float, fisher_examples: int = 256, **options: Any
) -> ContinualProcess:
    """FedCurv (Shoham et al., 2019): FedAvg whose clients stay near each other where it matters to the others.

    Shown with `build_fed_avg`.

    Args:
      network: what the clients train, without places for foreign adaptives.
      weight: lambda, see `FedCurv`.
      fisher_examples: see `FedCurv`; the Fisher information is measured in every round.
      **options: see `build_fed_avg`.
    """
    return build_fed_avg(network, penalty=client_works.FedCurv(weight, fisher_examples), **options)


def _replay(network: models.Network, **options: Any) -> ContinualProcess:
    """One head for all tasks: it is trained on all of them. A density's parameters are one client's and task's."""
    return build_fed_avg(network, keep_local=isinstance(network, models.Classifier), **options)


def _fed_prox(network: models.Network, prox: Proximal, **options: Any) -> ContinualProcess:
    return build_fed_avg(network, proximal=prox.proximal, **options)


def _ewc(
    network: models.Network, importance: Importance, prox: Optional[Proximal] = None, **options: Any
) -> ContinualProcess:
    return build_ewc(
        network,
        weight=importance.penalty,
        fisher_examples=importance.fisher_examples,
        proximal=prox.proximal if prox else 0.0,
        **options,
    )


def _fed_curv(network: models.Network, importance: Importance, **options: Any) -> ContinualProcess:
    return build_fed_curv(network, weight=importance.penalty, fisher_examples=importance.fisher_examples, **options)


FED_AVG = Method("fedavg", build_fed_avg, "The mean of the clients' kernels; nothing against forgetting.",
                 "McMahan et al., 2017")  # fmt: skip
FED_PROX = Method("fedprox", _fed_prox, "FedAvg whose clients stay near the server's kernels.", "Li et al., 2020",
                  options={"prox": Proximal})  # fmt: skip
EWC = Method("ewc", _ewc, "FedAvg whose clients hold on to what mattered to their past tasks.",
             "Kirkpatrick et al., 2017", options={"importance": Importance})  # fmt: skip
FED_CURV = Method("fedcurv", _fed_curv, "FedAvg whose clients stay near each other where it matters to the others.",
                  "Shoham et al., 2019", options={"importance": Importance}, defaults={"penalty": 1.0})  # fmt: skip
REPLAY = Method("replay", _replay, "FedAvg whose clients keep all examples of their past tasks.",
                pool="cumulative")  # fmt: skip
OFFLINE = Method("offline", build_fed_avg, "All data of all clients and tasks in one place: the reference.",
                 pool="all", clients="alone")  # fmt: skip
FED_PROX_EWC = dataclasses.replace(EWC, name="fedprox-ewc", about="EWC beside FedProx.",
                                   options={"importance": Importance, "prox": Proximal})  # fmt: skip


# -- FOT ----------------------------------------------------------------------------------------------------------


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
METHODS = {each.name: each for each in (FED_AVG, FED_PROX, EWC, FED_PROX_EWC, FED_CURV, REPLAY, OFFLINE, FOT)}
