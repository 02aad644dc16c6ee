"""Methods of one growing head in closed form, on features that are frozen: AFCL and class prototypes.

Tang et al.: AFCL: Analytic Federated Continual Learning, 2025. Clients send sums of their features once for each task;
the classifier is that of all data together, whatever the order, the clients and the partition, and forgets nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Optional

from tffcl import client_works, errors, finalizers, models, templates
from tffcl.algorithms.incremental import GROWING
from tffcl.algorithms.method import Method
from tffcl.options import Options, option

if TYPE_CHECKING:
    from tffcl.experiment.plan import Plan
    from tffcl.templates import ContinualProcess

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
    if covariance not in COVARIANCES:
        raise errors.InputError(f"covariance must be one of {', '.join(COVARIANCES)}; got {covariance!r}")
    shared = covariance == "shared"
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
METHODS = {each.name: each for each in (AFCL, PROTOTYPES)}
