"""What a run directory holds so that its models can be used where its data are not at hand.

run.json          version and code of tffcl, packages, method, network and options; what the data are (label names, the
                  rule by which text is cut into words, how pixels are scaled); the labels of every task of every client
vocabulary.json   words, in the order of their vectors (text)
data.npz          word vectors; or centre and scale of columns of numbers
split.npz         rows of the data set that each client and task has, and their labels; equal sets stand once
network.keras     a network of the user's: its layers and first weights, in Keras's own format

All of it is data: nothing here is pickled, and nothing that is read back runs code.

`export_stream` writes a stream as one .npz file, for other code: every row that clients get, with its client and task.
For each split, train, validation and test, of N rows:

x_SPLIT       [N, ...], examples as the network takes them: pixels in [0, 1], columns; of text int32 [N, L], rows of
              `vectors`, 0 behind a document's end
y_SPLIT       int32 [N], places in `label_names`; not of a density
client_SPLIT  int32 [N], from 0; -1 for test rows of a task that are the same for all clients, which stand once
task_SPLIT    int32 [N], from 0

label_names   the data set's
vectors       float32 [V, D], the word vectors of text; row 0 is zero
config        the options, as JSON
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import pathlib
import platform
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

import tffcl
from tffcl import archive, datasets, errors, storage, streams
from tffcl.errors import InputError, RunError
from tffcl.experiment import Experiment, loading
from tffcl.models import KerasNetwork
from tffcl.models.registry import NETWORKS
from tffcl.options import fields_of
from tffcl.program.client_data import SPLITS, ClientTask

if TYPE_CHECKING:
    from tffcl.experiment.plan import Plan
    from tffcl.templates import ContinualProcess

logger = logging.getLogger(__name__)

FORMAT = 1
NAME = "run.json"
_PACKAGES = ("tensorflow", "tensorflow-federated", "keras", "tensorflow-probability", "numpy", "gensim", "scikit-learn")
_SETS = ("train", "validation", "test", "labels", "test_labels")
KERAS = "network.keras"
OLD = "its numbers can be read (tffcl.load_run, tffcl report), its models cannot; train it again"


# -- writing ------------------------------------------------------------------------------------------------------


def write(plan: Plan, process: Optional[ContinualProcess], folder: pathlib.Path) -> None:
    """Writes all of it; a run that is resumed keeps what it began with. run.json comes last: with it, all is there."""
    if (folder / NAME).exists():
        return
    card, arrays, words = _card(plan)
    if words is not None:
        storage.write_json(folder / "vocabulary.json", {"tokeniser": card["tokeniser"], "words": words})
    archive.write(folder / "data.npz", arrays)
    write_split(folder, plan.stream)
    experiment = plan.experiment
    network = experiment.named["network"]
    built = getattr(getattr(process, "work", None), "network", None)
    if network is not None and network not in NETWORKS.names and isinstance(built, KerasNetwork):
        network = _save_network(built, folder / KERAS) or network
    method = experiment.named["method"]
    storage.write_json(
        folder / NAME,
        {
            "format": FORMAT,
            **makers(),
            "method": method if isinstance(method, str) else None,
            "network": network if isinstance(network, (str, type(None))) else f"a {type(network).__name__}",
            "options": _options(experiment),
            "data": card,
            "tasks": _named_tasks(plan),
        },
    )


def _save_network(network: KerasNetwork, path: pathlib.Path) -> Optional[str]:
    """Keeps a network of the user's; None where Keras cannot save one of its layers."""
    try:
        network.plain().save(path)
    except Exception as error:  # whatever a layer of the user's raises
        logger.info("the network is not kept with the run, and its models cannot be taken out: %r", error)
        path.unlink(missing_ok=True)
        return None
    return KERAS


def _options(experiment: Experiment) -> dict[str, Any]:
    """Options that say what the run is, without those of the user's own data and scenario, whose outcome is here."""
    own = [field.name for title in ("data", "stream") for group in experiment._own(title) for field in fields_of(group)]
    return {
        name: value
        for name, value in experiment.values.items()
        if experiment.fields[name].option.recorded
        and experiment.fields[name].option.suits(experiment.kind, experiment.scenario)
        and name not in own
    }


def _named_tasks(plan: Plan) -> list[list[tuple[str, ...]]]:
    """Names of the labels that an example of each task may have, as the method meets it."""
    names = tuple(plan.dataset.label_names)
    if isinstance(plan.dataset, datasets.Domains):
        return [[names] * plan.data.num_tasks for _ in range(plan.data.num_clients)]
    pooled = loading.pooled(plan.stream, plan.method.pool)
    if plan.growing:  # nobody knows the task: all classes of the run
        every = tuple(names[label] for label in streams.seen_classes(plan.stream)[-1])
        return [[every] * pooled.num_tasks for _ in range(pooled.num_clients)]
    return [[tuple(names[label] for label in task.test_labels) for task in tasks] for tasks in pooled.tasks]


