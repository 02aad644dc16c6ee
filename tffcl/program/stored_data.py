"""Data sets that stay with their clients, as files that computations read where a client's work is done.

`DIRECTORY/client-0007/data-TTT-SPLIT` holds the raw examples of a task's split (`tffcl.program.tensor_files`), their
context, and how many there are. Whoever has the data writes them, with `write_client_data`, on that machine; the
program learns the numbers of examples and classes, and nothing else.
"""

from __future__ import annotations

import functools
import os
import pathlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Optional, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import storage
from tffcl.errors import OperationError, RunError
from tffcl.program import checks, tensor_files
from tffcl.program import client_folders as folders
from tffcl.program.client_data import ClientData, StoredTask
from tffcl.program.grouped import flat
from tffcl.program.preparation import raw_data
from tffcl.templates import ContinualProcess, tff_types

_INT = tff.TensorType(np.int32)
_PLACE = tff.to_type(OrderedDict(directory=tff.TensorType(np.str_), client=_INT, task=_INT))
_NO_CLASSES = -1


def write_client_data(
    data: ClientData,
    directory: Union[str, os.PathLike[str]],
    *,
    process: Optional[ContinualProcess] = None,
    clients: Optional[Iterable[int]] = None,
) -> None:
    """Writes the tasks of clients below a folder of this machine, each file whole or not at all.

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
    for client in range(data.num_clients) if clients is None else clients:
        for task in range(data.num_tasks):
            one, where = data.task(client, task), f"client {client}, task {task}"
            if process is not None and checks.num_examples(one.train):
                checks.check_task(process, one, where)
            for split in folders.SPLITS:
                raw = raw_data(one, split)
                classes = _NO_CLASSES if one.num_classes is None else one.num_classes
                scalars = (client, task, checks.num_examples(raw["examples"]), classes)
                whose = {name: np.int32(value) for name, value in zip(folders.OF_DATA, scalars)}
                tensors = flat({"format": whose, **raw})
                _write(pathlib.Path(directory), client, task, split, tensors)


def _write(directory: pathlib.Path, client: int, task: int, split: str, tensors: dict) -> None:
    path = folders.data_path({"directory": str(directory.absolute()), "client": client}, task, split)
    target = pathlib.Path(path.numpy().decode())
    try:
        with storage.private():
            storage.make_folder(target.parent, "the folder of a client's data")
            tensor_files.write(path, OrderedDict((name, tf.convert_to_tensor(v)) for name, v in tensors.items()))
    except tf.errors.OpError as error:
        raise RunError(f"client {client}, task {task}: cannot write {target}: {error.message}") from error
    except RunError as error:
        raise RunError(f"client {client}, task {task}: {error}") from error


class StoredData:
    """The data that `write_client_data` has written at the clients, for `run_program(..., client_files=...)`.

    Args:
      directory: absolute path of the folder, on the machines where the clients' work is done.
      num_clients: C.
      num_tasks: T.
    """

    def __init__(self, directory: str, num_clients: int, num_tasks: int):
        folders.check_directory("stored data", directory)
        self.directory, self.num_clients, self.num_tasks = directory, num_clients, num_tasks
        self._known: dict[tuple[int, int], StoredTask] = {}

    def task(self, client: int, task: int) -> StoredTask:
        """What is known of a task; asks all clients, in the TFF context that is installed, when it is first called.

        Raises:
          RunError: a file is missing or damaged; the message names the client and the task.
        """
        if not self._known:
            pairs = [(c, t) for c in range(self.num_clients) for t in range(self.num_tasks)]
            self._known = dict(zip(pairs, self._ask(pairs)))
        return self._known[client, task]

    def _ask(self, pairs: list[tuple[int, int]]) -> list[StoredTask]:
        for client in range(self.num_clients):
            folders.check_regular(self.directory, client)
        places = [self._place(client, task) for client, task in pairs]
        try:
            found = _describe()(places)
        except OperationError:
            folders.say_whose(_describe(), places, self._unread)
            raise
        return [self._task(one) for one in found]

    def _unread(self, place: OrderedDict) -> str:
        return f"client {place['client']}, task {place['task']}: cannot read its data below {self.directory}"

    def _place(self, client: int, task: int) -> OrderedDict:
        return OrderedDict(directory=self.directory, client=np.int32(client), task=np.int32(task))

    def _task(self, told: OrderedDict) -> StoredTask:
        counts = {split: int(told[split]) for split in folders.SPLITS}
        classes = int(told["num_classes"])
        return StoredTask(self.directory, counts, None if classes == _NO_CLASSES else classes)


@functools.lru_cache(maxsize=1)
def _describe() -> tff.Computation:
    """({<directory, client, task>}@CLIENTS -> {<numbers of examples, and of classes>}@CLIENTS)."""

    @tff.tensorflow.computation(_PLACE)
    def told(place: OrderedDict) -> OrderedDict:
        found = {split: folders.read_data(place, place["task"], split, OrderedDict()) for split in folders.SPLITS}
        counts = OrderedDict((split, one["format/count"]) for split, one in found.items())
        return OrderedDict(counts, num_classes=found["train"]["format/num_classes"])

    @tff.federated_computation(tff_types.at_clients(_PLACE))
    def describe(places: tff.Value) -> tff.Value:
        return tff.federated_map(told, places)

    return describe
