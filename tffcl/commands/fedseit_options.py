"""The flags of FedSeIT and its baselines: one definition for the command line and the example.

The defaults are those of table 4 of Chaudhary et al., 2022 (FedSeIT).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Optional

import click

from tffcl.commands import run_options
from tffcl.commands.run_options import WHOLE, ByCase, RunOptions, flag_of
from tffcl.errors import InputError

TOKENISERS = ("unicode", "ascii")
METHODS = ("fedseit", "fedweit", "fedavg", "local")

# Defaults beside those of table 4: for the sample that ships a schedule of a minute or two, faster because its tasks
# have 40 documents where those of TREC have 300; for noised centroids few enough that something is left of each.
SAMPLE, NOISED = "for the sample", "with --dp-sit-noise"
OF_SIT = ("max_clusters", "min_cluster_size", "dp_sit_clip", "dp_sit_noise")

_FLAGS = (
    click.option("--method", type=click.Choice(METHODS), default="fedseit", show_default=True, help="The method."),
    click.option(
        "--dataset", metavar="NAME|PATH",
        help="trec6, trec50, r8, tmn, subj, sample, or a folder with train.* and test.* tables."
        "  [default: trec6; the sample that ships where it is not at hand]",
    ),
    run_options.DATA_DIR,
    click.option(
        "--embeddings", metavar="FILE|NAME",
        help="Word vectors: a word2vec or GloVe file, 'glove-50' (the extra `glove`), a name that "
        "gensim.downloader knows, or 'own' to train them on the clients' text."
        "  [default: the data folder's glove/*.bin, else glove-50 if installed, else own]",
    ),
    click.option(
        "--allow-pickle", is_flag=True,
        help="Let the file of --embeddings be a pickle, as gensim's .kv is, which runs code of whoever wrote it.",
    ),
    click.option(
        "--tokeniser", type=click.Choice(TOKENISERS),
        help="Keep the letters of every script, or those of English alone, as the paper does."
        "  [default: ascii for the named sets, unicode for own data]",
    ),
    click.option(
        "--max-words", type=WHOLE, help="Words of a document, after which it is cut.  [default: all]"
    ),
    click.option("--num-clients", type=WHOLE, default=3, show_default=True, help="Clients."),
    click.option("--num-tasks", type=WHOLE, default=5, show_default=True, help="Tasks of each client."),
    click.option("--labels-per-task", type=WHOLE, default=4, show_default=True, help="Labels of each task."),
    click.option(
        "--max-test-documents", type=WHOLE,
        help="Most test documents of each task, for runs of many tasks.  [default: all with its labels]",
    ),
    click.option(
        "--num-rounds", cls=ByCase, by_case={"": 10, SAMPLE: 3}, type=WHOLE, help="Rounds for each task."
    ),
    click.option(
        "--num-epochs", cls=ByCase, by_case={"": 50, SAMPLE: 10}, type=WHOLE,
        help="Most epochs of a client in a round.",
    ),
    click.option(
        "--patience", type=click.IntRange(min=0), default=3, show_default=True,
        help="Epochs without a better validation loss before the learning rate falls; 0 for never.",
    ),
    click.option("--batch-size", type=WHOLE, default=64, show_default=True, help="Documents in a step."),
    click.option(
        "--learning-rate", cls=ByCase, by_case={"": 1e-4, SAMPLE: 1e-3}, type=float,
        help="Of Adam, at a task's start.",
    ),
    click.option("--sparsity", type=float, default=1e-3, show_default=True, help="lambda_1: mask and adaptive."),
    click.option("--retention", type=float, default=1.0, show_default=True, help="lambda_2: against forgetting."),
    click.option(
        "--selection", type=click.Choice(["previous", "sit"]), default="previous", show_default=True,
        help="Foreign adaptives: the previous task of every other client, or the --top-k most similar past tasks.",
    ),
    click.option("--top-k", type=WHOLE, default=3, show_default=True, help="K of --selection sit."),
    click.option(
        "--max-clusters", cls=ByCase, by_case={"": 200, NOISED: 4}, type=WHOLE, metavar="Q",
        help="Q of --selection sit: most centroids of a task that a client sends.",
    ),
    click.option(
        "--min-cluster-size", cls=ByCase, by_case={"": 2}, type=WHOLE, metavar="DOCUMENTS",
        help="Centroids of fewer documents are not sent.",
    ),
    click.option(
        "--dp-sit-clip", type=float, metavar="NORM",
        help="Differential privacy of each document in the centroids: the norm to which its vector is clipped.",
    ),
    click.option(
        "--dp-sit-noise", type=float, metavar="MULTIPLIER",
        help="Standard deviation of the noise on sums of documents, in units of --dp-sit-clip, and on their counts.",
    ),
    click.option(
        "--foreign", type=click.Choice(["selected", "zeros", "random"]), default="selected", show_default=True,
        help="What stands in the place of the selected adaptives, to measure what they are worth.",
    ),
    click.option("--share-dense", is_flag=True, help="DLS: share the projections and the head too."),
    run_options.DP_BASE,
    run_options.CLIENTS_PER_ROUND,
    run_options.evaluate_every("round"),
    run_options.seed("Of the order of tasks and of everything that is drawn in training."),
    run_options.SPLIT_SEED,
    run_options.RUNTIME,
    run_options.OUTPUT_DIR,
    run_options.RESUME,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class FedSeITOptions(RunOptions):
    """The flags, checked; see `tffcl run fedseit --help` for each of them.

    `num_rounds`, `num_epochs` and `learning_rate` are None where they are not given, until `complete` fills them in.

    >>> FedSeITOptions.parse(["--method", "fedweit"]).num_clients
    3
    """

    embeddings: Optional[str]
    allow_pickle: bool
    tokeniser: Optional[str]
    max_words: Optional[int]
    num_tasks: int
    labels_per_task: int
    max_test_documents: Optional[int]
    num_epochs: int
    patience: int
    batch_size: int
    learning_rate: float
    sparsity: float
    retention: float
    selection: str
    top_k: int
    max_clusters: Optional[int]
    min_cluster_size: Optional[int]
    dp_sit_clip: Optional[float]
    dp_sit_noise: Optional[float]
    foreign: str
    share_dense: bool

    FLAGS: ClassVar = _FLAGS
    POSITIVE: ClassVar = ("learning_rate", "dp_sit_clip", "dp_sit_noise")
    NOT_NEGATIVE: ClassVar = ("sparsity", "retention")
    ALONE: ClassVar = ("local",)
    OPTIONAL: ClassVar = (*RunOptions.OPTIONAL, *OF_SIT, "max_test_documents", "tokeniser", "max_words")
    PLACES: ClassVar = (*RunOptions.PLACES, "embeddings", "allow_pickle")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method == "fedseit" and self.selection == "previous" and self.num_clients < 2:
            raise InputError(
                "--num-clients 1: --method fedseit learns from the previous tasks of other clients and needs 2 or "
                "more; take --method fedweit or local for one client"
            )
        given = [flag_of(name) for name in OF_SIT if getattr(self, name) is not None]
        if given and (self.selection != "sit" or self.method not in ("fedseit", "fedweit")):
            raise InputError(f"{given[0]} is for --selection sit of fedseit and fedweit")
        if (self.dp_sit_clip is None) != (self.dp_sit_noise is None):
            raise InputError("--dp-sit-clip and --dp-sit-noise go together")
        if self.allow_pickle and self.embeddings is None:
            raise InputError("--allow-pickle is for a file that --embeddings names")

    def complete(self, dataset: str) -> FedSeITOptions:
        """The options with the schedule for a data set in the place of what was not given."""
        return self.filled(*([SAMPLE] if dataset == "sample" else []))

    @property
    def label(self) -> str:
        """The method with what sets it apart, for tables.

        >>> FedSeITOptions.parse(["--selection", "sit", "--share-dense"]).label
        'fedseit+sit3+dls'
        """
        parts = [self.method]
        if self.method in ("fedseit", "fedweit"):
            parts += [f"sit{self.top_k}"] if self.selection == "sit" else []
            parts += ["sitdp"] if self.dp_sit_noise is not None else []
            parts += ["dls"] if self.share_dense else []
            parts += [self.foreign] if self.foreign != "selected" else []
        parts += ["basedp"] if self.base_is_noised else []
        return "+".join(parts)


fedseit_flags = FedSeITOptions.flags
