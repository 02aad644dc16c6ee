"""Values as the in-process runtime holds them: their way in, checked against their types, and their way out.

A tensor is an eager tensor, a structure a tuple (the names stand in its type), a TFF sequence a `Sequence`, a value at
the clients a `Clients` or, where all have the same, an `Everyone`; a value at the server is just the value. Arrays
of a client stay arrays until a graph takes them: so the copies of all clients neither exist at the same time, nor are
they made one after another before the first client starts, and what no graph reads is not copied.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.compiler import array
from tensorflow_federated.python.core.impl.types import computation_types, type_conversions
from tensorflow_federated.python.core.impl.utils import tensorflow_utils

from tffcl import errors
from tffcl.runtime import wire


class Clients:
    """One value for each client, in `members`."""

    ready = True

    def __init__(self, members: list) -> None:
        self.members = members

    def member(self, index: int) -> Any:
        """A client's own value."""
        return self.members[index]

    def each(self, take: Callable[[Any], Any]) -> None:
        """Hands on one value after the other, in the order of the clients."""
        for member in self.members:
            take(member)


@dataclasses.dataclass(frozen=True)
class Everyone:
    """The same value at every client."""

    member: Any


@dataclasses.dataclass(frozen=True)
class Sequence:
    """A data set as the variant tensor that compiled graphs take and give, and the owner of what that tensor uses."""

    variant: tf.Tensor
    owner: Any = None


def is_all_equal(value: Any) -> bool:
    """Whether all parts of a value at the clients are the same for every client."""
    return all(map(is_all_equal, value)) if isinstance(value, tuple) else isinstance(value, Everyone)


def of_client(value: Any, index: int) -> Any:
    """A client's own part of a value at the clients."""
    if isinstance(value, tuple):
        return tuple(of_client(part, index) for part in value)
    return value.member if isinstance(value, Everyone) else value.member(index)


def is_ready(value: Any) -> bool:
    """Whether no client has to compute anything for a value at the clients."""
    return all(map(is_ready, value)) if isinstance(value, tuple) else not isinstance(value, Clients) or value.ready


# -- in --------------------------------------------------------------------------------------------------------


class Ingestion:
    """Turns the argument of one call into values, and counts the clients."""

    def __init__(self) -> None:
        self.num_clients: Optional[int] = None
        self._at_clients = False

    def take(self, value: Any, type_spec: tff.Type, where: str = "argument") -> Any:
        """The value of arrays, tensors, numbers, and containers of them; `where` names it in ArgumentErrors."""
        if isinstance(type_spec, tff.FederatedType):
            return self._placed(value, type_spec, where)
        if isinstance(type_spec, tff.StructType):
            return tuple(self.take(*element) for element in _elements(value, type_spec, where))
        if isinstance(type_spec, tff.SequenceType):
            return sequence_of(value, type_spec.element, where)
        if isinstance(type_spec, tff.TensorType):
            if self._at_clients and wire.is_exact_array(value, type_spec):
                return known_tensor(value)
            return as_tensor(value, type_spec, where)
        raise errors.ArgumentError(f"{where}: a value of type {type_spec} cannot be passed to a computation")

    def _placed(self, value: Any, type_spec: tff.FederatedType, where: str) -> Any:
        if type_spec.all_equal:
            member = self.take(value, type_spec.member, where)
            return Everyone(member) if type_spec.placement is tff.CLIENTS else member
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
        members = [self.take(v, type_spec.member, f"{where}[client {i}]") for i, v in enumerate(value)]
        self._at_clients = False
        return Clients(members)


def check_entries(value: Any, type_spec: tff.Type, where: str = "argument") -> None:
    """Checks that mappings have the entries of their types, in their order; else an ArgumentError says which have not.

    TFF itself takes them by position: of two entries of one type in another order it would make one of the other.
    """
    if isinstance(type_spec, tff.FederatedType):
        if type_spec.all_equal:
            check_entries(value, type_spec.member, where)
        elif isinstance(value, (list, tuple)):
            for index, member in enumerate(value):
                check_entries(member, type_spec.member, f"{where}[client {index}]")
    elif isinstance(type_spec, tff.StructType):
        for element in _elements(value, type_spec, where):
            check_entries(*element)