def _card(plan: Plan) -> tuple[dict[str, Any], dict[str, np.ndarray], Optional[list[str]]]:
    """What the data are: for run.json, for data.npz, and the words of text."""
    data = plan.dataset
    card: dict[str, Any] = {"kind": plan.kind, "name": data.name, "labels": list(data.label_names)}
    if isinstance(data, datasets.Domains):
        shape = list(map(int, data.image_size))
        card.update(shape=shape, max_value=int(data.max_value), domains=[domain.name for domain in data.domains])
        return card, {}, None
    if plan.kind == "text":
        rule = {None: "own", True: "unicode", False: "ascii"}[data.unicode]
        card.update(tokeniser=rule, max_words=data.max_words)
        return card, {"vectors": data.embedding}, list(data.words)
    if plan.kind == "image":
        card.update(shape=list(map(int, data.train_images.shape[1:])), max_value=int(data.max_value))
        return card, {}, None
    card["shape"] = list(map(int, data.train_x.shape[1:]))
    if plan.kind == "binary":
        card["widths"] = list(map(int, data.widths))
        return card, {}, None
    card["columns"] = list(data.columns)
    return card, {"centre": data.centre, "scale": data.scale}, None


def write_split(folder: pathlib.Path, stream: streams.TaskStream) -> None:
    """split.npz: `sets` int32 [S] with `splits` int64 [n + 1], the different sets one after the other, and for each
    client, task and one of `_SETS` the number of its set, `places` int32 [C, T, 5]; the stream's name.
    """
    numbers: dict[bytes, int] = {}
    rows: list[Any] = []
    places = np.zeros([stream.num_clients, stream.num_tasks, len(_SETS)], np.int32)
    for client, tasks in enumerate(stream.tasks):
        for task, part in enumerate(tasks):
            for place, name in enumerate(_SETS):
                values = np.asarray(getattr(part, name), np.int32)
                number = numbers.setdefault(values.tobytes(), len(rows))
                if number == len(rows):
                    rows.append(values)
                places[client, task, place] = number
    sets = datasets.RaggedTokens.from_rows(rows)
    arrays = {"sets": sets.values, "splits": sets.row_splits, "places": places, "name": np.array(stream.name)}
    archive.write(folder / "split.npz", arrays)


