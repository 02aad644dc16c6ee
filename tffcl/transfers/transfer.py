"""The contract of a transfer (which entries of the knowledge base each client receives for a task), and simple ones.

Those here go by the numbers of clients and tasks, by a draw, or by what a task is said to be about; `SIT` compares what
clients have. `Sampled`, `OwnTasks` and `Oracle` are controls of a selection. An oracle is told of every task what it is
about, which in a federation nobody knows: it measures what a perfect selection would be worth, and is no method.
"""

from __future__ import annotations

import abc
import logging
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import scipy.sparse

from tffcl import errors, streams
from tffcl.transfers.knowledge_base import KnowledgeBase, Summary

logger = logging.getLogger(__name__)


class Transfer(abc.ABC):
    """Decides, at the start of a task, what each client receives from the knowledge base.

    In a run, each client calls `summarise` on its own data before it trains (where `needs_summaries`); the server calls
    `select`, hands `transfer_in` to the process, and stores the summary beside the knowledge that the client uploads at
    the end of the task.

    Shown in docs/own_parts.md.

    Attributes:
      needs_summaries: whether `select` reads summaries.
      noised: whether summaries hold noise with an epsilon: their seed is then a secret of the client, which follows
        from nothing that anybody else knows.
    """

    needs_summaries: bool = False
    noised: bool = False

    @abc.abstractmethod
    def num_foreign(self, num_clients: int) -> int:
        """K, the most entries that one of `num_clients` clients receives for a task."""

    def vectors(self, task: Any) -> np.ndarray:
        """The argument of `summarise`: float32 `[N, D]`, a vector for each training example of a task.

        Of text the mean of each document's word vectors (FedSeIT, eq. 6), of arrays the example itself, flattened.

        Args:
          task: a `tffcl.program.ClientTask`; its `labels` are the data set's.

        Raises:
          InputError: examples of another form.
        """
        context, train = task.context, task.train
        if {"tokens", "vectors"} <= set(context) and {"start", "length"} <= set(train):
            return document_vectors(context["tokens"], train["start"], train["length"], context["vectors"])
        inputs = [name for name in train if name != "label"]
        if len(inputs) != 1:
            raise errors.InputError(
                f"this transfer needs a vector for each example, and these have {', '.join(inputs)}; override "
                "`vectors`, or give the argument `summarise`, to make float32 [N, D] of them"
            )
        return np.reshape(train[inputs[0]], [len(train[inputs[0]]), -1]).astype(np.float32)

    def summarise(self, vectors: np.ndarray, seed: int | Sequence[int]) -> dict[str, np.ndarray] | None:
        """A client's summary of its task for the server; runs at the client.

        Args:
          vectors: float32 `[N, D]`, one for each training example of the task (see `document_vectors`).
          seed: root of all randomness in here: a number or several, 0 or more.

        Returns:
          Named arrays, or None for no summary.
        """
        del vectors, seed
        return None

    def refusal(self, summary: Summary, dimension: int) -> str:
        """Why the server refuses a summary, empty where it takes it; see `tffcl.templates.messages`.

        Args:
          summary: as a client sent it.
          dimension: D of the vectors that it should summarise.
        """
        from tffcl.templates import messages  # imports TensorFlow, which nothing else of a transfer needs

        arrays = {name: np.asarray(array) for name, array in summary.items()}
        wrong = [f"{name}: should be numbers" for name, array in arrays.items() if array.dtype.kind not in "biuf"]
        wrong += [text for holds, text in self.faults(arrays, dimension) if holds]
        return wrong[0] if wrong else messages.verdict(arrays).numpy().decode()

    def faults(self, summary: Summary, dimension: int) -> list[tuple[bool, str]]:
        """Pairs (whether it holds, text) of faults of a summary besides values that are not finite or too large."""
        del summary, dimension
        return []

    def account(self) -> dict[str, Any] | None:
        """The privacy guarantee of noised summaries, `epsilon` and `delta` among it; None without noise."""
        return None

    @abc.abstractmethod
    def select(
        self, knowledge_base: KnowledgeBase, task: int, clients: Sequence[int], summaries: Sequence[Summary | None]
    ) -> list[list[int]]:
        """The entries for each client that begins task number `task`; runs at the server.

        Args:
          knowledge_base: all entries so far; only those of tasks before `task` are chosen.
          task: number of the task that begins, from 0.
          clients: numbers of the clients that begin it.
          summaries: of each of them, None for no summary.

        Returns:
          For each client the ids of at most K entries, most relevant first.
        """

    def transfer_in(
        self, knowledge_base: KnowledgeBase, selections: Sequence[Sequence[int]], num_clients: int
    ) -> OrderedDict:
        """Rows and keys of these selections, as the process takes them; see `KnowledgeBase.transfer_in`.

        Args:
          knowledge_base: the base that the selections refer to.
          selections: for each client that takes part the ids of its entries.
          num_clients: clients in the whole federation, on which K depends.
        """
        return knowledge_base.transfer_in(selections, self.num_foreign(num_clients))


