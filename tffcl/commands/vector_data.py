"""The binary vectors that the flags ask for, or what is at hand, and who learns which of them when."""

from __future__ import annotations

import math
from typing import Any, Optional

from tffcl import datasets, streams
from tffcl.commands.confedmade_options import ConFedMADEOptions
from tffcl.commands.entry import say
from tffcl.commands.running import checksum
from tffcl.datasets import BinaryVectors, image_registry
from tffcl.errors import InputError, StreamError

BINARY_SETS = ("adult", "connect4", "tretail", "rcv1")
_MOST_CLIENTS = 10  # whose tasks are told


def load_vectors(options: ConFedMADEOptions) -> tuple[BinaryVectors, ConFedMADEOptions]:
    """The vectors, and the options with what depends on them filled in.

    Without `--dataset`, MNIST where it is at hand, else scikit-learn's digits.

    Raises:
      DatasetError: the data set that was asked for is missing or malformed.
      InputError: an order of another width than the data.
    """
    complete = options.complete(options.dataset or _default(options))
    vectors = _vectors(complete)
    if not isinstance(complete.order, str) and len(complete.order) != vectors.width:
        raise InputError(
            f"--order is a permutation of 1..{len(complete.order)}, but {vectors.name} has {vectors.width} inputs"
        )
    say(
        f"data: {vectors.name}, {len(vectors.train_x)} training and {len(vectors.test_x)} test vectors of "
        f"{vectors.width}, {len(vectors.label_names)} labels; {complete.num_rounds} rounds a task"
    )
    return vectors, complete


def _default(options: ConFedMADEOptions) -> str:
    if image_registry.has_files("mnist", options.data_dir):
        return "mnist"
    say("data: mnist is not at hand: taking digits, 8 x 8; --data-dir DIR or --dataset NAME for other data")
    return "digits"


def _vectors(options: ConFedMADEOptions) -> BinaryVectors:
    seed = options.split_seed if options.binarise == "stochastic" else None

    def images(name: str) -> BinaryVectors:
        return datasets.vectors_of_images(datasets.load_images(name, options.data_dir), seed=seed)

    if options.dataset == "binary":
        return datasets.vectors_of_sets(
            [datasets.load_binary(name, options.data_dir) for name in BINARY_SETS]
        )
    if options.dataset == "mnist+letters":
        return datasets.join_vectors(images("mnist"), images("emnist-letters"))
    return images(str(options.dataset))


def split(options: ConFedMADEOptions, vectors: BinaryVectors) -> streams.TaskStream:
    """The tasks of every client: drawn label by label, or as `--assign` says.

    Raises:
      StreamError: the labels do not allow what was asked for.
    """
    common: dict[str, Any] = {
        "seed": options.split_seed,
        "label_names": vectors.label_names,
        "overlap": options.overlap,
    }
    labels = (vectors.train_labels, vectors.test_labels)
    if options.assign:
        assigned = _ids(options, vectors)[: options.clients]
        stream = streams.assigned_sequence(*labels, assigned, **common)
    else:
        stream = streams.label_sequence(
            *labels,
            num_clients=options.clients,
            num_tasks=options.num_tasks,
            labels_per_task=options.labels_per_task,
            pools=_pools(options, vectors),
            same_order=options.same_order,
            **common,
        )
    for client, tasks in enumerate(task_names(stream, vectors)[:_MOST_CLIENTS]):
        say(f"tasks of client {client + 1}: {', '.join(tasks)}")
    return stream


def _ids(options: ConFedMADEOptions, vectors: BinaryVectors) -> list[list[list[int]]]:
    """`--assign` with label ids in the place of names."""
    known = {name: label for label, name in enumerate(vectors.label_names)}
    for tasks in options.assign:
        for name in (name for task in tasks for name in task if name not in known):
            raise StreamError(
                f"--assign: {vectors.name} has no label {name!r}; its labels are {', '.join(known)}"
            )
    return [[[known[name] for name in task] for task in tasks] for tasks in options.assign]


def _pools(options: ConFedMADEOptions, vectors: BinaryVectors) -> Optional[list[range]]:
    """Of digits and letters: first tasks of digits, then as many of letters (the odd one is of digits)."""
    if options.dataset != "mnist+letters":
        return None
    num_tasks, num_digits = options.num_tasks, 10
    first = (num_tasks + 1) // 2
    return [range(num_digits)] * first + [range(num_digits, len(vectors.label_names))] * (num_tasks - first)


def task_names(stream: streams.TaskStream, vectors: BinaryVectors) -> list[list[str]]:
    """What each client learns in each task, by the names of labels."""
    return [
        ["+".join(vectors.label_names[label] for label in task.labels) for task in tasks]
        for tasks in stream.tasks
    ]


def pooled(method: str, stream: streams.TaskStream) -> streams.TaskStream:
    """The stream as a method meets it: cumulative for replay, one task for the offline ones."""
    if method in ("replay", "cl-replay"):
        return streams.cumulative(stream)
    if method == "federated-offline":
        return streams.federated_offline(stream)
    return streams.offline(stream) if method == "offline" else stream


def image_shape(vectors: BinaryVectors) -> Optional[tuple[int, int]]:
    """Height and width of the pictures that the vectors are; None where they are no square pictures."""
    side = math.isqrt(vectors.width)
    return (side, side) if side * side == vectors.width and len(set(vectors.widths)) == 1 else None


def fingerprint(vectors: BinaryVectors) -> str:
    """A short sum over all vectors and labels, so that a run is not resumed with other ones."""
    return checksum([vectors.train_x, vectors.train_labels, vectors.test_x, vectors.test_labels])
