"""The events of a run as `history.jsonl` holds them, a line per round and a line per task, and what a round costs.

A value per client stands under the client's number, as text: JSON has no other keys. null means "no data". Bytes follow
from what stands in the run's state; times are of this process together with the workers that it started. Events are
read without TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
import psutil

from tffcl import metrics
from tffcl.program.results import NO_NUMBERS

if TYPE_CHECKING:
    from tffcl.program.state import RunState
    from tffcl.transfers import KnowledgeBase
    from tffcl.transfers.knowledge_base import Summary

# Why a client is left out, beside what the server refuses.
NOT_FINITE, LOST = "its training was not finite", "its worker got lost"

Event = dict[str, Any]
Bytes = tuple[int, int]  # sparse-coded, dense
Scores = Mapping[str, Sequence[Sequence[Optional[float]]]]  # by name: for every client its scores


def round_event(
    task: int,
    round_num: int,
    participants: Sequence[int],
    client_metrics: Mapping[int, Mapping[str, Any]],
    measured: Any,
    scores: Optional[Scores],
) -> Event:
    """What a round said, without its bytes and times.

    `left_out` has the participants that the round did not count, and `left_out_reasons` why: the server refused what
    they sent (`tffcl.templates.messages`), their own training was not finite, or they are among `not_reported`,
    since their worker got lost. Unknown metrics pass through by their own names.

    `client_metrics` are what `next` reported for each participant whose worker did not get lost, `measured` what the
    parts at the server measured; there are no scores in a round without evaluation.
    """
    from tffcl.templates import messages

    event: Event = {"event": "round", "task": task, "round": round_num, "participants": list(participants)}
    reasons = {}
    for client, reported in client_metrics.items():
        reasons[client] = messages.refusal(reported)
        if reasons[client]:
            continue
        for name, value in reported.items():
            if name != "refused":
                event.setdefault(name, {})[str(client)] = np.asarray(value).tolist()
        if np.any(reported.get("non_finite", 0)):
            reasons[client] = NOT_FINITE
    silent = [client for client in participants if client not in client_metrics]
    add_left_out(event, {**reasons, **dict.fromkeys(silent, LOST)})
    if silent:
        event["not_reported"] = silent
    event.update({name: per_client(rows) for name, rows in (scores or {}).items()})
    event["server_metrics"] = by_path(measured)
    return event


def by_path(measured: Any) -> dict[str, Any]:
    """The values of nested measurements (mappings, sequences, `tff.structure.Struct`s) by their paths.

    >>> by_path({"aggregator": (), "finalizer": {"update": {"rejected": np.int32(0)}}})
    {'finalizer/update/rejected': 0}
    """
    from tffcl.templates import messages

    return {place: np.asarray(value).tolist() for place, value in messages.leaves(measured)}


def add_left_out(event: Event, reasons: Mapping[int, str]) -> None:
    """Puts the clients that have a reason under `left_out`, and the reasons by client under `left_out_reasons`."""
    left_out = {client: reasons[client] for client in sorted(reasons) if reasons[client]}
    event["left_out"] = list(left_out)
    if left_out:
        event["left_out_reasons"] = {str(client): reason for client, reason in left_out.items()}


def task_event(
    task: int, scores: Scores, selection: Sequence[Sequence[int]], base: KnowledgeBase, measured: Any = None
) -> Event:
    """What stands at the end of a task, without its bytes and times.

    `scores` as for `round_event`; `selection` has for every client the ids of the entries of `base` that it received;
    `measured` is what the server measured as it consolidated, None where it did not.
    """
    chosen = [[list(base.entries[entry]) for entry in entries] for entries in selection]
    named = {name: [list(row) for row in rows] for name, rows in scores.items()}
    own = {} if measured is None else {"server_metrics": by_path({"consolidate": measured})}
    return {"event": "task_end", "task": task, **named, "selection": per_client(chosen), **own}


def add_attention(event: Event, selection: Sequence[Sequence[int]], attention: Sequence[Any]) -> None:
    """Puts each client's attention over the entries that it had received, rows [entries, ...], under `attention`.

    `attention` has for every client its array of at least so many rows; None where the method has none, or where the
    client was not enrolled.
    """
    known = {client: one for client, one in enumerate(attention) if one is not None}
    if any(map(len, selection)) and known:
        event["attention"] = {
            str(client): np.asarray(one)[: len(selection[client])].tolist() for client, one in known.items()
        }


def add_bytes(event: Event, direction: str, sent: Mapping[int, Bytes]) -> None:
    """Puts (sparse-coded, dense) bytes of each client under `bytes_up` or `bytes_down`, and `..._dense`."""
    event[f"bytes_{direction}"] = {str(client): coded for client, (coded, _) in sent.items()}
    event[f"bytes_{direction}_dense"] = {str(client): dense for client, (_, dense) in sent.items()}


def per_client(values: Sequence[Any]) -> dict[str, Any]:
    """Values in the order of clients, by client number."""
    return {str(client): value for client, value in enumerate(values)}


def coded_and_dense(nonzeros: int, size: int) -> Bytes:
    """Bytes of an array of which `nonzeros` of `size` values are sent: as cheap as can be, and dense.

    >>> coded_and_dense(10, 10_000), coded_and_dense(8, 8)
    ((80, 40000), (32, 32))
    """
    dense = metrics.dense_bytes(int(size))
    return min(dense, metrics.sparse_bytes(min(int(nonzeros), int(size)), int(size))), dense


def bytes_up(
    state: RunState,
    participants: Sequence[int],
    reported: Mapping[int, Mapping[str, Any]],
    summaries: Mapping[int, Optional[Summary]],
) -> dict[int, Bytes]:
    """What participants send in a round: the entries of the shared value that their work says it sent.

    To these come the bytes of whatever else it says it sent, in the metric `extra_bytes` (embeddings, for example); in
    a task's first round also what every client enrolled in it (the keys of `summaries`) had told of the task before.
    """
    from tffcl.templates import messages

    size = int(np.size(state.server["shared"]))
    sent: dict[int, Bytes] = dict.fromkeys(participants, (0, 0))
    for client, metrics_of_client in reported.items():
        if not messages.refusal(metrics_of_client):  # of what was refused nothing is known
            coded, dense = coded_and_dense(metrics_of_client.get("sent", size), size)
            extra = int(metrics_of_client.get("extra_bytes", 0))
            sent[client] = (coded + extra, dense + extra)
    if state.round == 0:
        for client, summary in summaries.items():
            summarised = sum(np.asarray(array).nbytes for array in (summary or {}).values())
            coded, dense = sent.get(client, (0, 0))
            sent[client] = (coded + summarised, dense + summarised)
    return sent


def bytes_down(
    state: RunState,
    participants: Sequence[int],
    active: Sequence[int],
    newcomers: Sequence[int],
    handed: Sequence[str] = (),
) -> dict[int, Bytes]:
    """What is received for a round that is about to start: the shared value, if it changed since it was last sent.

    A task's start sends it to every client that is active in it, together with the client's entries of the knowledge
    base and those of the finalizer's state that are `handed` to all; newcomers, whose first task it is, have never
    received it.
    """
    shared = np.asarray(state.server["shared"])
    whole = coded_and_dense(np.count_nonzero(shared), shared.size)
    changed = whole if state.fresh else (0, 0)
    if state.round > 0:
        return dict.fromkeys(participants, changed)
    sent = {}
    to_all = [np.asarray(state.server["finalizer"][name]) for name in handed]
    for client in active:
        costs = [
            whole if client in newcomers else changed,
            *(coded_and_dense(np.count_nonzero(values), values.size) for values in to_all),
            *(
                coded_and_dense(state.base.nonzeros(entry), state.base.knowledge_size)
                for entry in state.selections[state.task][client]
            ),
        ]
        sent[client] = (sum(coded for coded, _ in costs), sum(dense for _, dense in costs))
    return sent


def numbers(event: Event) -> Iterator[tuple[Union[int, str], Union[int, str], str, float]]:
    """Every number in an event: client, the task that it is a score on, its name, and the number.

    Client and task are "" where a number is of none. Of what the server measured only the scalars.

    >>> list(numbers({"event": "round", "task": 1, "round": 0, "loss": {"2": 0.5}, "accuracy": {"0": [0.25, None]}}))
    [(2, '', 'loss', 0.5), (0, 0, 'accuracy', 0.25)]
    """
    for name, value in event.items():
        if name in NO_NUMBERS:
            continue
        if isinstance(value, list):
            value = dict(enumerate(value))
        entries: Mapping[Any, Any] = value if isinstance(value, Mapping) else {"": value}
        for key, entry in entries.items():
            of_client = str(key).isdecimal()
            client: Union[int, str] = int(key) if of_client else ""
            metric = name if of_client else f"{name}/{key}".rstrip("/")
            several: dict[Any, Any] = dict(enumerate(entry)) if isinstance(entry, list) and of_client else {"": entry}
            for task, number in several.items():
                if isinstance(number, (int, float)):
                    yield client, task, metric, float(number)


def round_number(event: Event, num_rounds: int) -> int:
    """The number of a round over all tasks, from 1; the end of a task belongs to its last round."""
    return int(event["task"] * num_rounds + event.get("round", num_rounds - 1) + 1)


def accuracy_by_round(
    events: Sequence[Event], test_examples: Sequence[int], num_rounds: int, pooled: bool = False
) -> dict[str, list[Any]]:
    """Accuracy of one growing head against what was sent, after each round and task that was evaluated.

    >>> events = [{"event": "round", "task": 0, "round": 0, "bytes_up": {"0": 8}},
    ...           {"event": "task_end", "task": 0, "accuracy": [[0.75], []]}]
    >>> accuracy_by_round(events, [20, 10], num_rounds=3)
    {'rounds': [1], 'accuracy': [0.5], 'bytes_up': [8], 'bytes_down': [0]}

    Args:
      events: of the run.
      test_examples: n_i of each task of the stream.
      num_rounds: of a task.
      pooled: whether all tasks were learned, and are scored, as one.

    Returns:
      `rounds` so far in which anything was sent up, of all tasks; `accuracy`, the share of the test examples of *all*
      classes of the stream that are right, and those of classes that nobody has seen yet are not; `bytes_up`,
      `bytes_down`, of all clients so far.
    """
    counts = np.array([np.sum(test_examples)] if pooled else test_examples, np.float64)
    found: dict[int, dict[str, Any]] = {}
    sent = {"rounds": 0, "bytes_up": 0, "bytes_down": 0}
    for event in events:
        for name in ("bytes_up", "bytes_down"):
            sent[name] += sum(event.get(name, {}).values())
        sent["rounds"] += event["event"] == "round" and any(event.get("bytes_up", {}).values())
        rows = event.get("accuracy") or []
        right = np.full([len(rows), len(counts)], np.nan)
        for place, row in enumerate(rows.values() if isinstance(rows, Mapping) else rows):
            right[place, : len(row)] = [np.nan if one is None else one for one in row]
        if not np.isnan(right).all():  # all clients have one model: of each task, the mean over those with its test set
            by_task = np.array([metrics.mean_of_known(of_task) for of_task in right.T])
            number = round_number(event, num_rounds)
            found[number] = {**sent, "accuracy": float(np.nansum(by_task * counts) / counts.sum())}
    return {name: [each[name] for each in found.values()] for name in ("rounds", "accuracy", "bytes_up", "bytes_down")}


def tidy_rows(event: Event, num_rounds: int) -> Iterator[tuple[Any, ...]]:
    """The numbers of an event as rows of `TIDY` without method and seed.

    Client and task count from 0, rounds over all tasks from 1. The task is the one that a score is on, else the one
    that was being learned. What was measured when a task had ended has the name of its round's, with "end/" before it.
    """
    number = round_number(event, num_rounds)
    end = "" if event["event"] == "round" else "end/"
    for client, task, metric, value in numbers(event):
        yield client, event["task"] if task == "" else task, number, f"{end}{metric}", value


class Headline:
    """The few numbers that say how a run goes, from its events in order.

    `accuracy/mean` (%, over clients and tasks so far) or `nll/mean` (nats); `.../average_so_far`, the mean of those at
    the ends of tasks; `.../forgetting` in the same unit; `.../task_1` and so on, a task's mean over clients;
    `bytes/up_MB` and `bytes/down_MB`, all clients together, from the first round on; `loss/mean` and
    `validation_loss/mean` over clients; `seconds` from the first round on.
    """

    def __init__(self, num_tasks: int, num_rounds: int):
        self._num_tasks, self._num_rounds = num_tasks, num_rounds
        self._sums = {"bytes/up_MB": 0.0, "bytes/down_MB": 0.0, "seconds": 0.0}
        self._ends: list[Any] = []  # of each task, its scores
        self._means: list[float] = []

    def add(self, event: Event) -> tuple[int, dict[str, float]]:
        """The number of the event's round over all tasks, and what there is to say of it."""
        for name, scale in (("bytes_up", 1e6), ("bytes_down", 1e6)):
            self._sums[f"{name.replace('_', '/')}_MB"] += sum(event.get(name, {}).values()) / scale
        self._sums["seconds"] += event.get("seconds", 0.0)
        found: dict[str, float] = {}
        for name in ("loss", "validation_loss"):
            known = [value for value in event.get(name, {}).values() if value is not None]
            if known:
                found[f"{name}/mean"] = float(np.mean(known))
        scored = metrics.mean_score(event)
        if scored is not None:
            found.update(self._of_scores(event, *scored))
        return round_number(event, self._num_rounds), {**found, **self._sums}

    def _of_scores(self, event: Event, name: str, mean: float) -> dict[str, float]:
        score, rows = metrics.SCORES[name], event[name]
        found = {f"{name}/mean": score.scale * mean}
        rows = list(rows.values()) if isinstance(rows, Mapping) else rows
        by_task = np.full([len(rows), self._num_tasks], np.nan)
        for client, row in enumerate(rows):
            by_task[client, : len(row)] = [np.nan if one is None else one for one in row]
        for task in range(event["task"] + 1):
            value = metrics.mean_of_known(by_task[:, task])
            if not math.isnan(value):
                found[f"{name}/task_{task + 1}"] = score.scale * value
        if event["event"] == "task_end":
            self._ends.append(by_task)
            self._means.append(score.scale * mean)
            found[f"{name}/average_so_far"] = float(np.mean(self._means))
            learned, seen = len(self._ends), event["task"] + 1
            if 1 < learned == seen:
                tensor = np.stack(self._ends, axis=1)[:, :, :seen]
                lost = metrics.forgetting(tensor, higher_is_better=score.higher_is_better)
                if not math.isnan(lost):
                    found[f"{name}/forgetting"] = score.scale * lost
        return found


@dataclasses.dataclass(frozen=True)
class Spent:
    """Seconds spent: `wall` by the clock on the wall, `cpu` by this process and its children, all cores together."""

    wall: float
    cpu: float

    def __sub__(self, earlier: Spent) -> Spent:
        return Spent(self.wall - earlier.wall, self.cpu - earlier.cpu)


def now() -> Spent:
    """A reading, to be subtracted from a later one."""
    times = os.times()
    ended_children = times.children_user + times.children_system
    return Spent(time.perf_counter(), times.user + times.system + ended_children + _children_seconds())


_LOOK_AGAIN_SECONDS = 10.0  # going through all processes takes tens of milliseconds, longer than a small round
_children: tuple[float, list[psutil.Process]] = (float("-inf"), [])


def _children_seconds() -> float:
    """CPU seconds of the living children of this process."""
    global _children
    if time.monotonic() - _children[0] > _LOOK_AGAIN_SECONDS:
        _children = (time.monotonic(), psutil.Process().children())
    seconds = 0.0
    for child in _children[1]:
        with contextlib.suppress(psutil.Error):  # it has ended
            if child.is_running():
                seconds += child.cpu_times().user + child.cpu_times().system
    return seconds
