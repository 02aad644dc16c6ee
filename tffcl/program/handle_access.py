"""What a handle lets a computation read and write of a client's own files: state, prepared data, raw examples.

Each is a `tff.tensorflow.computation` that runs where the client is. What a handle is stands in
`tffcl.program.handles`; where files are and what is in them, in `tffcl.program.client_folders`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.program import client_folders as folders
from tffcl.program import tensor_files
from tffcl.program.grouped import flat, grouped
from tffcl.templates import tff_types

INT = tff.TensorType(np.int32)
TASK = tff.to_type(OrderedDict(task=INT))


class HandleAccess:
    """Builds the computations for one type of states.

    Attributes:
      state: the entries of a client's state, by name.
      handle: the type of a handle: `directory` (string), `client`, `version`, and `run_task` where states have it.
    """

    def __init__(self, client_state_type: tff.Type):
        self.state = tff_types.entries(client_state_type)
        handle = OrderedDict(directory=tff.TensorType(np.str_), client=INT, version=INT)
        if "run_task" in self.state:
            handle["run_task"] = self.state["run_task"]
        self.handle = tff.to_type(handle)

    def reading(self, kind: tff.Type) -> tff.Computation:
        """(handle -> the entries of a state that a type names)."""
        wanted = tff_types.entries(kind)

        @tff.tensorflow.computation(self.handle)
        def read(handle: OrderedDict) -> OrderedDict:
            return folders.read_state(handle, self.state, wanted)

        return read

    def writing(self, kind: tff.Type) -> tff.Computation:
        """(<handle, changed entries> -> the handle's changes): the next version of the state is written."""
        changed = tff_types.entries(kind)
        kept = [name for name in self.state if name not in changed]

        @tff.tensorflow.computation(self.handle, tff.to_type(OrderedDict(changed)))
        def write(handle: OrderedDict, changes: OrderedDict) -> OrderedDict:
            state = {**folders.read_state(handle, self.state, kept), **changes}
            ordered = OrderedDict((name, state[name]) for name in self.state)
            return OrderedDict(version=folders.write_state(handle, handle["version"] + 1, ordered))

        return write

    def checking(self) -> tff.Computation:
        """(handle -> its version): the whole state is read, so a state that cannot be read is an error."""

        @tff.tensorflow.computation(self.handle)
        def version_of(handle: OrderedDict) -> tf.Tensor:
            with tf.control_dependencies(list(folders.read_state(handle, self.state, self.state).values())):
                return tf.identity(handle["version"])

        return version_of

    def reading_data(self, data: tff.Type, of_splits: Mapping[str, tuple[str, str]]) -> tff.Computation:
        """(<handle, task> -> prepared data of a type).

        Args:
          data: the type.
          of_splits: for each of its entries the split in whose file it is, and what it is called there.
        """

        @tff.tensorflow.computation(self.handle, TASK)
        def read(handle: OrderedDict, asked_for: OrderedDict) -> OrderedDict:
            found = OrderedDict()
            for name, kind in tff_types.entries(data).items():
                split, part = of_splits[name]
                types = flat({part: tff_types.entries(kind)})
                tensors = tensor_files.read(folders.prepared_path(handle, asked_for["task"], split), types)
                found[name] = grouped(tensors, [part])[part]
            return found

        return read


def split_of(asked_for: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """The name of the split whose place in `SPLITS` is asked for."""
    return tf.gather(list(folders.SPLITS), asked_for["split"])


def stored(handle: Mapping[str, tf.Tensor], asked_for: Mapping[str, tf.Tensor], raw: Mapping) -> OrderedDict:
    """A client's raw examples out of its own files, structured as `raw`."""
    place = {"directory": asked_for["directory"], "client": handle["client"]}
    types = flat({part: tff_types.entries(kinds) for part, kinds in raw.items()})
    found = folders.read_data(place, asked_for["task"], split_of(asked_for), types)
    return grouped({name: found[name] for name in types}, raw)


class LazyState(Mapping):
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
