"""What each client learns in each task, as dense tensors: the data that a run is given.

A data set and a `TaskStream` make one: labelled arrays (`ArrayData`), documents (`TextClientData`), binary vectors
(`DensityClientData`) or images of domains (`DomainClientData`). Anything that is a `ClientData` serves as well.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Protocol, Union

import numpy as np

from tffcl.datasets import BinaryVectors, Domains, EncodedTextDataset, RaggedTokens
from tffcl.errors import InputError
from tffcl.models import ABSENT
from tffcl.models.network import CLASSES, KNOWN
from tffcl.streams import Task, TaskStream, seen_classes

SPLITS = ("train", "validation", "test")

Tensors = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class ClientTask:
    """One task of one client, in the form that a client work declares (`context_type`, `example_type`).

    Shown with `TextClientData`.

    Attributes:
      context: what belongs to all training and validation examples together; no leading N.
      train: examples, every tensor `[N, ...]`.
      validation: examples held out, `[V, ...]`; V may be 0.
      test_context: as `context`, for the test examples.
      test: `[M, ...]`; M may be 0: "no data", which is not an accuracy of 0.
      num_classes: labels lie in [0, num_classes); None where there are no labels.
      labels: label k is the data set's label `labels[k]`; empty where labels are the data set's.
    """

    context: Tensors
    train: Tensors
    validation: Tensors
    test_context: Tensors
    test: Tensors
    num_classes: Optional[int] = None
    labels: tuple[int, ...] = ()

    @property
    def train_labels(self) -> np.ndarray:
        """int32 [N], the training examples' labels in the data set."""
        labels = self.train["label"]
        return np.asarray(self.labels, np.int32)[labels] if self.labels else labels


@dataclasses.dataclass(frozen=True)
class StoredTask:
    """What the program knows of a task whose examples are in files at the client, below `directory` there.

    `counts` are the numbers of "train", "validation" and "test" examples; `num_classes` is as in `ClientTask`.
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

        A client has training examples in every task in which it is enrolled, and no examples at all in others.
        """


class ClientData(AnyClientData, Protocol):
    """As `AnyClientData`, with the examples at hand.

    Shown with `TextClientData`.
    """

    def task(self, client: int, task: int) -> ClientTask:
        """See `AnyClientData`."""


def label_mask(context: Tensors) -> dict[str, np.ndarray]:
    """Entries of a context that say which labels compete; empty where all do."""
    return {name: context[name] for name in (CLASSES, KNOWN) if name in context}


@dataclasses.dataclass(frozen=True)
class EvaluatedOnValidation:
    """Data whose test examples are those that clients hold out of each task: for choosing options.

    The labels that compete in scoring them are those of test examples.

    Attributes:
      data: what is trained on.
      tasks: whose held-out examples are scored; `data`, or where clients train on past tasks too, each task by itself.

    Raises:
      InputError: nothing is held out.
    """

    data: ClientData
    tasks: ClientData

    def __post_init__(self) -> None:
        pairs = itertools.product(range(self.num_clients), range(self.num_tasks))
        if not any(len(next(iter(self.tasks.task(*pair).validation.values()), ())) for pair in pairs):
            raise InputError("evaluate_on: no task holds examples out of training; give --validation-share")

    @property
    def num_clients(self) -> int:
        """C."""
        return self.data.num_clients

    @property
    def num_tasks(self) -> int:
        """T."""
        return self.data.num_tasks

    @property
    def growing(self) -> bool:
        """Whether one head grows."""
        return getattr(self.data, "growing", False)

    def task(self, client: int, task: int) -> ClientTask:
        """The tensors of one task."""
        own = self.tasks.task(client, task)
        context = {**own.context, **label_mask(own.test_context)}
        return dataclasses.replace(self.data.task(client, task), test_context=context, test=own.validation)


