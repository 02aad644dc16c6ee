"""MADE in federated continual learning: FedMADE, FedWeIT-MADE and ConFedMADE.

Paul, Frey, Kamath, Kersting, Mundt: Masked Autoencoders are Efficient Continual Federated Learners, 2023.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Optional

from tffcl import errors, models
from tffcl.algorithms import fed_avg
from tffcl.algorithms.decomposed import FEDWEIT, build_decomposed
from tffcl.algorithms.fed_avg import build_fed_avg
from tffcl.algorithms.method import DENSITY, Method
from tffcl.client_works.options import Decomposition, LocalTraining
from tffcl.models.registry import MADEConfig
from tffcl.options import OptionError

if TYPE_CHECKING:
    from tffcl.experiment import Experiment
    from tffcl.templates import ContinualProcess

# Defaults of these builders: appendix B.1 and section 4.1, and for A = B / 3 the published code. The learning rate is
# not the paper's 1e-3: with that, the about 160 steps of a task on the published schedule do not converge.
TRAINING = LocalTraining(num_epochs=1, batch_size=100, learning_rate=5e-3, patience=1)
DECOMPOSITION = Decomposition(sparsity=1e-4, retention=100.0, adaptive_factor=3.0)


@errors.checked_arguments
def build_fed_made(config: MADEConfig, *, training: Optional[LocalTraining] = None, **options: Any) -> ContinualProcess:
    """FedMADE (section 3.2): FedAvg of a whole MADE, its biases too; also the model of the paper's baselines.

    Synchronised or distinct masks, direct connections (DC), connectivity- (CA) and order-agnostic training (OA)
    are the configuration's.

    Shown with `build_confedmade`.

    Args:
      config: sizes and masks.
      training: epochs, batches, learning rate.
      **options: see `build_fed_avg`: FedProx, EWC and FedCurv among them.
    """
    network = models.MADENetwork(dataclasses.replace(config, share_biases=True))
    return build_fed_avg(network, training=training or TRAINING, **options)


@errors.checked_arguments
def build_fedweit_made(
    config: MADEConfig,
    *,
    num_foreign: int,
    synchronised: bool = False,
    training: Optional[LocalTraining] = None,
    decomposition: Optional[Decomposition] = None,
    **options: Any,
) -> ContinualProcess:
    """FedWeIT on a MADE as it stands (eq. 2); with `synchronised` the paper's FedWeIT-MADE*.

    Shown with `build_confedmade`.

    Args:
      config: sizes and masks.
      num_foreign: K, places for foreign adaptives.
      synchronised: whether all clients use the server's masks, or each its own.
      training: epochs, batches, learning rate.
      decomposition: lambda_1, lambda_2 and the other choices of the method.
      **options: see `build_decomposed`.
    """
    network = models.MADENetwork(dataclasses.replace(config, distinct_masks=not synchronised), num_foreign)
    chosen = dataclasses.replace(decomposition or DECOMPOSITION, connectivity_aware=False)
    return build_decomposed(network, training=training or TRAINING, decomposition=chosen, **options)


@errors.checked_arguments
def build_confedmade(
    config: MADEConfig,
    *,
    num_foreign: int,
    training: Optional[LocalTraining] = None,
    decomposition: Optional[Decomposition] = None,
    **options: Any,
) -> ContinualProcess:
    """ConFedMADE (eq. 5 and 6): masks from the server, over everything that is trained, penalised and sent.

    Shown in examples/confedmade_mnist.py.

    Args:
      config: sizes and masks.
      num_foreign: K, places for foreign adaptives; (clients - 1) * (tasks - 1) for all there can be.
      training: epochs, batches, learning rate.
      decomposition: lambda_1, lambda_2 and the other choices of the method.
      **options: see `build_decomposed`.
    """
    network = models.MADENetwork(dataclasses.replace(config, distinct_masks=False), num_foreign)
    chosen = dataclasses.replace(decomposition or DECOMPOSITION, connectivity_aware=True)
    return build_decomposed(network, training=training or TRAINING, decomposition=chosen, **options)


_PAPER = "Paul et al., 2023"
_MADE: dict[str, Any] = {"learns": (DENSITY,), "schedule": "confedmade"}


@dataclasses.dataclass(frozen=True)
class _Synchronised(Method):
    """A method in which all clients use the server's masks."""

    def check(self, experiment: Experiment) -> None:
        """See `Method.check`."""
        if experiment.values.get("distinct_masks"):
            raise OptionError("distinct_masks", f"{self.name} has the server's masks for all; fedweit-made has not")


_DECOMPOSED: dict[str, Any] = {**vars(FEDWEIT), "selection": "all", **_MADE}
CONFEDMADE = _Synchronised(
    **{**_DECOMPOSED, "name": "confedmade", "builder": build_decomposed, "paper": _PAPER,
       "about": "FedWeIT on a MADE, under one autoregressive mask for all clients."}
)  # fmt: skip
SYNCHRONISED = _Synchronised(
    **{**_DECOMPOSED, "name": "fedweit-made-sync", "about": "FedWeIT on a MADE, with the server's masks."}
)
UNSYNCHRONISED = Method(
    **{**_DECOMPOSED, "name": "fedweit-made", "about": "FedWeIT on a MADE, every client with masks of its own.",
       "defaults": {"distinct_masks": True}}
)  # fmt: skip


def _baseline(base: Method, name: str, about: str, **changed: Any) -> Method:
    return dataclasses.replace(base, name=name, about=about, **{**_MADE, **changed})


_BASELINES = (
    _baseline(fed_avg.FED_AVG, "finetune", "FedAvg task after task."),
    _baseline(fed_avg.FED_AVG, "cl-finetune", "The first client's tasks alone.", clients="single"),
    _baseline(fed_avg.EWC, "cl-ewc", "The first client's tasks alone, with EWC.", clients="single",
              defaults={"penalty": 1.0}),
    _baseline(fed_avg.REPLAY, "cl-replay", "The first client's tasks alone, with all past examples.", clients="single"),
    _baseline(fed_avg.FED_AVG, "federated-offline", "FedAvg on all tasks of each client at once.", pool="clients"),
)  # fmt: skip
METHODS = {each.name: each for each in (CONFEDMADE, SYNCHRONISED, UNSYNCHRONISED, *_BASELINES)}
