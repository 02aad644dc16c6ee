"""The data of a run: which kind they are, loaded (by name, folder, file or object), and divided. No TensorFlow here.

The kind (text, images, vectors of numbers, binary vectors) is what the network takes. Images are binary vectors to a
density and vectors to a network of vectors.
"""

from __future__ import annotations

import csv
import dataclasses
import logging
import os
import pathlib
import typing
import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Optional

from tffcl import datasets, storage, streams
from tffcl.algorithms.method import DENSITY, LABELS, Method
from tffcl.datasets import raw_files
from tffcl.errors import DatasetError, InputError, StreamError
from tffcl.experiment.groups import ENROLLMENTS, GROWING, SCENARIOS
from tffcl.models.registry import network_of
from tffcl.options import OptionError, options_of
from tffcl.parts import Registry, users_code

if TYPE_CHECKING:
    from tffcl.experiment import Experiment

logger = logging.getLogger(__name__)

_MOST_TABLE_BYTES = 1 << 22  # 1,000 clients in 2,000 tasks
_LABEL_BYTES = 4
MOST_CLIENTS = 10  # whose tasks or enrolment are printed

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


def kind_of(
    method: Method, data: Any, network: Any = None, text_column: Optional[str] = None, features: Optional[str] = None
) -> str:
    """The kind of data that a method has of `data` (see `Experiment`), with a network.

    `text_column` is that of tables; None for "text". With a file of `features` all data are vectors.

    Raises:
      InputError: the method or the network cannot learn from such data; the message says what is missing.
    """
    if features is not None and data is None:
        raise OptionError("features", "are of the examples of a data set, which --data has to name")
    if data is None:
        usual = _USUAL_DATA.get(method.schedule or "", "text" if LABELS in method.learns else "binary")
        natural, name = usual, f"the default data of {method.name}"
    else:
        natural = "vector" if features is not None else natural_kind(data, text_column)
        name = name_of(data) or "the data"
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


def example_bytes(data: Any) -> float:
    """Bytes of a raw training example with its label, the mean: pixels, numbers, or ids of words as they are held."""
    parts = ("train_tokens", "train_images", "train_x")
    kept = next(getattr(data, name) for name in parts if hasattr(data, name))
    values = kept.values if isinstance(kept, datasets.RaggedTokens) else kept
    return float(values.nbytes / len(data.train_labels) + _LABEL_BYTES)


def usual_names(method: Method, kind: str) -> tuple[str, ...]:
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


def is_table(data: Any) -> bool:
    """Whether data are named as a table, a folder of tables, or several of these."""
    parts = union_of(data) or (data,)
    return all(isinstance(part, str) and part not in NAMES and not is_own(part) for part in parts)


def natural_kind(data: Any, text_column: Optional[str] = None) -> str:
    """The kind of a data set as it is, before any network."""
    if not isinstance(data, str):
        return getattr(data, "kind", None) or _no_kind(data)
    if data in NAMES:
        return NAMES[data]
    if parts := union_of(data):
        other = next((part for part in parts if natural_kind(part, text_column) != "text"), None)
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
    if text_column is None or text_column == "text":
        return "text" if "text" in _columns_of(tables[0]) else "vector"
    columns = _columns_of(tables[0])
    if text_column not in columns:
        raise DatasetError(f"{tables[0]}: has no column {text_column!r}, only {', '.join(columns)[:200]}")
    return "text"


def _no_kind(data: Any) -> str:
    raise InputError(
        f"data: expected a name, a table, a folder, FILE.py:NAME or a data set of tffcl.datasets (from_arrays, "
        f"from_frames, from_texts), found {type(data).__name__}"
    )


