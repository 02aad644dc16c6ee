"""Decomposed weights shared across clients: FedWeIT, FedSeIT, and clients by themselves.

Yoon, Jeong, Lee, Yang, Hwang: Federated Continual Learning with Weighted Inter-client Transfer, 2021 (FedWeIT).
Chaudhary, Rai, Schubert, Schuetze, Gupta: Federated Continual Learning for Text Classification via Selective
Inter-client Transfer, 2022 (FedSeIT).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Optional, Union

from tffcl import aggregators, client_works, errors, finalizers, models, templates
from tffcl.algorithms.method import LABELS, Method
from tffcl.client_works.options import Decomposition, LocalTraining
from tffcl.models.registry import TextCNNConfig
from tffcl.options import OptionError, Options, option

if TYPE_CHECKING:
    import tensorflow_federated as tff

    from tffcl.experiment import Experiment
    from tffcl.experiment.plan import Plan
    from tffcl.templates import ContinualProcess


@errors.checked_arguments
def build_decomposed(
    network: models.Network,
    *,
    training: Optional[LocalTraining] = None,
    decomposition: Optional[Decomposition] = None,
    aggregator: Optional[templates.AggregationFactory] = None,
    server_optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
    seed: int = 0,
    penalty: client_works.Penalties = None,
) -> ContinualProcess:
    """The continual process of any network whose kernels are decomposed into base, mask and adaptive.

    Shown with `build_fedseit`.

    Args:
      network: what the clients train; its `num_foreign` places are what a transfer may fill.
      training: epochs, batches, learning rate.
      decomposition: lambda_1, lambda_2 and the other choices of the method.
      aggregator: None for the mean of each entry over the clients that sent it, a `SparseMeanFactory` with other sums
        (`SparseMeanFactory.secure`), or any `tff.aggregators` factory for a float32 vector (DP, secure, robust), which
        takes an entry that was not sent for a change of zero.
      server_optimizer: None to take the aggregate as the new base, or a `tff.learning.optimizers.Optimizer`.
      seed: of everything random at the server.
      penalty: what else is added to a client's objective, on B: `Proximal`, `EWC`, any `Penalty`, or several.

    Returns:
      A `ContinualProcess`.
    """
    work = client_works.DecomposedWork(
        network, training or LocalTraining(), decomposition or Decomposition(), seed, penalty
    )
    if aggregator is None:
        factory = aggregators.SparseMeanFactory()
    else:
        sparse = isinstance(aggregator, aggregators.SparseMeanFactory)
        factory = aggregator if sparse else aggregators.gated(aggregator)
    update = finalizers.build_server_update(work.shared_type, server_optimizer)
    return templates.compose_continual_process(work, factory, update)


@errors.checked_arguments
def build_fedweit(
    network: Union[models.Network, TextCNNConfig], *, num_foreign: int = 0, **options: Any
) -> ContinualProcess:
    """FedWeIT (Yoon et al., 2021): foreign adaptives are added into the kernels (FedSeIT eq. 4).

    Shown with `build_fedseit`.

    Args:
      network: with its places for foreign adaptives; or the sizes of a TextCNN.
      num_foreign: K, places for foreign adaptives of a TextCNN.
      **options: see `build_decomposed`.
    """
    if isinstance(network, TextCNNConfig):
        network = models.TextCNN(network, num_foreign)
    return build_decomposed(network, **options)


@errors.checked_arguments
def build_fedseit(
    network: Union[models.Network, TextCNNConfig], *, num_foreign: Optional[int] = None, **options: Any
) -> ContinualProcess:
    """FedSeIT (Chaudhary et al., 2022): foreign adaptives as aligned feature extractors (eq. 1-5).

    Which adaptives arrive is the transfer's choice (`PreviousTask`, `SIT`); `Decomposition(share_dense="position")` is
    DLS, "start" the label-aligned start, which takes a `tffcl.models.with_label_mask` and labels of the data set.

    Shown in examples/fedseit_trec.py.

    Args:
      network: an `AlignedTextCNN`; or the sizes of one.
      num_foreign: K, places for foreign adaptives; that of the network by default.
      **options: see `build_decomposed`.
    """
    places = network.num_foreign if num_foreign is None and not isinstance(network, TextCNNConfig) else num_foreign
    if not places or places < 1:
        raise errors.InputError(f"num_foreign: FedSeIT needs at least 1 place for foreign adaptives, found {places}")
    if isinstance(network, TextCNNConfig):
        network = models.AlignedTextCNN(network, places)
    return build_decomposed(network, **options)


@errors.checked_arguments
def build_local(
    network: Union[models.Network, TextCNNConfig], *, decomposition: Optional[Decomposition] = None, **options: Any
) -> ContinualProcess:
    """Every client by itself, with FedWeIT's network or another: no base, no adaptives of others.

    Shown with `build_fedseit`.

    Args:
      network: without places for foreign adaptives; or the sizes of a TextCNN, the network of FedWeIT.
      decomposition: lambda_1, lambda_2 and the other choices of the method.
      **options: see `build_decomposed`.
    """
    if isinstance(network, TextCNNConfig):
        network = models.TextCNN(network, 0)
    alone = dataclasses.replace(decomposition or Decomposition(), exchange=False)
    return build_decomposed(network, decomposition=alone, **options)


@dataclasses.dataclass(frozen=True)
class Alone(Options):
    """A client by itself."""

    network_of: Optional[str] = option(
        None, "Whose network it has: that of FedSeIT, with its further layer W_c, or that of FedWeIT; none for fedseit "
        "on text, fedweit elsewhere.", choices=("fedseit", "fedweit"),
        mark=lambda own: f"+{own.network_of}" if own.network_of else "",
    )  # fmt: skip
    warm_start: bool = option(
        False, "Projections and head begin where the client's own last task ended, head columns by label.",
        mark=lambda own: "+warm" if own.warm_start else "",
    )  # fmt: skip


def _build_alone(
    network: models.Network, decomposition: Decomposition, alone: Alone, **options: Any
) -> ContinualProcess:
    kept = dataclasses.replace(decomposition, share_dense="start" if alone.warm_start else "no")
    return build_local(network, decomposition=kept, **options)


@dataclasses.dataclass(frozen=True)
class _AloneMethod(Method):
    """A method without any exchange, with the network of another."""

    def check(self, experiment: Experiment) -> None:
        """See `Method.check`."""
        if experiment.share_dense != "no":
            raise OptionError("share_dense", f"{self.name} shares nothing; --warm-start keeps a client's own parts")
        if experiment.network_of == "fedseit" and experiment.kind != "text":
            raise OptionError("network_of", f"fedseit has a network of text, and here are {experiment.kind} data")

    def aligns(self, plan: Plan) -> bool:
        """See `Method.aligns`."""
        return plan.group(Alone).network_of != "fedweit"

    def by_label(self, plan: Plan) -> bool:
        """See `Method.by_label`."""
        return plan.group(Alone).warm_start


def _build_unmasked(network: models.Network, decomposition: Decomposition, **options: Any) -> ContinualProcess:
    """FedWeIT as it stands: it knows nothing of a connectivity mask."""
    unaware = dataclasses.replace(decomposition, connectivity_aware=False)
    return build_decomposed(network, decomposition=unaware, **options)


FEDSEIT = Method(
    "fedseit",
    build_fedseit,
    "Foreign adaptives are feature extractors of their own, aligned with the client's; SIT picks which.",
    "Chaudhary et al., 2022",
    learns=(LABELS,),
    takes=("text",),
    needs="it aligns features of text; fedweit adds what others have learned into any network",
    options={"decomposition": Decomposition},
    foreign="aligned",
    selection="previous",
    schedule="fedseit",
)
FEDWEIT = Method(
    "fedweit",
    _build_unmasked,
    "Kernels are base, mask and sparse adaptive; the adaptives of others are added in.",
    "Yoon et al., 2021",
    options={"decomposition": Decomposition},
    foreign="added",
    selection="previous",
)
LOCAL = Method(
    "local",
    build_local,
    "Every client by itself with FedWeIT's network: nothing is exchanged.",
    options={"decomposition": Decomposition},
    clients="alone",
)
ALONE = _AloneMethod(
    "alone",
    _build_alone,
    "The control of what federation is worth: a method's own network, nothing exchanged.",
    options={"decomposition": Decomposition, "alone": Alone},
    clients="alone",
)
STORE_ALL = dataclasses.replace(
    ALONE,
    name="store-all",
    about="The control of what memory is worth: as alone, and the network of every task is kept whole.",
    defaults={"retention_form": "stored"},
)
METHODS = {each.name: each for each in (FEDSEIT, FEDWEIT, LOCAL, ALONE, STORE_ALL)}
