"""Methods of one growing head: LwF, TARGET, experience replay, GLFC; in closed form AFCL and class prototypes.

Li, Hoiem: Learning without Forgetting, 2016 (LwF). With FedAvg it is the FedLwF of Zhang et al.: TARGET: Federated
Class-Continual Learning via Exemplar-Free Distillation, ICCV 2023, whose own method distills on made examples (TARGET).
Chaudhry et al.: On Tiny Episodic Memories in Continual Learning, 2019 (ER); each client has a memory of its own.
Rebuffi et al.: iCaRL: Incremental Classifier and Representation Learning, 2017 (herding).
Dong et al.: Federated Class-Incremental Learning, CVPR 2022 (GLFC).
Tang et al.: AFCL: Analytic Federated Continual Learning, 2025. On features that are frozen, clients send sums once for
each task; the classifier is that of all data together, whatever the order, the clients and the partition, and forgets
nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Optional

from tffcl import client_works, errors, finalizers, models, templates
from tffcl.algorithms.fed_avg import build_fed_avg, compose_plain
from tffcl.algorithms.method import LABELS, Method
from tffcl.client_works.options import LocalTraining
from tffcl.options import Options, option

if TYPE_CHECKING:
    import tensorflow_federated as tff

    from tffcl.experiment.plan import Plan
    from tffcl.templates import ContinualProcess


@dataclasses.dataclass(frozen=True)
class Distillation(Options):
    """LwF and TARGET."""

    distillation: float = option(
        1.0, "Of LwF and TARGET: weight of staying near the scores of the last task's model; 0 for FedAvg.", least=0
    )
    temperature: float = option(2.0, "T, which softens the scores.", above=0)


@dataclasses.dataclass(frozen=True)
class Generation(Options):
    """TARGET."""

    synthetic_examples: int = option(200, "Examples that the server makes when a task has ended.", least=1)
    generator_steps: int = option(200, "Steps in which its generator is trained.", least=1)
    generator_width: int = option(32, "Channels of the generator's last hidden layer.", least=1, advanced=True)
    adversarial: float = option(
        1.0, "lambda_1: weight of made examples on which a student of the model errs.", least=0, advanced=True
    )
    synthetic_words: int = option(10, "Words of a made document.", least=1, advanced=True, only=("text",))


@dataclasses.dataclass(frozen=True)
class Memory(Options):
    """ER and GLFC."""

    memory_per_class: int = option(20, "Examples of each past class that a client remembers.", least=0)
    memory_choice: str = option(
        "random", "Which: at random, or those whose mean is nearest that of the class (herding), in pixels, columns or "
        "means of word vectors.", choices=("random", "herding"), sparse=True,
        mark=lambda own: "+herding" if own.memory_choice == "herding" else "",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Relations(Options):
    """GLFC."""

    relation: float = option(
        1.0, "lambda_2 / lambda_1: weight of keeping what the last task's model said of the classes before.", least=0
    )
    compensation: bool = option(
        True, "Old and new classes are weighed by how much of each is still to be learned.",
        mark=lambda own: "" if own.compensation else "-uncompensated",
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


@errors.checked_arguments
def build_target(
    network: models.Classifier,
    *,
    weight: float = 1.0,
    temperature: float = 2.0,
    synthetic_examples: int = 200,
    generator_steps: int = 200,
    generator_width: int = 32,
    adversarial: float = 1.0,
    synthetic_words: int = 10,
    training: Optional[LocalTraining] = None,
    aggregator: Optional[templates.AggregationFactory] = None,
    server_optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
    seed: int = 0,
    **options: Any,
) -> ContinualProcess:
    """FedAvg whose clients keep to the last task's model on examples that the server made of that model (TARGET).

    Zhang et al., ICCV 2023. No example and no statistic of one leaves a client, but for what follows from the model.

    Shown in docs/methods.md.

    Args:
      network: what the clients train, all of it shared (`tffcl.models.Whole`), with a growing label mask.
      weight: alpha, see `SyntheticWork`; 0 is FedAvg, and the server makes nothing.
      temperature: T, of the clients' distillation as of the student's at the server.
      synthetic_examples: see `Synthesis.count`.
      generator_steps: see `Synthesis.steps`.
      generator_width: see `Generator`.
      adversarial: lambda_1, see `Synthesis`.
      synthetic_words: words of a document that is made.
      training: epochs, batches, learning rate.
      aggregator: see `build_fed_avg`.
      server_optimizer: see `build_fed_avg`.
      seed: of everything random at the server.
      **options: others of `SyntheticWork`: `penalty`.

    Raises:
      InputError: a number out of its range, or a network whose inputs are no dense numbers.
    """
    if not weight:
        return build_fed_avg(
            network, training=training, aggregator=aggregator, server_optimizer=server_optimizer, seed=seed, **options
        )
    form = models.input_form(network, synthetic_words)
    work = client_works.SyntheticWork(
        network, training or LocalTraining(), form,
        count=synthetic_examples, weight=weight, temperature=temperature, seed=seed, **options,
    )  # fmt: skip
    generator = models.Generator(form, network.max_classes, generator_width)
    how = finalizers.Synthesis(synthetic_examples, generator_steps, adversarial, temperature)
    return compose_plain(
        work, aggregator, server_optimizer,
        lambda inner: finalizers.build_synthesis(inner, network, generator, how, seed),
    )  # fmt: skip


def _target(
    network: models.Classifier, distillation: Distillation, generation: Generation, **options: Any
) -> ContinualProcess:
    return build_target(
        network, weight=distillation.distillation, temperature=distillation.temperature,
        **dataclasses.asdict(generation), **options,
    )  # fmt: skip


@errors.checked_arguments
def build_glfc(
    network: models.Network,
    *,
    relation: float = 1.0,
    compensation: bool = True,
    training: Optional[LocalTraining] = None,
    aggregator: Optional[templates.AggregationFactory] = None,
    server_optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
    seed: int = 0,
) -> ContinualProcess:
    """GLFC (Dong et al., CVPR 2022) without its proxy server, for clients that train on a memory of past classes.

    Shown in docs/methods.md.

    Args:
      network: what the clients train, all of it shared (`tffcl.models.Whole`), with a growing label mask.
      relation: lambda_2 / lambda_1, see `RelationDistillation`; 0 for none.
      compensation: the class-aware gradient compensation loss in the place of cross-entropy, see `CompensatedWork`.
        Without both it is FedAvg, or with a memory ER.
      training: epochs, batches, learning rate.
      aggregator: see `build_fed_avg`.
      server_optimizer: see `build_fed_avg`.
      seed: of everything random at the server.
    """
    kind = client_works.CompensatedWork if compensation else client_works.PlainWork
    work = kind(network, training or LocalTraining(), seed, client_works.RelationDistillation(relation))
    return compose_plain(work, aggregator, server_optimizer)


def _glfc(network: models.Network, memory: Memory, relations: Relations, **options: Any) -> ContinualProcess:
    del memory  # its examples stand with the data
    return build_glfc(network, relation=relations.relation, compensation=relations.compensation, **options)


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


# LwF and TARGET have a head for each task in training: its classes do not compete with those before.
GROWING: dict[str, Any] = {"learns": (LABELS,), "growing": True, "defaults": {"scenario": "class-incremental"}}
_OWN: dict[str, Any] = {**GROWING, "defaults": {**GROWING["defaults"], "train_classes": "own"}}
LWF = Method("lwf", _lwf, "FedAvg that distills what the last task's model said of the classes before.",
             "Li and Hoiem, 2016", options={"distillation": Distillation}, **_OWN)  # fmt: skip
TARGET = Method("target", _target, "FedAvg that distills the last task's model on examples that the server made of it.",
                "Zhang et al., 2023", options={"distillation": Distillation, "generation": Generation},
                **_OWN)  # fmt: skip
ER = _Replaying("er", _er, "FedAvg whose clients keep a few examples of each class and train on them again.",
                "Chaudhry et al., 2019", options={"memory": Memory}, pool="memory", **GROWING)  # fmt: skip
GLFC = _Replaying("glfc", _glfc, "ER that weighs old against new classes, and distills the last task's model.",
                  "Dong et al., 2022", options={"memory": Memory, "relations": Relations}, pool="memory",
                  **GROWING)  # fmt: skip


# -- in closed form -----------------------------------------------------------------------------------------------

COVARIANCES = ("shared", "none")


@dataclasses.dataclass(frozen=True)
class Features(Options):
    """What the classifier sees."""

    width: int = option(
        1000, "Random ReLU features of pixels, columns or the mean of word vectors; 0 for these themselves.", least=0
    )


@dataclasses.dataclass(frozen=True)
class Ridge(Options):
    """AFCL."""

    regularisation: float = option(1.0, "Weight of the squared norm of AFCL's classifier.", above=0)


@dataclasses.dataclass(frozen=True)
class Prototypes(Options):
    """Class prototypes."""

    covariance: str = option(
        "shared", "Gaussians with one covariance, or the nearest mean alone.", choices=COVARIANCES,
        mark=lambda own: "+nearest-mean" if own.covariance == "none" else "",
    )  # fmt: skip
    shrinkage: float = option(
        0.01, "Share of the covariance that is replaced by a multiple of I.", above=0, most=1, advanced=True
    )


def _build(
    work: client_works.AnalyticWork, solve: Any, aggregator: Optional[templates.AggregationFactory]
) -> ContinualProcess:
    import tensorflow_federated as tff

    if aggregator is not None:
        raise errors.InputError("aggregator: sums in closed form have to be exact; leave clipping and noise out")
    finalizer = finalizers.build_closed_form(work, solve)
    return templates.compose_continual_process(work, tff.aggregators.SumFactory(), finalizer)


@errors.checked_arguments
def build_afcl(
    encoder: models.FrozenEncoder,
    classes: int,
    *,
    width: int = 1000,
    regularisation: float = 1.0,
    seed: int = 0,
    aggregator: Optional[templates.AggregationFactory] = None,
) -> ContinualProcess:
    """AFCL (Tang et al., 2025): ridge regression on all examples that clients ever had.

    Shown in docs/methods.md.

    Args:
      encoder: whose output the features are made of.
      classes: L, of the data set.
      width: random features, see `AnalyticWork`; 0 for the encoder's output itself.
      regularisation: lambda of ridge regression.
      seed: of the random features.
      aggregator: None; sums have to be exact.
    """
    work = client_works.AnalyticWork(encoder, classes, width=width, seed=seed)
    return _build(work, finalizers.ridge(regularisation), aggregator)


@errors.checked_arguments
def build_prototypes(
    encoder: models.FrozenEncoder,
    classes: int,
    *,
    width: int = 1000,
    covariance: str = "shared",
    shrinkage: float = 0.01,
    seed: int = 0,
    aggregator: Optional[templates.AggregationFactory] = None,
) -> ContinualProcess:
    """A Gaussian for each class in a frozen space, of the statistics of all examples that clients ever had.

    Shown in docs/methods.md.

    Args:
      encoder: whose output the features are made of.
      classes: L, of the data set.
      width: random features, see `AnalyticWork`; 0 for the encoder's output itself.
      covariance: "shared" by all classes, or "none" for the nearest mean: then clients send no products of features.
      shrinkage: share of the covariance that is replaced by a multiple of I.
      seed: of the random features.
      aggregator: None; sums have to be exact.

    Raises:
      InputError: no such covariance.
    """
    shared = errors.check_choice("covariance", covariance, COVARIANCES) == "shared"
    work = client_works.AnalyticWork(encoder, classes, width=width, with_gram=shared, seed=seed)
    solve = finalizers.discriminant(shrinkage) if shared else finalizers.nearest_mean()
    return _build(work, solve, aggregator)


@dataclasses.dataclass(frozen=True)
class _Analytic(Method):
    """On the plain features of the data, from which random ones are made."""

    def process(self, plan: Plan) -> ContinualProcess:
        """See `Method.process`."""
        given: dict[str, Any] = {}
        for kind in self.options.values():
            given.update(dataclasses.asdict(plan.group(kind)))
        return self.builder(
            plan.plain_encoder(), plan.num_classes, seed=plan.seed, aggregator=plan.aggregator(), **given
        )


_CLOSED: dict[str, Any] = {
    **GROWING, "own_network": True, "defaults": {**GROWING["defaults"], "num_rounds": 1, "num_epochs": 1},
}  # fmt: skip
AFCL = _Analytic("afcl", build_afcl, "Ridge regression on frozen features, of sums that clients send once a task.",
                 "Tang et al., 2025", options={"features": Features, "ridge": Ridge}, **_CLOSED)  # fmt: skip
PROTOTYPES = _Analytic("prototypes", build_prototypes,
                       "A Gaussian for each class in a frozen space, of sums that clients send once a task.",
                       options={"features": Features, "prototypes": Prototypes}, **_CLOSED)  # fmt: skip
METHODS = {each.name: each for each in (LWF, TARGET, ER, GLFC, AFCL, PROTOTYPES)}
