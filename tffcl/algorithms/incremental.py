"""Methods of one growing head whose networks are trained: learning without forgetting, and experience replay.

Li, Hoiem: Learning without Forgetting, 2016 (LwF). With FedAvg it is the FedLwF of Zhang et al.: TARGET: Federated
Class-Continual Learning via Exemplar-Free Distillation, ICCV 2023.
Chaudhry et al.: On Tiny Episodic Memories in Continual Learning, 2019 (ER); each client has a memory of its own.
Rebuffi et al.: iCaRL: Incremental Classifier and Representation Learning, 2017 (herding).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from tffcl import client_works, errors, models
from tffcl.algorithms.fed_avg import build_fed_avg
from tffcl.algorithms.method import LABELS, Method
from tffcl.options import Options, option

if TYPE_CHECKING:
    from tffcl.experiment.plan import Plan
    from tffcl.templates import ContinualProcess


@dataclasses.dataclass(frozen=True)
class Distillation(Options):
    """LwF."""

    distillation: float = option(
        1.0, "lambda of LwF: weight of staying near the scores of the last task's model; 0 for FedAvg.", least=0
    )
    temperature: float = option(2.0, "T, which softens the scores.", above=0)


@dataclasses.dataclass(frozen=True)
class Memory(Options):
    """ER."""

    memory_per_class: int = option(20, "Examples of each past class that a client remembers.", least=0)
    memory_choice: str = option(
        "random", "Which: at random, or those whose mean is nearest that of the class (herding), in pixels, columns or "
        "means of word vectors.", choices=("random", "herding"), sparse=True,
        mark=lambda own: "+herding" if own.memory_choice == "herding" else "",
    )  # fmt: skip


@errors.checked_arguments
def build_lwf(
    network: models.Network, *, weight: float = 1.0, temperature: float = 2.0, **options: Any
) -> ContinualProcess:
    """FedAvg whose clients keep to what the last task's model said of the classes before (LwF).

    Shown in docs/methods.md.

    Args:
      network: what the clients train, all of it shared (`tffcl.models.Whole`), with a growing label mask.
      weight: lambda, see `LwF`; 0 is FedAvg to the bit.
      temperature: T.
      **options: see `build_fed_avg`.
    """
    return build_fed_avg(network, penalty=client_works.LwF(weight, temperature), **options)


def _lwf(network: models.Network, distillation: Distillation, **options: Any) -> ContinualProcess:
    return build_lwf(network, weight=distillation.distillation, temperature=distillation.temperature, **options)


@dataclasses.dataclass(frozen=True)
class _Replaying(Method):
    """Clients train on what they remember of past classes."""

    def remembered(self, plan: Plan) -> int:
        """See `Method.remembered`."""
        return plan.group(Memory).memory_per_class

    def herds(self, plan: Plan) -> bool:
        """See `Method.herds`."""
        return plan.group(Memory).memory_choice == "herding"


def _er(network: models.Network, memory: Memory, **options: Any) -> ContinualProcess:
    del memory  # its examples stand with the data
    return build_fed_avg(network, **options)


# LwF has a head for each task in training: its classes do not compete with those before.
GROWING: dict[str, Any] = {"learns": (LABELS,), "growing": True, "defaults": {"scenario": "class-incremental"}}
LWF = Method("lwf", _lwf, "FedAvg that distills what the last task's model said of the classes before.",
             "Li and Hoiem, 2016", options={"distillation": Distillation},
             **{**GROWING, "defaults": {**GROWING["defaults"], "train_classes": "own"}})  # fmt: skip
ER = _Replaying("er", _er, "FedAvg whose clients keep a few examples of each class and train on them again.",
                "Chaudhry et al., 2019", options={"memory": Memory}, pool="memory", **GROWING)  # fmt: skip
METHODS = {each.name: each for each in (LWF, ER)}
