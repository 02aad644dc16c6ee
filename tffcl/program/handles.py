"""A continual process whose clients keep their states, and what is prepared of their data, in files.

What crosses the border of a client is a handle: its number, the version of its state, and the folder that has its
run's files. Version v of client 7 is `FOLDER/client-0007/state-v`. Each computation reads the version that its handle
names, does what it did, and writes the next one. It returns that version, and the program puts it into the handle once
the whole call has come back: a call that is made again, or a run that is gone on with, reads what the first try read,
and writes the same again. Five versions stay, which is what the last two checkpoints and the call in between can need.

Prepared examples are `FOLDER/client-0007/task-TTT-SPLIT`, written once in a task; the computations that take them are
told the number of the task. `tffcl.program.handle_access` has what happens at a client.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.program import client_folders as folders
from tffcl.program import tensor_files
from tffcl.program.grouped import flat
from tffcl.program.handle_access import INT, TASK, HandleAccess, LazyState, split_of, stored
from tffcl.templates import ContinualProcess, tff_types
from tffcl.templates.tff_types import as_type

# Of a client's state, what the history shows: it comes with the uploads of `end_task`.
REPORTED = ("attention",)

_KEY = tff.TensorType(np.int32, [2])
_TRAINING = {"context": ("train", "context"), "train": ("train", "examples"), "validation": ("validation", "examples")}
_TEST = {"context": ("test", "context"), "examples": ("test", "examples")}


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

    A handle has `directory` (string), `client`, `version`, and `run_task` where the process's own state has it; a view
    V is a handle and the client's own number of a task. `prepare` takes `task`, the run's number of a task, `split`, a
    place in `SPLITS`, and raw examples or, with `stored_data`, the `directory` of files that have them; it gives the
    `count` of examples. `next`, `end_task` and `evaluate` take `task` in the place of prepared data.

    Raises:
      ContractError: the process's `task_view` does not work on tensors.
    """
    return _OverHandles(process, stored_data).process()


