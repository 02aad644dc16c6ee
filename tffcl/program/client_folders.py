"""The folder of a client, as computations see it: versions of its state, and what is prepared of its data.

A handle is a mapping with `directory` (string), `client`, `version` (int32) and, where the process has it, `run_task`.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import storage
from tffcl.errors import InputError, OperationError, RunError
from tffcl.program import tensor_files

SPLITS = ("train", "validation", "test")
# What stands in a file of raw examples beside them: whose they are, and how many.
OF_DATA = ("client", "task", "count", "num_classes")
# What the last two checkpoints, and the call that runs, can need.
KEPT_VERSIONS = 5

_INT = tff.TensorType(np.int32)
_WHOSE = OrderedDict(client=_INT, version=_INT)  # stands in the file of each state, to be compared

Handle = Mapping[str, Any]


def make(handle: Handle) -> tf.Operation:
    """Makes the folder of a client, and all above it."""
    client = tf.strings.as_string(handle["client"])
    about = tf.strings.join(["The state of client ", client, " in a run of tffcl.\n"])
    return tensor_files.make_folder(_folder(handle), about)


def state_path(handle: Handle, version: Any) -> tf.Tensor:
    """Path of a version of a client's state, without the file's ending."""
    return _path(handle, ["state-", tf.strings.as_string(version, width=6, fill="0")])


def prepared_path(handle: Handle, task: tf.Tensor, split: Any) -> tf.Tensor:
    """Path of prepared examples, without the file's ending; `task` is the run's number."""
    return _path(handle, ["task-", tf.strings.as_string(task, width=3, fill="0"), "-", split])


def data_path(handle: Handle, task: Any, split: Any) -> tf.Tensor:
    """Path of a client's raw examples, without the file's ending; `directory` is that of the data."""
    return _path(handle, ["data-", tf.strings.as_string(task, width=3, fill="0"), "-", split])


def read_data(handle: Handle, task: Any, split: Any, types: Mapping[str, tff.Type]) -> OrderedDict:
    """Some tensors of a client's raw examples, and what `OF_DATA` names under `format/NAME`.

    Args:
      handle: `directory`, that of the data, and `client`.
      task: int32, the run's number.
      split: string, one of `SPLITS`.
      types: name, `context/NAME` or `examples/NAME`, -> type of those that are wanted.
    """
    path = data_path(handle, task, split)
    wanted = OrderedDict(((f"format/{name}", _INT) for name in OF_DATA), **types)
    found = tensor_files.read(path, wanted)
    whose = [tf.equal(found["format/client"], handle["client"]), tf.equal(found["format/task"], task)]
    words = tf.strings.join([path, " is of another client or task"])
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(whose), [words])]):
        return OrderedDict((name, tf.identity(value)) for name, value in found.items())


def read_state(handle: Handle, types: Mapping[str, tff.Type], names: Iterable[str]) -> OrderedDict:
    """Some entries of a client's state, of the version that its handle names.

    Args:
      handle: of the client.
      types: of all entries.
      names: of those that are wanted.
    """
    names = list(names)
    wanted = OrderedDict((f"format/{name}", kind) for name, kind in _WHOSE.items())
    wanted.update((f"state/{name}", types[name]) for name in names)
    path = state_path(handle, handle["version"])
    found = tensor_files.read(path, wanted)
    right = tf.reduce_all([tf.equal(found[f"format/{name}"], handle[name]) for name in _WHOSE])
    checked = tf.debugging.Assert(right, [tf.strings.join([path, " is of another client or version"])])
    with tf.control_dependencies([checked]):
        values = OrderedDict((name, tf.identity(found[f"state/{name}"])) for name in names)
    if "run_task" in values:
        values["run_task"] = handle["run_task"]
    return values


def write_state(handle: Handle, version: tf.Tensor, state: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Writes all of a client's state; gives the version once it is there, and one that is too old is gone."""
    tensors = {"format/client": handle["client"], "format/version": version}
    tensors.update((f"state/{name}", value) for name, value in state.items())
    with tf.control_dependencies([tensor_files.write(state_path(handle, version), tensors)]):
        old = state_path(handle, version - KEPT_VERSIONS)
        removed = tensor_files.remove(old, _path(handle, ["removed"]))
    with tf.control_dependencies([removed]):
        return tf.identity(version)


def check_directory(what: str, directory: object) -> None:
    """Checks the folder that has the files of all clients.

    Args:
      what: is kept there, for the message.
      directory: an absolute path on the machines of the workers.

    Raises:
      InputError: it is none.
    """
    if not isinstance(directory, str) or not posixpath.isabs(directory):
        raise InputError(f"{what}: expected the absolute path of a folder where workers run, found {directory!r}")
    storage.check_path(directory, what)


def check_regular(directory: str, client: int) -> None:
    """Checks that a client's folder holds regular files alone, if this machine has it: TensorFlow waits for pipes.

    Raises:
      RunError: it holds something else; the message names the client and the path.
    """
    folder = _folder({"directory": directory, "client": client}).numpy().decode()
    with contextlib.suppress(OSError):  # on another machine, or not there yet
        wrong = [entry.path for entry in os.scandir(folder) if not entry.is_file()]
        if wrong:
            raise RunError(f"client {client}: {min(wrong)} is no regular file, as all of its folder should be")


def say_whose(call: Callable[[list], Any], elements: Iterable[Any], failure: Callable[[Any], str]) -> None:
    """Makes a call that failed for several clients again for each alone.

    Args:
      call: takes a list of elements.
      elements: one of each client.
      failure: what is said of an element for which the call fails.

    Raises:
      RunError: it failed; says so of the first for which it does, with the words of TensorFlow.
    """
    for element in elements:
        try:
            call([element])
        except OperationError as error:
            raise RunError(f"{failure(element)}: {error.words}") from error


def _folder(handle: Handle) -> tf.Tensor:
    client = tf.strings.as_string(handle["client"], width=4, fill="0")
    return tf.strings.join([handle["directory"], "/client-", client])


def _path(handle: Handle, name: Iterable[Any]) -> tf.Tensor:
    return tf.strings.join([_folder(handle), "/", *name])
