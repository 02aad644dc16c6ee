"""FIL-VER (Park et al., 2021): classifiers of frozen embeddings that rehearse at the clients and at the server.

Its baselines are the same parts left out: VER without SST (`server_side_training=False` and `sharing="none"`), plain
federated averaging (no `client_memory` either), EBR (a deterministic encoder with `sharing="embeddings"`).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional, Union

from tffcl import aggregators, client_works, errors, finalizers, metrics, models, templates
from tffcl.algorithms.fed_avg import Proximal, build_fed_avg, penalties_of
from tffcl.algorithms.method import LABELS, Method
from tffcl.client_works.options import LocalTraining
from tffcl.models.registry import EncoderConfig
from tffcl.options import OptionError, Options, option

if TYPE_CHECKING:
    import tensorflow_federated as tff

    from tffcl.experiment import Experiment
    from tffcl.experiment.plan import Plan
    from tffcl.templates import ContinualProcess

logger = logging.getLogger(__name__)

DELTA = 1e-5  # of the epsilon that is reported for vectors that are sent
TRAINING = LocalTraining(num_epochs=2, batch_size=64, learning_rate=1e-3, patience=0)


@errors.checked_arguments
def build_fil_ver(
    model: client_works.RehearsalModel,
    *,
    sharing: str = "sampled",
    send_per_round: int = 50,
    server_side_training: Union[bool, finalizers.ServerSideTraining] = True,
    client_memory: int = 300,
    task_memory: Optional[int] = None,
    training: Optional[LocalTraining] = None,
    proximal: float = 0.0,
    privacy: Optional[client_works.EmbeddingPrivacy] = None,
    aggregator: Optional[templates.AggregationFactory] = None,
    server_optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
    share_raw_data: bool = False,
    seed: int = 0,
) -> ContinualProcess:
    """FIL-VER with its variants and baselines.

    Shown in examples/fil_ver_emnist.py.

    Args:
      model: the frozen encoder and the classifier.
      sharing: what clients send for rehearsal at the server: "sampled" (VER-Sampled), "stats" (VER-Stats),
        "embeddings" (EBR, of a deterministic encoder), or "none".
      send_per_round: examples that a client sends in a round, each once in the whole run.
      server_side_training: S_max, eta_s and the server's memory; True for the defaults, False for no SST.
      client_memory: rows that each client remembers of its past tasks; 0 for no rehearsal at the clients.
      task_memory: most rows that it remembers of one task, even while there is room for more; None for no limit.
      training: epochs, batches, learning rate; `TRAINING` unless given.
      proximal: mu of FedProx, 0 for FedAvg.
      privacy: clipping and noise on each vector that is sent.
      aggregator: of the classifier's update; None for the mean weighted by examples (eq. 1), or any
        `tff.aggregators` factory for a float32 vector (secure, differentially private, robust).
      server_optimizer: of the classifier; None to take the aggregate, or a `tff.learning.optimizers.Optimizer`.
      share_raw_data: allows sharing with an encoder that is none: what is sent is then the clients' raw data.
      seed: of everything random at the server.

    Raises:
      InputError: SST without a sharing, a sharing without SST, a sharing that does not go with the encoder, or raw
        data that would be shared.
    """
    import tensorflow_federated as tff

    if sharing != "none" and not server_side_training:
        raise errors.InputError(
            f"sharing {sharing!r} without server-side training: clients would send what nobody uses; take 'none'"
        )
    if sharing == "none" and server_side_training:
        raise errors.InputError("server-side training: needs a sharing; with 'none' nothing comes to train on")
    encoder = model.encoder.encoder
    if isinstance(encoder, models.IdentityEncoder) and sharing != "none" and not share_raw_data:
        raise errors.InputError(
            "naive rehearsal at the server sends the clients' raw data to it; pass share_raw_data=True if that is meant"
        )
    shares = client_works.Sharing(encoder, sharing, send_per_round, privacy)
    work = client_works.RehearsalWork(
        model,
        training or TRAINING,
        shares,
        client_memory=client_memory,
        task_memory=task_memory,
        penalty=penalties_of(proximal),
        seed=seed,
    )
    factory = aggregators.gated(aggregator or tff.aggregators.MeanFactory(no_nan_division=True))
    update = finalizers.build_server_update(work.shared_type, server_optimizer)
    if sharing == "none":
        return templates.compose_continual_process(work, factory, update)
    options = server_side_training if isinstance(server_side_training, finalizers.ServerSideTraining) else None
    finalizer = finalizers.build_server_side_training(update, model.classifier, shares, options, seed, model.label_mask)
    rows = aggregators.by_name(weights=factory, rehearsal=aggregators.ConcatenationFactory())
    return templates.compose_continual_process(work, rows, finalizer)


@dataclasses.dataclass(frozen=True)
class Rehearsal(Options):
    """Pre-training, memories, server-side training (SST) and noise on what is sent.

    Shown in examples/fil_ver_emnist.py.
    """

    pretraining: str = option(
        "central", "How the encoder learns from the first task.",
        choices=("central", "federated"), mark=lambda own: "+federated" if own.pretraining == "federated" else "",
    )  # fmt: skip
    pretraining_clients: str = option(
        "enrolled", "Whose first task it learns from: that of the clients that are enrolled in it, or of all, as if "
        "those examples had been public, so that enrolments are compared on one encoder.", choices=("enrolled", "all"),
        sparse=True, mark=lambda own: "+pretrained-by-all" if own.pretraining_clients == "all" else "",
        only=("domains",), advanced=True,
    )  # fmt: skip
    pretraining_epochs: int = option(8, "Epochs of pre-training.", least=1)
    client_memory: int = option(300, "Rows that each client remembers of its past tasks.", least=0)
    memory_share: float = option(
        0.1, "In section 5.1: share of each past task's examples that the memory has room for at the last task.",
        above=0, most=1, advanced=True,
    )  # fmt: skip
    memory_per_task: Optional[bool] = option(
        None, "In section 5.1: keep no more than --memory-share of a past task, as the paper does, though there is "
        "room for more of each before the last task.", advanced=True,
    )  # fmt: skip
    send_per_round: int = option(50, "Examples that a client sends for SST in a round, each once in all.", least=1)
    sst_steps: int = option(100, "S_max, steps of SST in a round.", least=1)
    sst_learning_rate: float = option(1e-3, "eta_s, learning rate of SST.", above=0)
    server_memory: int = option(6000, "Rows that the server keeps.", least=1)
    dp_clip: Optional[float] = option(
        None, "Norm to which each vector that is sent is clipped.", above=0, advanced=True,
        mark=lambda own: "+dp" if own.dp_clip is not None else "",
    )  # fmt: skip
    dp_noise_multiplier: Optional[float] = option(
        None, "Standard deviation of the noise on each vector that is sent, in units of --dp-clip; tells epsilon.",
        above=0, advanced=True,
    )  # fmt: skip
    dp_noise_seed: Optional[int] = option(
        None, "For tests: noise that repeats, and guarantees nothing; none for secrets of the operating system.",
        least=0, most=2**31 - 1, advanced=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        both = {"dp_clip": self.dp_clip, "dp_noise_multiplier": self.dp_noise_multiplier}
        missing = [name for name, value in both.items() if value is None]
        if len(missing) == 1:
            given = "dp_noise_multiplier" if missing == ["dp_clip"] else "dp_clip"
            raise OptionError(given, f"needs --{missing[0].replace('_', '-')} beside it")
        if missing and self.dp_noise_seed is not None:
            raise OptionError("dp_noise_seed", "needs --dp-clip and --dp-noise-multiplier beside it")

    @property
    def privacy(self) -> Optional[client_works.EmbeddingPrivacy]:
        """Clipping and noise on what is sent, if asked for."""
        if self.dp_clip is None or self.dp_noise_multiplier is None:
            return None
        return client_works.EmbeddingPrivacy(self.dp_clip, self.dp_noise_multiplier, self.dp_noise_seed)


STUDY_EXAMPLES, STUDY_EXAMPLES_OF_DIGITS = 2000, 400  # of the one client of section 5.1


@dataclasses.dataclass(frozen=True)
class FilVerMethod(Method):
    """FIL-VER, a baseline of it, or a method of its section 5.1.

    Attributes:
      sharing: what clients send for rehearsal at the server: a kind of `tffcl.client_works.Sharing`.
      encoder: "variational" (VEE), "deterministic" (EBR), "identity" (raw pixels).
      frozen: weights of the frozen encoder, "pretrained" or "drawn"; "" where everything is trained end to end.
      memory: the client's memory as a multiple of the usual one, 0 for none.
      study: of section 5.1: one client, and a new permutation of the pixels in every task.
      noise: memories are made by another encoder, which was never trained.
    """

    sharing: str = "none"
    encoder: str = "variational"
    frozen: str = "pretrained"
    memory: int = 1
    study: bool = False
    noise: bool = False

    def defaults_on(self, data: str) -> Mapping[str, Any]:
        """Section 5.1 has one client and permutations; its one client has more examples."""
        if not self.study:
            return {}
        examples = STUDY_EXAMPLES_OF_DIGITS if data == "digits" else STUDY_EXAMPLES
        domains = {} if data == "mnist+fashion" else {"domains": "permutations"}
        return {"num_clients": 1, "num_tasks": 10, "examples_per_task": examples, **domains}

    def check(self, experiment: Experiment) -> None:
        """See `Method.check`."""
        own = experiment.groups[Rehearsal]
        if self.study and experiment.scenario != "domains":
            raise OptionError(
                "scenario", f"{self.name} is of section 5.1, whose tasks are domains: permutations of pixels"
            )
        if self.study and experiment.num_clients != 1:
            raise OptionError(
                "num_clients",
                f"{experiment.num_clients} clients: {self.name} is of section 5.1, where one client keeps what it "
                "rehearses to itself",
            )
        if own.memory_per_task and not self.study:
            raise OptionError("memory_per_task", f"is for the methods of section 5.1: {', '.join(STUDY)}")
        if own.dp_clip is not None and self.sharing == "none":
            raise OptionError(
                "dp_clip",
                f"{self.name} sends no embeddings that could be clipped; those that do are "
                f"{', '.join(name for name, each in METHODS.items() if each.sharing != 'none')}",
            )

    def remembered(self, plan: Plan) -> int:
        """Rows that each client remembers of its past tasks.

        In section 5.1 the memory has one size throughout: that of --memory-share of all tasks but the last.
        """
        if not self.memory:
            return 0
        if self.study:
            return self._share_of_task(plan) * (plan.num_tasks - 1)
        return plan.group(Rehearsal).client_memory

    def task_memory(self, plan: Plan) -> Optional[int]:
        """Rows that a client remembers of one task at most, or None."""
        return self._share_of_task(plan) if plan.group(Rehearsal).memory_per_task else None

    def _share_of_task(self, plan: Plan) -> int:
        share = min(1.0, plan.group(Rehearsal).memory_share * self.memory)
        return round(share * plan.examples_per_task)

    def process(self, plan: Plan) -> ContinualProcess:
        """Freezes an encoder on the first task, and builds what is trained on its embeddings.

        config.json gains `dp_epsilon`, of each vector that is sent by itself, at `DELTA`.
        """
        own, proximal = plan.group(Rehearsal), plan.group(Proximal).proximal
        plan.recorded["dp_epsilon"] = _epsilon(own)
        if not self.frozen:
            return build_fed_avg(plan.embedding_classifier(), training=plan.training, proximal=proximal, seed=plan.seed)
        sst: Any = False
        if self.sharing != "none":
            sst = finalizers.ServerSideTraining(
                steps=own.sst_steps, learning_rate=own.sst_learning_rate, memory=own.server_memory
            )
        return build_fil_ver(
            plan.rehearsal_model(self.frozen == "pretrained", self.noise),
            sharing=self.sharing,
            send_per_round=own.send_per_round,
            server_side_training=sst,
            client_memory=self.remembered(plan),
            task_memory=self.task_memory(plan),
            training=plan.training,
            proximal=proximal,
            privacy=own.privacy,
            seed=plan.seed,
            aggregator=plan.aggregator(),
        )


def _epsilon(own: Rehearsal) -> Optional[float]:
    """Epsilon at `DELTA` of a vector that is sent, which is logged; None where nothing is guaranteed."""
    if own.dp_noise_multiplier is None:
        return None
    if own.dp_noise_seed is not None:
        logger.info("privacy: none: with --dp-noise-seed, which config.json holds, the noise can be taken off again")
        return None
    epsilon = metrics.embedding_epsilon(own.dp_noise_multiplier, DELTA)
    logger.info(
        "privacy: each vector that is sent is (%.3g, %g)-differentially private by itself; labels, the classifier's "
        "update and an encoder that was pre-trained on the same examples are not", epsilon, DELTA,
    )  # fmt: skip
    return epsilon


def _method(name: str, about: str, **changed: Any) -> FilVerMethod:
    return FilVerMethod(
        name,
        build_fil_ver,
        about,
        "Park et al., 2021",
        learns=(LABELS,),
        options={"encoder": EncoderConfig, "rehearsal": Rehearsal, "prox": Proximal},
        labels="data",
        own_network=True,
        schedule="fil-ver",
        **changed,
    )


_EBR: dict[str, Any] = {"encoder": "deterministic"}
_STUDY: dict[str, Any] = {
    "encoder": "deterministic", "study": True, "clients": "alone", "takes": ("image",),
    "needs": "the tasks of section 5.1 are permutations of pixels; take ebr or vanilla",
}  # fmt: skip
_OFFLINE: dict[str, Any] = {"pool": "all", "clients": "alone", "memory": 0}
METHODS = {
    each.name: each
    for each in (
        _method("fil-ver", "Clients and server rehearse on sampled embeddings of what is past (VER-Sampled with SST).",
                sharing="sampled"),
        _method("ver-stats", "FIL-VER that sends mu and sigma.", sharing="stats"),
        _method("ver", "FIL-VER without server-side training."),
        _method("ebr", "FIL-VER on a deterministic encoder, whose embeddings are sent.", sharing="embeddings",
                **_EBR),
        _method("ebr-no-sst", "EBR without server-side training.", **_EBR),
        _method("vanilla", "FedAvg on the frozen encoder: no rehearsal at all.", memory=0),
        _method("offline-vee", "All data in one place, on the frozen variational encoder.", **_OFFLINE),
        _method("offline-ebr", "All data in one place, on the frozen deterministic encoder.", **_OFFLINE, **_EBR),
        _method("offline-end-to-end", "All data in one place, nothing frozen.", frozen="", **_OFFLINE, **_EBR),
        _method("none", "Section 5.1: no rehearsal.", memory=0, **_STUDY),
        _method("noise", "Section 5.1: memories through an encoder that was never trained.", noise=True, **_STUDY),
        _method("random-encoder", "Section 5.1: an encoder that was never trained.", frozen="drawn", memory=0,
                **_STUDY),
        _method("naive", "Section 5.1: raw pixels are remembered.", frozen="drawn",
                **{**_STUDY, "encoder": "identity"}),
        _method("naive-end-to-end", "Section 5.1: raw pixels are remembered, nothing is frozen.", frozen="",
                pool="replay", **_STUDY),
        _method("ebr-1x", "Section 5.1: as many embeddings as naive rehearsal has images.", **_STUDY),
        _method("ebr-16x", "Section 5.1: 16 times as many.", **{**_STUDY, "memory": 16}),
    )
}  # fmt: skip
STUDY = tuple(name for name, each in METHODS.items() if each.study)