class _OverHandles:
    """Holds the types while the computations are built."""

    def __init__(self, process: ContinualProcess, stored_data: bool):
        self.inner, self.stored_data = process, stored_data
        self.access = HandleAccess(process.client_state_type)
        self.state, self.handle = self.access.state, self.access.handle
        self.server = process.initialize.type_signature.result

    def process(self) -> HandleProcess:
        """Builds every computation."""
        inner = self.inner
        return HandleProcess(
            initialize=inner.initialize,
            initialize_clients=self._initialize_clients(),
            begin_task=self._begin_task(),
            prepare=self._prepare(),
            next=self._next(),
            end_task=self._end_task(),
            evaluate=self._evaluate(),
            task_view=lambda handle, task: OrderedDict(handle, task=np.int32(task)),
            knowledge_size=inner.knowledge_size,
            num_foreign=inner.num_foreign,
            max_classes=inner.max_classes,
            message_type=inner.message_type,
            check=self._check(),
        )

    def _check(self) -> tff.Computation:
        version_of = self.access.checking()

        @tff.federated_computation(tff_types.at_clients(self.handle))
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

        @tff.federated_computation(self.server, tff_types.at_clients(first))
        def initialize_clients(server_state: tff.Value, arriving: tff.Value) -> tff.Value:
            states = self.inner.initialize_clients(server_state, tff.federated_map(key_of, arriving))
            return tff.federated_map(write_first, (arriving, states))

        return initialize_clients

    def _begin_task(self) -> tff.Computation:
        _, states, incoming = self.inner.begin_task.type_signature.parameter
        read = self.access.reading(states)
        write = self.access.writing(self.inner.begin_task.type_signature.result)

        @tff.federated_computation(self.server, tff_types.at_clients(self.handle), incoming)
        def begin_task(server_state: tff.Value, handles: tff.Value, transfer_in: tff.Value) -> tff.Value:
            begun = self.inner.begin_task(server_state, tff.federated_map(read, handles), transfer_in)
            return tff.federated_map(write, (handles, begun))

        return begin_task

    def _prepare(self) -> tff.Computation:
        _, states, incoming, data = self.inner.prepare.type_signature.parameter
        raw = tff_types.entries(data)
        given = OrderedDict(directory=tff.TensorType(np.str_)) if self.stored_data else raw
        asked = tff.to_type(OrderedDict(given, task=INT, split=INT))
        read = self.access.reading(states)

        @tff.tensorflow.computation(self.handle, asked)
        def raw_of(handle: OrderedDict, asked_for: OrderedDict) -> OrderedDict:
            if self.stored_data:
                return stored(handle, asked_for, raw)
            return OrderedDict((name, asked_for[name]) for name in raw)

        result = self.inner.prepare.type_signature.result.member

        @tff.tensorflow.computation(self.handle, asked, data.member, result)
        def keep(handle: OrderedDict, asked_for: OrderedDict, raws: OrderedDict, prepared: OrderedDict) -> Any:
            path = folders.prepared_path(handle, asked_for["task"], split_of(asked_for))
            tensors = flat({"context": raws["context"], "examples": prepared})
            count = tf.shape(next(iter(prepared.values())))[0]
            with tf.control_dependencies([tensor_files.write(path, tensors)]):
                return OrderedDict(count=tf.identity(count))

        @tff.federated_computation(
            self.server, tff_types.at_clients(self.handle), incoming, tff_types.at_clients(asked)
        )
        def prepare(
            server_state: tff.Value, handles: tff.Value, transfer_in: tff.Value, asked_for: tff.Value
        ) -> tff.Value:
            raws = tff.federated_map(raw_of, (handles, asked_for))
            states = tff.federated_map(read, handles)
            prepared = self.inner.prepare(server_state, states, transfer_in, raws)
            return tff.federated_map(keep, (handles, asked_for, raws, prepared))

        return prepare

    def _next(self) -> tff.Computation:
        _, states, data = self.inner.next.type_signature.parameter
        read, write = (self.access.reading(states), self.access.writing(self.inner.next.type_signature.result[1]))
        read_data = self.access.reading_data(data, _TRAINING)

        @tff.federated_computation(self.server, tff_types.at_clients(self.handle), tff_types.at_clients(TASK))
        def next_round(server_state: tff.Value, handles: tff.Value, asked_for: tff.Value) -> tuple:
            client_data = tff.federated_map(read_data, (handles, asked_for))
            result = self.inner.next(server_state, tff.federated_map(read, handles), client_data)
            return result[0], tff.federated_map(write, (handles, result[1])), result[2], result[3]

        return next_round

    def _end_task(self) -> tff.Computation:
        _, states, data = self.inner.end_task.type_signature.parameter
        changes, uploads = self.inner.end_task.type_signature.result
        shown = [name for name in REPORTED if name in self.state]
        read, write = self.access.reading(states), self.access.writing(changes)
        read_data = self.access.reading_data(data, _TRAINING)

        @tff.tensorflow.computation(uploads.member, self.handle)
        def with_shown(upload: OrderedDict, handle: OrderedDict) -> OrderedDict:
            return OrderedDict(upload, **folders.read_state(handle, self.state, shown))

        @tff.federated_computation(self.server, tff_types.at_clients(self.handle), tff_types.at_clients(TASK))
        def end_task(server_state: tff.Value, handles: tff.Value, asked_for: tff.Value) -> tuple:
            client_data = tff.federated_map(read_data, (handles, asked_for))
            result = self.inner.end_task(server_state, tff.federated_map(read, handles), client_data)
            told = tff.federated_map(with_shown, (result[1], handles))
            return tff.federated_map(write, (handles, result[0])), told

        return end_task

    def _evaluate(self) -> tff.Computation:
        _, views, data = self.inner.evaluate.type_signature.parameter
        asked = tff.to_type(OrderedDict(tff_types.entries(self.handle), task=INT))

        @tff.tensorflow.computation(asked)
        def view_of(arriving: OrderedDict) -> OrderedDict:
            view = self._view(LazyState(self.state, arriving), arriving["task"])
            return OrderedDict(
                (name, as_type("task_view", name, view[name], kind)) for name, kind in tff_types.entries(views).items()
            )

        read_data = self.access.reading_data(data, _TEST)

        @tff.tensorflow.computation(asked)
        def handle_of(arriving: OrderedDict) -> OrderedDict:
            return OrderedDict((name, arriving[name]) for name in tff_types.entries(self.handle))

        @tff.federated_computation(self.server, tff_types.at_clients(asked), tff_types.at_clients(TASK))
        def evaluate(server_state: tff.Value, views: tff.Value, of_task: tff.Value) -> tff.Value:
            client_data = tff.federated_map(read_data, (tff.federated_map(handle_of, views), of_task))
            return self.inner.evaluate(server_state, tff.federated_map(view_of, views), client_data)

        return evaluate

    def _view(self, state: Mapping[str, Any], task: tf.Tensor) -> Mapping[str, Any]:
        try:
            return self.inner.task_view(state, task)
        except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
            raise errors.ContractError(
                f"task_view: has to work on tensors where clients keep their states in files ({error})"
            ) from error
