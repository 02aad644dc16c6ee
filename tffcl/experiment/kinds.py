"""Which kind of data a run has: text, images, vectors of numbers, or binary vectors. No TensorFlow here.

The kind is what the network takes. Images are binary vectors to a density and vectors to a network of vectors.
"""

from __future__ import annotations

import csv
import pathlib
import typing
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
        found, name = usual, f"the default data of {method.name}"
    else:
        found, name = natural_kind(data), name_of(data) or "the data"
    part = None if network is None or method.own_network else network_of(network, method, found)
    takes = tuple(kind for kind in method.kinds if part is None or kind in part.kinds)
    for kind in _ALSO[found]:
        # The labels of rows of 0 and 1 say which set they are from: learned only where a network of vectors is named.
        if kind in takes and (part is not None or (found, kind) != ("binary", "vector")):
            return kind
    what = f"{method.name} takes {' or '.join(method.kinds)} data"
    if part is not None:
        what += f", the network {part.name} {' or '.join(part.kinds)}"
    raise InputError(f"{what}, but {name} is {found}{_missing(method, found)}")


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


def _missing(method: Method, found: str) -> str:
    """What a kind of data has not got that a method needs."""
    if found == "binary" and DENSITY not in method.learns:
        return ": rows of 0 and 1 without labels, and it learns labels; fedavg and others learn their density"
    if method.needs:
        return f": {method.needs}"
    if LABELS not in method.learns and found in ("text", "vector"):
        return ": it learns the density of rows of 0 and 1"
    return ""


def natural_kind(data: Any) -> str:
    """The kind of a data set as it is, before any network."""
    if not isinstance(data, str):
        return getattr(data, "kind", None) or _no_kind(data)
    if data in NAMES:
        return NAMES[data]
    if parts := union_of(data):
        other = next((part for part in parts if natural_kind(part) != "text"), None)
        if other is not None:
            raise InputError(f"{data}: data sets of text can be joined, and {other} is {natural_kind(other)} data")
        return "text"
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
    if parts := union_of(data):
        return "+".join(str(name_of(part)) for part in parts)
    return data if data in NAMES or is_own(data) else pathlib.Path(data).resolve().stem


def union_of(data: Any) -> tuple[str, ...]:
    """The names and folders of a union of text sets, `NAME+NAME+...`; empty where data are none."""
    if not isinstance(data, str) or "+" not in data or data in NAMES or is_own(data) or pathlib.Path(data).exists():
        return ()
    return tuple(data.split("+"))


def is_own(data: Any) -> bool:
    """Whether data come of the user's code, FILE.py:NAME, or of an installed package."""
    return DATA.is_own(data) and not pathlib.Path(data).exists()


def own_options(data: Any) -> Optional[type]:
    """The options of a function of the user's that makes a data set."""
    return options_of(DATA.get(data)) if is_own(data) and callable(DATA.get(data)) else None


_LOADED: dict[str, tuple[Any, Any]] = {}  # the latest of each function


def loaded(reference: str, options: Any = None) -> Any:
    """The data set that FILE.py:NAME refers to; a function is called, again only with other options."""
    found, own = DATA.get(reference), own_options(reference)
    options = own() if options is None and own is not None else options
    if reference not in _LOADED or _LOADED[reference][0] != (found, options):
        _LOADED[reference] = (found, options), DATA.make(reference, {}, options) if callable(found) else found
    return _LOADED[reference][1]
