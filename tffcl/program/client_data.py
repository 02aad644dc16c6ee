"""What the driver asks of data: the examples of each client and task, as dense tensors."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from typing import Optional, Protocol, Union

import numpy as np

from tffcl.datasets import EncodedTextDataset, RaggedTokens
from tffcl.errors import InputError
from tffcl.streams import Task, TaskStream

Tensors = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class ClientTask:
    """One task of one client, in the form that a client work declares (`context_type`, `example_type`).

    Attributes:
      context: what belongs to all training and validation examples together; no leading N.
      train: examples, every tensor `[N, ...]`.
      validation: examples held out, `[V, ...]`; V may be 0.
      test_context: as `context`, for the test examples.
      test: `[M, ...]`; M may be 0: "no data", which is not an accuracy of 0.
      num_classes: labels lie in [0, num_classes); None where there are no labels.
      labels: what the data set's labels are of the task's: label k is `labels[k]`; empty where they are the data set's.
    """

    context: Tensors
    train: Tensors
    validation: Tensors
    test_context: Tensors
    test: Tensors
    num_classes: Optional[int] = None
    labels: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class StoredTask:
    """One task of one client whose examples are in files at the client: what the program knows of it.

    Attributes:
      directory: that holds the data of all clients, on the machines where their work is done.
      counts: number of "train", "validation" and "test" examples.
      num_classes: as in `ClientTask`.
    """

    directory: str
    counts: Mapping[str, int]
    num_classes: Optional[int] = None


AnyTask = Union[ClientTask, StoredTask]


class AnyClientData(Protocol):
    """Anything that can say what client c learns in task t, or knows of it where the client keeps its examples."""

    @property
    def num_clients(self) -> int:
        """C."""

    @property
    def num_tasks(self) -> int:
        """T, the same for every client."""

    def task(self, client: int, task: int) -> AnyTask:
        """Task number `task` (0 .. T-1) of client number `client` (0 .. C-1); the same at every call.

        Every client has training examples in every task, except where it is not enrolled: there it has no examples.
        """


class ClientData(AnyClientData, Protocol):
    """As `AnyClientData`, with the examples at hand."""

    def task(self, client: int, task: int) -> ClientTask:
        """See `AnyClientData`."""


def check_rows(stream: TaskStream, name: str, what: str, num_train: int, num_test: int) -> None:
    """Checks that a data set has the examples that a stream asks for.

    Args:
      stream: which examples belong to which client and task.
      name: of the data set, for the message.
      what: an example is, for the message.
      num_train: training examples that there are.
      num_test: test examples that there are.

    Raises:
      InputError: names the first client and task that ask for more.
    """
    for task in (task for tasks in stream.tasks for task in tasks):
        for split, size, wanted in (
            ("train", num_train, (task.train, task.validation)),
            ("test", num_test, (task.test,)),
        ):
            largest = max((int(rows.max()) for rows in wanted if len(rows)), default=-1)
            if largest >= size:
                raise InputError(
                    f"client {task.client}, task {task.task}: asks for {split} {what} {largest}, but {name!r} has "
                    f"{size}; was the stream made of another data set?"
                )


class StreamData:
    """Data divided by a stream, which says how many clients and tasks there are."""

    stream: TaskStream

    @property
    def num_clients(self) -> int:
        """C."""
        return self.stream.num_clients

    @property
    def num_tasks(self) -> int:
        """T."""
        return self.stream.num_tasks


@dataclasses.dataclass(frozen=True)
class Labels:
    """How the labels of a task reach a classifier.

    Attributes:
      numbers: int32 [L], what stands for each label of the data set: its place in `Task.labels`, -1 for a label that
        the task lacks; with one head the label itself.
      num_classes: labels lie in [0, num_classes).
      names: see `ClientTask.labels`.
      mask / test_mask: what contexts have with one head: `classes` bool [L], the labels that training and test
        examples may have, which alone compete (`tffcl.models.network.competing`). Nothing without one head.
    """

    numbers: np.ndarray
    num_classes: int
    names: tuple[int, ...]
    mask: Tensors
    test_mask: Tensors


def labels_of(task: Task, num_labels: int, one_head: bool) -> Labels:
    """The labels of a task, of `num_labels` of the data set."""
    if one_head:
        masks = [np.isin(np.arange(num_labels), labels) for labels in (task.labels, task.test_labels)]
        numbers = np.arange(num_labels, dtype=np.int32)
        return Labels(numbers, num_labels, (), *(OrderedDict(classes=mask) for mask in masks))
    numbers = np.full(num_labels, -1, np.int32)
    numbers[list(task.labels)] = np.arange(len(task.labels))
    return Labels(numbers, len(task.labels), task.labels, {}, {})


@dataclasses.dataclass(frozen=True, eq=False)
class TextClientData(StreamData):
    """Documents divided by a stream; each set carries only the word vectors that it uses.

    The tensors of a task are
      context: vectors float32 [Vc, D]; row 0 (padding) and row 1 (the unknown word) are zero. tokens int32 [W], rows
        of `vectors`: the words of all documents of the sets, one document after the other. With one head also
        `classes`, see `Labels`.
      examples: start and length int32 [N]; document n is `tokens[start[n] : start[n] + length[n]]`. label int32 [N],
        the place of the document's label in `Task.labels`.
    Train and validation share a context.

    Attributes:
      dataset: the documents as rows of token ids.
      stream: which documents belong to which client and task.
      one_head: labels are the data set's, not places in `Task.labels`.
    """

    dataset: EncodedTextDataset
    stream: TaskStream
    one_head: bool = False

    def __post_init__(self) -> None:
        data = self.dataset
        check_rows(self.stream, data.name, "document", len(data.train_tokens), len(data.test_tokens))

    def task(self, client: int, task: int) -> ClientTask:
        """The tensors of one task; see the class."""
        data, part = self.dataset, self.stream.task(client, task)
        labels = labels_of(part, len(data.label_names), self.one_head)
        train, validation = (data.train_tokens.take(rows) for rows in (part.train, part.validation))
        test = data.test_tokens.take(part.test)
        return ClientTask(
            context={**_own_words(data.embedding, train.values, validation.values), **labels.mask},
            train=_examples(train, 0, labels.numbers[data.train_labels[part.train]]),
            validation=_examples(validation, len(train.values), labels.numbers[data.train_labels[part.validation]]),
            test_context={**_own_words(data.embedding, test.values), **labels.test_mask},
            test=_examples(test, 0, labels.numbers[data.test_labels[part.test]]),
            num_classes=labels.num_classes,
            labels=labels.names,
        )


def _examples(tokens: RaggedTokens, first: int, labels: np.ndarray) -> Tensors:
    """Documents whose words stand in the context from place `first` on."""
    start = (first + tokens.row_splits[:-1]).astype(np.int32)
    return OrderedDict(start=start, length=tokens.lengths, label=labels)


def _own_words(embedding: np.ndarray, *token_sets: np.ndarray) -> Tensors:
    """The vectors of the words in use, and the tokens of all sets (int32 [W] each) numbered by them."""
    tokens = np.concatenate(token_sets)
    used = np.unique(tokens)
    kept = np.concatenate([[0, 1], used[used > 1]]).astype(np.int64)
    numbers = np.zeros(len(embedding), np.int32)
    numbers[kept] = np.arange(len(kept))
    return OrderedDict(vectors=np.ascontiguousarray(embedding[kept], np.float32), tokens=numbers[tokens])
