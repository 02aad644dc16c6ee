"""The options that every run has (data, stream, privacy of the base, runtime, output), and defaults by method and data.

`defaults_of(method, kind, data)` is what `tffcl run` takes where an option is not given, and what `--help` prints:
sizes, streams and schedules of the papers, and smaller ones for small data. No TensorFlow here.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

from tffcl.errors import InputError
from tffcl.options import OptionError, Options, option
from tffcl.parts import Registry
from tffcl.runtime import worker

if TYPE_CHECKING:
    from tffcl.algorithms.method import Method


SEED_LIMIT = 2**32 - 1  # what gensim and numpy take
GROWING = ("class-incremental", "data-incremental")  # one head over all classes seen, and no task label at test
SCENARIOS = Registry(
    "scenario", "tffcl.scenarios", dict.fromkeys(("non-iid", "sequence", "mixed", "domains", *GROWING))
)
# Parameters of a scenario of the user's that the run fills in; it returns a `tffcl.streams.TaskStream`.
SCENARIO_SUPPLIED = ("train_labels", "test_labels", "num_clients", "num_tasks", "seed", "label_names")
_BY_LABEL = ("non-iid", "sequence", "mixed", "class-incremental")  # scenarios in which tasks differ in their labels
_OF_LABELS = (*_BY_LABEL, "data-incremental")
# The names of `tffcl.streams.PARTITIONS` and `natural`, and how they stand in a run's name.
_SKEWS = {"equal": "", "dirichlet": "+dirichlet{:g}", "shards": "+shards", "quantity": "+quantity{:g}",
          "natural": "+natural"}  # fmt: skip
DOMAINS = ("rotations", "permutations", "mild", "classes")
ENROLLMENTS = ("full", "decreasing", "increasing", "scattered")
Assigned = tuple[tuple[tuple[str, ...], ...], ...]  # [client][task][label]


@dataclasses.dataclass(frozen=True)
class Data(Options):
    """What is learned from."""

    data: Optional[str] = option(
        None, "A data set by name (tffcl list), a folder with train.* and test.* tables, FILE.py:NAME, or several of "
        "text, NAME+NAME+..., with labels called NAME/LABEL.",
        flag="--data", aliases=("--dataset",), metavar="NAME|PATH|FILE:NAME", recorded=False,
    )  # fmt: skip
    data_dir: Optional[str] = option(
        None, "The folder of the published files; none for $TFFCL_DATA_DIR, else a cache that downloads fill.",
        metavar="DIR", recorded=False,
    )  # fmt: skip
    text_column: str = option(
        "text", "The column, or key, of texts in a table of your own.", metavar="NAME", recorded=False, only=("text",)
    )
    label_column: str = option("label", "That of labels.", metavar="NAME", recorded=False, only=("text", "vector"))
    client_column: Optional[str] = option(
        None, "That which says whose a row is, for --partition natural.", metavar="NAME", recorded=False,
        only=("vector",),
    )  # fmt: skip
    features: Optional[str] = option(
        None, "What stands in the place of the examples: an .npz file with arrays `train` and `test`, a row of numbers "
        "for each training and test example, or a Keras model (.keras) whose output that is, of images or rows of "
        "numbers.", metavar="FILE", recorded=False,
    )  # fmt: skip
    embeddings: Optional[str] = option(
        None, "Word vectors: a word2vec or GloVe file, 'glove-50' (the extra `glove`), a name that "
        "gensim.downloader knows, or 'own' to train them on the clients' text; none for the data folder's glove/*.bin, "
        "else glove-50 if installed, else own.", metavar="FILE|NAME", recorded=False, only=("text",),
    )  # fmt: skip
    allow_pickle: bool = option(
        False, "Let the file of --embeddings be a pickle, as gensim's .kv is, which runs code of whoever wrote it.",
        recorded=False, only=("text",), advanced=True,
    )  # fmt: skip
    tokeniser: Optional[str] = option(
        None, "Keep the letters of every script, or those of English alone, as the paper does; none for ascii with the "
        "named sets, unicode with own data.", choices=("unicode", "ascii"), sparse=True, only=("text",),
    )  # fmt: skip
    max_words: Optional[int] = option(
        None, "Words of a document, after which it is cut; none for all.", least=1, sparse=True, only=("text",)
    )
    binarise: str = option(
        "threshold", "How pixels become 0 or 1: at half intensity, or drawn once with --split-seed.",
        choices=("threshold", "stochastic"), only=("binary",),
    )  # fmt: skip
    evaluate_on: str = option(
        "test", "Whose scores a run tells: those of test examples, or of the examples that clients hold out of each "
        "task, by which options are chosen.", choices=("test", "validation"), sparse=True,
        mark=lambda data: "+validation" if data.evaluate_on == "validation" else "",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.allow_pickle and self.embeddings is None:
            raise OptionError("allow_pickle", "is for a file that --embeddings names")


def parse_assigned(text: str) -> Assigned:
    """Labels by client and task: `0,1+2;1,0`, a client's tasks between semicolons."""
    return tuple(
        tuple(tuple(name.strip() for name in task.split("+")) for task in client.split(","))
        for client in text.split(";")
    )


