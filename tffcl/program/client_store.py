"""The clients' states between calls: numpy values, and the projections that computations take."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tffcl.archive import Shelf
from tffcl.errors import ContractError
from tffcl.templates import tff_types

State = OrderedDict


def project(state: Mapping[str, Any], kind: tff.Type) -> State:
    """The entries of a client's state that `kind` names, in its order.

    Args:
      state: everything that the client keeps.
      kind: type of a computation's argument `client_states`, or one client's share of it.

    Raises:
      ContractError: the type names an entry that the state lacks.
    """
    names = list(tff_types.entries(kind))
    missing = [name for name in names if name not in state]
    if missing:
        raise ContractError(f"client state: a computation needs the entry {missing[0]!r}, found only {sorted(state)}")
    return OrderedDict((name, state[name]) for name in names)


def merge(state: Mapping[str, Any], changes: Mapping[str, Any]) -> State:
    """The state with the entries that a computation returned in the place of the old ones.

    Raises:
      ContractError: an entry that the state does not have.
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

    Once memory holds `tffcl.archive.MEMORY_BYTES` of them, the entries used longest ago lie in a temporary
    file. A call reads the entries that it projects and no others, and writes those that it returned.

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
        return OrderedDict(self._view(client))

    def num_bytes(self, client: int) -> int:
        """Bytes of a client's state, without reading it."""
        return sum(self._entries.num_bytes((client, name)) for name in self._versions[client])

    def versions(self, client: int) -> dict[str, int]:
        """How often each entry of a client's state has been returned by a computation since the store was made."""
        return dict(self._versions[client])

    def entries(self, client: int, names: Iterable[str]) -> State:
        """Some entries of a client's state; the others are not read."""
        view = self._view(client)
        return OrderedDict((name, view[name]) for name in names)

    def project(self, clients: Sequence[int], kind: tff.Type) -> list[State]:
        """What a computation takes of the states of some clients; see `project`."""
        return [project(self._view(client), kind) for client in clients]

    def merge(self, clients: Sequence[int], changes: Sequence[Mapping[str, Any]]) -> None:
        """Puts what a computation returned for some clients into their states; see `merge`."""
        for client, changed in zip(clients, changes):
            _check_known(self._versions[client], changed)
            self._put(client, changed)
            for name in changed:
                self._versions[client][name] += 1

    def tell_task(self, clients: Sequence[int], task: int) -> None:
        """Puts the number of the run's task into the states of some clients, if they have an entry `run_task`."""
        for client in clients:
            if "run_task" in self._versions[client]:
                self.merge([client], [{"run_task": np.int32(task)}])

    def _put(self, client: int, entries: Mapping[str, Any]) -> None:
        for name, value in entries.items():
            self._entries[client, name] = {name: value}

    def _view(self, client: int) -> _View:
        return _View(self._entries, client, self._versions[client])


class _View(Mapping):
    """A client's state, of which an entry is read when it is asked for."""

    def __init__(self, entries: Shelf, client: int, names: Mapping[str, int]):
        self._entries, self._client, self._names = entries, client, names

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> np.ndarray:
        return self._entries[self._client, name][name]
