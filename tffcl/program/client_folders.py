"""The folder of a client, as computations see it: versions of its state, prepared examples, and raw data that stay.

Files are written and read by TensorFlow operations, so that it happens where a computation runs. Each is a TensorFlow
checkpoint, with names, dtypes, shapes and a checksum of every tensor; TensorFlow writes both of its parts under other
names and renames them, the index last. So a reader finds a file whole or not at all, and one that was damaged later is
an error. TFF's worker has all operations that are used here.

A handle is a mapping with `directory` (string), `client`, `version` (int32) and, where the process has it, `run_task`.
`DIRECTORY/client-0007/` has `state-VVVVVV`, `task-TTT-SPLIT` with prepared examples and, in a folder of data,
`data-TTT-SPLIT`: raw examples, their context and number. Whoever has the data writes them there, with
`write_client_data`; the program learns the numbers of examples and classes, and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import posixpath
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import storage
from tffcl.errors import InputError, OperationError, RunError
from tffcl.program.client_data import SPLITS, ClientData, StoredTask
from tffcl.program.task_data import check_task, flat, num_examples
from tffcl.templates import ContinualProcess, messages

# What the last two checkpoints, and the call that runs, can need.
KEPT_VERSIONS = 5

_INT = tff.TensorType(np.int32)
_NO_CLASSES = -1
# What stands in a file of raw examples beside them, and in one of a state: whose it is, to be compared.
_OF_DATA, _OF_STATE = ("client", "task", "count", "num_classes"), ("client", "version")

Handle = Mapping[str, Any]


def write(prefix: tf.Tensor, tensors: Mapping[str, tf.Tensor]) -> tf.Operation:
    """Writes a file whole or not at all, over one that is there; its folder must be there (`make`)."""
    return tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=list(tensors), shape_and_slices=[""] * len(tensors), tensors=list(tensors.values())
    )


def read(prefix: tf.Tensor, types: Mapping[str, tff.TensorType]) -> OrderedDict[str, tf.Tensor]:
    """The tensors of a file that `types` names; the others are not touched."""
    if not types:
        return OrderedDict()
    found = tf.raw_ops.RestoreV2(
        prefix=prefix,
        tensor_names=list(types),
        shape_and_slices=[""] * len(types),
        dtypes=[tf.dtypes.as_dtype(kind.dtype) for kind in types.values()],
    )
    return OrderedDict(
        (name, messages.as_type("read", name, value, kind)) for (name, kind), value in zip(types.items(), found)
    )


def make(handle: Handle) -> tf.Operation:
    """Makes the folder of a client, and all above it, with `about.txt` in it."""
    client = tf.strings.as_string(handle["client"])
    about = tf.strings.join(["The state of client ", client, " in a run of tffcl.\n"])
    return tf.io.write_file(_path(handle, "about.txt"), about)


def state_path(handle: Handle, version: Any) -> tf.Tensor:
    """Path of a version of a client's state, without the file's ending."""
    return _path(handle, "state-", tf.strings.as_string(version, width=6, fill="0"))


def prepared_path(handle: Handle, task: tf.Tensor, split: Any) -> tf.Tensor:
    """Path of prepared examples, without the file's ending; `task` is the run's number."""
    return _path(handle, "task-", tf.strings.as_string(task, width=3, fill="0"), "-", split)


def data_path(handle: Handle, task: Any, split: Any) -> tf.Tensor:
    """Path of a client's raw examples, without the file's ending; `directory` is that of the data."""
    return _path(handle, "data-", tf.strings.as_string(task, width=3, fill="0"), "-", split)


def _path(handle: Handle, *name: Any) -> tf.Tensor:
    client = tf.strings.as_string(handle["client"], width=4, fill="0")
    return tf.strings.join([handle["directory"], "/client-", client, "/", *name])


def _read_own(path: tf.Tensor, whose: Mapping[str, Any], fields: Iterable[str], types: Mapping[str, tff.Type],
              noun: str) -> OrderedDict:  # fmt: skip
    """Some tensors of a file, and `fields` under `format/NAME`; an error where those of `whose` are others there."""
    found = read(path, OrderedDict(((f"format/{name}", _INT) for name in fields), **types))
    right = [tf.equal(found[f"format/{name}"], value) for name, value in whose.items()]
    words = tf.strings.join([path, f" is of another client or {noun}"])
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(right), [words])]):
        return OrderedDict((name, tf.identity(value)) for name, value in found.items())


def read_data(handle: Handle, task: Any, split: Any, types: Mapping[str, tff.Type]) -> OrderedDict:
    """Tensors `context/NAME` and `examples/NAME` of a client's raw examples, and under `format/NAME` whose they are.

    `handle` has the `directory` of the data and `client`; `task` is the run's number, `split` one of `SPLITS`.
    """
    whose = {"client": handle["client"], "task": task}
    return _read_own(data_path(handle, task, split), whose, _OF_DATA, types, "task")


def read_state(handle: Handle, types: Mapping[str, tff.Type], names: Iterable[str]) -> OrderedDict:
    """The named entries of a client's state, of the version that its handle names; `types` are those of all."""
    wanted = OrderedDict((f"state/{name}", types[name]) for name in names)
    whose = {name: handle[name] for name in _OF_STATE}
    found = _read_own(state_path(handle, handle["version"]), whose, _OF_STATE, wanted, "version")
    values = OrderedDict((name.partition("/")[2], found[name]) for name in wanted)
    if "run_task" in values:
        values["run_task"] = handle["run_task"]
    return values


