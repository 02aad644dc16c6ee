"""What every split of a labelled data set does: checks, picks labels, and divides their documents between tasks."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tffcl.errors import StreamError, check_whole, is_number
from tffcl.streams.stream import Task, TaskStream

# One independent random stream per purpose, so that changing one choice leaves the others as they were.
PICK, SHUFFLE, ORDER = range(3)


def generator(seed: int, purpose: int, *ids: int) -> np.random.Generator:
    """A generator for one purpose (and label or client), independent of numpy's global state."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(purpose, *ids)))


def check_share(name: str, value: float, *, below_one: bool = False) -> None:
    """Raises StreamError unless `value` is a number from 0 to 1."""
    if not is_number(value) or not 0 <= value <= 1:
        raise StreamError(f"{name} must be a share from 0 to 1; got {value!r}")
    if below_one and value == 1:
        raise StreamError(f"{name}=1 leaves nothing to learn from; it must be below 1")


@dataclasses.dataclass(frozen=True)
class Request:
    """The checked arguments of a split, as `tffcl.streams.non_iid` describes them, and what the data allow."""

    train_labels: Sequence[int] | np.ndarray  # an int64 array [n] once checked
    test_labels: Sequence[int] | np.ndarray
    num_clients: int
    num_tasks: int
    validation_share: float
    seed: int
    label_names: Sequence[str] | None
    min_documents: int
    require_test: bool
    overlap: float = 0.0
    labels_per_task: int | None = None
    order_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_clients", "num_tasks", "labels_per_task"):
            if name != "labels_per_task" or self.labels_per_task is not None:
                check_whole(name, getattr(self, name), 1, StreamError)
        for name in ("seed", "order_seed", "min_documents"):
            check_whole(name, getattr(self, name), 0, StreamError)
        check_share("validation_share", self.validation_share, below_one=True)
        check_share("overlap", self.overlap)
        for name in ("train_labels", "test_labels"):
            object.__setattr__(self, name, self._checked_labels(name))
        if not len(self.train_labels):
            raise StreamError("train_labels is empty; a stream needs documents to divide")

    def _checked_labels(self, name: str) -> np.ndarray:
        """int64 [n]: whole, not negative, and with a name if there are names."""
        labels = np.asarray(getattr(self, name))
        if labels.ndim != 1 or not (np.issubdtype(labels.dtype, np.integer) or labels.size == 0):
            raise StreamError(
                f"{name}: expected a flat sequence of whole label ids, got shape {labels.shape}, dtype {labels.dtype}"
            )
        limit, span = np.inf, "0 or more"
        if self.label_names is not None:
            limit, span = len(self.label_names), f"0..{len(self.label_names) - 1}, a place in label_names"
        wrong = np.flatnonzero((labels < 0) | (labels >= limit))
        if wrong.size:
            raise StreamError(f"{name}: row {wrong[0]} has label {labels[wrong[0]]}; label ids must be {span}")
        return labels.astype(np.int64)

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

    def documents(self) -> dict[int, int]:
        """Label id -> its training documents."""
        counts = Counter(np.asarray(self.train_labels).tolist())
        return {label: counts[label] for label in self.label_ids()}

    def can_be_tested(self, label: int) -> bool:
        """Whether the label occurs in the test set, or need not."""
        return not self.require_test or bool(np.any(np.asarray(self.test_labels) == label))

    def capacities(self, capacity: Callable[[int], int], needed: int) -> dict[int, int]:
        """Label id -> tasks that it can serve, given tasks by number of training documents.

        Raises:
          StreamError: the labels, or those of them with `needed` documents, are fewer than a task needs.
        """
        wanted, documents = self.labels_per_task or 1, self.documents()
        if wanted > len(documents):
            raise StreamError(
                f"labels_per_task={wanted}, but the dataset has {len(documents)} labels: ask for {len(documents)} "
                "or fewer"
            )
        capacities = {
            label: min(self.total_tasks, capacity(count)) if self.can_be_tested(label) else 0
            for label, count in documents.items()
        }
        usable = sum(n > 0 for n in capacities.values())
        if usable < wanted:
            rule = f"at least {needed} training documents" + (" and a test document" if self.require_test else "")
            raise StreamError(
                f"labels_per_task={wanted}, but only {usable} of {len(documents)} labels have {rule}: ask for "
                "fewer labels_per_task; tffcl.streams also takes a smaller min_documents, and require_test=False"
            )
        return capacities


def pick_labels(
    capacities: Mapping[int, int], num_tasks: int, labels_per_task: int, rng: np.random.Generator
) -> list[tuple[int, ...]]:
    """Picks `labels_per_task` distinct labels at random for each of `num_tasks` tasks, in ascending order.

    No label goes to more than `capacities[label]` tasks. The draw is uniform over the labels, except that it
    never lets the rare labels run out so early that a later task cannot be filled: with r tasks to go,
    k labels each, a filling exists exactly if sum_l min(capacity_l, r) >= r * k (Gale-Ryser with equal rows).
    A label with r or more tasks left loses nothing by being picked; each other pick uses up one unit of
    the slack that r - 1 later tasks leave.

    Raises:
      StreamError: the labels cannot fill the tasks.
    """
    left = {label: min(capacity, num_tasks) for label, capacity in capacities.items() if capacity > 0}
    if sum(left.values()) < num_tasks * labels_per_task:
        fits = range(num_tasks, 0, -1)
        most = next((n for n in fits if sum(min(c, n) for c in left.values()) >= n * labels_per_task), 0)
        raise StreamError(
            f"{num_tasks} tasks x {labels_per_task} labels = {num_tasks * labels_per_task} picks, but the "
            f"labels' documents allow {sum(left.values())}, enough for {most} tasks of all clients together: "
            "ask for fewer clients, tasks or labels_per_task; tffcl.streams also takes a smaller min_documents"
        )
    picks = []
    for remaining in range(num_tasks, 0, -1):
        slack = sum(min(n, remaining - 1) for n in left.values()) - (remaining - 1) * labels_per_task
        picked: list[int] = []
        for label in rng.permutation(sorted(left)).tolist():
            if len(picked) == labels_per_task:
                break
            uses_slack = left[label] < remaining
            if left[label] == 0 or (uses_slack and slack == 0):
                continue
            slack -= uses_slack
            left[label] -= 1
            picked.append(label)
        picks.append(tuple(sorted(picked)))
    return picks


