"""Client states in files at the clients: a continual process over handles, and where a run's files lie.

What crosses the border of a client is a handle: its number, the version of its state, and the folder that has its
run's files. Each computation reads the version that its handle names, does what it did, and writes the next one. It
returns that version, and the program puts it into the handle once the whole call has come back: a call that is made
again, or a run that is gone on with, reads what the first try read, and writes the same again. Five versions stay,
which is what the last two checkpoints and the call in between can need.

Prepared examples are written once in a task; the computations that take them get the number of the task.
`tffcl.program.client_folders` has what is read and written at a client.
"""

from __future__ import annotations

import dataclasses
import functools
import posixpath
import re
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.program import client_folders as folders
from tffcl.program.client_data import SPLITS
from tffcl.program.state import ClientStore, client_key, draw_secret
from tffcl.program.task_data import flat, grouped
from tffcl.templates import ContinualProcess
from tffcl.templates.messages import as_type, at_clients, entries

_RUN = re.compile(r"run-[0-9a-f]{8}")
_AT_ONCE = 16  # states that a call holds in the worker's memory

# Of a client's state, what the history shows: it comes with the uploads of `end_task`.
_REPORTED = ("attention",)

_INT, _KEY = tff.TensorType(np.int32), tff.TensorType(np.int32, [2])
_TASK = tff.to_type(OrderedDict(task=_INT))
# For each entry of a computation's data the split in whose file it is, and what it is called there.
_TRAINING = {"context": ("train", "context"), "train": ("train", "examples"), "validation": ("validation", "examples")}
_TEST = {"context": ("test", "context"), "examples": ("test", "examples")}


@dataclasses.dataclass(frozen=True)
class ClientFiles:
    """Keeps what belongs to a client on the machine on which the client's work is done.

    Each run has a folder of its own there, `DIRECTORY/run-XXXXXXXX`, with a folder for each client. Folders of runs
    stay until somebody removes them.

    Shown in docs/runtime.md.

    Attributes:
      directory: an absolute path on the machine of the workers: every client's worker must see the same files there
        whenever it is the client's.
      stored_data: whether raw examples are in files of the clients as well; `run_program` sees to it.
    """

    directory: str
    stored_data: bool = False

    def __post_init__(self) -> None:
        folders.check_directory("client files", self.directory)

    def process(self, process: ContinualProcess) -> HandleProcess:
        """The same process over handles, which may be so already."""
        return process if isinstance(process, HandleProcess) else over_handles(process, self.stored_data)

    def first_store(self, process: ContinualProcess, num_clients: int) -> ClientStore:
        """Handles of version 0 in the folder of a new run; no file is written yet."""
        run = posixpath.join(self.directory, f"run-{uuid.uuid4().hex[:8]}")
        known = dict(directory=np.array(run), version=np.int32(0), run_task=np.int32(0))
        names = entries(self.process(process).client_state_type)
        whole = [{**known, "client": np.int32(client)} for client in range(num_clients)]
        return ClientStore(OrderedDict((name, handle[name]) for name in names) for handle in whole)

    def create(self, process: ContinualProcess, server: Any, store: ClientStore, seed: int) -> None:
        """Writes the first state of every client of `store`, with a secret for states that have one."""
        initialize_clients = self.process(process).initialize_clients
        names = entries(initialize_clients.type_signature.parameter[1])
        arriving = []
        for client in range(len(store)):
            first = {"key": client_key(seed, client), "secret": draw_secret(), "handle": store[client]}
            arriving.append(OrderedDict((name, first[name]) for name in names))
        try:
            for start in range(0, len(arriving), _AT_ONCE):
                initialize_clients(server, arriving[start : start + _AT_ONCE])
        except errors.OperationError as error:
            raise errors.RunError(f"cannot write client states to {self.directory}: {error.words}") from error

    def move(self, store: ClientStore) -> None:
        """Lets the handles of a checkpoint point below this directory; RunError for one without a run's folder."""
        for client in range(len(store)):
            run = posixpath.basename(str(store[client]["directory"]))
            if not _RUN.fullmatch(run):
                raise errors.RunError(f"client {client}: {run!r} is no folder of a run")
            store.merge([client], [{"directory": np.array(posixpath.join(self.directory, run))}])

    def read(self, store: ClientStore) -> ClientStore:
        """The states themselves in the place of handles, for a program that sees the files; see `read_state`."""
        self.move(store)
        return ClientStore(read_state(store[client]) for client in range(len(store)))

    def check(self, process: ContinualProcess, store: ClientStore) -> None:
        """Reads the states of all clients where they are, and forgets them; RunError names client and path."""
        some = [store[client] for client in range(len(store))]
        for client, handle in enumerate(some):
            folders.check_regular(str(handle["directory"]), client)
        check = self.process(process).check
        try:
            for start in range(0, len(some), _AT_ONCE):
                check(some[start : start + _AT_ONCE])
        except errors.OperationError:
            folders.name_client(check, some, lambda handle: (
                f"client {handle['client']}: cannot read version {handle['version']} of its state at "
                f"{_state_path(handle)}"
            ))  # fmt: skip


