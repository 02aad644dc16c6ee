"""Bytes that each client sends and receives, from what stands in a run's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tffcl import metrics
from tffcl.program.state import RunState
from tffcl.templates import admission
from tffcl.transfers.knowledge_base import Summary

Bytes = tuple[int, int]  # sparse-coded, dense


def coded_and_dense(nonzeros: int, size: int) -> Bytes:
    """Bytes of an array of which `nonzeros` of `size` values are sent: as cheap as can be, and dense.

    >>> coded_and_dense(10, 10_000), coded_and_dense(8, 8)
    ((80, 40000), (32, 32))
    """
    dense = metrics.dense_bytes(int(size))
    return min(dense, metrics.sparse_bytes(min(int(nonzeros), int(size)), int(size))), dense


def round_up(
    state: RunState,
    participants: Sequence[int],
    reported: Mapping[int, Mapping[str, Any]],
    summaries: Mapping[int, Optional[Summary]],
) -> dict[int, Bytes]:
    """What participants send in a round: the entries of the shared value that their work says it sent.

    To these come the bytes of whatever else it says it sent, in the metric `extra_bytes` (embeddings, for example).
    In a task's first round also what every client enrolled in it (the keys of `summaries`) had told of the task before.
    """
    size = int(np.size(state.server["shared"]))
    sent: dict[int, Bytes] = dict.fromkeys(participants, (0, 0))
    for client, one in reported.items():
        if admission.refusal(one):  # of what was not taken nothing is known
            continue
        coded, dense = coded_and_dense(one.get("sent", size), size)
        extra = int(one.get("extra_bytes", 0))
        sent[client] = (coded + extra, dense + extra)
    if state.round == 0:
        for client, summary in summaries.items():
            told = sum(np.asarray(array).nbytes for array in (summary or {}).values())
            coded, dense = sent.get(client, (0, 0))
            sent[client] = (coded + told, dense + told)
    return sent


def round_down(
    state: RunState, participants: Sequence[int], active: Sequence[int], newcomers: Sequence[int]
) -> dict[int, Bytes]:
    """What is received for a round that is about to start: the shared value, where it is news.

    A task's start sends it to every client that is active in it, together with the client's entries of the knowledge
    base; to newcomers, whose first task it is, it always is news.
    """
    shared = np.asarray(state.server["shared"])
    whole = coded_and_dense(np.count_nonzero(shared), shared.size)
    news = whole if state.fresh else (0, 0)
    if state.round > 0:
        return dict.fromkeys(participants, news)
    sent = {}
    for client in active:
        entries = state.selections[state.task][client]
        costs = [
            whole if client in newcomers else news,
            *(coded_and_dense(state.base.nonzeros(one), state.base.knowledge_size) for one in entries),
        ]
        sent[client] = (sum(coded for coded, _ in costs), sum(dense for _, dense in costs))
    return sent