def _columns_of(path: pathlib.Path) -> list[str]:
    """Names of the columns or keys of a table, going by its first line."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        line = file.readline(1 << 20)
    if path.suffix == ".jsonl":
        return list(storage.parse_object(line.encode(), f"{path}, line 1", DatasetError))
    separator = "\t" if path.suffix == ".tsv" else ","
    return [name.strip() for name in next(csv.reader([line], delimiter=separator), [])]


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
    part, own = DATA.get(reference), own_options(reference)
    options = own() if options is None and own is not None else options
    if reference not in _LOADED or _LOADED[reference][0] != (part, options):
        _LOADED[reference] = (part, options), DATA.make(reference, {}, options) if callable(part) else part
    return _LOADED[reference][1]


def usual_data(experiment: Experiment) -> str:
    """The name of the data set that a method has where none is given: the paper's if it is at hand."""
    *wanted, ships = usual_names(experiment.method, experiment.kind)
    name = next((name for name in wanted if _at_hand(name, experiment.data_dir)), ships)
    missing = wanted[: wanted.index(name)] if name in wanted else wanted
    if missing:
        shown = {"sample": "the small sample that ships", "digits": "digits, 8 x 8"}.get(name, name)
        logger.info(
            "data: %s not at hand: taking %s; --data-dir DIR or --data NAME|PATH for other data",
            " and ".join(missing), shown,
        )  # fmt: skip
    return name


def _at_hand(name: str, data_dir: Optional[str]) -> bool:
    """Whether a set lies on the disk, or comes from the network into the cache: texts alone are fetched unasked."""
    if datasets.available(name, data_dir):
        return True
    try:
        return name in TEXTS and datasets.load(name, data_dir) is not None
    except DatasetError:
        return False


def load(experiment: Experiment) -> Any:
    """The data set: a `TextDataset`, `ImageDataset`, `BinaryVectors` or `ArrayDataset`.

    Raises:
      DatasetError: the data are missing or malformed.
    """
    data, kind = experiment.data, experiment.kind
    if is_own(data):
        own = own_options(data)
        data = loaded(data, None if own is None else experiment.groups[own])
        natural_kind(data)  # says what it should be
    if experiment.features is not None:
        return datasets.with_features(_load(experiment, data, natural_kind(data)), experiment.features)
    return _load(experiment, data, kind)


def _load(experiment: Experiment, data: Any, kind: str) -> Any:
    """As a data set of a kind."""
    if kind == "text":
        parts = [_texts(experiment, part) for part in union_of(data) or (data,)]
        return parts[0] if len(parts) == 1 else datasets.join_texts(parts)
    if kind == "binary":
        return _binary(experiment, data)
    if kind == "image" and isinstance(data, str):
        return datasets.load_images(data, experiment.data_dir)
    if kind == "vector":
        if isinstance(data, str) and NAMES.get(data) == "image":
            data = datasets.load_images(data, experiment.data_dir)
        elif isinstance(data, str):
            return datasets.load_arrays(
                data, label_column=experiment.label_column, client_column=experiment.client_column
            )
        return datasets.as_arrays(data)
    return data


def _texts(experiment: Experiment, data: Any) -> datasets.TextDataset:
    texts = data
    if isinstance(data, str):
        columns = {"text_column": experiment.text_column, "label_column": experiment.label_column}
        texts = datasets.load(data, experiment.data_dir, **columns)
    if experiment.tokeniser is not None:
        texts = dataclasses.replace(texts, unicode=experiment.tokeniser == "unicode")
    return texts


def _binary(experiment: Experiment, data: Any) -> datasets.BinaryVectors:
    seed = experiment.split_seed if experiment.binarise == "stochastic" else None

    def images(name: str) -> datasets.BinaryVectors:
        return datasets.vectors_of_images(datasets.load_images(name, experiment.data_dir), seed=seed)

    if isinstance(data, datasets.ImageDataset):
        return datasets.vectors_of_images(data, seed=seed)
    if not isinstance(data, str):
        return data
    if data == "mnist+letters":
        return datasets.join_vectors(images("mnist"), images("emnist-letters"))
    if data in BINARIES:
        names = BINARY_SETS if data == "binary" else (data,)
        return datasets.vectors_of_sets([datasets.load_binary(name, experiment.data_dir) for name in names])
    return images(data)


