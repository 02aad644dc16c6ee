"""A checked request for a stream: the settings that every split shares, and what the data can give."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Sequence

import numpy as np

from tffcl.errors import StreamError
from tffcl.streams import labels as labels_lib

# One independent random stream per purpose, so that changing one choice leaves the others as they were.
PICK, SHUFFLE, ORDER = range(3)


def generator(seed: int, purpose: int, *ids: int) -> np.random.Generator:
    """A generator for one purpose (and label or client), independent of numpy's global state."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(purpose, *ids)))


def check_share(name: str, value: object) -> None:
    """Raises StreamError unless `value` is a number from 0 to 1."""
    if not isinstance(value, numbers.Real) or not 0 <= float(value) <= 1:
        raise StreamError(f"{name} must be a share from 0 to 1; got {value!r}")


def check_count(name: str, value: object, least: int) -> None:
    """Raises StreamError unless `value` is a whole number, `least` or more."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < least:
        raise StreamError(f"{name} must be a whole number, {least} or more; got {value!r}")


@dataclasses.dataclass(frozen=True)
class Request:
    """What the caller of a split asked for; see `tffcl.streams.non_iid` for the meaning of each setting."""

    train_labels: Sequence[int] | np.ndarray  # an int64 array [n] once checked
    test_labels: Sequence[int] | np.ndarray
    num_clients: int
    num_tasks: int
    labels_per_task: int | None
    validation_share: float
    seed: int
    order_seed: int
    label_names: Sequence[str] | None
    min_documents: int
    require_test: bool

    def __post_init__(self) -> None:
        for name, least in (
            ("num_clients", 1),
            ("num_tasks", 1),
            ("labels_per_task", 1),
            ("seed", 0),
            ("order_seed", 0),
            ("min_documents", 0),
        ):
            if name != "labels_per_task" or self.labels_per_task is not None:
                check_count(name, getattr(self, name), least)
        check_share("validation_share", self.validation_share)
        if self.validation_share == 1:
            raise StreamError("validation_share=1 leaves nothing to learn from; it must be below 1")
        num_labels = None if self.label_names is None else len(self.label_names)
        for name in ("train_labels", "test_labels"):
            checked = labels_lib.checked_labels(getattr(self, name), name, num_labels)
            object.__setattr__(self, name, checked)
        if not len(self.train_labels):
            raise StreamError("train_labels is empty; a stream needs documents to divide")

    @property
    def total_tasks(self) -> int:
        """C * T."""
        return self.num_clients * self.num_tasks

    def label_ids(self) -> list[int]:
        """Every label of the dataset: all named ones, or else those that occur in train or test."""
        if self.label_names is not None:
            return list(range(len(self.label_names)))
        return np.union1d(self.train_labels, self.test_labels).tolist()

    def describe(self, label: int) -> str:
        """The label as an error message should name it."""
        return f"label {label}" if self.label_names is None else f"label {label} ({self.label_names[label]})"

    def capacities(self, capacity: Callable[[int], int], needed: int) -> dict[int, int]:
        """How many tasks each label can serve.

        Args:
          capacity: number of training documents -> number of tasks they can serve.
          needed: training documents below which a label serves no task, for the error message.

        Raises:
          StreamError: the labels, or those of them with enough documents, are fewer than a task needs.
        """
        ids, wanted = self.label_ids(), self.labels_per_task or 1
        if wanted > len(ids):
            raise StreamError(
                f"labels_per_task={wanted}, but the dataset has {len(ids)} labels: ask for {len(ids)} or fewer"
            )
        trains = labels_lib.documents_by_label(np.asarray(self.train_labels), ids)
        tested = set(np.unique(self.test_labels).tolist())
        capacities = {
            label: min(self.total_tasks, capacity(len(trains[label])))
            if label in tested or not self.require_test
            else 0
            for label in ids
        }
        usable = sum(n > 0 for n in capacities.values())
        if usable < wanted:
            rule = f"at least {needed} training documents" + (" and a test document" if self.require_test else "")
            raise StreamError(
                f"labels_per_task={wanted}, but only {usable} of {len(ids)} labels have {rule}: ask for "
                "fewer labels_per_task, or a smaller min_documents or require_test=False"
            )
        return capacities
