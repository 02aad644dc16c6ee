"""What one message to a worker can carry: gRPC and protobuf end at 2 GiB, with an error that names nothing.

A value is measured before it is sent. A structure that is too large goes in parts; anything else is one clear error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tffcl import errors

# Bytes of a message: protobuf's own limit, with some room for what stands around the value.
MAX_MESSAGE_BYTES = 2**31 - 2**16


class MessageTooLarge(errors.RunError):
    """A value that does not fit into one message."""


def check_message(size: int, value: Any, type_spec: tff.Type) -> None:
    """Checks that a value fits into one message.

    Args:
      size: Bytes of the value as it would be sent.
      value: The value, for the message; None where only its bytes are known.
      type_spec: Its type.

    Raises:
      MessageTooLarge: It does not; names its largest tensor, the size of this over all clients, and the size of it all.
    """
    if size <= MAX_MESSAGE_BYTES:
        return
    found = (
        f"a value of {_shown(size)} cannot be sent to a worker, which takes at most {_shown(MAX_MESSAGE_BYTES)} in one "
        "message"
    )
    raise MessageTooLarge(f"{found}: {_largest(value, type_spec)}; use fewer clients in a call, more workers, or less")


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
    """The name of the largest tensor, with its size and place."""
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
        for number, (name, kind) in enumerate(tff.structure.iter_elements(type_spec)):
            place = name or str(number)
            yield from _tensor_sizes(values[number], kind, f"{path}.{place}" if path else place)
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