def handle_of(state: Mapping[str, tff.Type]) -> OrderedDict[str, tff.Type]:
    """The entries of a handle, by the entries of a client's state."""
    handle = OrderedDict(directory=tff.TensorType(np.str_), client=_INT, version=_INT)
    return OrderedDict(handle, run_task=state["run_task"]) if "run_task" in state else handle


def _state_path(handle: Mapping[str, Any]) -> str:
    named = {"directory": str(handle["directory"]), "client": handle["client"]}
    return folders.state_path(named, handle["version"]).numpy().decode()


def read_state(handle: Mapping[str, Any]) -> OrderedDict[str, np.ndarray]:
    """A client's whole state, read by this process: for programs that see the clients' files.

    Shown in docs/runtime.md.

    Raises:
      RunError: it cannot be read; the message names the client and the path.
    """
    path = _state_path(handle)
    folders.check_regular(str(handle["directory"]), int(handle["client"]))
    try:
        reader = tf.train.load_checkpoint(path)
        names = [name for name in reader.get_variable_to_shape_map() if name.startswith("state/")]
        return OrderedDict((name[len("state/") :], reader.get_tensor(name)) for name in names)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise errors.RunError(f"client {handle['client']}: cannot read its state at {path}: {error}") from error


@dataclasses.dataclass(frozen=True)
class HandleProcess(ContinualProcess):
    """A process over handles.

    Attributes:
      check: ({handle}@CLIENTS -> {int32}@CLIENTS), which reads all of the states and gives their versions.
    """

    check: tff.Computation = None


@functools.lru_cache(maxsize=2)
def over_handles(process: ContinualProcess, stored_data: bool = False) -> HandleProcess:
    """The same process over handles: its type C is a handle, and `initialize_clients` takes `{<key, handle>}@CLIENTS`.

    A view V is a handle and the client's own number of a task. `prepare` takes `task`, the run's number of a task,
    `split`, a place in `SPLITS`, and raw examples or, with `stored_data`, the `directory` of files that have them; it
    gives the `count` of examples. `next`, `end_task` and `evaluate` take `task` in the place of prepared data.

    Raises:
      ContractError: the process's `task_view` does not work on tensors.
    """
    return _OverHandles(process, stored_data).process()


