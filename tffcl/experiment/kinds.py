"""What suits data: their kind (text, images, vectors of numbers, binary vectors), and defaults by method and data.

The kind is what the network takes. Images are binary vectors to a density and vectors to a network of vectors.
`defaults_of(method, kind, data)` is what `tffcl run` takes where an option is not given, and what `--help` prints:
sizes, streams and schedules of the papers, and smaller ones for small data. No TensorFlow here.
"""

from __future__ import annotations

import csv
import pathlib
import typing
from collections.abc import Mapping
from typing import Any, Optional

from tffcl.algorithms.method import DENSITY, LABELS, Method
from tffcl.errors import InputError
from tffcl.models.registry import network_of
from tffcl.options import OptionError, options_of
from tffcl.parts import Registry, users_code

KINDS = ("text", "image", "vector", "binary")
TEXTS = ("trec6", "trec50", "r8", "tmn", "subj", "sample")
IMAGES = ("digits", "mnist", "fashion-mnist", "emnist-balanced", "emnist-letters", "emnist-byclass")
BINARIES = ("binary", "adult", "connect4", "tretail", "rcv1", "nltcs", "mnist+letters")
BINARY_SETS = ("adult", "connect4", "tretail", "rcv1")  # the sequence `binary`
VECTORS = ("iris", "wine", "breast-cancer")  # come with scikit-learn
PAIRS = ("mnist+fashion",)  # domains of classes
NAMES = {**dict.fromkeys(TEXTS, "text"), **dict.fromkeys((*IMAGES, *PAIRS), "image"),
         **dict.fromkeys(BINARIES, "binary"), **dict.fromkeys(VECTORS, "vector")}  # fmt: skip
CLASSES = ("emnist-balanced", "mnist+fashion")  # where other classes come under the same labels
DATA = Registry("data set", "tffcl.data", dict.fromkeys(NAMES))

# What else each kind can be taken for.
_ALSO = {
    "image": ("image", "binary", "vector"),
    "text": ("text",),
    "binary": ("binary", "vector"),
    "vector": ("vector",),
}
_USUAL_DATA = {"fedseit": "text", "confedmade": "binary", "fil-ver": "image"}


def kind_of(method: Method, data: Any, network: Any = None) -> str:
    """The kind of data that a method has of `data` (see `Experiment`), with a network.

    Raises:
      InputError: the method or the network cannot learn from such data; the message says what is missing.
    """
    if data is None:
        usual = _USUAL_DATA.get(method.schedule or "", "text" if LABELS in method.learns else "binary")
        natural, name = usual, f"the default data of {method.name}"
    else:
        natural, name = natural_kind(data), name_of(data) or "the data"
    part = None if network is None or method.own_network else network_of(network, method, natural)
    takes = tuple(kind for kind in method.kinds if part is None or kind in part.kinds)
    for kind in _ALSO[natural]:
        # The labels of rows of 0 and 1 say which set they are from: learned only where a network of vectors is named.
        if kind in takes and (part is not None or (natural, kind) != ("binary", "vector")):
            return kind
    what = f"{method.name} takes {' or '.join(method.kinds)} data"
    if part is not None:
        what += f", the network {part.name} {' or '.join(part.kinds)}"
    raise InputError(f"{what}, but {name} is {natural}{_missing(method, natural)}")


def check_domains(name: str, domains: str) -> None:
    """Raises OptionError where a data set that ships has no such domains."""
    if domains == "classes" and name in NAMES and name not in CLASSES:
        raise OptionError("domains", f"classes needs the data {' or '.join(CLASSES)}, found {name}")
    if name in PAIRS and domains != "classes":
        raise OptionError("domains", f"the data {name} have classes, found {domains}")


def usual_data(method: Method, kind: str) -> tuple[str, ...]:
    """Data that a method has where none are given: the first at hand of these, of which the last needs no files."""
    if kind == "image":
        study = getattr(method, "study", False)  # section 5.1 of FIL-VER permutes MNIST
        return (*(() if study else ("emnist-balanced", "fashion-mnist")), "mnist", "digits")
    return ("trec6", "sample") if kind == "text" else ("mnist", "digits")


