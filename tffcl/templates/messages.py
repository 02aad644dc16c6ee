"""Messages: their types as TFF has them, tensors held to these, and what the server takes from a client.

There is one rule for whatever a client sends, before anything is made of it. A client that is broken or dishonest does
not run this library's client work, so nothing that the work checks of itself protects the others. Therefore the server
checks each single message: the update, its weight, counts and the rows beside it before they are aggregated
(`compose_continual_process`), knowledge before it enters the knowledge base, a summary before a transfer reads it
(`tffcl.transfers.Transfer`). A message is taken as it is or not at all: one that is refused counts as none, so that
nothing of the round differs from one in which the client did not take part.

In TFF's terms the check is a `federated_map` over the clients' messages, as are clipping and zeroing in
`tff.aggregators`: the last place that knows a message's sender. A platform has to run it where single messages arrive,
not at the client. With a secure sum there is no such place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors

# -- types --------------------------------------------------------------------------------------------------------


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


# -- what the server takes ------------------------------------------------------------------------------------------

# Of every float that is sent, unless a client work says otherwise. Weights, embeddings and word vectors are millions of
# times smaller; sums of such values over all clients, and their squares, are finite in float32.
LARGEST = 1e6

# What is wrong with a message, and what would be right: a bool scalar, and a text.
Fault = tuple[Any, Union[str, tf.Tensor]]


def verdict(message: Any, faults: Sequence[Fault] = (), largest: float = LARGEST) -> tf.Tensor:
    """Why a message is refused, a string scalar; empty where it is taken.

    Args:
      message: tensors, in nested mappings. Floats should be finite, and `largest` at most in magnitude.
      faults: what else may be wrong with it; of several the first is recorded.
      largest: the bound.
    """
    tensors = ((path, tf.convert_to_tensor(values)) for path, values in leaves(message))
    floats = [(path, values) for path, values in tensors if values.dtype.is_floating]
    found = [*faults, *(value_fault(path, values, largest) for path, values in floats)]
    refused = tf.constant("")
    for wrong, text in reversed(found):
        refused = tf.where(wrong, text, refused)
    return refused


def value_fault(what: str, values: tf.Tensor, largest: float = LARGEST) -> Fault:
    """A float that is not finite, or of a magnitude above `largest`."""
    in_bounds = tf.reduce_all(tf.abs(values) <= largest)  # which NaN is not
    return tf.logical_not(in_bounds), f"{what}: values should be finite, {largest:g} at most"


def weight_fault(weight: tf.Tensor, largest: tf.Tensor) -> Fault:
    """A weight, float32 [], that is not in [0, largest]."""
    shown = [tf.strings.as_string(value, shortest=True) for value in (weight, largest)]
    right = tf.logical_and(weight >= 0.0, weight <= largest)
    return tf.logical_not(right), tf.strings.join(["weight: should be 0 to ", shown[1], ", found ", shown[0]])


def count_faults(metrics: Mapping[str, tf.Tensor]) -> list[Fault]:
    """Numbers of things that a program counts with, of a client's metrics, below 0."""
    counts = [name for name in ("examples", "epochs", "sent", "extra_bytes") if name in metrics]
    return [(tf.logical_not(metrics[name] >= 0), f"{name}: should be 0 or more") for name in counts]


def taken(message: Any, refused: tf.Tensor) -> Any:
    """The message where `refused` is empty; else zeros, and no rows where the number of rows is open."""

    def nothing(values: tf.Tensor) -> tf.Tensor:
        open_rows = values.shape.rank and values.shape[0] is None
        return values[:0] if open_rows else tf.zeros_like(values)

    # Not `tf.where`, which walks through every entry of both.
    message = tf.nest.map_structure(tf.convert_to_tensor, message)
    return tf.cond(tf.equal(refused, ""), lambda: message, lambda: tf.nest.map_structure(nothing, message))


def refusal(reported: Mapping[str, Any]) -> str:
    """Why a client's message was refused, from what `next` or `end_task` returned for it; empty where it was taken."""
    reason = reported.get("refused", b"")
    return reason.decode() if isinstance(reason, bytes) else str(reason)
