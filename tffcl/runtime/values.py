"""Values as the in-process runtime holds them, and their way in and out.

A tensor is an eager tensor, a structure a tuple (the names stand in its type), a sequence a `Sequence`, a value at the
clients a `Clients` or, where all have the same, an `Everyone`; a value at the server is just the value.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.compiler import array

from tffcl import errors
from tffcl.runtime.sequences import dataset_of, sequence_of


@dataclasses.dataclass(frozen=True)
class Clients:
    """One value for each client."""

    members: list


@dataclasses.dataclass(frozen=True)
class Everyone:
    """The same value at every client."""

    member: Any


class Ingestion:
    """Turns the argument of one call into values, and counts the clients."""

    def __init__(self) -> None:
        self.num_clients: Optional[int] = None

    def take(self, value: Any, kind: tff.Type, where: str = "argument") -> Any:
        """The value in the form described above.

        Args:
          value: What the user passed: arrays, tensors, numbers, and containers of them.
          kind: Its type.
          where: Names the value in errors.

        Raises:
          InputError: If the value does not fit its type.
        """
        if isinstance(kind, tff.FederatedType):
            return self._placed(value, kind, where)
        if isinstance(kind, tff.StructType):
            return self._struct(value, kind, where)
        if isinstance(kind, tff.SequenceType):
            return sequence_of(value, kind.element, where)
        if isinstance(kind, tff.TensorType):
            return as_tensor(value, kind, where)
        raise errors.InputError(f"{where}: a value of type {kind} cannot be passed to a computation")

    def _placed(self, value: Any, kind: tff.FederatedType, where: str) -> Any:
        if kind.all_equal:
            member = self.take(value, kind.member, where)
            return Everyone(member) if kind.placement is tff.CLIENTS else member
        if not isinstance(value, (list, tuple)):
            raise errors.InputError(
                f"{where}: expected a list with a value for each client, found {type(value).__name__}"
            )
        if self.num_clients not in (None, len(value)):
            raise errors.InputError(
                f"{where}: expected values for {self.num_clients} clients, found {len(value)}"
            )
        self.num_clients = len(value)
        return Clients([self.take(v, kind.member, f"{where}[{i}]") for i, v in enumerate(value)])

    def _struct(self, value: Any, kind: tff.StructType, where: str) -> tuple:
        try:
            items = tff.structure.to_elements(tff.structure.from_container(value))
        except TypeError as error:
            raise errors.InputError(
                f"{where}: expected a structure of type {kind}, found {type(value).__name__}"
            ) from error
        names = tff.structure.name_list_with_nones(kind)
        found = [name for name, _ in items]
        if len(items) != len(names) or any(f not in (n, None) for f, n in zip(found, names)):
            raise errors.InputError(f"{where}: expected the entries {names}, found {found}")
        return tuple(
            self.take(item, element, f"{where}.{name}" if name else f"{where}[{index}]")
            for index, ((_, item), (name, element)) in enumerate(
                zip(items, tff.structure.iter_elements(kind))
            )
        )


def as_tensor(value: Any, kind: tff.TensorType, where: str) -> tf.Tensor:
    """An eager tensor; a tensor, and an array that `to_array` has made, pass by reference, all else is copied.

    Args:
      value: An array, a tensor, a number, a string, or a list of them.
      kind: The type that the tensor has to have.
      where: Names the value in errors.

    Raises:
      InputError: If the value does not fit its type.
    """
    tensor = value.read_value() if isinstance(value, tf.Variable) else _known(value)
    dtype = tf.dtypes.as_dtype(kind.dtype)
    if not isinstance(tensor, tf.Tensor):
        if not _fits(value, kind):
            raise errors.InputError(f"{where}: expected {kind}, found {_described(value)}")
        try:
            tensor = tf.convert_to_tensor(value, dtype)
        except (TypeError, ValueError, tf.errors.OpError) as error:
            raise errors.InputError(f"{where}: expected {kind}, found {_described(value)}") from error
    if tensor.dtype != dtype or not tf.TensorShape(kind.shape).is_compatible_with(tensor.shape):
        found = f"{tensor.dtype.name}{tensor.shape.as_list()}"
        raise errors.InputError(f"{where}: expected {kind}, found {found}")
    return tensor


def _fits(value: Any, kind: tff.TensorType) -> bool:
    """TFF's own rules on which numbers may stand for which."""
    parts = tf.nest.flatten(value) if isinstance(value, (list, tuple)) else [value]
    return all(array.is_compatible_dtype(part, kind.dtype.type) for part in parts)


def _described(value: Any) -> str:
    if isinstance(value, (np.ndarray, np.generic)):
        return f"{value.dtype}{list(value.shape)}"
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."


# Arrays that came out of tensors: they lie on the tensors' memory, which may therefore go in again as it is.
_known_tensors: dict[int, tuple[weakref.ref, tf.Tensor]] = {}


def _known(value: Any) -> Any:
    """The tensor on whose memory an array lies, if it is one of ours; else the value itself."""
    reference, tensor = _known_tensors.get(id(value), (None, None))
    return tensor if reference is not None and reference() is value else value


def to_array(tensor: tf.Tensor) -> Any:
    """What TFF gives for a tensor: a number, bytes, or an array that nobody can write to.

    Such an array lies on the tensor's own memory where that is possible.
    """
    if (
        tensor.shape.rank == 0
        or tensor.dtype in (tf.string, tf.bfloat16)
        or "CPU" not in tensor.backing_device
    ):
        value = tensor.numpy()
        if isinstance(value, np.ndarray) and tensor.dtype != tf.string:
            value.flags.writeable = False
        return value
    value = np.asarray(memoryview(tensor))
    key = id(value)
    _known_tensors[key] = weakref.ref(value, lambda _: _known_tensors.pop(key, None)), tensor
    return value


def to_python(value: Any, kind: tff.Type, num_clients: int) -> Any:
    """A value in the form in which TFF's executors give it; TFF then puts it into containers.

    Args:
      value: A value in the form that the module's docstring describes.
      kind: Its type.
      num_clients: How many clients there are.
    """
    if isinstance(kind, tff.FederatedType):
        if isinstance(value, Clients):
            return [to_python(member, kind.member, num_clients) for member in value.members]
        member = value.member if isinstance(value, Everyone) else value
        if kind.all_equal:
            return to_python(member, kind.member, num_clients)
        return [to_python(member, kind.member, num_clients) for _ in range(num_clients)]
    if isinstance(kind, tff.StructType):
        pairs = zip(value, tff.structure.iter_elements(kind))
        return tff.structure.Struct(
            (name, to_python(item, element, num_clients)) for item, (name, element) in pairs
        )
    return dataset_of(value, kind.element) if isinstance(kind, tff.SequenceType) else to_array(value)


def device_of(value: Any) -> Optional[str]:
    """Name of the device of the first tensor in a value; None where there is none."""
    if isinstance(value, tf.Tensor):
        return value.device
    parts = value.members if isinstance(value, Clients) else value if isinstance(value, tuple) else ()
    return next(filter(None, map(device_of, parts)), None)
