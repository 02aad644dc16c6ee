"""Naive rehearsal end to end: the raw images of past tasks among those of the new one (FIL-VER, section 5.1).

Its memory holds as many examples as that of embedding rehearsal, and shares them in the same way over tasks and labels.
"""

from __future__ import annotations

import dataclasses
from typing import Optional

import numpy as np

from tffcl.datasets import Domains
from tffcl.program import ClientTask, DomainClientData
from tffcl.program.client_data import StreamData
from tffcl.streams import TaskStream


@dataclasses.dataclass(frozen=True, eq=False)
class ReplayedDomainData(StreamData):
    """`DomainClientData` of which every task also holds raw training images that the client keeps of its past ones.

    Attributes:
      domains: the images.
      stream: which rows belong to which client and task.
      memory: most images that a client keeps of its past tasks.
      seed: of the choice of these.
      task_memory: most of one task, even while there is room for more; None for no such limit.
    """

    domains: Domains
    stream: TaskStream
    memory: int
    seed: int
    task_memory: Optional[int] = None
    _divided: DomainClientData = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_divided", DomainClientData(self.domains, self.stream))

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
