"""Arrays as the data of clients that learn to classify them: images, vectors, anything of one shape."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any, Optional

import numpy as np

from tffcl.errors import InputError
from tffcl.program.client_data import ClientTask, StreamData, Tensors, check_rows, labels_of
from tffcl.streams import TaskStream


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayData(StreamData):
    """Labelled arrays divided by a stream.

    The tensors of a task are
      context: none, or with `one_head` `classes`, see `tffcl.program.client_data.Labels`.
      examples: `entry` [N, ...]; label int32 [N], the place of the label in `Task.labels`, or with `one_head` the
        label of the data set.

    Attributes:
      stream: which rows belong to which client and task.
      train_x: numbers [N, ...].
      train_labels: whole numbers [N].
      test_x: [M, ...].
      test_labels: [M].
      num_labels: L, labels of the data set; by default as many as occur.
      entry: what the network calls the examples.
      one_head: labels are the data set's.
    """

    stream: TaskStream
    train_x: np.ndarray
    train_labels: np.ndarray
    test_x: np.ndarray
    test_labels: np.ndarray
    num_labels: Optional[int] = None
    entry: str = "features"
    one_head: bool = False

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            x, labels = np.asarray(getattr(self, f"{part}_x")), np.asarray(getattr(self, f"{part}_labels"))
            if len(x) != len(labels) or labels.ndim != 1 or labels.dtype.kind not in "iu":
                raise InputError(
                    f"{part}: expected a whole label for each of {len(x)} examples, found "
                    f"{labels.dtype}{list(labels.shape)}"
                )
            object.__setattr__(self, f"{part}_x", x if x.dtype == np.uint8 else x.astype(np.float32))
            object.__setattr__(self, f"{part}_labels", labels.astype(np.int32))
        check_rows(self.stream, "the data", "example", len(self.train_x), len(self.test_x))
        if self.num_labels is None:
            most = max(int(labels.max(initial=-1)) for labels in (self.train_labels, self.test_labels))
            object.__setattr__(self, "num_labels", most + 1)

    def task(self, client: int, task: int) -> ClientTask:
        """The tensors of one task; see the class."""
        part = self.stream.task(client, task)
        labels = labels_of(part, self.num_labels or 0, self.one_head)

        def examples(split: str, rows: np.ndarray) -> Tensors:
            x, label = getattr(self, f"{split}_x")[rows], getattr(self, f"{split}_labels")[rows]
            return OrderedDict([(self.entry, x), ("label", labels.numbers[label])])

        return ClientTask(
            context=OrderedDict(labels.mask),
            train=examples("train", part.train),
            validation=examples("train", part.validation),
            test_context=OrderedDict(labels.test_mask),
            test=examples("test", part.test),
            num_classes=labels.num_classes,
            labels=labels.names,
        )


def scaled(images: np.ndarray, max_value: Any) -> np.ndarray:
    """uint8 [N, h, w] as float32 [N, h, w, 1] in [0, 1]."""
    return (images.astype(np.float32) / np.float32(max_value))[..., None]
