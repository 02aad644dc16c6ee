"""Values as the in-process runtime holds them, and their way out; `tffcl.runtime.ingestion` is their way in.

A tensor is an eager tensor, a structure a tuple (the names stand in its type), a sequence a `Sequence`, a value at the
clients a `Clients` or, where all have the same, an `Everyone`; a value at the server is just the value. Large arrays of
a client may stay arrays until a graph takes them.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.runtime.sequences import dataset_of


@dataclasses.dataclass(frozen=True)
class Clients:
    """One value for each client."""

    members: list


@dataclasses.dataclass(frozen=True)
class Everyone:
    """The same value at every client."""

    member: Any


# Arrays that came out of tensors: they lie on the tensors' memory, which may therefore go in again as it is.
_known_tensors: dict[int, tuple[weakref.ref, tf.Tensor]] = {}


def known_tensor(value: Any) -> Any:
    """The tensor on whose memory an array lies, if it is one of ours; else the value itself."""
    reference, tensor = _known_tensors.get(id(value), (None, None))
    return tensor if reference is not None and reference() is value else value


def to_array(tensor: Any) -> Any:
    """What TFF gives for a tensor: a number, bytes, or an array that nobody can write to.

    Such an array lies on the tensor's own memory where that is possible. An array that has waited in vain for a graph
    is copied: it is the user's.
    """
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0 or tensor.dtype in (tf.string, tf.bfloat16) or "CPU" not in tensor.backing_device:
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
        return tff.structure.Struct((name, to_python(item, element, num_clients)) for item, (name, element) in pairs)
    return dataset_of(value, kind.element) if isinstance(kind, tff.SequenceType) else to_array(value)


def device_of(value: Any) -> Optional[str]:
    """Name of the device of the first tensor in a value; None where there is none."""
    if isinstance(value, tf.Tensor):
        return value.device
    parts = value.members if isinstance(value, Clients) else value if isinstance(value, tuple) else ()
    return next(filter(None, map(device_of, parts)), None)
