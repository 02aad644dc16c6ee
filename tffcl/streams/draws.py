"""The random draw of a client's sequence of labels, each label at most once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tffcl.errors import StreamError
from tffcl.streams.assignments import label_ids
from tffcl.streams.request import Request


def usable_labels(request: Request) -> list[int]:
    """Labels with enough training examples for every client, and with a test example where one is required."""
    needed = max(1, request.min_documents) * request.num_clients
    tested = set(np.unique(request.test_labels).tolist())
    return [
        label
        for label in request.label_ids()
        if np.count_nonzero(request.train_labels == label) >= needed and (label in tested or not request.require_test)
    ]


def draw_sequence(
    request: Request,
    usable: Sequence[int],
    sizes: Sequence[int],
    pools: Sequence[Sequence[int]] | None,
    rng: np.random.Generator,
) -> list[tuple[int, ...]]:
    """Draws the labels of each task of one client, without repetition.

    Args:
      request: what the caller of the split asked for.
      usable: the labels that may be drawn.
      sizes: how many labels each task has.
      pools: for each task the labels it may draw from, equal or disjoint; None for all.
      rng: source of the draw.

    Returns:
      For each task its labels in ascending order.

    Raises:
      StreamError: a pool with too few usable labels, or pools that overlap in part.
    """
    keys = _keys(request, len(sizes), pools)
    left: dict[frozenset[int], list[int]] = {}
    for key in dict.fromkeys(keys):
        candidates = sorted(key & set(usable))
        wanted = sum(size for size, other in zip(sizes, keys) if other == key)
        if len(candidates) < wanted:
            raise StreamError(_too_few(request, key, candidates, wanted))
        left[key] = rng.permutation(candidates).tolist()
    drawn = []
    for size, key in zip(sizes, keys):
        drawn.append(tuple(sorted(left[key][:size])))
        left[key] = left[key][size:]
    return drawn


def _keys(request: Request, num_tasks: int, pools: Sequence[Sequence[int]] | None) -> list[frozenset[int]]:
    """The pool of each task as a set, checked."""
    known = set(request.label_ids())
    if pools is None:
        return [frozenset(known)] * num_tasks
    if len(pools) != num_tasks:
        raise StreamError(f"pools has {len(pools)} entries; expected one for each of the {num_tasks} tasks")
    keys = [frozenset(label_ids(pool, f"pools[{task}]")) for task, pool in enumerate(pools)]
    for task, key in enumerate(keys):
        unknown = sorted(key - known)
        if unknown:
            raise StreamError(f"pools[{task}]: {unknown[0]} is no label of the dataset, which has {_span(known)}")
        for earlier, other in enumerate(keys[:task]):
            if key != other and key & other:
                raise StreamError(
                    f"pools[{task}] and pools[{earlier}] share {request.describe(min(key & other))} but are not "
                    "equal; make any two pools equal or disjoint"
                )
    return keys


def _too_few(request: Request, pool: frozenset[int], candidates: Sequence[int], wanted: int) -> str:
    lacking = sorted(pool - set(candidates))
    rule = f"{max(1, request.min_documents) * request.num_clients} training examples" + (
        " and a test example" if request.require_test else ""
    )
    why = ""
    if lacking:
        named = ", ".join(request.describe(label) for label in lacking[:3]) + ", ..." * (len(lacking) > 3)
        why = f" ({named} lack {rule})"
    return (
        f"each client's tasks need {wanted} different labels, but only {len(candidates)} of {len(pool)} can be "
        f"drawn{why}: ask for fewer num_tasks or labels_per_task, or fewer clients"
    )


def _span(labels: set[int]) -> str:
    return f"{min(labels)}..{max(labels)}"