class PerClient(Transfer):
    """Selects for each client by itself, without summaries."""

    @abc.abstractmethod
    def _entries(self, knowledge_base: KnowledgeBase, task: int, client: int) -> list[int]: ...

    def select(
        self, knowledge_base: KnowledgeBase, task: int, clients: Sequence[int], summaries: Sequence[Summary | None]
    ) -> list[list[int]]:
        del summaries
        return [self._entries(knowledge_base, task, client) for client in clients]


class NoTransfer(PerClient):
    """Every client for itself: K = 0.

    Shown in docs/contract.md.
    """

    def num_foreign(self, num_clients: int) -> int:
        del num_clients
        return 0

    def _entries(self, knowledge_base: KnowledgeBase, task: int, client: int) -> list[int]:
        return []


class PreviousTask(PerClient):
    """Each client receives A_c^(t-1) of every other client c, ordered by client.

    The transfer of FedWeIT, and of FedSeIT without SIT (its algorithm 1, line 24).

    Shown in docs/contract.md.

    Args:
      include_own: also the client's own previous task, as FedSeIT's text has it (`{A_c^(t-1)}` for c = 1..C).
    """

    def __init__(self, include_own: bool = False):
        self.include_own = include_own

    def num_foreign(self, num_clients: int) -> int:
        return errors.check_whole("num_clients", num_clients, 1) - (0 if self.include_own else 1)

    def _entries(self, knowledge_base: KnowledgeBase, task: int, client: int) -> list[int]:
        entries, past = knowledge_base.entries, past_entries(knowledge_base, task, client, self.include_own)
        return [entry for entry in past if entries[entry][1] == task - 1]


class AllPast(PerClient):
    """Each client receives every past task of every other client, the latest first, then by client (ConFedMADE).

    Shown with `PreviousTask`.

    Args:
      max_tasks: tasks in a client's whole sequence; K is (clients - 1) * (max_tasks - 1).
    """

    def __init__(self, max_tasks: int):
        self.max_tasks = errors.check_whole("max_tasks", max_tasks, 1)

    def num_foreign(self, num_clients: int) -> int:
        return (errors.check_whole("num_clients", num_clients, 1) - 1) * (self.max_tasks - 1)

    def _entries(self, knowledge_base: KnowledgeBase, task: int, client: int) -> list[int]:
        entries = knowledge_base.entries
        # Sorting is stable: among entries of one task the order by client stays.
        return sorted(past_entries(knowledge_base, task, client), key=lambda entry: -entries[entry][1])


class _Wrapped(Transfer):
    """Does what another transfer does; ablations override where they differ."""

    def __init__(self, transfer: Transfer):
        self.transfer = transfer
        self.needs_summaries, self.noised = transfer.needs_summaries, transfer.noised

    def num_foreign(self, num_clients: int) -> int:
        return self.transfer.num_foreign(num_clients)

    def vectors(self, task: Any) -> np.ndarray:
        return self.transfer.vectors(task)

    def summarise(self, vectors: np.ndarray, seed: int | Sequence[int]) -> dict[str, np.ndarray] | None:
        return self.transfer.summarise(vectors, seed)

    def faults(self, summary: Summary, dimension: int) -> list[tuple[bool, str]]:
        return self.transfer.faults(summary, dimension)

    def account(self) -> dict[str, Any] | None:
        return self.transfer.account()

    def select(
        self, knowledge_base: KnowledgeBase, task: int, clients: Sequence[int], summaries: Sequence[Summary | None]
    ) -> list[list[int]]:
        return self.transfer.select(knowledge_base, task, clients, summaries)

    def transfer_in(
        self, knowledge_base: KnowledgeBase, selections: Sequence[Sequence[int]], num_clients: int
    ) -> OrderedDict:
        return self.transfer.transfer_in(knowledge_base, selections, num_clients)


class Zeroed(_Wrapped):
    """The entries that `transfer` selects, with zeros for knowledge: the same network, nothing in it.

    Shown with `PreviousTask`.
    """

    def transfer_in(
        self, knowledge_base: KnowledgeBase, selections: Sequence[Sequence[int]], num_clients: int
    ) -> OrderedDict:
        sent = super().transfer_in(knowledge_base, selections, num_clients)
        return OrderedDict(sent, rows=np.zeros_like(sent["rows"]))


