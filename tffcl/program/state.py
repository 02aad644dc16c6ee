"""All that a run is made of between two calls: the server's state, the clients' states, and where the run stands."""

from __future__ import annotations

import dataclasses
import itertools
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import tensorflow_federated as tff

from tffcl.archive import Shelf
from tffcl.errors import ContractError
from tffcl.program.results import Settings
from tffcl.templates import ContinualProcess, messages
from tffcl.transfers import KnowledgeBase

if TYPE_CHECKING:
    from tffcl.program.client_files import ClientFiles

SUMMARIES, PARTICIPANTS = "summaries", "participants"
_INITIALIZED_AT_ONCE = 32  # clients whose first states cross in one call

State = OrderedDict


def project(state: Mapping[str, Any], kind: tff.Type) -> State:
    """The entries of a client's state that a type of `client_states`, or of one of them, names, in its order.

    Shown with `ContinualProcess`.

    Raises:
      ContractError: the type names an entry that the state lacks.
    """
    return OrderedDict((name, state[name]) for name in _named(state, kind))


def _named(state: Mapping[str, Any], kind: tff.Type) -> list[str]:
    names = list(messages.entries(kind))
    missing = [name for name in names if name not in state]
    if missing:
        raise ContractError(f"client state: a computation needs the entry {missing[0]!r}, found only {sorted(state)}")
    return names


def merge(state: Mapping[str, Any], changes: Mapping[str, Any]) -> State:
    """The state with the entries that a computation returned; ContractError for one that the state does not have.

    Shown with `ContinualProcess`.
    """
    _check_known(state, changes)
    return OrderedDict((name, np.asarray(changes.get(name, value))) for name, value in state.items())


def _check_known(state: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    unknown = [name for name in changes if name not in state]
    if unknown:
        raise ContractError(
            f"client state: a computation returned the entry {unknown[0]!r}, found only {sorted(state)}"
        )


class ClientStore:
    """The states of all clients, `store[c]` for client number c.

    Beyond `tffcl.archive.MEMORY_BYTES` of memory the entries used longest ago lie in a temporary file. A call reads the
    entries that it projects and no others, and writes those that it returned.

    Shown with `run_program`.

    Args:
      states: of client 0, 1, ...; asked for one by one.
    """

    def __init__(self, states: Iterable[Mapping[str, Any]]):
        self._entries = Shelf()  # under (client, name)
        self._versions: list[dict[str, int]] = []
        for client, state in enumerate(states):
            self._versions.append(dict.fromkeys(state, 0))
            self._put(client, state)

    def __len__(self) -> int:
        return len(self._versions)

    def __getitem__(self, client: int) -> State:
        return self.entries(client, self._versions[client])

    def num_bytes(self, client: int) -> int:
        """Bytes of a client's state, without reading it."""
        return sum(self._entries.num_bytes((client, name)) for name in self._versions[client])

    def versions(self, client: int) -> dict[str, int]:
        """How often each entry of a client's state has been returned by a computation since the store was made."""
        return dict(self._versions[client])

    def entries(self, client: int, names: Iterable[str]) -> State:
        """Some entries of a client's state; the others are not read."""
        return OrderedDict((name, self._entries[client, name][name]) for name in names)

    def project(self, clients: Sequence[int], kind: tff.Type) -> list[State]:
        """What a computation takes of the states of some clients; see `project`."""
        return [self.entries(client, _named(self._versions[client], kind)) for client in clients]

    def merge(self, clients: Sequence[int], changes: Sequence[Mapping[str, Any]]) -> None:
        """Puts what a computation returned for some clients into their states; see `merge`."""
        for client, changed in zip(clients, changes):
            _check_known(self._versions[client], changed)
            self._put(client, changed)
            for name in changed:
                self._versions[client][name] += 1

    def set_task(self, clients: Sequence[int], task: int) -> None:
        """Puts the number of the run's task into the states of some clients, if they have an entry `run_task`."""
        for client in clients:
            if "run_task" in self._versions[client]:
                self.merge([client], [{"run_task": np.int32(task)}])

    def _put(self, client: int, entries: Mapping[str, Any]) -> None:
        for name, value in entries.items():
            self._entries[client, name] = {name: value}


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
      fresh: whether the server's shared value changed since it was last sent to the clients.
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
    """The state before the first task; each client has a key, and a secret where its state has an entry for it.

    With `client_files` the clients' states are handles, and no file is written yet.
    """
    server = process.initialize()
    if client_files is None:
        keys = [client_key(settings.seed, client) for client in range(num_clients)]
        parts = (
            process.initialize_clients(server, keys[start : start + _INITIALIZED_AT_ONCE])
            for start in range(0, num_clients, _INITIALIZED_AT_ONCE)
        )
        store = ClientStore(
            merge(state, {"secret": draw_secret()} if "secret" in state else {})
            for state in itertools.chain.from_iterable(parts)
        )
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
    first: Optional[RunState] = None,
) -> RunState:
    """The state with which a run goes on: the first one, or what `restore` gives in its place.

    `secret` names those of `RunState.secrets` that the run rests on; `restore` returns the first state where there is
    no checkpoint. `first` is a first state that is not that of a process which has learned nothing.

    Raises:
      RunError: checkpoints, or files of clients, that cannot be used.
    """
    if first is None:
        first = first_state(process, num_clients, settings, client_files)
    if SUMMARIES in secret:
        first.secrets[SUMMARIES] = np.stack([draw_secret() for _ in range(num_clients)])
    if PARTICIPANTS in secret:
        first.secrets[PARTICIPANTS] = draw_secret()
    state = restore(first)
    if client_files is not None:
        if state is first:
            client_files.create(process, state.server, state.store, settings.seed)
        else:
            client_files.move(state.store)
            client_files.check(process, state.store)
    return state


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
