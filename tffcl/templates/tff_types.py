"""Types of TFF and the tensors that are held to them.

What TFF's own names leave long-winded, and the check of what a client work returns against what it declares.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors


def at_server(member: Any) -> tff.FederatedType:
    """`member@SERVER`, for anything that `tff.to_type` takes."""
    return tff.FederatedType(tff.to_type(member), tff.SERVER, all_equal=True)


def at_clients(member: Any) -> tff.FederatedType:
    """`{member}@CLIENTS`, for anything that `tff.to_type` takes."""
    return tff.FederatedType(tff.to_type(member), tff.CLIENTS)


def entries(kind: tff.Type) -> dict[str, tff.Type]:
    """Name -> type of the entries of a struct type, which may be placed, in order."""
    member = kind.member if isinstance(kind, tff.FederatedType) else kind
    return dict(tff.structure.iter_elements(member))


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """What stands in nested mappings, sequences and `tff.structure.Struct`s, each with its path below `path`.

    >>> dict(leaves({"aggregator": (), "finalizer": {"update": [3, {"rejected": 0}]}}))
    {'finalizer/update/0': 3, 'finalizer/update/1/rejected': 0}
    """
    if isinstance(value, tff.structure.Struct):
        parts = list(tff.structure.iter_elements(value))
    elif isinstance(value, Mapping):
        parts = list(value.items())
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        parts = list(value._asdict().items())
    elif isinstance(value, (list, tuple)):
        parts = [(None, part) for part in value]
    else:
        yield path, value
        return
    for place, (name, part) in enumerate(parts):
        step = str(place if name is None else name)
        yield from leaves(part, f"{path}/{step}" if path else step)


def select_types(types: OrderedDict, names: tuple[str, ...]) -> OrderedDict:
    """The named entries of a mapping of types, in the mapping's order.

    Raises:
      ContractError: a name that the mapping does not have.
    """
    unknown = [name for name in names if name not in types]
    if unknown:
        raise errors.ContractError(f"client work: no state entry named {unknown[0]!r}; there are {list(types)}")
    return OrderedDict((name, kind) for name, kind in types.items() if name in names)


def ordered(method: str, values: Mapping[str, Any], types: OrderedDict) -> OrderedDict:
    """What a method of a client work returned, in the order and of the types that travel.

    Raises:
      ContractError: an entry is missing, unknown, or of another dtype or shape; the message names it.
    """
    missing = [name for name in types if name not in values]
    if missing:
        raise errors.ContractError(
            f"client work: {method} returned no entry named {missing[0]!r}; found {list(values)}"
        )
    unknown = [name for name in values if name not in types]
    if unknown:
        raise errors.ContractError(
            f"client work: {method} returned an entry named {unknown[0]!r}, which would be lost; expected {list(types)}"
        )
    return OrderedDict((name, as_type(method, name, values[name], kind)) for name, kind in types.items())


def as_type(method: str, name: str, value: Any, kind: tff.TensorType) -> tf.Tensor:
    """The value with exactly the static shape of its type: an entry `[None, 5]` stays so even where it is empty.

    Raises:
      ContractError: the value is of another dtype or shape.
    """
    value = tf.convert_to_tensor(value)
    if value.dtype.as_numpy_dtype != kind.dtype or not value.shape.is_compatible_with(kind.shape):
        raise errors.ContractError(
            f"client work: {method}, entry {name!r} should be {kind}, found {value.dtype.name}{value.shape}"
        )
    if kind.shape is None or None in kind.shape:
        # Forgets what is known of the shape beyond the type.
        return tf.compat.v1.placeholder_with_default(value, kind.shape)
    return tf.ensure_shape(value, kind.shape)