class RandomTask(_Wrapped):
    """As many entries as `transfer` selects, each of another task: one drawn from those it did not select.

    Drawn without replacement from the past entries of other clients. Where fewer are left than were
    selected, the last of the selection stay as they are, which is logged: at the first tasks there may be
    nothing else to take.

    Shown with `PreviousTask`.

    Args:
      transfer: whose selection is replaced.
      seed: the draw is a function of (seed, task, client) and of the selection.
    """

    def __init__(self, transfer: Transfer, seed: int = 0):
        super().__init__(transfer)
        self.seed = errors.check_whole("seed", seed, 0)

    def select(
        self, knowledge_base: KnowledgeBase, task: int, clients: Sequence[int], summaries: Sequence[Summary | None]
    ) -> list[list[int]]:
        selections = super().select(knowledge_base, task, clients, summaries)
        return [
            self._replaced(knowledge_base, task, client, selection) for client, selection in zip(clients, selections)
        ]

    def _replaced(self, knowledge_base: KnowledgeBase, task: int, client: int, selection: list[int]) -> list[int]:
        others = [entry for entry in past_entries(knowledge_base, task, client) if entry not in set(selection)]
        drawn = drawn_entries(others, len(selection), (self.seed, task, client))
        kept = selection[len(drawn) :]
        if kept:
            logger.info("random task: client %d keeps %d selected entries in task %d", client, len(kept), task)
        return drawn + kept


def past_entries(knowledge_base: KnowledgeBase, task: int, client: int, include_own: bool = False) -> list[int]:
    """Ids of the entries of tasks before `task`, by (client, task); the client's own only on request.

    Shown in docs/own_parts.md.
    """
    chosen = [
        (owner, past, entry)
        for entry, (owner, past) in enumerate(knowledge_base.entries)
        if past < task and (include_own or owner != client)
    ]
    return [entry for _, _, entry in sorted(chosen)]


def drawn_entries(entries: Sequence[int], most: int, seed: Sequence[int]) -> list[int]:
    """Entries, at most so many, drawn without replacement; the draw is a function of the seed."""
    order = np.random.default_rng(list(seed)).permutation(len(entries))
    return [entries[position] for position in order[:most]]


class _AtMostK(PerClient):
    """At most K entries for each client, drawn by (seed, task, client)."""

    def __init__(self, k: int, seed: int = 0):
        self.k, self.seed = errors.check_whole("k", k, 1), errors.check_whole("seed", seed, 0)

    def num_foreign(self, num_clients: int) -> int:
        del num_clients
        return self.k


class Sampled(_AtMostK):
    """Each client receives at most K entries, drawn without replacement from all past tasks of the others.

    The baseline of SIT's selection.

    Shown with `Transfer`.

    Args:
      k: K, 1 or more.
      seed: the draw is a function of (seed, task, client) and of what the knowledge base holds.
      include_own: draw from the client's own past tasks, too.
    """

    def __init__(self, k: int, seed: int = 0, include_own: bool = False):
        super().__init__(k, seed)
        self.include_own = include_own

    def _entries(self, knowledge_base: KnowledgeBase, task: int, client: int) -> list[int]:
        past = past_entries(knowledge_base, task, client, self.include_own)
        return drawn_entries(past, self.k, (self.seed, task, client))


class OwnTasks(_AtMostK):
    """Each client receives at most K entries, drawn without replacement from its own past tasks: nothing of others.

    Shown with `Transfer`.

    Args:
      k: K, 1 or more.
      seed: as of `Sampled`.
    """

    def _entries(self, knowledge_base: KnowledgeBase, task: int, client: int) -> list[int]:
        past = past_entries(knowledge_base, task, client, include_own=True)
        own = [entry for entry in past if knowledge_base.entries[entry][0] == client]
        return drawn_entries(own, self.k, (self.seed, task, client))