def _elements(value: Any, type_spec: tff.StructType, where: str) -> list[tuple[Any, tff.Type, str]]:
    """The elements of a structure, each with its type and its name in errors."""
    try:
        ordered = type(value) is OrderedDict  # has a short way of its own
        items = list(value.items()) if ordered else tff.structure.to_elements(tff.structure.from_container(value))
    except TypeError as error:
        raise errors.ArgumentError(
            f"{where}: expected a structure of type {type_spec}, found {type(value).__name__}"
        ) from error
    expected, found = tff.structure.name_list_with_nones(type_spec), [name for name, _ in items]
    if len(items) != len(expected) or any(f not in (name, None) for f, name in zip(found, expected)):
        raise errors.ArgumentError(f"{where}: expected the entries {expected}, in this order, found {found}")
    return [
        (item, element, f"{where}.{name}" if name else f"{where}[{index}]")
        for index, ((_, item), (name, element)) in enumerate(zip(items, tff.structure.iter_elements(type_spec)))
    ]


def as_tensor(value: Any, type_spec: tff.TensorType, where: str) -> tf.Tensor:
    """An eager tensor; a tensor, and an array that `to_array` has made, pass by reference, all else is copied."""
    tensor = value.read_value() if isinstance(value, tf.Variable) else known_tensor(value)
    dtype = tf.dtypes.as_dtype(type_spec.dtype)
    if not isinstance(tensor, tf.Tensor):
        # TFF's own rules on which numbers may stand for which.
        parts = tf.nest.flatten(value) if isinstance(value, (list, tuple)) else [value]
        try:
            if not all(array.is_compatible_dtype(part, type_spec.dtype.type) for part in parts):
                raise TypeError
            tensor = tf.convert_to_tensor(value, dtype)
        except (TypeError, ValueError, tf.errors.OpError) as error:
            raise errors.ArgumentError(f"{where}: expected {type_spec}, found {_described(value)}") from error
    if tensor.dtype != dtype or not tf.TensorShape(type_spec.shape).is_compatible_with(tensor.shape):
        found = f"{tensor.dtype.name}{tensor.shape.as_list()}"
        raise errors.ArgumentError(f"{where}: expected {type_spec}, found {found}")
    return tensor


def _described(value: Any) -> str:
    if isinstance(value, (np.ndarray, np.generic)):
        return f"{value.dtype}{list(value.shape)}"
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."


# -- sequences -------------------------------------------------------------------------------------------------


def sequence_of(value: Any, element: tff.Type, where: str) -> Sequence:
    """A sequence of a `tf.data.Dataset` or a list with elements of a type; an ArgumentError for other values."""
    with tf.device("CPU:0"):
        try:
            if isinstance(value, list):
                value = tensorflow_utils.make_data_set_from_elements(None, value, element)
            found = tff.SequenceType(computation_types.tensorflow_to_type(value.element_spec))
        except (AttributeError, TypeError, ValueError, tf.errors.OpError) as error:
            raise errors.ArgumentError(
                f"{where}: expected a tf.data.Dataset or a list with elements of type {element}, "
                f"found {type(value).__name__}"
            ) from error
        if not tff.SequenceType(element).is_assignable_from(found):
            raise errors.ArgumentError(f"{where}: expected elements of type {element}, found {found.element}")
        return Sequence(tf.data.experimental.to_variant(value), owner=value)


def dataset_of(sequence: Sequence, element: tff.Type) -> tf.data.Dataset:
    """The data set of a sequence, its elements in containers as TFF gives them."""
    with tf.device("CPU:0"):
        spec = type_conversions.type_to_py_container(
            type_conversions.type_to_tf_structure(_with_containers(element)), element
        )
        dataset = tf.data.experimental.from_variant(sequence.variant, spec)
        coerced = tensorflow_utils.coerce_dataset_elements_to_tff_type_spec(dataset, element)
    coerced.tffcl_owner = sequence.owner
    return coerced


def elements_of(sequence: Sequence, element: tff.Type) -> Iterator[Any]:
    """The elements, each a tensor or nested tuples of tensors."""
    for item in dataset_of(sequence, element):
        yield _as_tuples(item, element)


