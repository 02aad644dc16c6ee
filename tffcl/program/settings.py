"""The settings of a run; nothing here imports TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Optional

from tffcl.options import Options, option

EVALUATE_EVERY = ("round", "task")


@dataclasses.dataclass(frozen=True)
class Settings(Options):
    """What decides the course of a run besides the process, the data and the transfer.

    Attributes:
      num_rounds: rounds for each task.
      seed: root of all randomness of clients, sampling and transfer.
      clients_per_round: how many clients take part in a round; None for all of them.
      evaluate_every: "round", or "task" for only the end of each task.

    Raises:
      InputError: a number out of its range.
    """

    num_rounds: int = option(10, "Rounds for each task.", least=1)
    seed: int = option(1, "Of the order of tasks and of everything that is drawn in training.", least=0, most=2**32 - 1)
    clients_per_round: Optional[int] = option(None, "Clients that take part in a round; none for all.", least=1)
    evaluate_every: str = option("round", "When all tasks so far are evaluated.", choices=EVALUATE_EVERY)
