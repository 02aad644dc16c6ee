"""All that a run is made of between two calls, and where it stands."""

from __future__ import annotations

import dataclasses
import itertools
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np

from tffcl.program.client_files import ClientFiles
from tffcl.program.client_store import ClientStore, merge
from tffcl.program.settings import Settings
from tffcl.templates import ContinualProcess
from tffcl.transfers import KnowledgeBase

SUMMARIES, PARTICIPANTS = "summaries", "participants"
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
      secrets: random bits of the operating system, int32 [..., 2] by name, in a run whose epsilon rests on them:
        `SUMMARIES`, of each client, for the noise on what it tells of its tasks; `PARTICIPANTS`, of the server, for the
        draw of who takes part in a round.
    """

    server: Any
    store: ClientStore
    base: KnowledgeBase
    selections: list[list[list[int]]] = dataclasses.field(default_factory=list)
    task: int = 0
    round: int = 0
    fresh: bool = True
    secrets: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def begun(self) -> bool:
        """Whether the task is being learned already."""
        return len(self.selections) > self.task


def first_state(
    process: ContinualProcess, num_clients: int, settings: Settings, client_files: Optional[ClientFiles] = None
) -> RunState:
    """The state before the first task; every client has a key, and a secret where its state has an entry for one.

    Args:
      process: of the run, as it was built.
      num_clients: C.
      settings: of the run.
      client_files: where clients keep their states: then those here are handles, and no file is written yet.
    """
    server = process.initialize()
    if client_files is None:
        keys = client_keys(settings.seed, num_clients)
        parts = (
            process.initialize_clients(server, keys[start : start + _INITIALIZED_AT_ONCE])
            for start in range(0, num_clients, _INITIALIZED_AT_ONCE)
        )
        states = (
            merge(state, {"secret": draw_secret()} if "secret" in state else {})
            for state in itertools.chain.from_iterable(parts)
        )
        store = ClientStore(states)
    else:
        store = client_files.first_store(process, num_clients)
    return RunState(server, store, KnowledgeBase(process.knowledge_size))


def start(
    process: ContinualProcess,
    num_clients: int,
    settings: Settings,
    restore: Callable[[RunState], RunState],
    client_files: Optional[ClientFiles] = None,
    secret: Sequence[str] = (),
) -> RunState:
    """The state with which a run goes on: the first one, or what `restore` gives in its place.

    Args:
      process: of the run, as it was built.
      num_clients: C.
      settings: of the run.
      restore: from the first state to that of a checkpoint, or the same where there is none.
      client_files: where clients keep their states; None for here.
      secret: which of `RunState.secrets` the run rests on.

    Raises:
      RunError: checkpoints, or files of clients, that cannot be used.
    """
    first = first_state(process, num_clients, settings, client_files)
    drawn_of = {SUMMARIES: lambda: np.stack([draw_secret() for _ in range(num_clients)]), PARTICIPANTS: draw_secret}
    first.secrets = {name: drawn_of[name]() for name in secret}
    state = restore(first)
    if client_files is not None:
        if state is first:
            keys, drawn = client_keys(settings.seed, num_clients), [draw_secret() for _ in range(num_clients)]
            client_files.create(process, state.server, state.store, keys, drawn)
        else:
            client_files.move(state.store)
            client_files.check(process, state.store)
    return state


def client_keys(seed: int, num_clients: int) -> list[np.ndarray]:
    """The key of every client."""
    return [client_key(seed, client) for client in range(num_clients)]


def draw_secret() -> np.ndarray:
    """int32 [2]: 64 random bits of the operating system, which follow from no seed."""
    return np.frombuffer(secrets.token_bytes(8), np.int32).copy()


def client_key(seed: int, client: int) -> np.ndarray:
    """int32 [2], the root of all randomness of a client."""
    return np.random.SeedSequence((seed, client)).generate_state(2, np.uint32).view(np.int32)


def sample_clients(
    settings: Settings, active: Sequence[int], task: int, round_num: int, secret: Optional[np.ndarray] = None
) -> list[int]:
    """Those of the clients active in a task (ascending) that take part in a round; the same at every call.

    They follow from the run's seed, or from a secret, int32 [2], where nobody else may know them.
    """
    wanted = settings.clients_per_round
    if wanted is None or wanted >= len(active):
        return list(active)
    root = (settings.seed,) if secret is None else as_seed(secret)
    # A tag keeps these draws apart from the clients' own keys, which hang from (seed, client).
    rng = np.random.default_rng(np.random.SeedSequence((*root, task, round_num), spawn_key=(1,)))
    return [active[place] for place in sorted(rng.choice(len(active), wanted, replace=False))]


def as_seed(secret: np.ndarray) -> tuple[int, ...]:
    """A secret in the form that numpy's generators take."""
    return tuple(secret.view(np.uint32).tolist())