@dataclasses.dataclass(frozen=True)
class Stream(Options):
    """Who learns what, and when."""

    scenario: str = option(
        "non-iid", "What a task is: a few labels, drawn for each task (non-iid), without repetition at a client "
        "(sequence), or from one of the sets of --data NAME+NAME, drawn too (mixed); or all labels in another domain "
        "(domains); with one growing head and no task label at test: new classes, the same for all clients "
        "(class-incremental), or new rows of all classes (data-incremental); or a scenario of one's own, "
        "my_file.py:NAME.",
        metavar="non-iid|sequence|mixed|domains|class-incremental|data-incremental|FILE:NAME", sparse=True,
    )  # fmt: skip
    num_clients: int = option(3, "Clients.", least=1)
    num_tasks: int = option(5, "Tasks of each client.", least=1)
    labels_per_task: int = option(4, "Labels of each task.", least=1, only=_BY_LABEL)
    max_test_documents: Optional[int] = option(
        None, "Most test examples of each task; none for all with its labels.", least=1, sparse=True,
        only=_OF_LABELS, advanced=True,
    )  # fmt: skip
    max_train_documents: Optional[int] = option(
        None, "Most training examples of each task, and validation ones in proportion; none for all that it gets.",
        least=1, sparse=True, only=_OF_LABELS, advanced=True,
    )  # fmt: skip
    validation_share: Optional[float] = option(
        None, "Share of a task's examples that is held out of training; none for the scenario's own: an eighth, a "
        "sixth in a sequence, nothing of domains.", least=0, below=1, sparse=True,
        only=(*_OF_LABELS, "domains"), advanced=True,
    )  # fmt: skip
    partition: str = option(
        "equal", "How the rows of a task are divided over clients: in equal parts, by shares of each class from a "
        "Dirichlet distribution, two shards of sorted rows each, by shares of all classes alike (quantity), or as "
        "--client-column says (natural).",
        choices=tuple(_SKEWS), only=GROWING,
        mark=lambda stream: _SKEWS[stream.partition].format(stream.alpha),
    )  # fmt: skip
    alpha: float = option(
        0.5, "Of the Dirichlet distribution of --partition dirichlet and quantity: near 0, one client has nearly all.",
        above=0, only=GROWING,
    )  # fmt: skip
    same_order: bool = option(False, "All clients learn the same labels in the same order.", only=("sequence",))
    overlap: float = option(
        0.0, "Share of a label's examples that all who hold it get; 1 divides nothing.", least=0, most=1,
        only=("sequence",),
    )  # fmt: skip
    assign: Assigned = option(
        (), "The tasks of each client in the place of a draw: TASK,TASK,... for each client, with ';' between clients "
        "or --assign once for each; a task is a label, or several joined by '+'.", parse=parse_assigned,
        metavar="TASK,TASK,...", only=("sequence",), join=True,
    )  # fmt: skip
    domains: str = option(
        "rotations", "What differs from task to task; classes: other classes under the same labels.", choices=DOMAINS,
        only=("domains",),
    )  # fmt: skip
    examples_per_task: int = option(300, "Training examples of a client in a task.", least=1, only=("domains",))
    test_examples: Optional[int] = option(
        None, "Test examples of a task, all clients together; none for all.", least=1, only=("domains",)
    )
    train_classes: str = option(
        "seen", "Which classes compete in training: all that were seen so far, or those of the task (and of what a "
        "client remembers), so that nothing pushes past classes down; at test all that were seen.",
        choices=("seen", "own"), only=GROWING, sparse=True,
        mark=lambda stream: "+own-classes" if stream.train_classes == "own" else "+seen-classes",
    )  # fmt: skip
    enrollment: str = option(
        "full", "Who is there when; a file has a line for each client with a cell for each task: x not yet, * active, "
        "- away, o no longer.", metavar=f"{'|'.join(ENROLLMENTS)}|FILE", sparse=True,
        mark=lambda stream: f"+{_stem(stream.enrollment)}" if stream.enrollment != "full" else "",
    )  # fmt: skip
    split_seed: int = option(42, "Of the making of tasks.", least=0, most=SEED_LIMIT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({len(tasks) for tasks in self.assign}) > 1:
            raise OptionError("assign", "every client needs as many tasks as the others")
        SCENARIOS.check(self.scenario)


def _stem(name: str) -> str:
    return os.path.splitext(os.path.basename(name))[0]


_BASE_NOISE = ("dp_base_clip", "dp_base_noise")


@dataclasses.dataclass(frozen=True)
class Privacy(Options):
    """Differential privacy of whole clients for the base (`tffcl.aggregators.ClientPrivacy`)."""

    dp_base_clip: Optional[float] = option(
        None, "Differential privacy of whole clients: the norm to which each client's update of the base is clipped.",
        above=0, metavar="NORM", sparse=True, advanced=True,
    )  # fmt: skip
    dp_base_noise: Optional[float] = option(
        None, "Standard deviation of the noise on the sum of the updates, in units of --dp-base-clip; tells epsilon.",
        above=0, metavar="MULTIPLIER", sparse=True, advanced=True,
        mark=lambda privacy: "+basedp" if privacy.dp_base_noise is not None else "",
    )  # fmt: skip
    dp_base_quantile: Optional[float] = option(
        None, "The clip follows this quantile of the updates' norms, from --dp-base-clip on; none for a fixed one.",
        above=0, below=1, metavar="SHARE", sparse=True, advanced=True,
    )  # fmt: skip
    dp_base_delta: Optional[float] = option(
        None, "Delta of the epsilon that is reported; none for 1e-05.", above=0, below=1, metavar="DELTA", sparse=True,
        advanced=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [field.name for field in dataclasses.fields(self) if getattr(self, field.name) is not None]
        for name in _BASE_NOISE:
            if given and name not in given:
                raise OptionError(given[0], f"needs --{name.replace('_', '-')} beside it")


@dataclasses.dataclass(frozen=True)
class Runtime(Options):
    """Where computations run."""

    runtime: str = option(
        "in-process", "Where computations run: in this process, with its GPU if it has one; in a TFF worker on this "
        "machine; on --workers.", choices=("in-process", "local", "remote"), recorded=False,
    )  # fmt: skip
    threads_per_client: Optional[int] = option(
        None, "For --runtime in-process: threads within an operation; with one, one client more than cores runs at "
        "once, else as many as these have room for. None for 1, or TF_NUM_INTRAOP_THREADS of the environment.",
        least=1, metavar="N", recorded=False, advanced=True,
    )  # fmt: skip
    workers: Optional[str] = option(
        None, "For --runtime remote: where `tffcl worker` runs; the clients of a round are spread over them.",
        metavar="HOST:PORT,...", recorded=False, advanced=True,
    )  # fmt: skip
    call_timeout: Optional[float] = option(
        None, "For --runtime remote: a worker whose part of a round takes longer is left out; none for no limit.",
        above=0, metavar="SECONDS", recorded=False, advanced=True,
    )  # fmt: skip
    on_lost_worker: str = option(
        "retry", "For --runtime remote: the clients whose worker gets lost in a round go to the others, or the round "
        "ends without them.", choices=("retry", "leave-out"), recorded=False, advanced=True,
    )  # fmt: skip
    client_dir: Optional[str] = option(
        None, "Clients keep their states and data in files below this folder, on the machine where their work is done, "
        "and only handles come here; none for the memory of this program.", metavar="DIR", recorded=False,
        advanced=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        remote = self.runtime == "remote"
        if remote != (self.workers is not None):
            raise InputError("--runtime remote and --workers HOST:PORT,... go together")
        if self.threads_per_client is not None and self.runtime != "in-process":
            raise OptionError(
                "threads_per_client", "is for --runtime in-process; workers have `tffcl worker --threads`"
            )
        if self.call_timeout is not None and not remote:
            raise OptionError("call_timeout", "is for --runtime remote")
        if self.on_lost_worker != "retry" and not remote:
            raise OptionError("on_lost_worker", "is for --runtime remote")
        if remote and self.client_dir is not None and not os.path.isabs(self.client_dir):
            raise OptionError(
                "client_dir", f"must be an absolute path on the machines of --workers; found {self.client_dir}"
            )
        if remote:
            worker.check_addresses(self.addresses, "--workers")

    @property
    def addresses(self) -> list[str]:
        """The workers of --workers."""
        return [address.strip() for address in (self.workers or "").split(",")]


@dataclasses.dataclass(frozen=True)
class Output(Options):
    """Where a run is kept."""

    output_dir: Optional[str] = option(
        None, "The run directory; none for a new one in runs/.", metavar="DIR", recorded=False
    )
    resume: bool = option(False, "Go on with the run in --output-dir where it stopped.", recorded=False)
    quiet: bool = option(False, "No progress and no information, only results and warnings.", recorded=False)
    verbose: bool = option(False, "A line for each round, with the losses of the clients.", recorded=False)
    keep: str = option(
        "last", "What stays of the checkpoints after the end: one compact state, with weights to 8 significant bits; "
        "all of the last two, as exact as training; or none.", choices=("all", "last", "none"), recorded=False,
    )  # fmt: skip
    plot_format: str = option(
        "png", "The format of plots; tables of a paper take svg or pdf.", choices=("png", "svg", "pdf"), recorded=False
    )
    track: Optional[str] = option(
        None, "Also hand the headline of the run to a tracker; each is an extra, tffcl[wandb] or tffcl[mlflow].",
        choices=("wandb", "mlflow"), recorded=False,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quiet and self.verbose:
            raise OptionError("quiet", "and --verbose contradict each other; give one of them")
        if self.track is not None and importlib.util.find_spec(self.track) is None:
            raise OptionError("track", f"{self.track} is not installed: pip install 'tffcl[{self.track}]'")
        if self.resume and self.output_dir is None:
            raise OptionError("resume", "needs the directory of the run to go on with: --output-dir DIR")


Defaults = Mapping[str, Any]

# By schedule, then by data set; "" stands for all others. A schedule is a paper's, or that of a kind of data.
_SCHEDULES: dict[str, dict[str, Defaults]] = {
    # Table 4 of Chaudhary et al., 2022; for the sample a schedule of a minute or two, with a larger learning rate
    # because its tasks have 40 documents where those of TREC have 300.
    "text": {
        "": {
            "scenario": "non-iid", "num_clients": 3, "num_tasks": 5, "labels_per_task": 4, "num_rounds": 10,
            "num_epochs": 50, "learning_rate": 1e-4, "batch_size": 64, "patience": 3, "evaluate_every": "round",
            "sparsity": 1e-3, "retention": 1.0,
        },
        "sample": {"num_rounds": 3, "num_epochs": 10, "learning_rate": 1e-3},
        "subj": {"labels_per_task": 2},
    },
    # Paul et al., 2023, appendix B.1 and section 4.1; A = B / 3 is the published code's. The learning rate is not the
    # paper's 1e-3: a task has about 160 steps, with which that trains nothing out. It names neither mu of FedProx nor
    # lambda of EWC: these have the least NLL on held-out digits of all tasks, of those that were tried (`tffcl
    # reproduce confedmade --table weights`).
    "binary": {
        "": {
            "scenario": "sequence", "num_clients": 3, "num_tasks": 5, "labels_per_task": 1, "num_rounds": 20,
            "num_epochs": 1, "batch_size": 100, "learning_rate": 5e-3, "patience": 1, "evaluate_every": "task",
            "hidden": (400,), "sparsity": 1e-4, "retention": 100.0, "adaptive_factor": 3.0, "proximal": 1.0,
            "penalty": 0.1,
        },
        # 8 x 8 pixels and about 50 pictures a task: a small network, and many steps in few rounds.
        "digits": {"hidden": (100,), "num_rounds": 5, "num_epochs": 20, "batch_size": 20, "patience": 0},
        "binary": {"hidden": (100,), "num_tasks": 4},
    },
    # Park et al., 2021, section 5, and a schedule for two cores in the place of its 50 rounds.
    "fil-ver": {
        "": {
            "scenario": "domains", "num_clients": 10, "num_tasks": 4, "examples_per_task": 300, "num_rounds": 6,
            "num_epochs": 2, "batch_size": 64, "learning_rate": 1e-3, "patience": 0, "evaluate_every": "round",
            "embedding_size": 256, "hidden": (1000, 1000), "filters": (32, 64), "pretraining_epochs": 8,
            "client_memory": 300, "send_per_round": 50, "server_memory": 6000, "proximal": 0.0,
        },
        # 8 x 8 pixels, 1,442 of them in all: a small network, and many steps in few rounds.
        "digits": {
            "num_clients": 5, "examples_per_task": 150, "num_rounds": 4, "num_epochs": 4, "batch_size": 20,
            "embedding_size": 32, "hidden": (100,), "filters": (8, 16), "pretraining_epochs": 30,
            "client_memory": 150, "send_per_round": 40, "server_memory": 1000,
        },
        # With fewer epochs the encoder tells more of other classes: `tffcl reproduce fil-ver --table pretraining`.
        "mnist+fashion": {"domains": "classes", "pretraining_epochs": 1},
        "emnist-balanced": {"domains": "classes"},
    },
    "image": {
        "": {
            "scenario": "non-iid", "num_clients": 3, "num_tasks": 5, "labels_per_task": 2, "num_rounds": 5,
            "num_epochs": 2, "batch_size": 32, "learning_rate": 1e-3, "patience": 0, "evaluate_every": "round",
        },
        "digits": {"num_epochs": 5, "batch_size": 20, "hidden": (64,), "filters": (8, 16)},
        "mnist+fashion": {"scenario": "domains", "domains": "classes"},
    },
    "vector": {
        "": {
            "scenario": "non-iid", "num_clients": 3, "num_tasks": 3, "labels_per_task": 2, "num_rounds": 5,
            "num_epochs": 5, "batch_size": 20, "learning_rate": 1e-3, "patience": 0, "evaluate_every": "round",
            "hidden": (64,),
        },
    },
}  # fmt: skip
_OF_PAPER = {"fedseit": "text", "confedmade": "binary"}


def schedule_of(method: Method, kind: str) -> str:
    """Which schedule a method has on a kind of data: its paper's if that is of the kind, else that of the kind."""
    own = _OF_PAPER.get(method.schedule or "", method.schedule)
    return own if own in _SCHEDULES else kind


def defaults_of(method: Method, kind: str, data: str) -> dict[str, Any]:
    """Option -> default for a method on a data set of a kind; what is not named has its dataclass's default."""
    schedule = _SCHEDULES[schedule_of(method, kind)]
    chosen = {**schedule[""], **schedule.get(data, {})}
    if kind != "image" and schedule_of(method, kind) == "fil-ver":
        # No domains of texts or tables: tasks differ in their labels.
        chosen.update({name: _SCHEDULES[kind][""][name] for name in ("scenario", "num_tasks", "labels_per_task")})
        chosen.update(_SCHEDULES[kind].get(data, {}))
    if method.defaults.get("scenario") == "class-incremental" and kind != "image":
        chosen.update(num_tasks=3, labels_per_task=2 if kind == "text" else 1)  # of the fewest classes that ship
    if method.selection is not None:
        chosen["selection"] = method.selection
    return {**chosen, **method.defaults, **dict(method.defaults_on(data))}


def data_with_defaults(method: Method, kind: str) -> tuple[str, ...]:
    """Names of the data sets for which some default is not that of all others."""
    return tuple(name for name in _SCHEDULES[schedule_of(method, kind)] if name)
