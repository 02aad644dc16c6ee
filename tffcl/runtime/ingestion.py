"""The argument of a call becomes values of the in-process runtime, checked against its type.

Large arrays of a client stay arrays until a graph takes them: so the copies of all clients neither exist at the same
time, nor are they made one after another before the first client starts.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.compiler import array

from tffcl import errors
from tffcl.runtime.sequences import sequence_of
from tffcl.runtime.values import Clients, Everyone, known_tensor

# Bytes from which an array is large.
_LARGE = 16 * 1024


class Ingestion:
    """Turns the argument of one call into values, and counts the clients."""

    def __init__(self) -> None:
        self.num_clients: Optional[int] = None
        self._at_clients = False

    def take(self, value: Any, kind: tff.Type, where: str = "argument") -> Any:
        """The value in the form that `tffcl.runtime.values` describes.

        Args:
          value: What the user passed: arrays, tensors, numbers, and containers of them.
          kind: Its type.
          where: Names the value in errors.

        Raises:
          ArgumentError: If the value does not fit its type.
        """
        if isinstance(kind, tff.FederatedType):
            return self._placed(value, kind, where)
        if isinstance(kind, tff.StructType):
            return self._struct(value, kind, where)
        if isinstance(kind, tff.SequenceType):
            return sequence_of(value, kind.element, where)
        if isinstance(kind, tff.TensorType):
            return known_tensor(value) if self._may_wait(value, kind) else as_tensor(value, kind, where)
        raise errors.ArgumentError(f"{where}: a value of type {kind} cannot be passed to a computation")

    def _may_wait(self, value: Any, kind: tff.TensorType) -> bool:
        """Whether a value is a client's large array that fits its type exactly."""
        return (
            self._at_clients
            and isinstance(value, np.ndarray)
            and value.nbytes >= _LARGE
            and value.dtype == kind.dtype
            and value.dtype.kind in "biuf"
            and tf.TensorShape(kind.shape).is_compatible_with(value.shape)
        )

    def _placed(self, value: Any, kind: tff.FederatedType, where: str) -> Any:
        if kind.all_equal:
            member = self.take(value, kind.member, where)
            return Everyone(member) if kind.placement is tff.CLIENTS else member
        if not isinstance(value, (list, tuple)):
            raise errors.ArgumentError(
                f"{where}: expected a list with a value for each client, found {type(value).__name__}"
            )
        if self.num_clients not in (None, len(value)):
            raise errors.ArgumentError(
                f"Conflicting cardinalities: {where}: expected values for {self.num_clients} clients, "
                f"found {len(value)}"
            )
        self.num_clients, self._at_clients = len(value), True
        members = [self.take(v, kind.member, _of_client(where, i)) for i, v in enumerate(value)]
        self._at_clients = False
        return Clients(members)

    def _struct(self, value: Any, kind: tff.StructType, where: str) -> tuple:
        return tuple(self.take(*element) for element in _elements(value, kind, where))


def check_entries(value: Any, kind: tff.Type, where: str = "argument") -> None:
    """Checks that mappings have the entries of their types, in their order.

    TFF itself takes them by position: of two entries of one type in another order it would make one of the other.

    Raises:
      ArgumentError: They have not; names the entry, and the client by its place.
    """
    if isinstance(kind, tff.FederatedType):
        if kind.all_equal:
            check_entries(value, kind.member, where)
        elif isinstance(value, (list, tuple)):
            for place, member in enumerate(value):
                check_entries(member, kind.member, _of_client(where, place))
    elif isinstance(kind, tff.StructType):
        for element in _elements(value, kind, where):
            check_entries(*element)


def _of_client(where: str, place: int) -> str:
    return f"{where}[client {place}]"


def _elements(value: Any, kind: tff.StructType, where: str) -> list[tuple[Any, tff.Type, str]]:
    """The elements of a structure, each with its type and what it is called in errors."""
    try:
        items = tff.structure.to_elements(tff.structure.from_container(value))
    except TypeError as error:
        raise errors.ArgumentError(
            f"{where}: expected a structure of type {kind}, found {type(value).__name__}"
        ) from error
    names = tff.structure.name_list_with_nones(kind)
    found = [name for name, _ in items]
    if len(items) != len(names) or any(f not in (n, None) for f, n in zip(found, names)):
        raise errors.ArgumentError(f"{where}: expected the entries {names}, in this order, found {found}")
    return [
        (item, element, f"{where}.{name}" if name else f"{where}[{index}]")
        for index, ((_, item), (name, element)) in enumerate(zip(items, tff.structure.iter_elements(kind)))
    ]


def as_tensor(value: Any, kind: tff.TensorType, where: str) -> tf.Tensor:
    """An eager tensor; a tensor, and an array that `to_array` has made, pass by reference, all else is copied.

    Args:
      value: An array, a tensor, a number, a string, or a list of them.
      kind: The type that the tensor has to have.
      where: Names the value in errors.

    Raises:
      ArgumentError: If the value does not fit its type.
    """
    tensor = value.read_value() if isinstance(value, tf.Variable) else known_tensor(value)
    dtype = tf.dtypes.as_dtype(kind.dtype)
    if not isinstance(tensor, tf.Tensor):
        if not _fits(value, kind):
            raise errors.ArgumentError(f"{where}: expected {kind}, found {_described(value)}")
        try:
            tensor = tf.convert_to_tensor(value, dtype)
        except (TypeError, ValueError, tf.errors.OpError) as error:
            raise errors.ArgumentError(f"{where}: expected {kind}, found {_described(value)}") from error
    if tensor.dtype != dtype or not tf.TensorShape(kind.shape).is_compatible_with(tensor.shape):
        found = f"{tensor.dtype.name}{tensor.shape.as_list()}"
        raise errors.ArgumentError(f"{where}: expected {kind}, found {found}")
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
