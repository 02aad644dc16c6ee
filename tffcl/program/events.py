"""The events of a run as `history.jsonl` holds them: a line per round, and a line per task.

A value per client stands under the client's number, as text: JSON has no other keys. null means "no data".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tffcl.program import server_metrics
from tffcl.program.clocks import Spent
from tffcl.templates import admission
from tffcl.transfers import KnowledgeBase

# Why a client is left out, beside what the server refuses.
NOT_FINITE, LOST = "its training was not finite", "its worker got lost"

Scores = Mapping[str, Sequence[Sequence[Optional[float]]]]  # by name: for every client its scores


def round_event(
    task: int,
    round_num: int,
    participants: Sequence[int],
    client_metrics: Mapping[int, Mapping[str, Any]],
    measured: Any,
    scores: Optional[Scores],
) -> dict[str, Any]:
    """What a round said, without its bytes and times.

    `left_out` has the participants that the round did not count, and `left_out_reasons` why: the server refused what
    they sent (`tffcl.templates.admission`), their own training was not finite, or they are among `not_reported`,
    since their worker got lost.

    Args:
      task: number of the task, from 0.
      round_num: number of the round within the task, from 0.
      participants: the clients that took part.
      client_metrics: what `next` reported for each of them, or for those whose worker did not get lost; unknown
        metrics pass through by their own names, but those of a client whose message was refused.
      measured: what the parts at the server measured, which `next` gives last.
      scores: by name, for every client its scores on tasks 0..task; None in a round without evaluation.
    """
    event: dict[str, Any] = {"event": "round", "task": task, "round": round_num, "participants": list(participants)}
    for client, reported in client_metrics.items():
        taken = {} if admission.refusal(reported) else reported
        for name, value in taken.items():
            if name != "refused":
                event.setdefault(name, {})[str(client)] = np.asarray(value).tolist()
    silent = [client for client in participants if client not in client_metrics]
    reasons = {client: _why_left_out(one) for client, one in client_metrics.items()}
    add_left_out(event, {**reasons, **dict.fromkeys(silent, LOST)})
    if silent:
        event["not_reported"] = silent
    event.update({name: per_client(rows) for name, rows in (scores or {}).items()})
    event[server_metrics.NAME] = server_metrics.by_path(measured)
    return event


def _why_left_out(reported: Mapping[str, Any]) -> str:
    spoiled = NOT_FINITE if np.any(reported.get("non_finite", 0)) else ""
    return admission.refusal(reported) or spoiled


def add_left_out(event: dict[str, Any], reasons: Mapping[int, str]) -> None:
    """Puts the clients that have a reason under `left_out`, and the reasons by client under `left_out_reasons`."""
    left_out = {client: reasons[client] for client in sorted(reasons) if reasons[client]}
    event["left_out"] = list(left_out)
    if left_out:
        event["left_out_reasons"] = {str(client): reason for client, reason in left_out.items()}


def task_event(task: int, scores: Scores, selection: Sequence[Sequence[int]], base: KnowledgeBase) -> dict[str, Any]:
    """What stands at the end of a task, without its bytes and times.

    Args:
      task: number of the task, from 0.
      scores: by name, for every client its scores on tasks 0..task.
      selection: for every client the ids of the entries that it had received for this task.
      base: the knowledge base that they refer to.
    """
    chosen = [[list(base.entries[entry]) for entry in entries] for entries in selection]
    return {
        "event": "task_end",
        "task": task,
        **{name: [list(row) for row in rows] for name, rows in scores.items()},
        "selection": per_client(chosen),
    }


def add_attention(event: dict[str, Any], selection: Sequence[Sequence[int]], attention: Sequence[Any]) -> None:
    """Puts each client's attention over the entries that it had received, rows [entries, ...], under `attention`.

    Args:
      event: the end of a task.
      selection: as for `task_event`.
      attention: for every client its array of at least so many rows; None where the method has none, or where the
        client was not enrolled.
    """
    known = [client for client, one in enumerate(attention) if one is not None]
    if any(map(len, selection)) and known:
        event["attention"] = {
            str(client): np.asarray(attention[client])[: len(selection[client])].tolist() for client in known
        }


def add_silent(event: dict[str, Any], clients: Sequence[int]) -> None:
    """Puts the clients that had nothing for the knowledge base, though active in the task, under `nothing_learned`."""
    if clients:
        event["nothing_learned"] = list(clients)


def add_bytes(event: dict[str, Any], direction: str, sent: Mapping[int, tuple[int, int]]) -> None:
    """Puts (sparse-coded, dense) bytes of each client under `bytes_up` or `bytes_down`, and `..._dense`."""
    event[f"bytes_{direction}"] = {str(client): coded for client, (coded, _) in sent.items()}
    event[f"bytes_{direction}_dense"] = {str(client): dense for client, (_, dense) in sent.items()}


def add_seconds(event: dict[str, Any], whole: Spent, training: Optional[Spent] = None) -> None:
    """Puts wall seconds of the event, and wall and CPU seconds of its training, under names of their own."""
    event["seconds"] = whole.wall
    if training is not None:
        event["training_seconds"] = {"wall": training.wall, "cpu": training.cpu}


def per_client(values: Sequence[Any]) -> dict[str, Any]:
    """Values in the order of clients, by client number."""
    return {str(client): value for client, value in enumerate(values)}
