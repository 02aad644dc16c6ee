"""Which labels a task may pick, and the random pick itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tffcl.errors import StreamError


def checked_labels(labels: Sequence[int] | np.ndarray, where: str, num_labels: int | None) -> np.ndarray:
    """`labels` as int64 [n], checked to be whole, not negative and below `num_labels` (if that is known).

    Raises:
      StreamError: anything else; names the first wrong row.
    """
    array = np.asarray(labels)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        raise StreamError(
            f"{where}: expected a flat sequence of whole label ids, got shape {array.shape}, dtype {array.dtype}"
        )
    upper = np.inf if num_labels is None else num_labels
    wrong = np.flatnonzero((array < 0) | (array >= upper))
    if wrong.size:
        span = "0 or more" if num_labels is None else f"0..{num_labels - 1}, a place in label_names"
        raise StreamError(f"{where}: row {wrong[0]} has label {array[wrong[0]]}; label ids must be {span}")
    return array.astype(np.int64)


def documents_by_label(labels: np.ndarray, label_ids: Sequence[int]) -> dict[int, np.ndarray]:
    """For each label id, the places (int64, ascending) where `labels` (int64 [n]) has it; maybe none."""
    return {label: np.flatnonzero(labels == label).astype(np.int64) for label in label_ids}


def pick_labels(
    capacities: Mapping[int, int], num_tasks: int, labels_per_task: int, rng: np.random.Generator
) -> list[tuple[int, ...]]:
    """Picks `labels_per_task` distinct labels at random for each of `num_tasks` tasks.

    No label goes to more than `capacities[label]` tasks. The draw is uniform over the labels, except that it
    never lets the rare labels run out so early that a later task cannot be filled: with r tasks to go,
    k labels each, a filling exists exactly if sum_l min(capacity_l, r) >= r * k (Gale-Ryser with equal rows).
    A label with r or more places left loses nothing by being picked; each other pick uses up one unit of
    the slack that r - 1 later tasks leave.

    Args:
      capacities: how many tasks a label can serve, by label id.
      num_tasks: number of tasks over all clients.
      labels_per_task: k.
      rng: source of the draw.

    Returns:
      For each task its labels in ascending order.

    Raises:
      StreamError: the labels cannot fill the tasks.
    """
    left = {label: min(capacity, num_tasks) for label, capacity in capacities.items() if capacity > 0}
    if sum(left.values()) < num_tasks * labels_per_task:
        raise StreamError(
            f"{num_tasks} tasks x {labels_per_task} labels = {num_tasks * labels_per_task} picks, but the "
            f"labels' documents allow {sum(left.values())}: ask for fewer clients, tasks or labels_per_task, "
            "or a smaller min_documents"
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