@functools.cache
def code_checksum() -> str:
    """SHA-256 of all of this package's Python files, the first 16 digits."""
    root, total = pathlib.Path(tffcl.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return total.hexdigest()[:16]


def makers() -> dict[str, Any]:
    """What figures rest on here: version and code of tffcl, Python, packages."""
    return {
        "tffcl": tffcl.__version__,
        "code": code_checksum(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def made_with(folder: pathlib.Path) -> dict[str, Any]:
    """The `makers` of a run, where it began."""
    card = read(folder)
    return {name: card.get(name) for name in makers()}


def _version(package: str) -> Optional[str]:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# -- reading ------------------------------------------------------------------------------------------------------


def read(folder: pathlib.Path) -> dict[str, Any]:
    """The content of run.json.

    Raises:
      RunError: there is none, or it is of another version.
    """
    if not (folder / NAME).exists():
        storage.check_run(folder, RunError)
        raise RunError(f"{folder} has no {NAME}: it comes from an older tffcl, or from run_program by itself; {OLD}")
    record = storage.read_object(folder / NAME, "what a run was made of", error=RunError)
    if record.get("format") != FORMAT:
        raise RunError(f"{folder / NAME} is of another version of tffcl ({record.get('tffcl')}); {OLD}")
    missing = [name for name in ("method", "network", "options", "data", "tasks") if name not in record]
    if missing:
        raise RunError(f"{folder / NAME} is damaged: it has no {missing[0]!r}")
    return record


def read_split(folder: pathlib.Path) -> streams.TaskStream:
    """The stream of a run."""
    arrays = archive.read(folder / "split.npz", "sets", "splits", "places", "name")
    try:
        sets = datasets.RaggedTokens(arrays["sets"], arrays["splits"])
        tasks = []
        for client, places in enumerate(arrays["places"].tolist()):
            made = []
            for task, numbers in enumerate(places):
                found: dict[str, Any] = {name: sets.take([number]).values for name, number in zip(_SETS, numbers)}
                made.append(streams.Task(client, task, **found))
            tasks.append(tuple(made))
        return streams.TaskStream(str(arrays["name"]), tuple(tasks))
    except (LookupError, ValueError, TypeError, InputError) as error:
        raise RunError(f"{folder / 'split.npz'} is damaged ({error})") from error


def read_dataset(card: dict[str, Any], folder: pathlib.Path) -> Any:
    """A data set without examples."""
    try:
        return _without_examples(card, folder)
    except (LookupError, TypeError, ValueError) as error:
        raise RunError(f"{folder / NAME} is damaged: of its data ({error})") from error


def _without_examples(card: dict[str, Any], folder: pathlib.Path) -> Any:
    name, kind, labels = card["name"], card["kind"], tuple(card["labels"])
    none = np.zeros([0], np.int32)
    if kind == "text":
        words = tuple(storage.read_object(folder / "vocabulary.json", "a vocabulary", error=RunError)["words"])
        vectors, tokens = archive.read(folder / "data.npz", "vectors")["vectors"], datasets.RaggedTokens.from_rows([])
        if vectors.ndim != 2 or len(vectors) != len(words):
            raise RunError(f"{folder}: {len(words)} words in vocabulary.json, vectors {vectors.shape} in data.npz")
        rule = {"own": None, "unicode": True, "ascii": False}[card["tokeniser"]]
        return datasets.EncodedTextDataset(
            name, labels, words, vectors, tokens, none, tokens, none, unicode=rule, max_words=card["max_words"]
        )
    if kind == "image":
        empty = np.zeros([0, *card["shape"]], np.uint8)
        if "domains" not in card:
            return datasets.ImageDataset(name, empty, none, empty, none, labels, card["max_value"])
        images = datasets.ImageDataset(name, empty, none, empty, none, labels, card["max_value"])
        every = tuple(datasets.Domain(each, images, tuple(range(len(labels)))) for each in card["domains"])
        return datasets.Domains(name, every, labels)
    if kind == "binary":
        empty = np.zeros([0, *card["shape"]], np.uint8)
        return datasets.BinaryVectors(name, empty, none, empty, none, labels, tuple(card["widths"]))
    arrays = archive.read(folder / "data.npz", "centre", "scale")
    empty = np.zeros([0, *card["shape"]], np.float32)
    return datasets.ArrayDataset(
        name, empty, none, empty, none, labels, tuple(card["columns"]), arrays["centre"], arrays["scale"]
    )


# -- a stream for other code -----------------------------------------------------------------------------------------


def export_stream(plan: Plan, path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Writes the stream of a plan, before its method pools any of it; returns the arrays.

    Raises:
      InputError: the file's name does not end in .npz.
      RunError: the file cannot be written.
    """
    if not os.fspath(path).endswith(".npz"):
        raise errors.InputError(f"{os.fspath(path)}: expected a name that ends in .npz")
    data, found = plan.client_data(plan.stream), defaultdict(list)
    for task in range(data.num_tasks):
        each = [_rows(plan, data.task(client, task), client, task) for client in range(data.num_clients)]
        for split in SPLITS:
            own = [(client, rows[split]) for client, rows in enumerate(each) if len(rows[split]["x"])]
            same = split == "test" and len(own) > 1 and all(_equal(own[0][1], rows) for _, rows in own)
            for client, rows in [(-1, own[0][1])] if same else own:
                found[split].append({**rows, **_numbers(len(rows["x"]), client=client, task=task)})
    nothing = {split: each[0][split] for split in SPLITS}
    arrays: dict[str, np.ndarray] = {}
    for split in SPLITS:
        parts = found[split] or [{**nothing[split], **_numbers(0, client=0, task=0)}]
        for name in parts[0]:
            arrays[f"{name}_{split}"] = np.concatenate(_padded([part[name] for part in parts]))
    arrays["label_names"] = np.array([str(name) for name in getattr(plan.dataset, "label_names", ())], np.str_)
    if plan.kind == "text":
        arrays["vectors"] = np.asarray(plan.dataset.embedding, np.float32)
    arrays["config"] = np.array(json.dumps(plan.config(), default=str))
    archive.write(path, arrays)
    return arrays


def _rows(plan: Plan, one: ClientTask, client: int, task: int) -> dict[str, dict[str, np.ndarray]]:
    """Examples and labels, `x` and `y`, of each split."""
    made: dict[str, dict[str, np.ndarray]] = {}
    for split in SPLITS:
        examples: Any = getattr(one, split)
        if plan.kind == "text":
            rows = getattr(plan.stream.task(client, task), split)
            documents = plan.dataset.test_tokens if split == "test" else plan.dataset.train_tokens
            x = documents.take(rows).padded()
        else:
            x = next(values for name, values in examples.items() if name != "label")
        made[split] = {"x": np.asarray(x)}
        if "label" in examples:
            labels = np.asarray(examples["label"], np.int32)
            made[split]["y"] = np.asarray(one.labels, np.int32)[labels] if one.labels else labels
    return made


def _numbers(count: int, **values: int) -> dict[str, np.ndarray]:
    return {name: np.full(count, value, np.int32) for name, value in values.items()}


def _equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def _padded(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Documents of different sets are as wide as the widest."""
    if arrays[0].ndim != 2:
        return arrays
    widest = max(array.shape[1] for array in arrays)
    return [np.pad(array, [(0, 0), (0, widest - array.shape[1])]) for array in arrays]
