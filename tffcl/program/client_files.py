"""Client states in files at the clients: where they lie, and which handles a run starts or goes on with."""

from __future__ import annotations

import dataclasses
import posixpath
import re
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tffcl.errors import OperationError, RunError
from tffcl.program import client_folders, handles
from tffcl.program.client_store import ClientStore
from tffcl.templates import ContinualProcess, tff_types

_RUN = re.compile(r"run-[0-9a-f]{8}")
_AT_ONCE = 16  # states that a call holds in the worker's memory


@dataclasses.dataclass(frozen=True)
class ClientFiles:
    """Keeps what belongs to a client on the machine on which the client's work is done.

    Each run has a folder of its own there, `DIRECTORY/run-XXXXXXXX`, with a folder for each client, which
    `tffcl.program.handles` describes. Folders of runs stay until somebody removes them.

    Attributes:
      directory: an absolute path on the machine of the workers: every client's worker must see the same files there
        whenever it is the client's.
      stored_data: whether raw examples are in files of the clients as well; `run_program` sees to it.
    """

    directory: str
    stored_data: bool = False

    def __post_init__(self) -> None:
        client_folders.check_directory("client files", self.directory)

    def process(self, process: ContinualProcess) -> handles.HandleProcess:
        """The same process over handles, which may be so already."""
        if isinstance(process, handles.HandleProcess):
            return process
        return handles.over_handles(process, self.stored_data)

    def first_store(self, process: ContinualProcess, num_clients: int) -> ClientStore:
        """Handles of version 0 in the folder of a new run; no file is written yet.

        Args:
          process: of the run.
          num_clients: C.
        """
        run = posixpath.join(self.directory, f"run-{uuid.uuid4().hex[:8]}")
        known = dict(directory=np.array(run), version=np.int32(0), run_task=np.int32(0))
        names = tff_types.entries(self.process(process).client_state_type)
        whole = [{**known, "client": np.int32(client)} for client in range(num_clients)]
        return ClientStore(OrderedDict((name, handle[name]) for name in names) for handle in whole)

    def create(
        self, process: ContinualProcess, server: Any, store: ClientStore, keys: Sequence, secrets: Sequence
    ) -> None:
        """Writes the first state of every client.

        Args:
          process: of the run.
          server: its state.
          store: handles.
          keys: int32 [2] of every client.
          secrets: int32 [2] of every client, for states that have an entry for one; nobody keeps them here.

        Raises:
          RunError: the directory cannot be written to.
        """
        names = tff_types.entries(self.process(process).initialize_clients.type_signature.parameter[1])
        arriving = [
            OrderedDict((name, {"key": key, "secret": secret, "handle": store[client]}[name]) for name in names)
            for client, (key, secret) in enumerate(zip(keys, secrets))
        ]
        try:
            for start in range(0, len(arriving), _AT_ONCE):
                self.process(process).initialize_clients(server, arriving[start : start + _AT_ONCE])
        except OperationError as error:
            raise RunError(f"cannot write client states to {self.directory}: {error.words}") from error

    def move(self, store: ClientStore) -> None:
        """Lets the handles of a checkpoint point below this directory, whatever it was called before.

        Raises:
          RunError: a handle names no folder of a run.
        """
        for client in range(len(store)):
            run = posixpath.basename(str(store[client]["directory"]))
            if not _RUN.fullmatch(run):
                raise RunError(f"client {client}: {run!r} is no folder of a run")
            store.merge([client], [{"directory": np.array(posixpath.join(self.directory, run))}])

    def read(self, store: ClientStore) -> ClientStore:
        """The states themselves in the place of handles, for a program that sees the clients' files.

        Raises:
          RunError: a state cannot be read; the message names the client and the path.
        """
        self.move(store)
        return ClientStore(read_state(store[client]) for client in range(len(store)))

    def check(self, process: ContinualProcess, store: ClientStore) -> None:
        """Reads the states of all clients, where they are, and forgets them.

        Raises:
          RunError: one cannot be read; the message names the client and the path.
        """
        some = [store[client] for client in range(len(store))]
        for client, handle in enumerate(some):
            client_folders.check_regular(str(handle["directory"]), client)
        over_handles = self.process(process)
        try:
            for start in range(0, len(some), _AT_ONCE):
                over_handles.check(some[start : start + _AT_ONCE])
        except OperationError:
            client_folders.say_whose(over_handles.check, some, _unread)


def _unread(handle: Mapping[str, Any]) -> str:
    version, path = handle["version"], state_path(handle)
    return f"client {handle['client']}: cannot read version {version} of its state at {path}"


def state_path(handle: Mapping[str, Any]) -> str:
    """Path of the file that a handle names, without its ending."""
    named = {"directory": str(handle["directory"]), "client": handle["client"]}
    return client_folders.state_path(named, handle["version"]).numpy().decode()


def read_state(handle: Mapping[str, Any]) -> OrderedDict[str, np.ndarray]:
    """A client's whole state, read by this process: for programs that see the clients' files.

    Raises:
      RunError: it cannot be read; the message names the client and the path.
    """
    path = state_path(handle)
    client_folders.check_regular(str(handle["directory"]), int(handle["client"]))
    try:
        reader = tf.train.load_checkpoint(path)
        names = [name for name in reader.get_variable_to_shape_map() if name.startswith("state/")]
        return OrderedDict((name[len("state/") :], reader.get_tensor(name)) for name in names)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise RunError(f"client {handle['client']}: cannot read its state at {path}: {error}") from error