class Oracle(_AtMostK):
    """Each client receives at most K entries: the past tasks that have most in common with its own, equals at random.

    A task with nothing in common is never chosen. The oracle knows all tasks from the plan of the run; no client tells
    it anything.

    Shown with `Transfer`.

    Args:
      k: K, 1 or more.
      tasks: `tasks[client][task]`: what the task is about, such as its labels, or the one set that it is of.
      seed: as of `Sampled`.
      include_own: choose from the client's own past tasks, too.
    """

    def __init__(self, k: int, tasks: Sequence[Sequence[Sequence[Hashable]]], seed: int = 0, include_own: bool = False):
        super().__init__(k, seed)
        self.tasks, self.include_own = [[frozenset(task) for task in own] for own in tasks], include_own

    def _entries(self, knowledge_base: KnowledgeBase, task: int, client: int) -> list[int]:
        wanted, entries = self.tasks[client][task], knowledge_base.entries
        common = {
            entry: len(wanted & self.tasks[entries[entry][0]][entries[entry][1]])
            for entry in past_entries(knowledge_base, task, client, self.include_own)
        }
        some = [entry for entry in common if common[entry]]
        # Sorting is stable: what has as much in common stays in the order of the draw.
        drawn = drawn_entries(some, len(some), (self.seed, task, client))
        return sorted(drawn, key=lambda entry: -common[entry])[: self.k]


def selection_shares(
    labels: Sequence[Sequence[Sequence[str]]],
    entries: Sequence[tuple[int, int]],
    selections: Sequence[Sequence[Sequence[int]]],
) -> dict[str, float | None]:
    """How often selections are of the same set as the task, and how often they have a label in common with it.

    >>> labels = [[["a/x"], ["b/y"]], [["a/x"], ["a/z"]]]
    >>> selection_shares(labels, entries=[(0, 0), (1, 0)], selections=[[[], []], [[1], [0]]])
    {'selection_same_domain': 0.5, 'selection_label_overlap': 0.0}

    Args:
      labels: `labels[client][task]`, names SET/LABEL.
      entries: (client, task) of each entry of the knowledge base.
      selections: `selections[task][client]`, ids of entries.

    Returns:
      selection_same_domain, selection_label_overlap: of the entries that a client was given for a task the share that
      is of the task's set, and that has a label in common with it; the mean over the clients and tasks that were given
      some, None where there are none.
    """
    shares = []
    for task, chosen in enumerate(selections):
        for client, ids in enumerate(chosen):
            if not ids:
                continue
            own = {*labels[client][task]}
            own_sets = {*streams.domains_of(own)}
            others = [labels[owner][past] for owner, past in (entries[entry] for entry in ids)]
            both = [(not own_sets.isdisjoint(streams.domains_of(other)), not own.isdisjoint(other)) for other in others]
            shares.append(np.mean(both, axis=0))
    means = np.mean(shares, axis=0).tolist() if shares else [None, None]
    return dict(zip(("selection_same_domain", "selection_label_overlap"), means))


def document_vectors(tokens: np.ndarray, start: np.ndarray, length: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """The mean of a document's word vectors over its |x| words (eq. 6).

    A word without a vector (the zero vector) counts in |x|. A document without any word, or without any known word,
    is the zero vector.

    >>> vectors = np.array([[0, 0], [0, 0], [1, 2], [3, 4]], np.float32)
    >>> document_vectors(np.array([2, 3, 3, 1, 1]), np.array([0, 2, 4, 5]), np.array([2, 2, 1, 0]), vectors).tolist()
    [[2.0, 3.0], [1.5, 2.0], [0.0, 0.0], [0.0, 0.0]]

    Args:
      tokens: int `[W]`, word ids.
      start: int `[N]`.
      length: int `[N]`; document n is `tokens[start[n] : start[n] + length[n]]`.
      vectors: float32 `[V, D]`, row i for word i.

    Returns:
      float32 `[N, D]`.

    Raises:
      InputError: another shape, or an id that has no row.
    """
    shapes = [list(array.shape) for array in (tokens, start, length, vectors)]
    if [len(shape) for shape in shapes] != [1, 1, 1, 2] or shapes[1] != shapes[2]:
        raise errors.InputError(
            f"document vectors: expected tokens [W], start and length [N] and vectors [V, D], found {shapes}"
        )
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < len(vectors):
        raise errors.InputError(
            f"document vectors: word ids should lie in [0, {len(vectors)}), found {tokens.min()} to {tokens.max()}"
        )
    # A sparse matrix of counts: [N, L, D] at once is gigabytes for documents of news length.
    document = np.repeat(np.arange(len(length)), length)
    position = np.arange(len(document)) + np.repeat(start - np.cumsum(length) + length, length)
    ones, shape = np.ones(len(document), np.float32), (len(length), len(vectors))
    counts = scipy.sparse.csr_matrix((ones, (document, tokens[position])), shape=shape)
    return (counts @ vectors.astype(np.float32)) / np.maximum(length, 1).astype(np.float32)[:, None]
