"""`tffcl run fil-ver`: FIL-VER, its baselines and the study of section 5.1, from files to a run directory.

What imports TensorFlow is imported late, so that what is wrong with the data is said at once.
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any, Optional

from tffcl import streams
from tffcl.commands import base_privacy, fil_ver_data, running
from tffcl.commands.entry import say
from tffcl.commands.fil_ver_flags import OFFLINE
from tffcl.commands.fil_ver_options import FilVerOptions
from tffcl.commands.running import choose_directory, open_runtime
from tffcl.datasets import Domains

if TYPE_CHECKING:
    from tffcl.client_works import EmbeddingPrivacy, LocalTraining
    from tffcl.commands.fil_ver_models import FrozenModel
    from tffcl.program import ClientData
    from tffcl.templates import ContinualProcess


DELTA = 1e-5  # at which epsilon is told


def run(options: FilVerOptions) -> None:
    """Does what the flags say, prints the tables, and says where the run directory is.

    Raises:
      TffclError: flags, data or a run directory that cannot be used.
    """
    domains, options = fil_ver_data.load_domains(options)
    enrollment = fil_ver_data.load_enrollment(options)
    stream = fil_ver_data.split(options, domains, enrollment)
    folder = choose_directory(options, f"{options.dataset}-{options.domains}")

    from tffcl.commands import fil_ver_models, fil_ver_results

    with open_runtime(options):
        frozen = fil_ver_models.model_of(options, domains, stream, folder)
        process = build_process(options, domains, frozen)
        learn(options, process, domains, stream, enrollment, frozen, folder)
        fil_ver_results.complete(folder, options, process, domains, stream, frozen)
    fil_ver_results.show(folder)


def learn(
    options: FilVerOptions,
    process: ContinualProcess,
    domains: Domains,
    stream: streams.TaskStream,
    enrollment: streams.Enrollment,
    frozen: Optional[FrozenModel],
    folder: pathlib.Path,
) -> None:
    """All tasks and rounds that the flags ask for, in the TFF runtime that is entered."""
    from tffcl import transfers
    from tffcl.commands import fil_ver_models

    running.learn(
        options,
        process,
        client_data(options, domains, stream),
        transfers.NoTransfer(),
        folder,
        config_of(options, domains, stream, frozen),
        reporters=[fil_ver_models.Keeper(folder, frozen)],
        enrollment=None if options.method in OFFLINE else enrollment,
    )


def config_of(
    options: FilVerOptions, domains: Domains, stream: streams.TaskStream, frozen: Optional[FrozenModel]
) -> dict[str, Any]:
    """All that config.json records of a run besides the driver's own settings."""
    names = [domain.name for domain in domains.domains]
    return {
        **options.config(),
        "dataset": domains.name,
        "tasks": [names] * (1 if options.method in OFFLINE else stream.num_clients),
        "data_fingerprint": fil_ver_data.fingerprint(domains, stream),
        "encoder_checksum": None if frozen is None else frozen.checksum,
        "dp_epsilon": _epsilon(options),
    }


def _epsilon(options: FilVerOptions) -> Optional[float]:
    """Epsilon at `DELTA` of a vector that is sent, which is said in one line; None where nothing is guaranteed."""
    if options.dp_noise_multiplier is None:
        return None
    if options.dp_noise_seed is not None:
        say("privacy: none: with --dp-noise-seed, which config.json holds, the noise can be taken off again")
        return None
    from tffcl import metrics

    epsilon = metrics.embedding_epsilon(options.dp_noise_multiplier, DELTA)
    say(
        f"privacy: each vector that is sent is ({epsilon:.3g}, {DELTA:g})-differentially private by itself; labels, "
        "the classifier's update and an encoder that was pre-trained on the same examples are not"
    )
    return epsilon


def client_data(options: FilVerOptions, domains: Domains, stream: streams.TaskStream) -> ClientData:
    """The data as the method meets them: task after task, or all in one place."""
    from tffcl import program
    from tffcl.commands.fil_ver_replay import ReplayedDomainData

    if options.method in OFFLINE:
        return program.OfflineDomainData(domains, stream)
    if options.method == "naive-end-to-end":
        return ReplayedDomainData(
            domains, stream, options.remembered, options.split_seed, options.task_memory
        )
    return program.DomainClientData(domains, stream)


def training_of(options: FilVerOptions) -> LocalTraining:
    """Epochs, batches, learning rate."""
    from tffcl.client_works import LocalTraining

    return LocalTraining(
        num_epochs=options.num_epochs,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        patience=0,
    )


def privacy_of(options: FilVerOptions) -> Optional[EmbeddingPrivacy]:
    """Clipping and noise on what is sent, if asked for."""
    from tffcl.client_works import EmbeddingPrivacy

    if options.dp_clip is None or options.dp_noise_multiplier is None:
        return None
    return EmbeddingPrivacy(options.dp_clip, options.dp_noise_multiplier, options.dp_noise_seed)


def build_process(
    options: FilVerOptions, domains: Domains, frozen: Optional[FrozenModel]
) -> ContinualProcess:
    """The method's process for filled-in flags; `frozen` is None where nothing is."""
    from tffcl import algorithms, finalizers
    from tffcl.algorithms import fil_ver
    from tffcl.commands import fil_ver_models

    if frozen is None:
        network = fil_ver_models.build_network(options, domains)
        return algorithms.build_fed_avg(
            network, training=training_of(options), proximal=options.proximal, seed=options.seed
        )
    sst: Any = False
    if options.sharing != "none":
        sst = finalizers.ServerSideTraining(
            steps=options.sst_steps,
            learning_rate=options.sst_learning_rate,
            memory=options.server_memory,
        )
    return fil_ver.build_fil_ver(
        frozen.model,
        sharing=options.sharing,
        send_per_round=options.send_per_round,
        server_side_training=sst,
        client_memory=options.remembered,
        task_memory=options.task_memory,
        training=training_of(options),
        proximal=options.proximal,
        privacy=privacy_of(options),
        seed=options.seed,
        **base_privacy.aggregator_of(options),
    )