class _StreamData(abc.ABC):
    """Data divided by a stream; a data set says what the examples of some rows are."""

    stream: TaskStream

    @property
    def num_clients(self) -> int:
        """C."""
        return self.stream.num_clients

    @property
    def num_tasks(self) -> int:
        """T."""
        return self.stream.num_tasks

    def task(self, client: int, task: int) -> ClientTask:
        """The tensors of one task; see the class."""
        part = self.stream.task(client, task)
        context, (train, validation) = self._sets(part, "train", part.train, part.validation)
        test_context, (test,) = self._sets(part, "test", part.test)
        return self._labelled(ClientTask(context, train, validation, test_context, test), part)

    @abc.abstractmethod
    def _sets(self, part: Task, split: str, *sets: np.ndarray) -> tuple[Tensors, Sequence[Tensors]]:
        """Sets of rows of the data set's "train" or "test" split: their common context, and the examples of each."""

    def _labelled(self, made: ClientTask, part: Task) -> ClientTask:
        """The task with what is known of its labels."""
        del part
        return made

    def _check_stream(self, name: str, noun: str, num_train: int, num_test: int, num_labels: int) -> None:
        """Raises InputError for the first client and task that ask for more examples or labels than there are."""
        for part in (part for tasks in self.stream.tasks for part in tasks):
            largest = {
                f"asks for train {noun}": (max(part.train.max(initial=-1), part.validation.max(initial=-1)), num_train),
                f"asks for test {noun}": (part.test.max(initial=-1), num_test),
                "has label": (max(*part.labels, *part.test_labels), num_labels),
            }
            for wants, (number, size) in largest.items():
                if number >= size:
                    raise InputError(
                        f"client {part.client}, task {part.task}: {wants} {number}, but {name!r} has {size}; was the "
                        "stream made of another data set?"
                    )


class _LabelledData(_StreamData):
    """Examples with labels: numbered within the task, or with one head those of the data set.

    With one head the contexts have `classes`: the labels that training and test examples may have, which alone
    compete (`tffcl.models.network.competing`). Where it is `growing` these are all labels of the tasks so far, at all
    clients, and `known` are those of the tasks before; past tasks are scored under the newest `classes`. With
    `own_classes` those of a client's training examples alone compete in training. Where clients have parameters for
    each task and the tests are `common_tests`, a client that had no part in a task gets nothing right there.
    """

    num_labels: Optional[int]
    one_head: bool
    growing: bool
    own_classes: bool
    common_tests: bool

    def _labelled(self, made: ClientTask, part: Task) -> ClientTask:
        if not self.one_head:
            return dataclasses.replace(made, num_classes=len(part.labels), labels=part.labels)
        every = np.arange(self.num_labels or 0)
        train, test = part.labels, part.test_labels
        known: dict[str, np.ndarray] = {}
        if self.growing:
            seen = self._seen
            train, test = train if self.own_classes else seen[part.task], seen[part.task]
            known = {"known": np.isin(every, seen[part.task - 1] if part.task else ())}
        return dataclasses.replace(
            made,
            context={**made.context, "classes": np.isin(every, train), **known},
            test_context={**made.test_context, "classes": np.isin(every, test), **known},
            num_classes=self.num_labels,
        )

    @functools.cached_property
    def _seen(self) -> list[tuple[int, ...]]:
        return seen_classes(self.stream)

    def _labels(self, labels: np.ndarray, part: Task) -> np.ndarray:
        """int32 [N]: labels of the data set as the task has them; -1 for one that it lacks."""
        if self.one_head:
            return labels.astype(np.int32)
        places = np.full(self.num_labels or 0, -1, np.int32)
        places[list(part.labels)] = np.arange(len(part.labels))
        return places[labels]


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayData(_LabelledData):
    """Labelled arrays divided by a stream: images, vectors, anything of one shape.

    The tensors of a task are
      context: none, or with `one_head` `classes` bool [L], the labels that training or test examples may have.
      examples: `entry` [N, ...], uint8 as it is given and all else as float32; label int32 [N], the place of the label
        in `Task.labels`, or with `one_head` the label of the data set.

    Shown with `TextClientData`.

    Attributes:
      stream: which rows belong to which client and task.
      train_x / test_x: numbers [N, ...] and [M, ...].
      train_labels / test_labels: whole numbers [N] and [M].
      num_labels: L, labels of the data set; by default as many as occur.
      entry: what the network calls the examples.
      one_head: labels are the data set's, for a network `tffcl.models.with_label_mask`.
      growing / own_classes / common_tests: see `_LabelledData`.
    """

    stream: TaskStream
    train_x: np.ndarray
    train_labels: np.ndarray
    test_x: np.ndarray
    test_labels: np.ndarray
    num_labels: Optional[int] = None
    entry: str = "features"
    one_head: bool = False
    growing: bool = False
    own_classes: bool = False
    common_tests: bool = False

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            x, labels = np.asarray(getattr(self, f"{part}_x")), np.asarray(getattr(self, f"{part}_labels"))
            if x.dtype.kind not in "biuf":
                raise InputError(f"{part}_x: expected numbers, found {x.dtype}")
            if len(x) != len(labels) or labels.ndim != 1 or labels.dtype.kind not in "iu":
                raise InputError(
                    f"{part}: expected a whole label for each of {len(x)} examples, found "
                    f"{labels.dtype}{list(labels.shape)}"
                )
            object.__setattr__(self, f"{part}_x", x if x.dtype == np.uint8 else x.astype(np.float32))
            object.__setattr__(self, f"{part}_labels", labels.astype(np.int32))
        every = np.concatenate([self.train_labels, self.test_labels])
        num_labels = int(every.max(initial=-1)) + 1 if self.num_labels is None else self.num_labels
        object.__setattr__(self, "num_labels", num_labels)
        wrong = every[(every < 0) | (every >= num_labels)]
        if len(wrong):
            raise InputError(f"labels: expected 0..{num_labels - 1}, found {wrong[0]} ({len(wrong)} such)")
        self._check_stream("the data", "example", len(self.train_x), len(self.test_x), num_labels)

    def _sets(self, part: Task, split: str, *sets: np.ndarray) -> tuple[Tensors, Sequence[Tensors]]:
        x, labels = getattr(self, f"{split}_x"), self._labels(getattr(self, f"{split}_labels"), part)
        return OrderedDict(), [OrderedDict([(self.entry, x[rows]), ("label", labels[rows])]) for rows in sets]