def write_state(handle: Handle, version: tf.Tensor, state: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Writes all of a client's state; gives the version once it is there, and one that is too old is gone."""
    tensors = {"format/client": handle["client"], "format/version": version}
    tensors.update((f"state/{name}", value) for name, value in state.items())
    with tf.control_dependencies([write(state_path(handle, version), tensors)]):
        removed = _remove(state_path(handle, version - KEPT_VERSIONS), _path(handle, "removed"))
    with tf.control_dependencies([removed]):
        return tf.identity(version)


def _remove(prefix: tf.Tensor, scrap: tf.Tensor) -> Any:
    """Removes a file if it is there, by TensorFlow's operation that renames checkpoints: it has none that deletes.

    What is removed becomes `scrap`, in the place of what was removed before.
    """

    def rename() -> tf.Tensor:
        renamed = tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=prefix[None], destination_prefix=scrap, delete_old_dirs=False, allow_missing_files=True
        )
        with tf.control_dependencies([renamed]):
            return tf.constant(True)

    present = tf.size(tf.io.matching_files(tf.strings.join([prefix, ".index"]))) > 0
    return tf.cond(present, rename, lambda: tf.constant(False))


def check_directory(what: str, directory: object) -> None:
    """Raises InputError for what is no absolute path of a folder on the machines of the workers."""
    if not isinstance(directory, str) or not posixpath.isabs(directory):
        raise InputError(f"{what}: expected the absolute path of a folder where workers run, found {directory!r}")
    storage.check_path(directory, what)


def check_regular(directory: str, client: int) -> None:
    """Raises RunError if a client's folder, where this machine has it, holds no regular files alone: TensorFlow waits
    for pipes.
    """
    folder = _path({"directory": directory, "client": client}).numpy().decode()
    with contextlib.suppress(OSError):  # on another machine, or not there yet
        wrong = [entry.path for entry in os.scandir(folder) if not entry.is_file()]
        if wrong:
            raise RunError(f"client {client}: {min(wrong)} is no regular file, as all of its folder should be")


def name_client(call: Callable[[list], Any], elements: Iterable[Any], failure: Callable[[Any], str]) -> None:
    """Makes a call that failed for several clients again for each element alone.

    Raises:
      RunError: `failure` of the first element for which it fails, with the words of TensorFlow.
    """
    for element in elements:
        try:
            call([element])
        except OperationError as error:
            raise RunError(f"{failure(element)}: {error.words}") from error