def sequence_from(elements: list, element: tff.Type) -> Sequence:
    """A sequence of elements in the form of `elements_of`."""
    with tf.device("CPU:0"):
        datasets = [tf.data.Dataset.from_tensors(_in_containers(item, element)) for item in elements]
        if not datasets:
            dataset = tensorflow_utils.make_data_set_from_elements(None, [], element)
        else:
            dataset = datasets[0]
            for other in datasets[1:]:
                dataset = dataset.concatenate(other)
        return Sequence(tf.data.experimental.to_variant(dataset), owner=dataset)


def _with_containers(type_spec: tff.Type) -> tff.Type:
    """The type with the containers that TensorFlow needs: an `OrderedDict` where there are names, else a tuple."""
    if not isinstance(type_spec, tff.StructType):
        return type_spec
    items = [(name, _with_containers(element)) for name, element in tff.structure.iter_elements(type_spec)]
    return tff.StructWithPythonType(items, OrderedDict if items and items[0][0] else tuple)


def _as_tuples(item: Any, type_spec: tff.Type) -> Any:
    if not isinstance(type_spec, tff.StructType):
        return item
    elements = enumerate(tff.structure.iter_elements(type_spec))
    return tuple(_as_tuples(item[name] if name else item[index], element) for index, (name, element) in elements)


def _in_containers(item: Any, type_spec: tff.Type) -> Any:
    if not isinstance(type_spec, tff.StructType):
        return item
    names = tff.structure.name_list_with_nones(type_spec)
    members = [_in_containers(value, element) for value, element in zip(item, type_spec)]
    return OrderedDict(zip(names, members)) if names and names[0] else tuple(members)


# -- out -------------------------------------------------------------------------------------------------------


class ByIdentity:
    """What is known of objects, each for as long as it lives; no object is compared or hashed."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref, Any]] = {}

    def get(self, known: Any) -> Any:
        """What was noted of this object; None of others."""
        reference, value = self._known.get(id(known), (None, None))
        return value if reference is not None and reference() is known else None

    def note(self, known: Any, value: Any) -> None:
        """Keeps a value for an object."""
        key = id(known)
        self._known[key] = weakref.ref(known, lambda _: self._known.pop(key, None)), value


# Arrays that came out of tensors: they lie on the tensors' memory, which may therefore go in again as it is.
_known_tensors = ByIdentity()


def known_tensor(value: Any) -> Any:
    """The tensor on whose memory an array lies, if it is one of ours; else the value itself."""
    tensor = _known_tensors.get(value)
    return value if tensor is None else tensor


def to_array(tensor: Any) -> Any:
    """The number, bytes, or read-only array that TFF gives for a tensor.

    Such an array lies on the tensor's own memory where that is possible. An array that no graph has taken is copied:
    it is the user's.
    """
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0 or tensor.dtype in (tf.string, tf.bfloat16) or "CPU" not in tensor.backing_device:
        value = tensor.numpy()
        if isinstance(value, np.ndarray) and tensor.dtype != tf.string:
            value.flags.writeable = False
        return value
    value = np.asarray(memoryview(tensor))
    _known_tensors.note(value, tensor)
    return value


def to_python(value: Any, type_spec: tff.Type, num_clients: int) -> Any:
    """A value in the form in which TFF's executors give it; TFF then puts it into containers."""
    if isinstance(type_spec, tff.FederatedType):
        member = value.member if isinstance(value, Everyone) else value
        if type_spec.all_equal and not isinstance(value, Clients):
            return to_python(member, type_spec.member, num_clients)
        members = value.members if isinstance(value, Clients) else [member] * num_clients
        return [to_python(each, type_spec.member, num_clients) for each in members]
    if isinstance(type_spec, tff.StructType):
        pairs = zip(value, tff.structure.iter_elements(type_spec))
        return tff.structure.Struct((name, to_python(item, element, num_clients)) for item, (name, element) in pairs)
    return dataset_of(value, type_spec.element) if isinstance(type_spec, tff.SequenceType) else to_array(value)


def device_of(value: Any) -> Optional[str]:
    """Name of the device of the first tensor in a value; None where there is none."""
    if isinstance(value, tf.Tensor):
        return value.device
    parts = value.members if isinstance(value, Clients) else value if isinstance(value, tuple) else ()
    return next(filter(None, map(device_of, parts)), None)