def scaled(images: np.ndarray, max_value: Any) -> np.ndarray:
    """uint8 [N, h, w] as float32 [N, h, w, 1] in [0, 1]."""
    return (images.astype(np.float32) / np.float32(max_value))[..., None]


@dataclasses.dataclass(frozen=True, eq=False)
class TextClientData(_LabelledData):
    """Documents divided by a stream; each set carries only the word vectors that it uses.

    The tensors of a task are
      context: vectors float32 [Vc, D]; row 0 (padding) and row 1 (the unknown word) are zero. tokens int32 [W], rows
        of `vectors`: the words of all documents of the sets (train and validation share a context), one document after
        the other. With `one_head` also `classes`, as for `ArrayData`.
      examples: start and length int32 [N]; document n is `tokens[start[n] : start[n] + length[n]]`. label as for
        `ArrayData`.

    Shown in docs/papers.md.

    Attributes:
      dataset: the documents as rows of token ids.
      stream: which documents belong to which client and task.
      one_head: labels are the data set's, for a network `tffcl.models.with_label_mask`.
      growing / own_classes / common_tests: see `_LabelledData`.
    """

    dataset: EncodedTextDataset
    stream: TaskStream
    one_head: bool = False
    growing: bool = False
    own_classes: bool = False
    common_tests: bool = False

    def __post_init__(self) -> None:
        data = self.dataset
        self._check_stream(data.name, "document", len(data.train_tokens), len(data.test_tokens), len(data.label_names))

    @property
    def num_labels(self) -> int:  # type: ignore[override]
        """L, labels of the data set."""
        return len(self.dataset.label_names)

    def _sets(self, part: Task, split: str, *sets: np.ndarray) -> tuple[Tensors, Sequence[Tensors]]:
        documents: RaggedTokens = getattr(self.dataset, f"{split}_tokens")
        labels = self._labels(getattr(self.dataset, f"{split}_labels"), part)
        taken = [documents.take(rows) for rows in sets]
        first, examples = 0, []
        for tokens, rows in zip(taken, sets):
            start = (first + tokens.row_splits[:-1]).astype(np.int32)
            examples.append(OrderedDict(start=start, length=tokens.lengths, label=labels[rows]))
            first += len(tokens.values)
        return self._words(np.concatenate([tokens.values for tokens in taken])), examples

    def _words(self, tokens: np.ndarray) -> Tensors:
        """The vectors of the words in use, and the tokens numbered by them."""
        embedding, used = self.dataset.embedding, np.unique(tokens)
        kept = np.concatenate([[0, 1], used[used > 1]]).astype(np.int64)
        numbers = np.zeros(len(embedding), np.int32)
        numbers[kept] = np.arange(len(kept))
        return OrderedDict(vectors=np.ascontiguousarray(embedding[kept], np.float32), tokens=numbers[tokens])


