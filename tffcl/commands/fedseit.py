"""`tffcl run fedseit`: FedSeIT and its baselines on a text data set, from raw documents to a run directory.

What imports TensorFlow is imported late, so that what is wrong with the data is said at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tffcl import datasets, transfers
from tffcl.commands import base_privacy, text_data
from tffcl.commands.fedseit_options import NOISED, FedSeITOptions
from tffcl.commands.running import choose_directory, learn, open_runtime, show

if TYPE_CHECKING:
    from tffcl.templates import ContinualProcess


def run(options: FedSeITOptions) -> None:
    """Does what the flags say, prints the table, and says where the run directory is.

    Raises:
      TffclError: flags, data or a run directory that cannot be used.
    """
    # All that the flags and the labels may get wrong comes before word vectors are trained.
    texts, options = text_data.load_texts(options)
    stream = text_data.split(options, texts)
    folder = choose_directory(options, texts.name)
    encoded = datasets.encode(texts, text_data.load_vectors(options, texts), max_words=options.max_words)

    from tffcl import program

    data = program.TextClientData(encoded, stream)
    transfer = build_transfer(options)
    process = build_process(options, encoded.embedding.shape[1], transfer)
    with open_runtime(options):
        learn(options, process, data, transfer, folder, config_of(options, encoded))
    show(folder)


def config_of(options: FedSeITOptions, encoded: datasets.EncodedTextDataset) -> dict[str, Any]:
    """All that config.json records of a run besides the driver's own settings."""
    return {
        **options.config(),
        "dataset": encoded.name,
        "embedding_size": int(encoded.embedding.shape[1]),
        "data_fingerprint": text_data.fingerprint(encoded),
    }


def build_transfer(options: FedSeITOptions) -> transfers.Transfer:
    """What each client receives from the knowledge base."""
    if options.method in ("fedavg", "local"):
        return transfers.NoTransfer()
    chosen = _sit(options) if options.selection == "sit" else transfers.PreviousTask()
    if options.foreign == "zeros":
        return transfers.Zeroed(chosen)
    return transfers.RandomTask(chosen, options.seed) if options.foreign == "random" else chosen


def _sit(options: FedSeITOptions) -> transfers.SIT:
    privacy, cases = None, []
    if options.dp_sit_clip is not None and options.dp_sit_noise is not None:
        privacy = transfers.CentroidPrivacy(options.dp_sit_clip, options.dp_sit_noise)
        cases = [NOISED]
    return transfers.SIT(
        k=options.top_k,
        q=options.max_clusters or options.default("max_clusters", *cases),
        min_cluster_size=options.min_cluster_size or options.default("min_cluster_size"),
        privacy=privacy,
    )


def build_process(
    options: FedSeITOptions, embedding_size: int, transfer: transfers.Transfer
) -> ContinualProcess:
    """The method's process for the flags."""
    from tffcl import algorithms, client_works, models

    config = models.TextCNNConfig(embedding_size, max_classes=options.labels_per_task)
    training = client_works.LocalTraining(
        num_epochs=options.num_epochs,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        patience=options.patience,
    )
    shared = base_privacy.aggregator_of(options)
    if options.method == "fedavg":
        return algorithms.build_fed_avg(
            models.TextCNN(config), training=training, seed=options.seed, **shared
        )
    decomposition = client_works.Decomposition(
        sparsity=options.sparsity, retention=options.retention, share_dense=options.share_dense
    )
    common: dict[str, Any] = {
        "training": training,
        "decomposition": decomposition,
        "seed": options.seed,
        **shared,
    }
    if options.method == "local":
        return algorithms.build_local(config, **common)
    build = algorithms.build_fedseit if options.method == "fedseit" else algorithms.build_fedweit
    return build(config, num_foreign=transfer.num_foreign(options.num_clients), **common)
