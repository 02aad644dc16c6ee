"""Images of several domains as the data of clients that learn to classify them."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from typing import Optional

import numpy as np

from tffcl.datasets import Domains
from tffcl.errors import InputError
from tffcl.program.array_data import scaled
from tffcl.program.client_data import ClientTask, StreamData, Tensors
from tffcl.streams import TaskStream


@dataclasses.dataclass(frozen=True, eq=False)
class DomainClientData(StreamData):
    """Domains divided by a stream; task t is domain t.

    The tensors of a task are
      context: none.
      examples: x uint8 [N, h, w], 0 .. max_value, as the domain shows the image; label int32 [N].
    A client that is not enrolled in a task has no examples there.

    Attributes:
      domains: the images.
      stream: which rows belong to which client and task (`tffcl.streams.domain_sequence`).
      encoder_input: another name for x.
      scaled: x is float32 [N, h, w, 1] in [0, 1], as networks of images other than encoders take it.
    """

    domains: Domains
    stream: TaskStream
    encoder_input: str = "x"
    scaled: bool = False

    def __post_init__(self) -> None:
        if self.stream.num_tasks != len(self.domains):
            raise InputError(
                f"{self.domains.name}: has {len(self.domains)} domains, but the stream has {self.stream.num_tasks} "
                "tasks; task t is domain t"
            )
        for number, domain in enumerate(self.domains.domains):
            trains, tests = domain.train_labels, domain.test_labels
            for client in range(self.num_clients):
                task = self.stream.task(client, number)
                where = f"client {client}, task {number}, {{}} images of domain {domain.name!r}"
                _check_rows(trains, np.concatenate([task.train, task.validation]), where.format("training"))
                _check_rows(tests, task.test, where.format("test"))

    def task(self, client: int, task: int) -> ClientTask:
        """The tensors of one task; see the class."""
        part = self.stream.task(client, task)
        return ClientTask(
            context=OrderedDict(),
            train=self._examples(task, "train", part.train),
            validation=self._examples(task, "train", part.validation),
            test_context=OrderedDict(),
            test=self._examples(task, "test", part.test),
            num_classes=self.domains.num_labels,
        )

    def _examples(self, task: int, split: str, rows: np.ndarray) -> Tensors:
        domain = self.domains[task]
        images = domain.train_images(rows) if split == "train" else domain.test_images(rows)
        labels = domain.train_labels if split == "train" else domain.test_labels
        if self.scaled:
            images = scaled(images, self.domains.max_value)
        return OrderedDict([(self.encoder_input, images), ("label", labels[rows])])


@dataclasses.dataclass(frozen=True, eq=False)
class OfflineDomainData:
    """All examples of all clients and tasks of a `DomainClientData` as one task of one client: no learner has more.

    Examples of different domains stand one after the other; the tensors are those of `DomainClientData`. For a score
    per domain, evaluate the one model on `test_of(task)`.

    Attributes:
      domains: the images.
      stream: which rows belong to which client and task.
      encoder_input: another name for x.
      scaled: x is float32 [N, h, w, 1] in [0, 1], as networks of images other than encoders take it.
    """

    domains: Domains
    stream: TaskStream
    encoder_input: str = "x"
    scaled: bool = False
    _divided: DomainClientData = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        divided = DomainClientData(self.domains, self.stream, self.encoder_input, self.scaled)
        object.__setattr__(self, "_divided", divided)

    @property
    def num_clients(self) -> int:
        """1."""
        return 1

    @property
    def num_tasks(self) -> int:
        """1."""
        return 1

    def task(self, client: int, task: int) -> ClientTask:
        """The tensors of the one task of the one client; see the class.

        Raises:
          InputError: another client or task than 0.
        """
        if (client, task) != (0, 0):
            raise InputError(f"offline data have one client with one task; there is no task {task} of client {client}")
        every = range(self.stream.num_tasks)
        return ClientTask(
            context=OrderedDict(),
            train=_joined([self._of(one, "train") for one in every]),
            validation=_joined([self._of(one, "validation") for one in every]),
            test_context=OrderedDict(),
            test=_joined([self.test_of(one) for one in every]),
            num_classes=self.domains.num_labels,
        )

    def test_of(self, task: int) -> Tensors:
        """The test examples of one of the original tasks (0 .. T-1), of all clients."""
        return self._of(task, "test")

    def _of(self, task: int, split: str) -> Tensors:
        """One split of a task of all clients."""
        return _joined([getattr(self._divided.task(client, task), split) for client in range(self.stream.num_clients)])


@dataclasses.dataclass(frozen=True, eq=False)
class ReplayedDomainData(StreamData):
    """`DomainClientData` of which every task also holds raw training images that the client keeps of its past ones.

    Attributes:
      domains: the images.
      stream: which rows belong to which client and task.
      memory: most images that a client keeps of its past tasks.
      seed: of the choice of these.
      task_memory: most of one task, even while there is room for more; None for no such limit.
      encoder_input / scaled: as for `DomainClientData`.
    """

    domains: Domains
    stream: TaskStream
    memory: int
    seed: int
    task_memory: Optional[int] = None
    encoder_input: str = "x"
    scaled: bool = False
    _divided: DomainClientData = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        divided = DomainClientData(self.domains, self.stream, self.encoder_input, self.scaled)
        object.__setattr__(self, "_divided", divided)

    def task(self, client: int, task: int) -> ClientTask:
        """The tensors of one task, with those that are replayed behind the new ones."""
        own = self._divided.task(client, task)
        if not task or not len(own.train["label"]):
            return own
        past = [self._divided.task(client, one).train for one in range(task)]
        kept = [self._order(client, one, examples["label"]) for one, examples in enumerate(past)]
        most = self.memory // task
        kept = [order[: most if self.task_memory is None else min(most, self.task_memory)] for order in kept]
        parts = [own.train, *({name: values[rows] for name, values in examples.items()}
                              for examples, rows in zip(past, kept))]  # fmt: skip
        train = {name: np.concatenate([part[name] for part in parts]) for name in own.train}
        return dataclasses.replace(own, train=train)

    def _order(self, client: int, task: int, labels: np.ndarray) -> np.ndarray:
        """Rows of a task as they have a claim to stay: every label's first, every label's second, ..., int64 [n]."""
        order = np.random.default_rng((self.seed, client, task)).permutation(len(labels))
        turn = np.zeros(len(labels), np.int64)
        for label in np.unique(labels):
            of_label = order[labels[order] == label]
            turn[of_label] = np.arange(len(of_label))
        return order[np.argsort(turn[order], kind="stable")]


def _joined(parts: Sequence[Tensors]) -> Tensors:
    return OrderedDict((name, np.concatenate([part[name] for part in parts])) for name in parts[0])


def _check_rows(labels: np.ndarray, rows: np.ndarray, where: str) -> None:
    """Raises InputError where a row does not exist or does not belong to the domain whose labels these are."""
    outside = [row for row in rows.tolist() if row >= len(labels) or labels[row] < 0]
    if outside:
        raise InputError(
            f"{where}: row {outside[0]} does not belong to it ({len(outside)} such); was the stream made of other "
            "domains?"
        )