@dataclasses.dataclass(frozen=True, eq=False)
class DensityClientData(_StreamData):
    """Binary vectors divided by a stream, without labels.

    The tensors of a task are
      context: observed float32 [D], 1 for a dimension that is modelled, 0 for padding: the columns beyond the
        widest of the task's labels. Training and test context are the same.
      examples: x uint8 [N, D] of 0 and 1, and of `tffcl.models.ABSENT` beyond the width of a row in a task whose
        labels differ in width, as pooled or cumulative ones may; D is the width of the whole data set.

    Shown with `TextClientData`.

    Attributes:
      dataset: the vectors; that they are binary is checked when they are made.
      stream: which rows belong to which client and task.
    """

    dataset: BinaryVectors
    stream: TaskStream

    def __post_init__(self) -> None:
        data = self.dataset
        if not isinstance(data, BinaryVectors):
            raise InputError(
                f"dataset must be BinaryVectors (vectors_of_images, vectors_of_sets), found {type(data).__name__}"
            )
        self._check_stream(data.name, "row", len(data.train_x), len(data.test_x), len(data.label_names))

    def _sets(self, part: Task, split: str, *sets: np.ndarray) -> tuple[Tensors, Sequence[Tensors]]:
        data, columns = self.dataset, np.arange(self.dataset.width)
        width = max(data.widths[label] for label in part.labels)
        examples = []
        for rows in sets:
            x = getattr(data, f"{split}_x")[rows]
            widths = np.asarray(data.widths)[getattr(data, f"{split}_labels")[rows]]
            if (widths < width).any():  # also where all rows of a split are narrower than the task
                x = np.where(columns < widths[:, None], x, np.uint8(ABSENT))
            examples.append(OrderedDict(x=x))
        return OrderedDict(observed=(columns < width).astype(np.float32)), examples


@dataclasses.dataclass(frozen=True, eq=False)
class _DomainData(_StreamData):
    """Domains divided by a stream; task t is domain t, and labels are those of the domains."""

    domains: Domains
    stream: TaskStream

    encoder_input = "x"
    scaled = False

    def __post_init__(self) -> None:
        if self.stream.num_tasks != len(self.domains):
            raise InputError(
                f"{self.domains.name}: has {len(self.domains)} domains, but the stream has {self.stream.num_tasks} "
                "tasks; task t is domain t"
            )
        for number, domain in enumerate(self.domains.domains):
            trains, tests = domain.train_labels, domain.test_labels
            for client in range(self.stream.num_clients):
                part = self.stream.task(client, number)
                where = f"client {client}, task {number}, {{}} images of domain {domain.name!r}"
                for noun, labels, rows in (
                    ("training", trains, np.concatenate([part.train, part.validation])),
                    ("test", tests, part.test),
                ):
                    outside = [row for row in rows.tolist() if row >= len(labels) or labels[row] < 0]
                    if outside:
                        raise InputError(
                            f"{where.format(noun)}: row {outside[0]} does not belong to it ({len(outside)} such); was "
                            "the stream made of other domains?"
                        )

    def _labelled(self, made: ClientTask, part: Task) -> ClientTask:
        return dataclasses.replace(made, num_classes=self.domains.num_labels)

    def _sets(self, part: Task, split: str, *sets: np.ndarray) -> tuple[Tensors, Sequence[Tensors]]:
        domain = self.domains[part.task]
        images = domain.train_images if split == "train" else domain.test_images
        labels = domain.train_labels if split == "train" else domain.test_labels
        examples = []
        for rows in sets:
            x = scaled(images(rows), self.domains.max_value) if self.scaled else images(rows)
            examples.append(OrderedDict([(self.encoder_input, x), ("label", labels[rows])]))
        return OrderedDict(), examples


