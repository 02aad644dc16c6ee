"""The clients' states between calls: numpy values, and the projections that computations take."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tffcl.errors import ContractError
from tffcl.templates import placed
from tffcl.transfers.shelf import Shelf

State = OrderedDict


def project(state: Mapping[str, Any], kind: tff.Type) -> State:
    """The entries of a client's state that `kind` names, in its order.

    Args:
      state: everything that the client keeps.
      kind: type of a computation's argument `client_states`, or one client's share of it.

    Raises:
      ContractError: the type names an entry that the state lacks.
    """
    names = list(placed.entries(kind))
    missing = [name for name in names if name not in state]
    if missing:
        raise ContractError(
            f"client state: a computation needs the entry {missing[0]!r}, found only {sorted(state)}"
        )
    return OrderedDict((name, state[name]) for name in names)


def merge(state: Mapping[str, Any], changes: Mapping[str, Any]) -> State:
    """The state with the entries that a computation returned in the place of the old ones.

    Raises:
      ContractError: an entry that the state does not have.
    """
    unknown = [name for name in changes if name not in state]
    if unknown:
        raise ContractError(
            f"client state: a computation returned the entry {unknown[0]!r}, found only {sorted(state)}"
        )
    return OrderedDict((name, np.asarray(changes.get(name, value))) for name, value in state.items())


class ClientStore:
    """The states of all clients, `store[c]` for client number c.

    Once memory holds `tffcl.transfers.shelf.MEMORY_BYTES` of them, those used longest ago lie in a temporary file.

    Args:
      states: of client 0, 1, ...; asked for one by one.
    """

    def __init__(self, states: Iterable[Mapping[str, Any]]):
        self._states = Shelf()
        self._versions: list[int] = []
        for client, state in enumerate(states):
            self._versions.append(0)
            self._states[client] = merge(state, {})

    def __len__(self) -> int:
        return len(self._versions)

    def __getitem__(self, client: int) -> State:
        return self._states[client]

    def num_bytes(self, client: int) -> int:
        """Bytes of a client's state, without reading it."""
        return self._states.num_bytes(client)

    def version(self, client: int) -> int:
        """How often a client's state has changed since the store was made."""
        return self._versions[client]

    def project(self, clients: Sequence[int], kind: tff.Type) -> list[State]:
        """What a computation takes of the states of some clients; see `project`."""
        return [project(self._states[client], kind) for client in clients]

    def merge(self, clients: Sequence[int], changes: Sequence[Mapping[str, Any]]) -> None:
        """Puts what a computation returned for some clients into their states; see `merge`."""
        for client, changed in zip(clients, changes):
            self._states[client] = merge(self._states[client], changed)
            self._versions[client] += 1

    def tell_task(self, clients: Sequence[int], task: int) -> None:
        """Puts the number of the run's task into the states of some clients, if they have an entry `run_task`."""
        for client in clients:
            if "run_task" in self._states[client]:
                self.merge([client], [{"run_task": np.int32(task)}])
