"""What a run's noise guarantees, as its results record it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

from tffcl import metrics
from tffcl.aggregators import ClientPrivacy
from tffcl.program.history import Event
from tffcl.program.results import Results
from tffcl.streams import Enrollment
from tffcl.templates import ContinualProcess
from tffcl.transfers import Transfer


def with_accounts(
    results: Results,
    privacy: Optional[ClientPrivacy],
    events: Sequence[Event],
    enrollment: Enrollment,
    process: ContinualProcess,
    transfer: Transfer,
) -> Results:
    """The results with the accounts of whatever was noised: updates of the base, summaries of tasks.

    Args:
      results: of the whole run.
      privacy: the aggregator's clipping and noise; None without any.
      events: the history.
      enrollment: of whom participants were drawn, task by task.
      process: of the run.
      transfer: of the run.
    """
    accounts = {}
    told = transfer.account()
    if told is not None:
        accounts["summaries"] = told
    if privacy is not None:
        uncovered = [*_sent_otherwise(process, transfer, events), *privacy.uncovered]
        accounts["base_updates"] = {**_of_updates(privacy, events, enrollment), "uncovered": uncovered}
    return dataclasses.replace(results, privacy=accounts)


def _of_updates(privacy: ClientPrivacy, events: Sequence[Event], enrollment: Enrollment) -> dict[str, Any]:
    rounds = [
        (event["participants"], enrollment.active(event["task"])) for event in events if event["event"] == "round"
    ]
    epsilon = metrics.client_epsilon(privacy.noise_multiplier, rounds, privacy.delta)
    drawn = any(len(took_part) < len(candidates) for took_part, candidates in rounds)
    return {
        "epsilon": epsilon.known,
        "epsilon_participants_hidden": epsilon.hidden if drawn else None,
        "delta": privacy.delta,
        "neighbouring": "all that one client has is replaced",
        "sampling": "a fixed number of clients, without replacement" if drawn else "all clients in every round",
        "rounds": sum(bool(took_part) for took_part, _ in rounds),
        "noise_multiplier": privacy.noise_multiplier,
        "clip": privacy.clip,
        "quantile": privacy.quantile,
    }


def _sent_otherwise(process: ContinualProcess, transfer: Transfer, events: Sequence[Event]) -> list[str]:
    """What clients send beside the updates of the base, as far as the program sees it."""
    found = {
        "adaptives in the knowledge base": process.num_foreign > 0,
        "summaries of tasks": transfer.needs_summaries,
        "examples for rehearsal": any("extra_bytes" in event for event in events),
    }
    return [name for name, sent in found.items() if sent] + ["metrics and counts of examples"]
