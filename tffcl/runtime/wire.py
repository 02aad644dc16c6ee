"""Requests that carry large arrays, written as protobuf bytes in one copy.

TFF builds such a request from the inside out and copies every array five times on the way: to bytes, into an array
message, into the list of clients, into the request, and once more when the request is serialised. Here the headers
are written around the arrays, and everything is joined at the end. Values that are not large arrays, wrong ones
included, go through TFF's own serialisation.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Optional, Union

import numpy as np
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import array_pb2, executor_pb2

from tffcl import errors
from tffcl.runtime import limits

_Chunk = Union[bytes, memoryview]

# Below this size TFF's own way costs no more.
_MIN_BYTES = 16 * 1024

# Characters of an error of TFF's, which may print a whole value.
_MAX_SHOWN = 300


def encode_create_value(executor_id: Any, value: Any, type_spec: tff.Type) -> bytes:
    """The bytes of a `CreateValueRequest`.

    Args:
      executor_id: Message that names the executor in the worker.
      value: A value of type `type_spec`.
      type_spec: Type of the value.

    Raises:
      ArgumentError: If the value does not fit its type.
      MessageTooLarge: If it is larger than a message can be.
    """
    return _request(executor_id, _checked(_encode(value, type_spec), value, type_spec))


def request_of(executor_id: Any, value: bytes, type_spec: tff.Type) -> bytes:
    """The bytes of a `CreateValueRequest` for a value that is in bytes already.

    Raises:
      MessageTooLarge: If it is larger than a message can be.
    """
    limits.check_message(len(value), None, type_spec)
    return _request(executor_id, [value])


def encode_value(value: Any, type_spec: tff.Type) -> bytes:
    """The bytes of an `executor_pb2.Value`.

    Args:
      value: A value of type `type_spec`.
      type_spec: Type of the value.

    Raises:
      ArgumentError: If the value does not fit its type.
      MessageTooLarge: If it is larger than a message can be.
    """
    return b"".join(_checked(_encode(value, type_spec), value, type_spec))


def encode_placed(member: bytes, type_spec: tff.FederatedType) -> bytes:
    """The bytes of an all-equal federated value around those of its member."""
    chunks = _field(executor_pb2.Value.Federated, "type", [_federated_type(type_spec)])
    chunks += _field(executor_pb2.Value.Federated, "value", [member])
    return b"".join(_field(executor_pb2.Value, "federated", chunks))


def encode_struct(elements: Iterable[tuple[Optional[str], bytes]]) -> bytes:
    """The bytes of a structure around those of its elements, each with its name if it has one."""
    element = executor_pb2.Value.Struct.Element
    chunks: list[_Chunk] = []
    for name, value in elements:
        named: list[_Chunk] = [element(name=name).SerializeToString()] if name else []
        item = [*named, *_field(element, "value", [value])]
        chunks += _field(executor_pb2.Value.Struct, "element", item)
    return b"".join(_field(executor_pb2.Value, "struct", chunks))


def decode_value(message: executor_pb2.Value, type_spec: tff.Type) -> Any:
    """The value in the form in which TFF's executors give it; unlike with TFF, there may be no clients.

    Raises:
      RunError: It is one that all clients have, and there are none that a worker could ask.
    """
    if isinstance(type_spec, tff.StructType) and message.HasField("struct"):
        pairs = zip(message.struct.element, tff.structure.iter_elements(type_spec))
        return tff.structure.Struct((name, decode_value(each.value, kind)) for each, (name, kind) in pairs)
    if isinstance(type_spec, tff.FederatedType) and not message.federated.value:
        if not type_spec.all_equal:
            return []
        raise errors.RunError(
            f"no client has the value of type {type_spec} that all clients share: pass values of clients to the "
            "computation, or default_num_clients to the runtime"
        )
    return tff.framework.deserialize_value(message, type_spec)[0]


def _request(executor_id: Any, value: Iterable[_Chunk]) -> bytes:
    message = executor_pb2.CreateValueRequest
    chunks = _field(message, "executor", [executor_id.SerializeToString()])
    return b"".join(chunks + _field(message, "value", value))


def _checked(chunks: list[_Chunk], value: Any, type_spec: tff.Type) -> list[_Chunk]:
    """The parts of a value, once they are known to fit into a message; nothing has been copied yet."""
    limits.check_message(sum(len(chunk) for chunk in chunks), value, type_spec)
    return chunks


def _encode(value: Any, type_spec: tff.Type) -> list[_Chunk]:
    """The parts of an `executor_pb2.Value`."""
    if isinstance(type_spec, tff.TensorType) and _is_large_array(value, type_spec):
        return _field(executor_pb2.Value, "array", _encode_array(value))
    if isinstance(type_spec, tff.StructType) and _has_elements(value, type_spec):
        return _field(executor_pb2.Value, "struct", _encode_elements(value, type_spec))
    if isinstance(type_spec, tff.FederatedType) and (type_spec.all_equal or isinstance(value, list)):
        members = [value] if type_spec.all_equal else value
        return _field(executor_pb2.Value, "federated", _encode_members(members, type_spec))
    try:
        return [tff.framework.serialize_value(value, type_spec)[0].SerializeToString()]
    except (TypeError, ValueError, NotImplementedError) as error:
        words = " ".join(str(error).split())[:_MAX_SHOWN]
        raise errors.ArgumentError(f"expected a value of type {type_spec}: {words}") from error


def _is_large_array(value: Any, type_spec: tff.TensorType) -> bool:
    """Whether the value is a large array that stands in memory exactly as its type says."""
    return (
        isinstance(value, np.ndarray)
        and value.nbytes >= _MIN_BYTES
        and value.dtype == type_spec.dtype
        and value.dtype.isnative
        and value.dtype.kind in "biuf"
        and type_spec.shape is not None
        and len(type_spec.shape) == value.ndim
        and all(expected in (None, found) for expected, found in zip(type_spec.shape, value.shape))
    )


def _encode_array(value: np.ndarray) -> list[_Chunk]:
    shape = array_pb2.ArrayShape(dim=value.shape)
    header = array_pb2.Array(dtype=_dtype_number(value.dtype), shape=shape).SerializeToString()
    content: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return [header, *_field(array_pb2.Array, "content", [memoryview(content)])]


@functools.cache
def _dtype_number(dtype: np.dtype) -> int:
    """TFF's number for a dtype, taken from a message of TFF's own."""
    return tff.framework.serialize_value(np.zeros([1], dtype), tff.TensorType(dtype.type, [1]))[0].array.dtype


def _has_elements(value: Any, type_spec: tff.StructType) -> bool:
    try:
        return len(tff.structure.from_container(value)) == len(type_spec)
    except TypeError:
        return False


def _encode_elements(value: Any, type_spec: tff.StructType) -> Iterable[_Chunk]:
    element = executor_pb2.Value.Struct.Element
    values = [item for _, item in tff.structure.iter_elements(tff.structure.from_container(value))]
    chunks: list[_Chunk] = []
    for (name, element_type), item in zip(tff.structure.iter_elements(type_spec), values):
        named: list[_Chunk] = [element(name=name).SerializeToString()] if name else []
        item_chunks = _field(element, "value", _encode(item, element_type))
        chunks += _field(executor_pb2.Value.Struct, "element", [*named, *item_chunks])
    return chunks


def _encode_members(members: list[Any], type_spec: tff.FederatedType) -> Iterable[_Chunk]:
    chunks = _field(executor_pb2.Value.Federated, "type", [_federated_type(type_spec)])
    for member in members:
        chunks += _field(executor_pb2.Value.Federated, "value", _encode(member, type_spec.member))
    return chunks


@functools.lru_cache(maxsize=128)
def _federated_type(type_spec: tff.FederatedType) -> bytes:
    """A serialised `FederatedType`, taken from an empty message of TFF's own."""
    empty = tff.FederatedType(type_spec.member, type_spec.placement, all_equal=False)
    message = tff.framework.serialize_value([], empty)[0].federated.type
    message.all_equal = type_spec.all_equal
    return message.SerializeToString()


def _field(message: Any, name: str, parts: Iterable[_Chunk]) -> list[_Chunk]:
    """A length-delimited field of a message."""
    parts = list(parts)
    tag = (message.DESCRIPTOR.fields_by_name[name].number << 3) | 2
    return [_varint(tag) + _varint(sum(len(part) for part in parts)), *parts]


def _varint(number: int) -> bytes:
    """A number in groups of seven bits, the lowest first."""
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)