def _missing(method: Method, kind: str) -> str:
    """What a kind of data has not got that a method needs."""
    if kind == "binary" and DENSITY not in method.learns:
        return ": rows of 0 and 1 without labels, and it learns labels; fedavg and others learn their density"
    if method.needs:
        return f": {method.needs}"
    if LABELS not in method.learns and kind in ("text", "vector"):
        return ": it learns the density of rows of 0 and 1"
    return ""


def natural_kind(data: Any) -> str:
    """The kind of a data set as it is, before any network."""
    if not isinstance(data, str):
        return getattr(data, "kind", None) or _no_kind(data)
    if data in NAMES:
        return NAMES[data]
    if is_own(data):
        with users_code(f"data set: {data}"):
            made = typing.get_type_hints(DATA.get(data)).get("return") if callable(DATA.get(data)) else None
        return getattr(made, "kind", None) or natural_kind(loaded(data))
    folder = pathlib.Path(data)
    tables = sorted(folder.glob("train.*")) if folder.is_dir() else [folder]
    if not tables or not tables[0].exists():
        DATA.get(data)  # says that there is none
        raise InputError(f"{data}: no such data set or folder; known sets are {', '.join(NAMES)}")
    if tables[0].suffix == ".npz":
        return "vector"
    return "text" if _has_text(tables[0]) else "vector"


def _no_kind(data: Any) -> str:
    raise InputError(
        f"data: expected a name, a table, a folder, FILE.py:NAME or a data set of tffcl.datasets (from_arrays, "
        f"from_frames, from_texts), found {type(data).__name__}"
    )


def _has_text(path: pathlib.Path) -> bool:
    """Whether a table has a column or key of texts, going by its first line."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        line = file.readline(1 << 20)
    if path.suffix == ".jsonl":
        return '"text"' in line
    separator = "\t" if path.suffix == ".tsv" else ","
    return "text" in [name.strip() for name in next(csv.reader([line], delimiter=separator), [])]


def name_of(data: Any) -> Optional[str]:
    """What data are called; None where none are given."""
    if data is None or not isinstance(data, str):
        return getattr(data, "name", None)
    return data if data in NAMES or is_own(data) else pathlib.Path(data).resolve().stem


def is_own(data: Any) -> bool:
    """Whether data come of the user's code, FILE.py:NAME, or of an installed package."""
    return DATA.is_own(data) and not pathlib.Path(data).exists()


def own_options(data: Any) -> Optional[type]:
    """The options of a function of the user's that makes a data set."""
    return options_of(DATA.get(data)) if is_own(data) and callable(DATA.get(data)) else None


_LOADED: dict[str, tuple[Any, Any]] = {}  # the latest of each function


def loaded(reference: str, options: Any = None) -> Any:
    """The data set that FILE.py:NAME refers to; a function is called, again only with other options."""
    part, own = DATA.get(reference), own_options(reference)
    options = own() if options is None and own is not None else options
    if reference not in _LOADED or _LOADED[reference][0] != (part, options):
        _LOADED[reference] = (part, options), DATA.make(reference, {}, options) if callable(part) else part
    return _LOADED[reference][1]


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
    # lambda of EWC and FedCurv.
    "binary": {
        "": {
            "scenario": "sequence", "num_clients": 3, "num_tasks": 5, "labels_per_task": 1, "num_rounds": 20,
            "num_epochs": 1, "batch_size": 100, "learning_rate": 5e-3, "patience": 1, "evaluate_every": "task",
            "hidden": (400,), "sparsity": 1e-4, "retention": 100.0, "adaptive_factor": 3.0,
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
        "mnist+fashion": {"domains": "classes"},
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
    if method.selection is not None:
        chosen["selection"] = method.selection
    return {**chosen, **method.defaults, **dict(method.defaults_on(data))}


def data_with_defaults(method: Method, kind: str) -> tuple[str, ...]:
    """Names of the data sets for which some default is not that of all others."""
    return tuple(name for name in _SCHEDULES[schedule_of(method, kind)] if name)