def validation_counts(sizes: Sequence[int] | np.ndarray, share: float) -> np.ndarray:
    """How many documents of each label to hold out, int64 [k], for labels with `sizes` documents.

    Stratified by largest remainder: the total is `share` of all documents (rounded; at least 1 if share > 0),
    each label gives its share rounded down or up, and every label keeps at least one document to learn from.

    >>> validation_counts([16, 8, 4, 4], 1 / 8).tolist()
    [2, 1, 1, 0]
    """
    sizes = np.asarray(sizes, np.int64)
    most = np.maximum(sizes - 1, 0)
    if share <= 0 or not most.any():
        return np.zeros_like(sizes)
    counts = np.minimum(np.floor(sizes * share + 1e-9).astype(np.int64), most)
    total = min(max(1, int(sizes.sum() * share + 0.5)), int(most.sum()))
    while counts.sum() < total:
        counts[np.argmax(np.where(counts < most, sizes * share - counts, -np.inf))] += 1
    return counts


def hold_out(parts: Sequence[np.ndarray], share: float) -> tuple[np.ndarray, np.ndarray]:
    """(train, validation) rows of a task, int64, of a part (int64, in random order) for each of its labels."""
    counts = validation_counts([len(part) for part in parts], share)
    none = [np.zeros(0, np.int64)]
    train = np.concatenate(none + [part[count:] for part, count in zip(parts, counts)])
    return train, np.concatenate(none + [part[:count] for part, count in zip(parts, counts)])


@dataclasses.dataclass
class _Draft:
    """A task whose documents are being dealt: a part of its own for each label, and rows that it shares."""

    client: int
    task: int
    labels: tuple[int, ...]
    own: list[np.ndarray] = dataclasses.field(default_factory=list)
    shared_train: list[np.ndarray] = dataclasses.field(default_factory=list)
    shared_validation: list[np.ndarray] = dataclasses.field(default_factory=list)


def num_shared(documents: int, overlap: float) -> int:
    """How many of a label's `documents` all of its tasks get."""
    return int(documents * overlap + 0.5)


def ordered(request: Request, picks: Sequence[tuple[int, ...]]) -> list[list[tuple[int, tuple[int, ...]]]]:
    """For each client (index in its sequence, labels) of its tasks, of the picks of all C x T tasks, client by client.

    Tasks stay in the order of their making and only get an index, so that `order_seed` moves no document.
    """
    sequences = []
    for client in range(request.num_clients):
        own = picks[client * request.num_tasks : (client + 1) * request.num_tasks]
        order = generator(request.order_seed, ORDER, client).permutation(request.num_tasks)
        sequences.append(list(zip(order.tolist(), own)))
    return sequences


def divide(
    name: str,
    request: Request,
    sequences: Sequence[Sequence[tuple[int, tuple[int, ...]]]],
    excluded_labels: tuple[int, ...] = (),
) -> TaskStream:
    """Divides the documents between tasks, given for each client as (index in its sequence, labels).

    Raises:
      StreamError: a task would have no training document of one of its labels.
    """
    drafts = [_Draft(client, task, labels) for client, sequence in enumerate(sequences) for task, labels in sequence]
    for label in request.label_ids():
        _deal(label, [draft for draft in drafts if label in draft.labels], request)
    tasks: list[list[Task]] = [[] for _ in sequences]
    for draft in sorted(drafts, key=lambda draft: (draft.client, draft.task)):
        train, validation = hold_out(draft.own, request.validation_share)
        train = np.concatenate([train, *draft.shared_train])
        validation = np.concatenate([validation, *draft.shared_validation])
        test = np.flatnonzero(np.isin(request.test_labels, draft.labels))
        tasks[draft.client].append(Task(draft.client, draft.task, draft.labels, train, validation, test))
    return TaskStream(name, tuple(map(tuple, tasks)), excluded_labels)


def _deal(label: int, drafts: Sequence[_Draft], request: Request) -> None:
    """Gives every draft with a label its documents of it: disjoint parts whose sizes differ by at most 1.

    The remainder goes, one each, to the tasks with fewest documents, so that no task collects those of every label.
    """
    if not drafts:
        return
    rng = generator(request.seed, SHUFFLE, label)
    documents = rng.permutation(np.flatnonzero(request.train_labels == label))
    shared = num_shared(len(documents), request.overlap)
    train, validation = hold_out([documents[:shared]], request.validation_share)
    by_load = sorted(drafts, key=lambda draft: sum(map(len, draft.own)))
    for draft, part in zip(by_load, np.array_split(documents[shared:], len(drafts))):
        if not len(part) and not len(train):
            raise StreamError(
                f"task {draft.task} of client {draft.client} has no training document of "
                f"{request.describe(label)}: its {len(documents)} documents cannot serve the {len(drafts)} "
                "tasks that picked it; ask for fewer tasks, or min_documents=1 or more of tffcl.streams"
            )
        draft.own.append(part)
        draft.shared_train.append(train)
        draft.shared_validation.append(validation)
