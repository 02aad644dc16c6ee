"""Requests that carry large arrays, written as protobuf bytes in one copy, and what one message can carry.

TFF builds such a request from the inside out and copies every array five times on the way: to bytes, into an array
message, into the list of clients, into the request, and once more when the request is serialised. Here the headers
are written around the arrays, and everything is joined at the end. Values that are not large arrays, wrong ones
included, go through TFF's own serialisation.

gRPC and protobuf end at 2 GiB, with an error that names nothing. So a value is measured before it is sent: a structure
that is too large goes in parts, anything else is one clear error.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Optional, Union

import numpy as np
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import array_pb2, executor_pb2

from tffcl import errors

_Chunk = Union[bytes, memoryview]

# Bytes of a message: protobuf's own limit, with some room for what stands around the value.
MAX_MESSAGE_BYTES = 2**31 - 2**16

LARGE_BYTES = 16 * 1024  # an array of fewer is no faster here than in TFF's own way

_MAX_SHOWN = 300  # characters of an error of TFF's, which may print a whole value


class MessageTooLarge(errors.RunError):
    """A value that does not fit into one message."""


def encode_create_value(executor_id: Any, value: Any, type_spec: tff.Type) -> bytes:
    """The bytes of a `CreateValueRequest`; an ArgumentError or `MessageTooLarge` for a value that cannot be sent."""
    return encode_request(executor_id, _measured(value, type_spec))


def encode_request(executor_id: Any, value: Iterable[_Chunk]) -> bytes:
    """The bytes of a `CreateValueRequest` around those of an `executor_pb2.Value`."""
    message = executor_pb2.CreateValueRequest
    return b"".join([*_field(message, "executor", [executor_id.SerializeToString()]), *_field(message, "value", value)])


def encode_value(value: Any, type_spec: tff.Type) -> bytes:
    """The bytes of an `executor_pb2.Value`; raises as `encode_create_value`."""
    return b"".join(_measured(value, type_spec))


def encode_placed(member: bytes, type_spec: tff.FederatedType) -> bytes:
    """The bytes of an all-equal federated value around those of its member."""
    return b"".join(_federated([[member]], type_spec))


def encode_struct(elements: Iterable[tuple[Optional[str], bytes]]) -> bytes:
    """The bytes of a structure around those of its elements, each with its name if it has one."""
    return b"".join(_struct((name, [value]) for name, value in elements))


def decode_value(message: executor_pb2.Value, type_spec: tff.Type) -> Any:
    """The value in the form in which TFF's executors give it; unlike with TFF, there may be no clients."""
    if isinstance(type_spec, tff.StructType) and message.HasField("struct"):
        pairs = zip(message.struct.element, tff.structure.iter_elements(type_spec))
        return tff.structure.Struct((name, decode_value(each.value, element)) for each, (name, element) in pairs)
    if isinstance(type_spec, tff.FederatedType) and not message.federated.value:
        if not type_spec.all_equal:
            return []
        raise errors.RunError(
            f"no client has the value of type {type_spec} that all clients share: pass values of clients to the "
            "computation, or default_num_clients to the runtime"
        )
    return tff.framework.deserialize_value(message, type_spec)[0]


def check_message(size: int, type_spec: tff.Type, value: Any = None) -> None:
    """Raises `MessageTooLarge` for more bytes than a message can carry.

    The error has the size, and of the value, where it is passed, the largest tensor with its size over all clients.
    """
    if size <= MAX_MESSAGE_BYTES:
        return
    raise MessageTooLarge(
        f"a value of {_shown(size)} cannot be sent to a worker, which takes at most {_shown(MAX_MESSAGE_BYTES)} in one "
        f"message: {_largest(value, type_spec)}; use fewer clients in a call, more workers, or less"
    )


def comes_in_parts(type_spec: tff.Type) -> bool:
    """Whether a value has elements and is, by its type alone, too large for one message, which would end the worker."""
    return isinstance(type_spec, tff.StructType) and _least_bytes(type_spec) > MAX_MESSAGE_BYTES


def _least_bytes(type_spec: tff.Type) -> int:
    """Bytes of a value of a type, in which dimensions that may be of any size count as 0."""
    if isinstance(type_spec, tff.StructType):
        return sum(map(_least_bytes, type_spec))
    if isinstance(type_spec, tff.FederatedType):
        return _least_bytes(type_spec.member) if type_spec.placement is tff.SERVER else 0
    if isinstance(type_spec, tff.TensorType) and type_spec.shape is not None:
        return type_spec.dtype.itemsize * math.prod(size or 0 for size in type_spec.shape)
    return 0


