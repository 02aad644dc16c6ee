"""Method: what a published method or baseline needs, and how a run of it is built.

A method stands in one file: its builder, its options, what it learns from. Everything around it (flags, data, streams,
runtimes, resume, reports) is the same for all, see `tffcl.Experiment`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from tffcl.client_works.options import Decomposition
from tffcl.options import Options, option, options_of
from tffcl.parts import users_code
from tffcl.transfers.options import Selection

if TYPE_CHECKING:
    from tffcl.experiment import Experiment
    from tffcl.experiment.plan import Plan
    from tffcl.templates import ContinualProcess

LABELS, DENSITY = "labels", "density"  # what there is to learn

# Parameters of a builder that the experiment fills in.
_SUPPLIED = ("network", "training", "seed", "aggregator", "server_optimizer")


@dataclasses.dataclass(frozen=True)
class TaskAtTest(Options):
    """What a method that keeps parameters for each task knows of a test example whose class may be of any task."""

    task_at_test: str = option(
        "known", "Of a test example: its task is told (known), which methods with one growing head are not; or of the "
        "tasks that the client has learned the one whose softmax has the lowest entropy is taken (entropy).",
        choices=("known", "entropy"), only=("class-incremental",),
        mark=lambda chosen: f"+{chosen.task_at_test}",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Method:
    """A method of federated continual learning.

    Shown with `method`.

    Attributes:
      name: what `tffcl run` calls it.
      builder: makes the process: `builder(network, training=, seed=, aggregator=, **options)`.
      about: one line on what it does.
      paper: authors and year.
      learns: `LABELS`, `DENSITY` or both.
      takes: kinds of data, where it does not take all kinds with what it learns.
      needs: what other kinds of data lack, for the message.
      options: parameter of the builder -> dataclass of options that is handed to it.
      foreign: None, or how foreign adaptives enter the network: "added" (FedWeIT) or "aligned" (FedSeIT).
      selection: the default transfer of a method with foreign adaptives.
      pool: "none"; "cumulative" (all tasks so far in each task), "memory" (some of each class so far), "clients" (all
        tasks of a client at once), "all" (all data in one place).
      clients: "federated", "alone" (nothing is aggregated over clients) or "single" (the first client's tasks only).
      labels: "task" (label k of a task is the k-th of its labels) or "data" (one head over all labels of the data set).
      growing: it is for one growing head alone (`--scenario class-incremental`).
      own_network: it builds its networks itself; there is no `--network`.
      defaults: option -> default, where it differs from what suits the data.
      schedule: name of the paper whose sizes and schedule are the defaults; None for those of the data.
    """

    name: str
    builder: Callable[..., ContinualProcess]
    about: str = ""
    paper: str = ""
    learns: tuple[str, ...] = (LABELS, DENSITY)
    takes: tuple[str, ...] = ()
    needs: str = ""
    options: Mapping[str, type] = dataclasses.field(default_factory=dict)
    foreign: Optional[str] = None
    selection: Optional[str] = None
    pool: str = "none"
    clients: str = "federated"
    labels: str = "task"
    growing: bool = False
    own_network: bool = False
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    schedule: Optional[str] = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of data that it takes: text, images and vectors have labels, binary vectors a density."""
        labelled = ("text", "image", "vector") if LABELS in self.learns else ()
        return self.takes or labelled + (("binary",) if DENSITY in self.learns else ())

    def option_groups(self) -> tuple[type, ...]:
        """Dataclasses of the method's options; with foreign adaptives also that of their selection, and with parameters
        for each task that of what is known at test.
        """
        told = (TaskAtTest,) if self.by_task and LABELS in self.learns else ()
        return (*((Selection,) if self.foreign else ()), *self.options.values(), *told)

    def defaults_on(self, data: str) -> Mapping[str, Any]:
        """Option -> default on a data set, where it differs from `defaults` and from what suits the data."""
        del data
        return {}

    def aligns(self, plan: Plan) -> bool:
        """Whether foreign adaptives are feature extractors of their own in the network of text (FedSeIT)."""
        del plan
        return self.foreign == "aligned"

    def by_label(self, plan: Plan) -> bool:
        """Whether there is one head over the labels of the data set, of which each task has its own."""
        shared = plan.group(Decomposition) if Decomposition in self.options.values() else None
        return self.labels == "data" or (shared is not None and shared.by_label)

    @property
    def by_task(self) -> bool:
        """Whether it keeps parameters for each task, and has to know, or to infer, an example's task at test."""
        return self.foreign is not None or Decomposition in self.options.values()

    def remembered(self, plan: Plan) -> int:
        """What `tffcl.streams.with_memory` keeps of each class, for the pool "memory"."""
        del plan
        return 0

    def herds(self, plan: Plan) -> bool:
        """Whether the pool "memory" is chosen by herding, in place of at random."""
        del plan
        return False

    def check(self, experiment: Experiment) -> None:
        """Refuses options that do not go together, before anything heavy begins.

        Raises:
          InputError: names the option and the way out.
        """

    def process(self, plan: Plan) -> ContinualProcess:
        """Builds the process of a run, in the runtime that it will use."""
        given: dict[str, Any] = {}
        for name, kind in self.options.items():
            group = plan.group(kind)
            given.update(dataclasses.asdict(group) if getattr(kind, "from_signature", False) else {name: group})
        available = {"training": plan.training, "seed": plan.seed, "aggregator": plan.aggregator()}
        accepted = inspect.signature(self.builder).parameters
        if not any(each.kind is each.VAR_KEYWORD for each in accepted.values()):
            available = {name: value for name, value in available.items() if name in accepted}
        network = plan.network()
        ours = self.builder.__module__.startswith("tffcl.")
        with contextlib.nullcontext() if ours else users_code(f"method: {self.name}"):
            return self.builder(network, **available, **given)


def method(
    name: Optional[str] = None, *, learns: Sequence[str] = (LABELS, DENSITY), **declared: Any
) -> Callable[[Callable[..., ContinualProcess]], Method]:
    """Decorator that makes a builder a method for `tffcl run FILE:NAME`.

    The builder gets `network` and, where its signature has them, `training`, `seed` and `aggregator`. Further
    parameters with a default and an annotation int, float, str or bool become options; their help is what the
    docstring's `Args` say.

    Shown in docs/tutorials/own-method.md.

    Args:
      name: of the method; by default the function's with hyphens.
      learns: `("labels",)`, `("density",)` or both.
      **declared: other attributes of `Method`.
    """

    def decorate(builder: Callable[..., ContinualProcess]) -> Method:
        own = options_of(builder, _SUPPLIED)
        options = dict(declared.pop("options", {}))
        if own is not None:
            options["own"] = own
        return Method(
            name or builder.__name__.replace("_", "-"),
            builder,
            about=(inspect.getdoc(builder) or "").partition("\n")[0],
            learns=tuple(learns),
            options=options,
            **declared,
        )

    return decorate
