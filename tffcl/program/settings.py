"""The settings of a run, checked."""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any, Optional

from tffcl.errors import InputError

EVALUATE_EVERY = ("round", "task")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What decides the course of a run besides the process, the data and the transfer.

    Attributes:
      num_rounds: rounds for each task.
      seed: root of all randomness of clients, sampling and transfer.
      clients_per_round: how many clients take part in a round; None for all of them.
      evaluate_every: "round", or "task" for only the end of each task.
    """

    num_rounds: int
    seed: int
    clients_per_round: Optional[int] = None
    evaluate_every: str = "round"

    def __post_init__(self) -> None:
        _check_whole("num_rounds", self.num_rounds, 1)
        _check_whole("seed", self.seed, 0)
        if self.clients_per_round is not None:
            _check_whole("clients_per_round", self.clients_per_round, 1)
        if self.evaluate_every not in EVALUATE_EVERY:
            raise InputError(f"evaluate_every must be one of {EVALUATE_EVERY}; got {self.evaluate_every!r}")


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < least:
        raise InputError(f"{name} must be a whole number, {least} or more; got {value!r}")
