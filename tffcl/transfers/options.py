"""Which transfer a run has, and its options; nothing here imports TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

from tffcl import streams, transfers
from tffcl.errors import InputError
from tffcl.options import OptionError, Options, option
from tffcl.parts import Registry

if TYPE_CHECKING:
    from tffcl.transfers import Transfer

Labels = Sequence[Sequence[Sequence[str]]]  # [client][task], names
SIMILARITIES = ("mean_cosine", "centred_cosine", "best_match", "mmd")  # tffcl.transfers.similarity
_WITH_K = ("sit", "sampled", "own", "labels", "domain")
SUPPLIED = ("k", "num_tasks", "seed", "num_labels")  # parameters of a transfer that the run fills in
TRANSFERS = Registry(
    "transfer",
    "tffcl.transfers",
    {
        "previous": "tffcl.transfers:PreviousTask",
        "all": "tffcl.transfers:AllPast",
        "sampled": "tffcl.transfers:Sampled",
        "sit": "tffcl.transfers:SIT",
        "own": "tffcl.transfers:OwnTasks",
        "labels": "tffcl.transfers:Oracle",
        "domain": "tffcl.transfers:Oracle",
    },
)

# Q as in the FedSeIT paper, and few enough for noise to leave something of a centroid.
MAX_CLUSTERS, MAX_NOISED_CLUSTERS, MIN_CLUSTER_SIZE = 200, 4, 2
_OF_SIT = ("similarity", "max_clusters", "min_cluster_size", "dp_sit_clip", "dp_sit_noise")


@dataclasses.dataclass(frozen=True)
class Selection(Options):
    """Which entries of the knowledge base each client receives for a task; see `tffcl run fedseit --help`.

    Raises:
      InputError: options that are for another selection, or clip without noise.
    """

    selection: str = option(
        "previous",
        "Foreign adaptives: the previous task of every other client, all past tasks of all others, --top-k of them "
        "drawn at random (sampled), or the --top-k most similar (sit); or a transfer of one's own, my_file.py:NAME. "
        "Controls: --top-k of the client's own past tasks (own); oracles, which are told what nobody knows in a "
        "federation, --top-k with most labels in common (labels), or of the same set (domain, for --data NAME+NAME).",
        metavar="previous|all|sampled|sit|own|labels|domain|FILE:NAME",
        mark=lambda chosen: f"+{chosen.selection}{chosen.top_k}" if chosen.selection in _WITH_K else "",
    )  # fmt: skip
    top_k: int = option(3, "K of --selection sit, sampled, own, labels and domain.", least=1)
    include_own: bool = option(
        False, "Let a client's own past tasks be selected too, as FedSeIT's text does; its entries then come back to "
        "it as foreign ones. For --selection previous, sampled, sit, labels and domain.", sparse=True,
        mark=lambda chosen: "+with-own" if chosen.include_own else "",
    )  # fmt: skip
    similarity: Optional[str] = option(
        None, "How --selection sit compares centroids of two tasks; none for the paper's mean_cosine, which favours "
        "tight tasks. The others put a task nearest to itself.", choices=SIMILARITIES, sparse=True,
        mark=lambda chosen: f"-{chosen.similarity}" if chosen.similarity is not None else "",
    )  # fmt: skip
    max_clusters: Optional[int] = option(
        None, "Q of --selection sit: most centroids of a task that a client sends; none for "
        f"{MAX_CLUSTERS}, or {MAX_NOISED_CLUSTERS} with --dp-sit-noise.", least=1, metavar="Q", sparse=True,
        advanced=True,
    )  # fmt: skip
    min_cluster_size: Optional[int] = option(
        None, f"Centroids of fewer documents are not sent; none for {MIN_CLUSTER_SIZE}.", least=1, metavar="DOCUMENTS",
        sparse=True, advanced=True,
    )  # fmt: skip
    dp_sit_clip: Optional[float] = option(
        None, "Differential privacy of each document in the centroids: the norm to which its vector is clipped.",
        above=0, metavar="NORM", sparse=True, advanced=True,
    )  # fmt: skip
    dp_sit_noise: Optional[float] = option(
        None, "Standard deviation of the noise on sums of documents, in units of --dp-sit-clip, and on their counts.",
        above=0, metavar="MULTIPLIER", sparse=True, advanced=True,
        mark=lambda chosen: "+sitdp" if chosen.dp_sit_noise is not None else "",
    )  # fmt: skip
    foreign: str = option(
        "selected", "What stands in the place of the selected adaptives, to measure what they are worth.",
        choices=("selected", "zeros", "random"), mark=lambda chosen: f"+{chosen.foreign}",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        TRANSFERS.check(self.selection)
        given = [name for name in _OF_SIT if getattr(self, name) is not None]
        if given and self.selection != "sit":
            raise OptionError(given[0], "is for --selection sit")
        if self.include_own and self.selection in ("all", "own"):
            raise OptionError("include_own", f"has no meaning for --selection {self.selection}")
        if (self.dp_sit_clip is None) != (self.dp_sit_noise is None):
            raise OptionError("dp_sit_clip", "--dp-sit-clip and --dp-sit-noise go together")

    def transfer(
        self, num_tasks: int, seed: int, num_labels: int = 0, own: Any = None, labels: Labels = ()
    ) -> Transfer:
        """The transfer of a run.

        Args:
          num_tasks: T.
          seed: of the run.
          num_labels: labels of the data set.
          own: options of a transfer of the user's; None without any.
          labels: `labels[client][task]`, names of a task's labels, which only oracles are told.

        Raises:
          InputError: no such transfer.
          StreamError: `domain` where labels have no set.
        """
        chosen = self._chosen(num_tasks, seed, num_labels, own, labels)
        if self.foreign == "zeros":
            return transfers.Zeroed(chosen)
        return transfers.RandomTask(chosen, seed) if self.foreign == "random" else chosen

    def _chosen(self, num_tasks: int, seed: int, num_labels: int, own: Any, labels: Labels) -> Transfer:
        if self.selection == "previous":
            return transfers.PreviousTask(self.include_own)
        if self.selection == "all":
            return transfers.AllPast(num_tasks)
        if self.selection == "sampled":
            return transfers.Sampled(self.top_k, seed, self.include_own)
        if self.selection == "own":
            return transfers.OwnTasks(self.top_k, seed)
        if self.selection in ("labels", "domain"):
            told = labels if self.selection == "labels" else [list(map(streams.domains_of, tasks)) for tasks in labels]
            return transfers.Oracle(self.top_k, told, seed, self.include_own)
        if self.selection == "sit":
            privacy, clusters = None, MAX_CLUSTERS
            if self.dp_sit_clip is not None and self.dp_sit_noise is not None:
                privacy = transfers.CentroidPrivacy(self.dp_sit_clip, self.dp_sit_noise)
                clusters = MAX_NOISED_CLUSTERS
            smallest = self.min_cluster_size or MIN_CLUSTER_SIZE
            return transfers.SIT(
                self.top_k,
                self.max_clusters or clusters,
                min_cluster_size=smallest,
                similarity=self.similarity or "mean_cosine",
                include_own=self.include_own,
                privacy=privacy,
            )
        supplied = {"k": self.top_k, "num_tasks": num_tasks, "seed": seed, "num_labels": num_labels}
        made: Any = TRANSFERS.make(self.selection, supplied, own)
        if not isinstance(made, transfers.Transfer):
            raise InputError(f"selection: {self.selection} makes a {type(made).__name__}, no tffcl.transfers.Transfer")
        return made
