"""All that a run is made of between two calls, and where it stands."""

from __future__ import annotations

import dataclasses
import itertools
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from tffcl.program.client_store import ClientStore, merge
from tffcl.program.settings import Settings
from tffcl.templates import ContinualProcess
from tffcl.transfers import KnowledgeBase

_INITIALIZED_AT_ONCE = 32  # clients whose first states cross in one call


@dataclasses.dataclass
class RunState:
    """The state of a run; a checkpoint holds all of it.

    Attributes:
      server: the server's state, a structure of numpy values.
      store: the clients' states.
      base: the knowledge base.
      selections: `selections[task][client]`, ids of the entries received, for every task begun; none for a client
        that is not enrolled in it.
      task: number of the task that comes next or is being learned; T at the end of the run.
      round: how many of its rounds are done.
      fresh: whether the server's shared value is news to the clients.
    """

    server: Any
    store: ClientStore
    base: KnowledgeBase
    selections: list[list[list[int]]] = dataclasses.field(default_factory=list)
    task: int = 0
    round: int = 0
    fresh: bool = True

    @property
    def begun(self) -> bool:
        """Whether the task is being learned already."""
        return len(self.selections) > self.task


def first_state(process: ContinualProcess, num_clients: int, settings: Settings) -> RunState:
    """The state before the first task; every client has a key, and a secret where its state has an entry for one."""
    server = process.initialize()
    keys = [client_key(settings.seed, client) for client in range(num_clients)]
    parts = (
        process.initialize_clients(server, keys[start : start + _INITIALIZED_AT_ONCE])
        for start in range(0, num_clients, _INITIALIZED_AT_ONCE)
    )
    states = (
        merge(state, {"secret": draw_secret()} if "secret" in state else {})
        for state in itertools.chain.from_iterable(parts)
    )
    return RunState(server, ClientStore(states), KnowledgeBase(process.knowledge_size))


def draw_secret() -> np.ndarray:
    """int32 [2]: 64 random bits of the operating system, which follow from no seed."""
    return np.frombuffer(secrets.token_bytes(8), np.int32).copy()


def client_key(seed: int, client: int) -> np.ndarray:
    """int32 [2], the root of all randomness of a client."""
    return np.random.SeedSequence((seed, client)).generate_state(2, np.uint32).view(np.int32)


def sample_clients(settings: Settings, active: Sequence[int], task: int, round_num: int) -> list[int]:
    """Those of the clients active in a task (ascending) that take part in a round; the same at every call."""
    wanted = settings.clients_per_round
    if wanted is None or wanted >= len(active):
        return list(active)
    # A tag keeps these draws apart from the clients' own keys, which hang from (seed, client).
    rng = np.random.default_rng(np.random.SeedSequence((settings.seed, task, round_num), spawn_key=(1,)))
    return [active[place] for place in sorted(rng.choice(len(active), wanted, replace=False))]
