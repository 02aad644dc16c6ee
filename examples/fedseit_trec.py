"""FedSeIT on TREC: clients learn one task after another, and help each other without sharing data.

    uv run examples/fedseit_trec.py                                   # with whatever data are at hand
    uv run examples/fedseit_trec.py --data-dir DIR --selection sit    # real TREC, selective transfer (SIT)
    uv run examples/fedseit_trec.py --help                            # all flags: those of `tffcl run fedseit`

Without data it takes the small sample that ships with tffcl, and ends within minutes.

Chaudhary, Rai, Schubert, Schuetze, Gupta: Federated Continual Learning for Text Classification via Selective
Inter-client Transfer, 2022. Line numbers below are those of its algorithm 1.
"""

from __future__ import annotations

import click

from tffcl.commands import FedSeITOptions, exit_with, fedseit_flags


@click.command(help=__doc__.partition("\n")[0])
@fedseit_flags
def main(**flags) -> None:
    """Runs FedSeIT, or with --method one of its baselines."""
    options = FedSeITOptions(**flags)

    from tffcl import datasets  # imports wait until the flags are known to be right
    from tffcl.commands import fedseit, running, text_data

    # Who learns what, and when: each task is a classification of its own over a few of the labels.
    texts, options = text_data.load_texts(options)
    stream = text_data.split(options, texts)
    folder = running.choose_directory(options, texts.name)

    # Documents as word ids, and one frozen table with the vectors of the words in use.
    encoded = datasets.encode(texts, text_data.load_vectors(options, texts), max_words=options.max_words)

    # What a client receives of the others' knowledge for a task: lines 16-24.
    transfer = fedseit.build_transfer(options)

    # What clients and server do in a round: lines 5-15.
    if options.method == "fedseit":
        process = build_fedseit(
            options, encoded.embedding.shape[1], transfer.num_foreign(options.num_clients)
        )
    else:
        process = fedseit.build_process(options, encoded.embedding.shape[1], transfer)

    # All tasks and rounds (lines 3-4) on a TFF worker of our own; every round leaves a checkpoint.
    from tffcl import program

    data = program.TextClientData(encoded, stream)
    with running.open_runtime(options):
        running.learn(options, process, data, transfer, folder, fedseit.config_of(options, encoded))
    running.show(folder)


def build_fedseit(options: FedSeITOptions, embedding_size: int, num_foreign: int):
    """The process: kernel = base * mask + adaptive (eq. 1), beside the aligned adaptives of others (eq. 2-3)."""
    from tffcl import algorithms, client_works, models
    from tffcl.commands import base_privacy

    return algorithms.build_fedseit(
        models.TextCNNConfig(embedding_size, max_classes=options.labels_per_task),
        num_foreign=num_foreign,
        training=client_works.LocalTraining(
            num_epochs=options.num_epochs,
            batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            patience=options.patience,
        ),
        decomposition=client_works.Decomposition(
            sparsity=options.sparsity,  # lambda_1 of eq. 5: what is sent stays sparse
            retention=options.retention,  # lambda_2 of eq. 5: past tasks stay as they were
            share_dense=options.share_dense,  # DLS
        ),
        seed=options.seed,
        # The mean over the senders, unless --dp-base-clip asks for noise.
        **base_privacy.aggregator_of(options),
    )


if __name__ == "__main__":
    exit_with(main, "fedseit_trec.py")