def encoded(experiment: Experiment, texts: datasets.TextDataset) -> datasets.EncodedTextDataset:
    """Documents as word ids, with the vectors of the words in use; WordVectorError for vectors that cannot be used."""
    source = experiment.embeddings or _usual_vectors(experiment.data_dir)
    if source == "own":
        tokenised = [texts.tokenise(text)[: experiment.max_words] for text in texts.train_texts]
        vectors = datasets.train_word_vectors(tokenised, seed=experiment.seed)
    else:
        words = {word for text in (*texts.train_texts, *texts.test_texts) for word in texts.tokenise(text)}
        vectors = datasets.load_word_vectors(source, words, allow_pickle=experiment.allow_pickle)
    num_words, dimension = vectors.vectors.shape
    logger.info("word vectors: %d words, %d dimensions, from %s", num_words, dimension, vectors.source)
    return datasets.encode(texts, vectors, max_words=experiment.max_words)


def _usual_vectors(data_dir: Optional[str]) -> str:
    from tffcl.datasets import download, word_vectors

    folder = data_dir or os.environ.get(download.ENVIRONMENT_VARIABLE)
    files = sorted(pathlib.Path(os.path.expanduser(folder)).glob("glove/*.bin")) if folder else []
    if files:
        return str(files[0])
    return "glove-50" if word_vectors.glove_available() else "own"


def domains_of(experiment: Experiment, images: Any) -> datasets.Domains:
    """The images as ever other domains, one a task."""
    if experiment.data in PAIRS:
        first, second = experiment.data.split("+")
        every = datasets.mnist_fashion(
            datasets.load_images(first, experiment.data_dir),
            datasets.load_images(f"{second}-mnist", experiment.data_dir),
        )
    elif isinstance(images, datasets.Domains):
        every = images
    elif experiment.domains == "classes":
        every = datasets.emnist_balanced(images)
    elif experiment.domains == "mild":
        every = datasets.mild(images)
    elif experiment.domains == "permutations":
        # Section 5.1 of FIL-VER permutes every task. Else the first is as it is, so that a convolution has something to
        # learn.
        keep = not getattr(experiment.method, "study", False)
        every = datasets.permutations(images, experiment.num_tasks, experiment.split_seed, keep_first=keep)
    else:
        count = experiment.num_tasks
        every = datasets.rotations(images, [360 * turn / count for turn in range(count)])
    if experiment.num_tasks > len(every):
        raise OptionError(
            "num_tasks",
            f"{experiment.num_tasks} tasks, but {every.name} has {len(every)} domains, and each task is one",
        )
    return dataclasses.replace(every, domains=every.domains[: experiment.num_tasks])


def checksum(arrays: Iterable[Any]) -> str:
    """A short sum over all data of a run, so that it is not resumed with other ones."""
    total = 0
    for array in arrays:
        total = zlib.crc32(array.tobytes(), total)
    return f"{total:08x}"


