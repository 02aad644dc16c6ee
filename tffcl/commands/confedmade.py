"""`tffcl run confedmade`: ConFedMADE and its baselines on binary vectors, from files to a run directory.

What imports TensorFlow is imported late, so that what is wrong with the data is said at once.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from tffcl import transfers
from tffcl.commands import base_privacy, vector_data
from tffcl.commands.confedmade_flags import DECOMPOSED
from tffcl.commands.confedmade_options import ConFedMADEOptions
from tffcl.commands.running import choose_directory, learn, open_runtime, show
from tffcl.datasets import BinaryVectors
from tffcl.streams import TaskStream

if TYPE_CHECKING:
    from tffcl.client_works import Decomposition, LocalTraining
    from tffcl.models import MADEConfig
    from tffcl.templates import ContinualProcess


def run(options: ConFedMADEOptions) -> None:
    """Does what the flags say, prints the tables, and says where the run directory is.

    Raises:
      TffclError: flags, data or a run directory that cannot be used.
    """
    vectors, options = vector_data.load_vectors(options)
    stream = vector_data.split(options, vectors)
    folder = choose_directory(options, vectors.name)

    from tffcl import program
    from tffcl.commands import made_results

    data = program.DensityClientData(vectors, vector_data.pooled(options.method, stream))
    transfer = build_transfer(options)
    process = build_process(options, vectors.width, transfer)
    with open_runtime(options):
        learn(options, process, data, transfer, folder, config_of(options, vectors, stream))
        made_results.complete(folder, options, process, vectors, stream)
    show(folder)


def config_of(options: ConFedMADEOptions, vectors: BinaryVectors, stream: TaskStream) -> dict[str, Any]:
    """All that config.json records of a run besides the driver's own settings."""
    return {
        **options.config(),
        "dataset": vectors.name,
        "tasks": vector_data.task_names(stream, vectors),
        "data_fingerprint": vector_data.fingerprint(vectors),
    }


def build_transfer(options: ConFedMADEOptions) -> transfers.Transfer:
    """What each client receives from the knowledge base."""
    if options.method not in DECOMPOSED:
        return transfers.NoTransfer()
    if options.selection == "sampled":
        return transfers.Sampled(options.top_k, options.seed)
    return transfers.AllPast(options.num_tasks)


def made_config(options: ConFedMADEOptions, width: int) -> MADEConfig:
    """Sizes and masks of the network."""
    from tffcl.models import MADEConfig

    return MADEConfig(
        width,
        options.hidden,
        direct=options.direct,
        order=options.order,
        order_agnostic=options.order_agnostic,
        connectivity_agnostic=options.connectivity_agnostic,
        num_masks=options.num_masks,
        synchronised=not options.distinct_masks,
    )


def training_of(options: ConFedMADEOptions) -> LocalTraining:
    """Epochs, batches, learning rate."""
    from tffcl.algorithms import made

    names = ("num_epochs", "batch_size", "learning_rate", "patience")
    return dataclasses.replace(made.TRAINING, **{name: getattr(options, name) for name in names})


def decomposition_of(options: ConFedMADEOptions) -> Decomposition:
    """lambda_1, lambda_2 and the cut-off of the gates."""
    from tffcl.algorithms import made

    names = ("sparsity", "retention", "gate_cutoff")
    return dataclasses.replace(made.DECOMPOSITION, **{name: getattr(options, name) for name in names})


def build_process(options: ConFedMADEOptions, width: int, transfer: transfers.Transfer) -> ContinualProcess:
    """The method's process for filled-in flags; inputs of `width`."""
    from tffcl import algorithms, client_works

    config = made_config(options, width)
    common: dict[str, Any] = {"training": training_of(options), "seed": options.seed}
    common.update(base_privacy.aggregator_of(options))
    if options.method in DECOMPOSED:
        common["decomposition"] = decomposition_of(options)
        common["num_foreign"] = transfer.num_foreign(options.num_clients)
        if options.method == "confedmade":
            return algorithms.build_confedmade(config, **common)
        return algorithms.build_fedweit_made(
            config, synchronised=options.method == "fedweit-made-sync", **common
        )
    if options.method in ("fedprox", "fedprox-ewc"):
        common["proximal"] = options.proximal
    if options.method in ("fedprox-ewc", "cl-ewc"):
        common["penalty"] = client_works.EWC(options.penalty)
    if options.method == "fedcurv":
        common["penalty"] = client_works.FedCurv(options.penalty)
    return algorithms.build_fed_made(config, **common)