def write_client_data(
    data: ClientData,
    directory: Union[str, os.PathLike[str]],
    *,
    process: Optional[ContinualProcess] = None,
    clients: Optional[Iterable[int]] = None,
) -> None:
    """Writes the tasks of clients below a folder of this machine, each file whole or not at all.

    Shown in docs/runtime.md.

    Args:
      data: the tasks; only those of `clients` are asked for.
      directory: the folder, made if it is missing.
      process: that is going to learn from them: then they are checked for it. An empty training set is no error here,
        since a client need not be enrolled.
      clients: numbers of the clients whose tasks these are; None for all.

    Raises:
      InputError: a task that does not suit the process; the message names the client and the task.
      RunError: a file cannot be written.
    """
    storage.check_folder(directory, "a folder of clients' data")
    folder = pathlib.Path(directory).absolute()
    for client in range(data.num_clients) if clients is None else clients:
        for number in range(data.num_tasks):
            task, where = data.task(client, number), f"client {client}, task {number}"
            if process is not None and num_examples(task.train):
                check_task(process, task, where)
            for split in SPLITS:
                examples = getattr(task, split)
                classes = _NO_CLASSES if task.num_classes is None else task.num_classes
                fields = zip(_OF_DATA, (client, number, num_examples(examples), classes))
                tensors = flat(
                    {
                        "format": {name: np.int32(value) for name, value in fields},
                        "context": task.test_context if split == "test" else task.context,
                        "examples": examples,
                    }
                )
                path = data_path({"directory": str(folder), "client": client}, number, split)
                target = pathlib.Path(path.numpy().decode())
                try:
                    with storage.private():
                        storage.make_folder(target.parent, "the folder of a client's data")
                        write(path, OrderedDict((name, tf.convert_to_tensor(one)) for name, one in tensors.items()))
                except tf.errors.OpError as error:
                    raise RunError(f"{where}: cannot write {target}: {error.message}") from error
                except RunError as error:
                    raise RunError(f"{where}: {error}") from error


class StoredData:
    """The data that `write_client_data` has written at the clients, for `run_program(..., client_files=...)`.

    Shown in docs/runtime.md.

    Args:
      directory: absolute path of the folder, on the machines where the clients' work is done.
      num_clients: C.
      num_tasks: T.
    """

    def __init__(self, directory: str, num_clients: int, num_tasks: int):
        check_directory("stored data", directory)
        self.directory, self.num_clients, self.num_tasks = directory, num_clients, num_tasks
        self._known: dict[tuple[int, int], StoredTask] = {}

    def task(self, client: int, task: int) -> StoredTask:
        """What is known of a task; asks all clients, in the TFF context that is installed, when it is first called.

        Raises:
          RunError: a file is missing or damaged; the message names the client and the task.
        """
        if not self._known:
            self._known = self._ask()
        return self._known[client, task]

    def _ask(self) -> dict[tuple[int, int], StoredTask]:
        for client in range(self.num_clients):
            check_regular(self.directory, client)
        pairs = [(client, task) for client in range(self.num_clients) for task in range(self.num_tasks)]
        places = [
            OrderedDict(directory=self.directory, client=np.int32(client), task=np.int32(task))
            for client, task in pairs
        ]
        try:
            found = _describe()(places)
        except OperationError:
            name_client(_describe(), places, lambda place: (
                f"client {place['client']}, task {place['task']}: cannot read its data below {self.directory}"
            ))  # fmt: skip
            raise
        known = {}
        for pair, counts in zip(pairs, found):
            classes = int(counts["num_classes"])
            of_split = {split: int(counts[split]) for split in SPLITS}
            known[pair] = StoredTask(self.directory, of_split, None if classes == _NO_CLASSES else classes)
        return known


@functools.lru_cache(maxsize=1)
def _describe() -> tff.Computation:
    """({<directory, client, task>}@CLIENTS -> {<numbers of examples, and of classes>}@CLIENTS)."""
    asked = tff.to_type(OrderedDict(directory=tff.TensorType(np.str_), client=_INT, task=_INT))

    @tff.tensorflow.computation(asked)
    def counts_of(place: OrderedDict) -> OrderedDict:
        found = {split: read_data(place, place["task"], split, OrderedDict()) for split in SPLITS}
        counts = OrderedDict((split, one["format/count"]) for split, one in found.items())
        return OrderedDict(counts, num_classes=found["train"]["format/num_classes"])

    @tff.federated_computation(messages.at_clients(asked))
    def describe(places: tff.Value) -> tff.Value:
        return tff.federated_map(counts_of, places)

    return describe