def stream_of(
    experiment: Experiment, dataset: Any, num_clients: int, enrollment: streams.Enrollment
) -> streams.TaskStream:
    """Who has which rows of a data set (`Domains`, or one with labels) in which task.

    The enrollment matters to domains and to one growing head.

    Raises:
      StreamError: the labels or examples do not allow what is asked for.
    """
    labels = (dataset.train_labels, dataset.test_labels)
    held_out = _held_out(experiment)
    if experiment.scenario == "domains":
        return streams.domain_sequence(
            *labels,
            num_clients=experiment.num_clients,
            examples_per_task=experiment.examples_per_task,
            enrollment=enrollment,
            test_examples=experiment.test_examples,
            seed=experiment.split_seed,
            shared_base=dataset.shared_base,
            **held_out,
        )
    if SCENARIOS.is_own(experiment.scenario):
        stream = _own(experiment, dataset, num_clients)
    elif experiment.scenario in ("non-iid", "mixed"):
        split: Any = streams.mixed if experiment.scenario == "mixed" else streams.non_iid
        stream = split(
            *labels,
            num_clients=num_clients,
            num_tasks=experiment.num_tasks,
            labels_per_task=experiment.labels_per_task,
            seed=experiment.split_seed,
            order_seed=experiment.seed,
            label_names=dataset.label_names,
            **held_out,
        )
        if stream.excluded_labels:
            names = ", ".join(dataset.label_names[label] for label in stream.excluded_labels)
            logger.info("data: too few documents, or none to test with, for the labels %s; no task has them", names)
    elif experiment.scenario in GROWING:
        stream = _growing(experiment, dataset, labels, num_clients, enrollment)
    else:
        stream = _sequence(experiment, dataset, labels, num_clients)
    if experiment.max_train_documents is not None:
        stream = streams.fewer_training(
            stream, dataset.train_labels, experiment.max_train_documents, experiment.split_seed
        )
    if experiment.max_test_documents is not None:
        stream = streams.fewer_tests(
            stream, experiment.max_test_documents, experiment.split_seed, shared=experiment.scenario in GROWING
        )
    return stream


def _held_out(experiment: Experiment) -> dict[str, Any]:
    share = experiment.validation_share
    return {} if share is None else {"validation_share": share}


def _own(experiment: Experiment, dataset: Any, num_clients: int) -> streams.TaskStream:
    supplied = {
        "train_labels": dataset.train_labels,
        "test_labels": dataset.test_labels,
        "num_clients": num_clients,
        "num_tasks": experiment.num_tasks,
        "seed": experiment.split_seed,
        "label_names": dataset.label_names,
    }
    options = experiment.groups[experiment.own["stream"]] if "stream" in experiment.own else None
    stream = SCENARIOS.make(experiment.scenario, supplied, options)
    if not isinstance(stream, streams.TaskStream):
        raise InputError(
            f"scenario: {experiment.scenario} makes a {type(stream).__name__}, expected a tffcl.streams.TaskStream"
        )
    if (stream.num_clients, stream.num_tasks) != (num_clients, experiment.num_tasks):
        raise InputError(
            f"scenario: {experiment.scenario} makes {stream.num_clients} clients with {stream.num_tasks} tasks; "
            f"--num-clients {num_clients} and --num-tasks {experiment.num_tasks} were asked for"
        )
    return stream


def _sequence(experiment: Experiment, dataset: Any, labels: Sequence[Any], num_clients: int) -> streams.TaskStream:
    common: dict[str, Any] = {
        "seed": experiment.split_seed,
        "label_names": dataset.label_names,
        "overlap": experiment.overlap,
        **_held_out(experiment),
    }
    if experiment.assign:
        assigned = _ids(experiment.assign, dataset)[:num_clients]
        stream = streams.assigned_sequence(labels[0], labels[1], assigned, **common)
    else:
        pools = None
        if experiment.data == "mnist+letters":  # first tasks of digits, then as many of letters; the odd one of digits
            of_digits = (experiment.num_tasks + 1) // 2
            letters = range(10, len(dataset.label_names))
            pools = [range(10)] * of_digits + [letters] * (experiment.num_tasks - of_digits)
        stream = streams.label_sequence(
            labels[0],
            labels[1],
            num_clients=num_clients,
            num_tasks=experiment.num_tasks,
            labels_per_task=experiment.labels_per_task,
            pools=pools,
            same_order=experiment.same_order,
            **common,
        )
    for client, tasks in enumerate(task_names(stream, dataset.label_names)[:MOST_CLIENTS]):
        logger.info("tasks of client %d: %s", client + 1, ", ".join(tasks))
    return stream