@dataclasses.dataclass(frozen=True, eq=False)
class DomainClientData(_DomainData):
    """Images of domains divided by a stream; task t is domain t.

    The tensors of a task are
      context: none.
      examples: x uint8 [N, h, w], 0 .. max_value, as the domain shows the image; label int32 [N].

    Shown with `TextClientData`.

    Attributes:
      domains: the images.
      stream: which rows belong to which client and task (`tffcl.streams.domain_sequence`).
      encoder_input: another name for x.
      scaled: x is float32 [N, h, w, 1] in [0, 1], as networks of images other than encoders take it.
    """

    encoder_input: str = "x"
    scaled: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class OfflineDomainData(DomainClientData):
    """All examples of all clients and tasks of a `DomainClientData` as one task of one client: no learner has more.

    Examples of different domains stand one after the other; `test_of(task)` has those for a score per domain.

    Shown with `TextClientData`.
    """

    @property
    def num_clients(self) -> int:
        """1."""
        return 1

    @property
    def num_tasks(self) -> int:
        """1."""
        return 1

    def task(self, client: int, task: int) -> ClientTask:
        """The tensors of the one task of the one client.

        Raises:
          InputError: another client or task than 0.
        """
        if (client, task) != (0, 0):
            raise InputError(f"offline data have one client with one task; there is no task {task} of client {client}")
        train, validation, test = (self._joined(split, range(self.stream.num_tasks)) for split in SPLITS)
        return ClientTask(OrderedDict(), train, validation, OrderedDict(), test, self.domains.num_labels)

    def test_of(self, task: int) -> Tensors:
        """The test examples of one of the original tasks (0 .. T-1), of all clients."""
        return self._joined("test", [task])

    def _joined(self, split: str, tasks: Sequence[int]) -> Tensors:
        clients = range(self.stream.num_clients)
        parts = [getattr(super(OfflineDomainData, self).task(client, task), split)
                 for task in tasks for client in clients]  # fmt: skip
        return _concatenated(parts)


@dataclasses.dataclass(frozen=True, eq=False)
class ReplayedDomainData(_DomainData):
    """`DomainClientData` of which every task also holds raw training images that the client keeps of its past ones.

    Shown with `TextClientData`.

    Attributes:
      memory: most images that a client keeps of its past tasks.
      seed: of the choice of these.
      task_memory: most of one task, even while there is room for more; None for no such limit.
    """

    memory: int
    seed: int
    task_memory: Optional[int] = None
    encoder_input: str = "x"
    scaled: bool = False

    def task(self, client: int, task: int) -> ClientTask:
        """The tensors of one task, with those that are replayed behind the new ones."""
        own = super().task(client, task)
        if not task or not len(own.train["label"]):
            return own
        most = self.memory // task
        most = most if self.task_memory is None else min(most, self.task_memory)
        parts = [own.train]
        for past in range(task):
            train = super().task(client, past).train
            rows = self._order(client, past, train["label"])[:most]
            parts.append({name: values[rows] for name, values in train.items()})
        return dataclasses.replace(own, train=_concatenated(parts))

    def _order(self, client: int, task: int, labels: np.ndarray) -> np.ndarray:
        """Rows of a task as they have a claim to stay: every label's first, every label's second, ..., int64 [n]."""
        order = np.random.default_rng((self.seed, client, task)).permutation(len(labels))
        turn = np.zeros(len(labels), np.int64)
        for label in np.unique(labels):
            of_label = order[labels[order] == label]
            turn[of_label] = np.arange(len(of_label))
        return order[np.argsort(turn[order], kind="stable")]


def _concatenated(parts: Sequence[Tensors]) -> Tensors:
    return OrderedDict((name, np.concatenate([part[name] for part in parts])) for name in parts[0])
