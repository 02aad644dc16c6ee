"""What a continual learner achieved, forgot and sent.

Scores are [C, T, T], `scores[c][t][i]` = score of client c on its task i after it learned task t (or [T, T] for one
client). NaN or None stands for "no data", which is not a score of 0: entries i > t, an empty test set, a client that
was away. They are left out of every mean; a mean over nothing is NaN. InputError is raised for scores of another shape.

NLL in nats serves as scores too (`higher_is_better=False`). Those of Paul, Frey, Kamath, Kersting, Mundt: Masked
Autoencoders are Efficient Continual Federated Learners, 2023 (ConFedMADE), appendix B.3, figures 3 and 5, are
`average_nll`, `base_task_nll` and `new_task_nll`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import ArrayLike

from tffcl.errors import InputError, check_whole

BYTES_PER_VALUE = 4
BYTES_PER_INDEX = 4


@dataclasses.dataclass(frozen=True)
class Score:
    """What a score is called, its unit, and which direction is better.

    >>> SCORES["accuracy"].shown(0.7861), SCORES["nll"].shown(93.2), SCORES["nll"].direction
    ('accuracy 78.6 %', 'NLL 93.20 nats', 'lower is better')
    """

    name: str
    unit: str
    scale: float  # from what results hold to the unit
    digits: int
    higher_is_better: bool

    @property
    def direction(self) -> str:
        """In words."""
        return f"{'higher' if self.higher_is_better else 'lower'} is better"

    def number(self, value: float) -> str:
        """A value in the unit, or "-" for NaN."""
        return "-" if math.isnan(value) else f"{self.scale * value:.{self.digits}f}"

    def shown(self, value: float) -> str:
        """A value with its name and unit."""
        return f"{self.name} {self.number(value)} {self.unit}"


SCORES = {"accuracy": Score("accuracy", "%", 100, 1, True), "nll": Score("NLL", "nats", 1, 2, False)}


def mean_score(event: Mapping[str, Any]) -> Optional[tuple[str, float]]:
    """What an event scores ("accuracy" or "nll"), and the mean over all clients and tasks so far; None without data.

    >>> mean_score({"accuracy": [[0.5, None], [1.0]]})
    ('accuracy', 0.75)
    """
    for name in SCORES:
        rows = event.get(name) or []
        known = [
            one for row in (rows.values() if isinstance(rows, Mapping) else rows) for one in row if one is not None
        ]
        if known:
            return name, float(np.mean(known))
    return None


def shown_score(event: Mapping[str, Any]) -> str:
    """The mean score of an event with its name, unit and direction; empty without data.

    >>> shown_score({"accuracy": [[0.5, None], [1.0]]})
    'accuracy 75.0 % (higher is better)'
    """
    found = mean_score(event)
    return "" if found is None else f"{SCORES[found[0]].shown(found[1])} ({SCORES[found[0]].direction})"


def score_tensor(scores: ArrayLike, name: str = "scores") -> np.ndarray:
    """`scores` as float64 [C, T, T], with None as NaN.

    >>> score_tensor([[0.8, None], [0.6, 0.9]]).shape
    (1, 2, 2)

    Raises:
      InputError: another shape, ragged rows, text, or an infinite score.
    """
    try:
        tensor = np.array(scores, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name}: expected numbers [clients, tasks, tasks], NaN or None for no data; {error}"
        ) from error
    if tensor.ndim == 2:
        tensor = tensor[None]
    if tensor.ndim != 3 or tensor.shape[1] != tensor.shape[2] or not tensor.size:
        raise InputError(f"{name}: expected shape [clients, tasks, tasks], got {list(tensor.shape)}")
    if np.isinf(tensor).any():
        raise InputError(f"{name}: found an infinite value; scores must be finite, or NaN for no data")
    return tensor


def mean_of_known(values: np.ndarray) -> float:
    """Mean of the entries that are not NaN; NaN if there is none (and no warning).

    >>> mean_of_known(np.array([0.5, np.nan, 1.0]))
    0.75
    """
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def task_averaged_test_accuracy(accuracy: ArrayLike) -> float:
    """TTA: mean over C x T of the accuracy after the last task (FedSeIT, section 3 "Evaluation Metric").

    >>> task_averaged_test_accuracy([[0.9, None], [0.5, 0.7]])
    0.6
    """
    return mean_of_known(score_tensor(accuracy, "accuracy")[:, -1, :])


def average_accuracy(accuracy: ArrayLike) -> np.ndarray:
    """After each task t: mean over clients and over the tasks i <= t seen by then, float64 [T].

    >>> average_accuracy([[0.8, None], [0.6, 0.9]]).tolist()
    [0.8, 0.75]
    """
    return _mean_so_far(score_tensor(accuracy, "accuracy"))


def average_nll(nll: ArrayLike) -> np.ndarray:
    """N_t after each task t: mean over clients and over the tasks i <= t seen by then, float64 [T].

    >>> average_nll([[80.0, None], [84.0, 90.0]]).tolist()
    [80.0, 87.0]
    """
    return _mean_so_far(score_tensor(nll, "nll"))


def base_task_nll(nll: ArrayLike) -> np.ndarray:
    """B_t = n[t, 0] after each task t: the first task's, mean over clients, float64 [T]; its rise is forgetting.

    >>> base_task_nll([[80.0, None], [84.0, 90.0]]).tolist()
    [80.0, 84.0]
    """
    return np.array([mean_of_known(after[:, 0]) for after in score_tensor(nll, "nll").swapaxes(0, 1)])


def new_task_nll(nll: ArrayLike) -> np.ndarray:
    """n[t, t] after each task t: the newest task's, mean over clients, float64 [T].

    >>> new_task_nll([[80.0, None], [84.0, 90.0]]).tolist()
    [80.0, 90.0]
    """
    tensor = score_tensor(nll, "nll")
    return np.array([mean_of_known(tensor[:, t, t]) for t in range(tensor.shape[1])])


def accuracy_by_task(scores: ArrayLike) -> np.ndarray:
    """Mean over the clients that have data: float64 [T, T], entry [t, i] for task i after task t.

    Where clients come and go, tasks differ in how many clients have them; this counts tasks alike, as figures 5, 7
    and 8 of Park, Kumatani, Dimitriadis: Tackling Dynamics in Federated Incremental Learning with Variational Embedding
    Rehearsal, 2021 (FIL-VER). It serves losses as well.

    >>> accuracy_by_task([[[0.8, None], [0.6, 0.4]], [[None, None], [None, 0.8]]]).round(2).tolist()
    [[0.8, nan], [0.6, 0.6]]
    """
    tensor = score_tensor(scores)
    num_tasks = tensor.shape[1]
    return np.array([[mean_of_known(tensor[:, t, i]) for i in range(num_tasks)] for t in range(num_tasks)])


def _mean_so_far(tensor: np.ndarray) -> np.ndarray:
    """After each task t: mean of [C, T, T] over clients and tasks i <= t, float64 [T]."""
    return np.array([mean_of_known(tensor[:, t, : t + 1]) for t in range(tensor.shape[1])])


def forgetting(scores: ArrayLike, *, higher_is_better: bool = True) -> float:
    """How much of the best earlier score is lost at the end: mean over clients and tasks i < T-1.

    For accuracy, the forgetting measure of Chaudhry, Dokania, Ajanthan, Torr: Riemannian Walk for Incremental
    Learning, ECCV 2018: max_{i <= t < T-1} a[t, i] - a[T-1, i]. It is below 0 where later tasks helped. For
    losses (`higher_is_better=False`, e.g. NLL in nats) the rise over the best earlier loss, and never below
    0: max(0, n[T-1, i] - min_{i <= t < T-1} n[t, i]). That is ConFedMADE's average forgetting (appendix B.3) with the
    sign turned: as printed, max(0, n[t, i] - n[T-1, i]), it would count what a loss has *fallen* by.

    >>> round(forgetting([[0.8, None], [0.6, 0.9]]), 2)
    0.2

    Returns:
      The mean, in the unit of `scores`; NaN with one task, where nothing can be forgotten yet.
    """
    tensor = score_tensor(scores)
    num_tasks = tensor.shape[1]
    learned = np.tril(np.ones((num_tasks, num_tasks), bool))  # i <= t
    earlier = np.where(learned, tensor, np.nan)[:, :-1, :-1]
    if not earlier.size:
        return float("nan")
    # Worst possible stand-ins for "no data" lose every comparison, and give no difference at all where alone.
    worst = -np.inf if higher_is_better else np.inf
    filled = np.where(np.isnan(earlier), worst, earlier)
    best = filled.max(axis=1) if higher_is_better else filled.min(axis=1)
    best = np.where(np.isinf(best), np.nan, best)
    last = tensor[:, -1, :-1]
    return mean_of_known(best - last if higher_is_better else np.maximum(last - best, 0))


def backward_transfer(scores: ArrayLike, *, higher_is_better: bool = True) -> float:
    """What later tasks did to a task: mean over clients and i < T-1 of a[T-1, i] - a[i, i].

    Lopez-Paz, Ranzato: Gradient Episodic Memory for Continual Learning, NeurIPS 2017, section 2 (BWT). Above
    0 is good; for losses the sign is turned so that it still is.

    >>> round(backward_transfer([[0.8, None], [0.6, 0.9]]), 2)
    -0.2

    Returns:
      The mean, in the unit of `scores`; NaN with one task.
    """
    tensor = score_tensor(scores)
    when_learned = np.diagonal(tensor, axis1=1, axis2=2)[:, :-1]
    change = mean_of_known(tensor[:, -1, :-1] - when_learned)
    return change if higher_is_better else -change


def learning_accuracy(scores: ArrayLike, first: int = 0) -> float:
    """What a task is worth the moment it has been learned: mean over clients and i >= first of a[i, i].

    Riemer et al.: Learning to Learn without Forgetting by Maximizing Transfer and Minimizing Interference, ICLR 2019
    (LA). With `first=1` its difference from a learner that starts each task by itself is what earlier tasks give.

    >>> learning_accuracy([[0.5, None], [0.4, 0.7]], first=1)
    0.7
    """
    return mean_of_known(np.diagonal(score_tensor(scores), axis1=1, axis2=2)[:, first:])


def forward_transfer(scores: ArrayLike, baseline: ArrayLike | None, *, higher_is_better: bool = True) -> float:
    """What earlier tasks do for a task not yet learned: mean over clients and i > 0 of a[i-1, i] - b[i].

    Lopez-Paz, Ranzato 2017, section 2 (FWT). It needs scores on the *next* task, the entries a[i-1, i] right
    above the diagonal, and what the untrained model scores.

    >>> round(forward_transfer([[0.8, 0.5], [0.6, 0.9]], baseline=[0.5, 0.4]), 2)
    0.1

    Args:
      scores: [C, T, T].
      baseline: [C, T] (or [T] for one client), `baseline[c][i]` = score on task i before any training.
      higher_is_better: False for losses; the result is above 0 where earlier tasks helped, either way.

    Returns:
      The mean, in the unit of `scores`; NaN with one task.

    Raises:
      InputError: no baseline, one of another shape, or no score on any task before it was learned.
    """
    tensor = score_tensor(scores)
    num_clients, num_tasks = tensor.shape[:2]
    if baseline is None:
        raise InputError(
            f"forward transfer needs a baseline [{num_clients}, {num_tasks}]: the score on every task before "
            "any training; evaluate the initial model first"
        )
    try:
        before = np.atleast_2d(np.array(baseline, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise InputError(f"baseline: expected numbers [{num_clients}, {num_tasks}]; {error}") from error
    if before.shape != (num_clients, num_tasks):
        raise InputError(f"baseline: expected shape [{num_clients}, {num_tasks}], got {list(before.shape)}")
    next_task = np.diagonal(tensor, offset=1, axis1=1, axis2=2)
    if num_tasks > 1 and np.isnan(next_task).all():
        raise InputError(
            "forward transfer needs scores[c][i-1][i], on a task before it was learned; all of them are NaN"
        )
    change = mean_of_known(next_task - before[:, 1:])
    return change if higher_is_better else -change


def incremental_figures(accuracy: ArrayLike, test_examples: ArrayLike, train_examples: ArrayLike) -> dict[str, Any]:
    """Figures of one growing head, whose model is the same for all clients, or of every client's own models.

    Args:
      accuracy: float [T, T], entry [t, i] of the test set of task i after task t; or [1, T] of a model that has learned
        all tasks at once; or [C, T, T] of every client's own models, NaN where it has no test set.
      test_examples: int [T], n_i.
      train_examples: int [C, T], m_ci.

    Returns:
      `seen_accuracy`: A_t after each task, the share of all test examples of the tasks so far that are right:
      sum_{i <= t} n_i a[t, i] / sum_{i <= t} n_i (Rebuffi et al.: iCaRL, 2017); only the last for a [1, T].
      `average_incremental_accuracy`: the mean of A_t (the same paper); `last_accuracy`: A_T.
      `forgetting`: see `forgetting`, tasks counted alike. `plasticity`: the mean of a[i, i]. Both NaN for a [1, T], as
      is the mean of A_t. `worst_client_accuracy`: the least, over clients, of sum_i m_ci a[T, i] / sum_i m_ci: accuracy
      at the end on the tasks as a client had them. Of clients' own models A_t and plasticity are those of the mean over
      clients, forgetting is the mean of theirs, and the worst client is scored by its own.

    >>> figures = incremental_figures([[0.9, None], [0.3, 0.8]], [100, 300], [[10, 0], [5, 5]])
    >>> [round(each, 3) for each in figures["seen_accuracy"]], round(figures["average_incremental_accuracy"], 4)
    ([0.9, 0.675], 0.7875)
    >>> {name: round(figures[name], 2) for name in ("forgetting", "plasticity", "worst_client_accuracy")}
    {'forgetting': 0.6, 'plasticity': 0.85, 'worst_client_accuracy': 0.3}
    """
    each = np.array(accuracy, np.float64)
    each = each if each.ndim == 3 else each[None]
    mean = each[0] if len(each) == 1 else accuracy_by_task(each)
    counts, owned = np.asarray(test_examples, np.float64), np.asarray(train_examples, np.float64)
    rows, num_tasks = mean.shape
    ends = range(num_tasks - rows + 1, num_tasks + 1)  # tasks seen after each row
    seen = [float(row[:end] @ counts[:end] / counts[:end].sum()) for row, end in zip(mean, ends)]
    last, held = np.nan_to_num(each[:, -1]), np.where(np.isnan(each[:, -1]), 0, owned)
    having = held.sum(axis=1) > 0
    own = (held * last)[having].sum(axis=1) / held[having].sum(axis=1)
    whole = rows == num_tasks
    return {
        "seen_accuracy": seen,
        "average_incremental_accuracy": float(np.mean(seen)) if whole else float("nan"),
        "last_accuracy": seen[-1],
        "forgetting": forgetting(each) if whole else float("nan"),
        "plasticity": float(np.mean(np.diagonal(mean))) if whole else float("nan"),
        "worst_client_accuracy": float(own.min()),
    }


def reached(by_round: Mapping[str, Sequence[float]], target: float) -> Optional[dict[str, float]]:
    """The first evaluated round after which accuracy is at least `target`; None where it never is.

    >>> by_round = {"rounds": [2, 4], "accuracy": [0.3, 0.5], "bytes_up": [100, 200], "bytes_down": [90, 180]}
    >>> reached(by_round, 0.4)["bytes_up"], reached(by_round, 0.6)
    (200, None)

    Args:
      by_round: `by_round` of the `incremental` of results.json: `rounds`, `accuracy` 0 .. 1, `bytes_up`, `bytes_down`.
      target: accuracy on the test examples of all classes of the stream, 0 .. 1.
    """
    place = next((place for place, value in enumerate(by_round["accuracy"]) if value >= target), None)
    return None if place is None else {name: values[place] for name, values in by_round.items()}


def memory_figures(state_bytes: ArrayLike, examples: ArrayLike, example_bytes: float) -> dict[str, float]:
    """What clients hold between tasks, in bytes, and as how many raw examples would take as much.

    >>> memory_figures([1000, 3000], [10, 0], 100.0)
    {'client_bytes': 2500.0, 'client_examples': 5.0, 'example_bytes': 100.0, 'as_examples': 25.0}

    Args:
      state_bytes: int [C], of each client's state.
      examples: int [C], raw examples that each client remembers.
      example_bytes: of a raw example with its label, the mean.

    Returns:
      Means over clients: `client_bytes`, states and remembered examples; `client_examples`; `as_examples`,
      client_bytes / example_bytes.
    """
    states, remembered = np.asarray(state_bytes, np.float64), np.asarray(examples, np.float64)
    held = float((states + remembered * example_bytes).mean())
    return {
        "client_bytes": held,
        "client_examples": float(remembered.mean()),
        "example_bytes": float(example_bytes),
        "as_examples": held / example_bytes,
    }


def dense_bytes(num_values: int) -> int:
    """Bytes of `num_values` float32 values sent one after the other.

    >>> dense_bytes(1000)
    4000

    Raises:
      InputError: not a whole number, 0 or more.
    """
    return BYTES_PER_VALUE * check_whole("num_values", num_values, 0)


def sparse_bytes(num_nonzero: int, size: int) -> int:
    """Bytes of a float32 array of `size` entries of which only `num_nonzero` are sent.

    The values, and their positions: a bitmap of one bit per entry, or a 4-byte index per value, whichever is smaller.
    Nothing to send costs nothing.

    >>> sparse_bytes(10, 10_000), sparse_bytes(5_000, 10_000)
    (80, 21250)

    Raises:
      InputError: not whole numbers, 0 or more, or more non-zero entries than entries.
    """
    num_nonzero, size = check_whole("num_nonzero", num_nonzero, 0), check_whole("size", size, 0)
    if num_nonzero > size:
        raise InputError(f"num_nonzero={num_nonzero} is more than size={size}; it must be at most the size")
    bitmap = (size + 7) // 8
    return BYTES_PER_VALUE * num_nonzero + min(bitmap, BYTES_PER_INDEX * num_nonzero)
