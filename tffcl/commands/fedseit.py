"""`tffcl run fedseit`: FedSeIT and its baselines on a text data set, from raw documents to a run directory."""

from __future__ import annotations

import pathlib
from typing import Any, Optional

import click

from tffcl import algorithms, client_works, datasets, models, program, reports, runtime, transfers
from tffcl.commands import text_data
from tffcl.commands.entry import say
from tffcl.commands.fedseit_options import FedSeITOptions
from tffcl.templates import ContinualProcess


def run(options: FedSeITOptions) -> None:
    """Does what the flags say, prints the table, and says where the run directory is.

    Raises:
      TffclError: flags, data or a run directory that cannot be used.
    """
    texts, options = text_data.load_texts(options)
    vectors = text_data.load_vectors(options, texts)
    encoded = datasets.encode(texts, vectors)
    data = program.TextClientData(encoded, text_data.split(options, encoded))
    transfer = build_transfer(options)
    process = build_process(options, encoded.embedding.shape[1], transfer.num_foreign(options.num_clients))
    with runtime.local():
        results = run_program(options, process, data, transfer)
    show(results)


def run_program(
    options: FedSeITOptions,
    process: ContinualProcess,
    data: program.TextClientData,
    transfer: transfers.Transfer,
) -> pathlib.Path:
    """`program.run_program` as the flags say; returns the run directory."""
    folder = (
        pathlib.Path(options.output_dir) if options.output_dir else new_directory(options, data.dataset.name)
    )
    say(f"run directory: {folder}")
    program.run_program(
        process,
        data,
        transfer,
        num_rounds=options.num_rounds or 1,
        seed=options.seed,
        output_dir=folder,
        clients_per_round=options.clients_per_round,
        resume=options.resume,
        evaluate_every=options.evaluate_every,
        config=config_of(options, data.dataset),
    )
    return folder


def config_of(options: FedSeITOptions, encoded: datasets.EncodedTextDataset) -> dict[str, Any]:
    """All that config.json records of a run besides the driver's own settings."""
    return {
        **options.config(),
        "dataset": encoded.name,
        "embedding_size": int(encoded.embedding.shape[1]),
        "data_fingerprint": text_data.fingerprint(encoded),
    }


def new_directory(options: FedSeITOptions, dataset: str) -> pathlib.Path:
    """The first of runs/METHOD-DATASET-seedN, ...-2, ...-3 that is not there yet."""
    base = pathlib.Path("runs") / f"{options.label}-{dataset}-seed{options.seed}"
    number, folder = 1, base
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def build_transfer(options: FedSeITOptions) -> transfers.Transfer:
    """What each client receives from the knowledge base."""
    if options.method in ("fedavg", "local"):
        return transfers.NoTransfer()
    chosen = transfers.SIT(k=options.top_k) if options.selection == "sit" else transfers.PreviousTask()
    if options.foreign == "zeros":
        return transfers.Zeroed(chosen)
    return transfers.RandomTask(chosen, options.seed) if options.foreign == "random" else chosen


def build_process(options: FedSeITOptions, embedding_size: int, num_foreign: int) -> ContinualProcess:
    """The method's process for the flags."""
    config = models.TextCNNConfig(embedding_size, max_classes=options.labels_per_task)
    training = build_training(options)
    if options.method == "fedavg":
        return algorithms.build_fed_avg(models.TextCNN(config), training=training, seed=options.seed)
    decomposition = build_decomposition(options)
    common: dict[str, Any] = {"training": training, "decomposition": decomposition, "seed": options.seed}
    if options.method == "local":
        return algorithms.build_local(config, **common)
    build = algorithms.build_fedseit if options.method == "fedseit" else algorithms.build_fedweit
    return build(config, num_foreign=num_foreign, **common)


def build_training(options: FedSeITOptions) -> client_works.LocalTraining:
    """How a client trains in a round."""
    return client_works.LocalTraining(
        num_epochs=options.num_epochs or 1,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        patience=options.patience,
    )


def build_decomposition(options: FedSeITOptions) -> client_works.Decomposition:
    """lambda_1, lambda_2 and DLS."""
    return client_works.Decomposition(
        sparsity=options.sparsity, retention=options.retention, share_dense=options.share_dense
    )


def show(folder: pathlib.Path, matrix: Optional[bool] = True) -> None:
    """Prints the results of a run directory as tables on stdout, and draws its plots."""
    results = reports.load_results(folder)
    click.echo(reports.results_table([results]))
    if matrix:
        click.echo()
        click.echo(reports.accuracy_matrix_table(results))
    plots = reports.write_plots(folder)
    click.echo(f"\nrun directory: {folder} ({len(plots)} plots in {folder / 'plots'})")
