"""Knowledge bases for tests of transfers."""

from __future__ import annotations

import numpy as np

from tffcl import transfers


def base_of(pairs) -> transfers.KnowledgeBase:
    """Entries of these (client, task) pairs, in this order."""
    base = transfers.KnowledgeBase(2)
    for number, (client, task) in enumerate(pairs):
        base.add(client, task, np.full(2, number + 1, np.float32))
    return base


def chosen(base, selection) -> list[tuple[int, int]]:
    """The (client, task) pairs of a selection of entries."""
    return [base.entries[entry] for entry in selection]