def _largest(value: Any, type_spec: tff.Type) -> str:
    """The name of the largest tensor, with its size over all clients; the type where only bytes are known."""
    sizes: Counter[str] = Counter()
    if value is not None:
        for name, size in _tensor_sizes(value, type_spec, ""):
            sizes[name] += size
    if not sizes:
        text = str(type_spec)
        return f"it is {text if len(text) <= 160 else text[:157] + '...'}"
    name, size = sizes.most_common(1)[0]
    whose = "the value"
    if isinstance(type_spec, tff.FederatedType):
        at_clients = type_spec.placement is tff.CLIENTS and not type_spec.all_equal
        whose = f"what {len(value)} clients hold" if at_clients else "the server's value"
    return f"the largest in {whose} is {name or 'its only tensor'}, {_shown(size)}"


def _tensor_sizes(value: Any, type_spec: tff.Type, path: str) -> Iterator[tuple[str, int]]:
    """Name and bytes of every tensor; those of different clients have the same name."""
    if isinstance(type_spec, tff.FederatedType):
        for member in [value] if type_spec.all_equal else value:
            yield from _tensor_sizes(member, type_spec.member, path)
    elif isinstance(type_spec, tff.StructType):
        values = tff.structure.from_container(value)
        for index, (name, element) in enumerate(tff.structure.iter_elements(type_spec)):
            yield from _tensor_sizes(values[index], element, f"{path}.{name or index}" if path else name or str(index))
    elif isinstance(type_spec, tff.TensorType):
        yield path, np.asarray(value).nbytes


def _shown(size: int) -> str:
    """A size in the unit that fits.

    >>> _shown(3 * 2**30), _shown(1536), _shown(12)
    ('3.00 GiB', '1.50 KiB', '12 bytes')
    """
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"


def _measured(value: Any, type_spec: tff.Type) -> list[_Chunk]:
    """The parts of a value that fits into a message; nothing has been copied yet."""
    chunks = _encode(value, type_spec)
    check_message(sum(len(chunk) for chunk in chunks), type_spec, value)
    return chunks


def _encode(value: Any, type_spec: tff.Type) -> list[_Chunk]:
    """The parts of an `executor_pb2.Value`."""
    if isinstance(type_spec, tff.TensorType) and is_large_array(value, type_spec):
        return _field(executor_pb2.Value, "array", _encode_array(value))
    if isinstance(type_spec, tff.StructType) and _has_elements(value, type_spec):
        items = [item for _, item in tff.structure.iter_elements(tff.structure.from_container(value))]
        pairs = zip(items, tff.structure.iter_elements(type_spec))
        return _struct((name, _encode(item, element)) for item, (name, element) in pairs)
    if isinstance(type_spec, tff.FederatedType) and (type_spec.all_equal or isinstance(value, list)):
        members = [value] if type_spec.all_equal else value
        return _federated((_encode(member, type_spec.member) for member in members), type_spec)
    try:
        return [tff.framework.serialize_value(value, type_spec)[0].SerializeToString()]
    except (TypeError, ValueError, NotImplementedError) as error:
        words = " ".join(str(error).split())[:_MAX_SHOWN]
        raise errors.ArgumentError(f"expected a value of type {type_spec}: {words}") from error


def is_large_array(value: Any, type_spec: tff.TensorType) -> bool:
    """Whether a value is a large array of exactly the dtype and shape that its type says."""
    return isinstance(value, np.ndarray) and value.nbytes >= LARGE_BYTES and is_exact_array(value, type_spec)


def is_exact_array(value: Any, type_spec: tff.TensorType) -> bool:
    """Whether a value is an array of numbers of exactly the dtype and shape that its type says."""
    return (
        isinstance(value, np.ndarray)
        and value.dtype == type_spec.dtype
        and value.dtype.isnative
        and value.dtype.kind in "biuf"
        and type_spec.shape is not None
        and len(type_spec.shape) == value.ndim
        and all(expected in (None, size) for expected, size in zip(type_spec.shape, value.shape))
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


def _struct(elements: Iterable[tuple[Optional[str], list[_Chunk]]]) -> list[_Chunk]:
    element = executor_pb2.Value.Struct.Element
    chunks: list[_Chunk] = []
    for name, value in elements:
        named: list[_Chunk] = [element(name=name).SerializeToString()] if name else []
        chunks += _field(executor_pb2.Value.Struct, "element", [*named, *_field(element, "value", value)])
    return _field(executor_pb2.Value, "struct", chunks)


def _federated(members: Iterable[list[_Chunk]], type_spec: tff.FederatedType) -> list[_Chunk]:
    chunks = _field(executor_pb2.Value.Federated, "type", [_federated_type(type_spec)])
    for member in members:
        chunks += _field(executor_pb2.Value.Federated, "value", member)
    return _field(executor_pb2.Value, "federated", chunks)


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
