"""What the noise of a run guarantees, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def privacy_lines(results: Mapping[str, Any]) -> list[str]:
    """A line for each thing that was noised, with its epsilon, what that means and what it leaves out.

    >>> privacy_lines({"accuracy": []})
    []

    Args:
      results: what `load_results` gives.
    """
    accounts = results.get("privacy") or {}
    makers = {"base_updates": _of_updates, "summaries": _of_summaries}
    return [make(accounts[name]) for name, make in makers.items() if name in accounts]


def _of_updates(account: Mapping[str, Any]) -> str:
    hidden = account["epsilon_participants_hidden"]
    lower = hidden is not None and hidden < account["epsilon"]
    less = f"; {hidden:.3g} for whoever cannot know who took part" if lower else ""
    return (
        f"privacy: the updates of the base are ({account['epsilon']:.3g}, {account['delta']:g})-differentially private "
        f"for a whole client ({account['neighbouring']}) over {account['rounds']} rounds, {account['sampling']}{less}; "
        f"not covered, nor what it tells: {', '.join(account['uncovered'])}"
    )


def _of_summaries(account: Mapping[str, Any]) -> str:
    return (
        f"privacy: what a client tells of a task is ({account['epsilon']:.3g}, {account['delta']:g})-differentially "
        f"private for each of its documents ({account['neighbouring']}); its adaptives, trained on the same documents, "
        "are not"
    )