def _growing(
    experiment: Experiment, dataset: Any, labels: Sequence[Any], num_clients: int, enrollment: streams.Enrollment
) -> streams.TaskStream:
    """A stream of one growing head; logs how many examples of each class each client has."""
    common: dict[str, Any] = {
        "num_clients": num_clients, "num_tasks": experiment.num_tasks, "partition": experiment.partition,
        "alpha": experiment.alpha, "enrollment": enrollment if enrollment.num_clients == num_clients else None,
        "seed": experiment.split_seed, "label_names": dataset.label_names, **_held_out(experiment),
        "clients": getattr(dataset, "train_clients", None),
    }  # fmt: skip
    if experiment.scenario == "data-incremental":
        return streams.data_incremental(*labels, **common)
    stream = streams.class_incremental(
        *labels, labels_per_task=experiment.labels_per_task, order_seed=experiment.seed, **common
    )
    logger.info("tasks: %s", "; ".join(task_names(stream, dataset.label_names)[0]))
    counts = streams.class_counts(stream, labels[0], len(dataset.label_names))
    for client, row in enumerate(counts[:MOST_CLIENTS].tolist()):
        shown = ", ".join(f"{dataset.label_names[label]} {count}" for label, count in enumerate(row) if count)
        logger.info("examples of client %d: %s", client + 1, shown or "none")
    return stream


def _ids(assigned: Sequence[Any], dataset: Any) -> list[list[list[int]]]:
    """`--assign` with label ids in the place of names."""
    known = {name: label for label, name in enumerate(dataset.label_names)}
    for name in (name for tasks in assigned for task in tasks for name in task if name not in known):
        raise OptionError("assign", f"{dataset.name} has no label {name!r}; its labels are {', '.join(known)}")
    return [[[known[name] for name in task] for task in tasks] for tasks in assigned]


def task_names(stream: streams.TaskStream, label_names: Sequence[str]) -> list[list[str]]:
    """What each client learns in each task, by the names of labels."""
    return [["+".join(labels) for labels in tasks] for tasks in stream.named_labels(label_names)]


def pooled(stream: streams.TaskStream, pool: str) -> streams.TaskStream:
    """The stream as a method meets it: cumulative for replay, one task for the offline ones."""
    makers = {"cumulative": streams.cumulative, "clients": streams.federated_offline, "all": streams.offline}
    return makers[pool](stream) if pool in makers else stream


def enrollment_of(experiment: Experiment) -> streams.Enrollment:
    """Who is enrolled when: a scenario of FIL-VER's section 4, or the table in a file.

    Raises:
      StreamError: a table of another size, or with a cell that is no state or cannot follow the one before it.
      OptionError: no such scenario or file.
    """
    clients, tasks, reference = experiment.num_clients, experiment.num_tasks, experiment.enrollment
    if reference in ENROLLMENTS:
        return getattr(streams.Enrollment, reference)(clients, tasks)
    path = pathlib.Path(reference)
    try:
        lines = raw_files.read_lines(path, max_bytes=_MOST_TABLE_BYTES)
    except DatasetError as error:
        raise OptionError(
            "enrollment", f"{reference} is neither one of {', '.join(ENROLLMENTS)} nor a table in a file ({error})"
        ) from error
    try:
        rows = [_cells(line.strip()) for line in lines if line.strip()]
        enrollment = streams.Enrollment.from_table(rows, num_clients=clients, num_tasks=tasks, name=path.stem)
    except StreamError as error:
        raise StreamError(f"{path}: {error}") from error
    for client, row in enumerate(enrollment.table()[:MOST_CLIENTS]):
        logger.info("enrolment of client %d: %s", client + 1, row)
    return enrollment


def _cells(line: str) -> list[str]:
    """The cells of a line: separated by tabs or commas, or signs one after the other."""
    separator = next((sign for sign in "\t,;" if sign in line), None)
    return list(line) if separator is None else [cell.strip() for cell in line.split(separator)]
