"""Binary vectors as the data of clients that learn a density."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

import numpy as np

from tffcl.datasets import BinaryVectors
from tffcl.errors import InputError
from tffcl.models import ABSENT
from tffcl.program.client_data import ClientTask, StreamData, Tensors, check_rows
from tffcl.streams import Task, TaskStream


@dataclasses.dataclass(frozen=True, eq=False)
class DensityClientData(StreamData):
    """Binary vectors divided by a stream.

    The tensors of a task are
      context: observed float32 [D], 1 for a dimension that is modelled, 0 for padding: the columns beyond the
        widest of the task's labels. Training and test context are the same.
      examples: x uint8 [N, D] of 0 and 1, and of `tffcl.models.ABSENT` beyond the width of a row in a task whose
        labels differ in width, as pooled or cumulative ones may; D is the width of the whole data set, the same for
        every task.
    There are no labels and no classes.

    Attributes:
      dataset: the vectors; that they are binary is checked when they are made.
      stream: which rows belong to which client and task.
    """

    dataset: BinaryVectors
    stream: TaskStream

    def __post_init__(self) -> None:
        if not isinstance(self.dataset, BinaryVectors):
            raise InputError(
                f"dataset must be BinaryVectors (vectors_of_images, vectors_of_sets), found "
                f"{type(self.dataset).__name__}"
            )
        for tasks in self.stream.tasks:
            for task in tasks:
                self._check(task)
        check_rows(self.stream, self.dataset.name, "row", len(self.dataset.train_x), len(self.dataset.test_x))

    def task(self, client: int, task: int) -> ClientTask:
        """The tensors of one task; see the class."""
        part = self.stream.task(client, task)
        context = self._context(part)
        return ClientTask(
            context=context,
            train=self._examples("train", part.train, part),
            validation=self._examples("train", part.validation, part),
            test_context=context,
            test=self._examples("test", part.test, part),
        )

    def _examples(self, split: str, rows: np.ndarray, part: Task) -> Tensors:
        data = self.dataset
        x = getattr(data, f"{split}_x")[rows]
        widths = np.asarray(data.widths)[getattr(data, f"{split}_labels")[rows]]
        if (widths < self._width(part)).any():  # also where all rows of a split are narrower than the task
            x = np.where(np.arange(data.width) < widths[:, None], x, np.uint8(ABSENT))
        return OrderedDict(x=x)

    def _context(self, part: Task) -> Tensors:
        return OrderedDict(observed=(np.arange(self.dataset.width) < self._width(part)).astype(np.float32))

    def _width(self, part: Task) -> int:
        return max(self.dataset.widths[label] for label in part.labels)

    def _check(self, task: Task) -> None:
        """Raises InputError where a task has labels that the data set does not have."""
        data, where = self.dataset, f"client {task.client}, task {task.task}"
        if max(task.labels) >= len(data.label_names):
            raise InputError(
                f"{where}: has label {max(task.labels)}, but {data.name!r} has {len(data.label_names)}; was the "
                "stream made of another data set?"
            )
