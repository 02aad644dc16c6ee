"""Controls of a selection: what random past tasks, a client's own, and those that are known to be right are worth.

The oracles are told of every task what it is about, which in a federation nobody knows: they measure what a perfect
selection would be worth, and are no methods.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from tffcl import errors, streams
from tffcl.transfers.knowledge_base import KnowledgeBase
from tffcl.transfers.transfer import PerClient, drawn_entries, past_entries


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