class _OverHandles:
    """Holds the types while the computations are built."""

    def __init__(self, process: ContinualProcess, stored_data: bool):
        self.inner, self.stored_data = process, stored_data
        self.state = entries(process.client_state_type)
        self.handle = tff.to_type(handle_of(self.state))
        self.server = process.initialize.type_signature.result

    def process(self) -> HandleProcess:
        """Builds every computation."""
        inner = self.inner
        return HandleProcess(
            initialize=inner.initialize,
            initialize_clients=self._initialize_clients(),
            begin_task=self._over(inner.begin_task),
            prepare=self._prepare(),
            next=self._over(inner.next, changed=1, takes_data=True),
            end_task=self._end_task(),
            evaluate=self._evaluate(),
            task_view=lambda handle, task: OrderedDict(handle, task=np.int32(task)),
            knowledge_size=inner.knowledge_size,
            num_foreign=inner.num_foreign,
            max_classes=inner.max_classes,
            message_type=inner.message_type,
            consolidate=inner.consolidate,
            handed=inner.handed,
            check=self._check(),
        )

    # -- at a client ----------------------------------------------------------------------------------------------

    def _reading(self, kind: tff.Type) -> tff.Computation:
        """(handle -> the entries of a state that a type names)."""

        @tff.tensorflow.computation(self.handle)
        def read(handle: OrderedDict) -> OrderedDict:
            return folders.read_state(handle, self.state, entries(kind))

        return read

    def _writing(self, kind: tff.Type) -> tff.Computation:
        """(<handle, changed entries> -> the handle's changes): the next version of the state is written."""
        changed = entries(kind)
        kept = [name for name in self.state if name not in changed]

        @tff.tensorflow.computation(self.handle, tff.to_type(OrderedDict(changed)))
        def write(handle: OrderedDict, changes: OrderedDict) -> OrderedDict:
            state = {**folders.read_state(handle, self.state, kept), **changes}
            ordered = OrderedDict((name, state[name]) for name in self.state)
            return OrderedDict(version=folders.write_state(handle, handle["version"] + 1, ordered))

        return write

    def _reading_data(self, data: tff.Type, of_splits: Mapping[str, tuple[str, str]]) -> tff.Computation:
        """(<handle, task> -> prepared data of a type)."""

        @tff.tensorflow.computation(self.handle, _TASK)
        def read(handle: OrderedDict, asked_for: OrderedDict) -> OrderedDict:
            found = OrderedDict()
            for name, kind in entries(data).items():
                split, part = of_splits[name]
                path = folders.prepared_path(handle, asked_for["task"], split)
                found[name] = grouped(folders.read(path, flat({part: entries(kind)})), [part])[part]
            return found

        return read

    # -- the computations -----------------------------------------------------------------------------------------

    def _check(self) -> tff.Computation:
        @tff.tensorflow.computation(self.handle)
        def version_of(handle: OrderedDict) -> tf.Tensor:
            with tf.control_dependencies(list(folders.read_state(handle, self.state, self.state).values())):
                return tf.identity(handle["version"])

        @tff.federated_computation(at_clients(self.handle))
        def check(handles: tff.Value) -> tff.Value:
            return tff.federated_map(version_of, handles)

        return check

    def _initialize_clients(self) -> tff.Computation:
        secret = {"secret": self.state["secret"]} if "secret" in self.state else {}
        first = tff.to_type(OrderedDict(key=_KEY, handle=self.handle, **secret))

        @tff.tensorflow.computation(first)
        def key_of(arriving: OrderedDict) -> tf.Tensor:
            return arriving["key"]

        @tff.tensorflow.computation(first, tff.to_type(OrderedDict(self.state)))
        def write_first(arriving: OrderedDict, state: OrderedDict) -> OrderedDict:
            handle = arriving["handle"]
            state = OrderedDict(state, **{name: arriving[name] for name in secret})
            with tf.control_dependencies([folders.make(handle)]):
                version = folders.write_state(handle, handle["version"], state)
            return OrderedDict(handle, version=version)

        @tff.federated_computation(self.server, at_clients(first))
        def initialize_clients(server_state: tff.Value, arriving: tff.Value) -> tff.Value:
            states = self.inner.initialize_clients(server_state, tff.federated_map(key_of, arriving))
            return tff.federated_map(write_first, (arriving, states))

        return initialize_clients

    def _over(
        self, computation: tff.Computation, changed: Optional[int] = None, takes_data: bool = False
    ) -> tff.Computation:
        """A computation that changes states, over handles.

        The changed states are all of its result, or number `changed` of its results. Where it takes the data of a task,
        the task's number stands in their place.
        """
        _, states, last = computation.type_signature.parameter
        result = computation.type_signature.result
        read, write = self._reading(states), self._writing(result if changed is None else result[changed])
        read_data = self._reading_data(last, _TRAINING) if takes_data else None

        @tff.federated_computation(self.server, at_clients(self.handle), at_clients(_TASK) if takes_data else last)
        def over(server_state: tff.Value, handles: tff.Value, given: tff.Value) -> Any:
            data = tff.federated_map(read_data, (handles, given)) if takes_data else given
            results = computation(server_state, tff.federated_map(read, handles), data)
            if changed is None:
                return tff.federated_map(write, (handles, results))
            return tuple(
                tff.federated_map(write, (handles, part)) if place == changed else part
                for place, part in enumerate(results)
            )

        return over

    def _prepare(self) -> tff.Computation:
        _, states, incoming, data = self.inner.prepare.type_signature.parameter
        raw = entries(data)
        given = OrderedDict(directory=tff.TensorType(np.str_)) if self.stored_data else raw
        asked = tff.to_type(OrderedDict(given, task=_INT, split=_INT))
        read, result = self._reading(states), self.inner.prepare.type_signature.result.member

        def split_of(asked_for: OrderedDict) -> tf.Tensor:
            return tf.gather(list(SPLITS), asked_for["split"])

        @tff.tensorflow.computation(self.handle, asked)
        def raw_of(handle: OrderedDict, asked_for: OrderedDict) -> OrderedDict:
            if not self.stored_data:
                return OrderedDict((name, asked_for[name]) for name in raw)
            place = {"directory": asked_for["directory"], "client": handle["client"]}
            types = flat({part: entries(kinds) for part, kinds in raw.items()})
            found = folders.read_data(place, asked_for["task"], split_of(asked_for), types)
            return grouped({name: found[name] for name in types}, raw)

        @tff.tensorflow.computation(self.handle, asked, data.member, result)
        def keep(handle: OrderedDict, asked_for: OrderedDict, raws: OrderedDict, prepared: OrderedDict) -> Any:
            path = folders.prepared_path(handle, asked_for["task"], split_of(asked_for))
            tensors = flat({"context": raws["context"], "examples": prepared})
            count = tf.shape(next(iter(prepared.values())))[0]
            with tf.control_dependencies([folders.write(path, tensors)]):
                return OrderedDict(count=tf.identity(count))

        @tff.federated_computation(self.server, at_clients(self.handle), incoming, at_clients(asked))
        def prepare(
            server_state: tff.Value, handles: tff.Value, transfer_in: tff.Value, asked_for: tff.Value
        ) -> tff.Value:
            raws = tff.federated_map(raw_of, (handles, asked_for))
            states = tff.federated_map(read, handles)
            prepared = self.inner.prepare(server_state, states, transfer_in, raws)
            return tff.federated_map(keep, (handles, asked_for, raws, prepared))

        return prepare

    def _end_task(self) -> tff.Computation:
        ended = self._over(self.inner.end_task, changed=0, takes_data=True)
        shown = [name for name in _REPORTED if name in self.state]

        @tff.tensorflow.computation(ended.type_signature.result[1].member, self.handle)
        def with_shown(upload: OrderedDict, handle: OrderedDict) -> OrderedDict:
            return OrderedDict(upload, **folders.read_state(handle, self.state, shown))

        @tff.federated_computation(*ended.type_signature.parameter)
        def end_task(server_state: tff.Value, handles: tff.Value, asked_for: tff.Value) -> tuple:
            changes, uploads = ended(server_state, handles, asked_for)
            return changes, tff.federated_map(with_shown, (uploads, handles))

        return end_task

    def _evaluate(self) -> tff.Computation:
        _, views, data = self.inner.evaluate.type_signature.parameter
        asked = tff.to_type(OrderedDict(entries(self.handle), task=_INT))
        read_data = self._reading_data(data, _TEST)

        @tff.tensorflow.computation(asked)
        def view_of(arriving: OrderedDict) -> OrderedDict:
            try:
                view = self.inner.task_view(_LazyState(self.state, arriving), arriving["task"])
            except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
                raise errors.ContractError(
                    f"task_view: has to work on tensors where clients keep their states in files ({error})"
                ) from error
            return OrderedDict((name, as_type("task_view", name, view[name], kind))
                               for name, kind in entries(views).items())  # fmt: skip

        @tff.tensorflow.computation(asked)
        def handle_of(arriving: OrderedDict) -> OrderedDict:
            return OrderedDict((name, arriving[name]) for name in entries(self.handle))

        @tff.federated_computation(self.server, at_clients(asked), at_clients(_TASK))
        def evaluate(server_state: tff.Value, views: tff.Value, of_task: tff.Value) -> tff.Value:
            client_data = tff.federated_map(read_data, (tff.federated_map(handle_of, views), of_task))
            return self.inner.evaluate(server_state, tff.federated_map(view_of, views), client_data)

        return evaluate


class _LazyState(Mapping):
    """A client's state in a graph, of which only that is read which somebody asks for."""

    def __init__(self, types: Mapping[str, tff.Type], handle: Mapping[str, tf.Tensor]):
        self._types, self._handle = types, handle
        self._found: dict[str, tf.Tensor] = {}

    def __getitem__(self, name: str) -> tf.Tensor:
        if name not in self._types:
            raise KeyError(name)
        if name not in self._found:
            self._found.update(folders.read_state(self._handle, self._types, [name]))
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)
