"""TFF's intrinsics over values of this process: what happens where, how often and in which order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tffcl.runtime.sequences import elements_of, sequence_from
from tffcl.runtime.threads import ClientThreads
from tffcl.runtime.values import Clients, Everyone


@dataclasses.dataclass(frozen=True)
class Function:
    """A functional value.

    Attributes:
      call: Takes the argument, if there is one.
      type_signature: Its `tff.FunctionType`.
      works: Whether a call does more than to rearrange structures.
    """

    call: Callable[..., Any]
    type_signature: tff.FunctionType
    works: bool = True


@dataclasses.dataclass(frozen=True)
class Scope:
    """What the intrinsics of one call share: how clients run, and how many there are."""

    threads: ClientThreads
    num_clients: int

    def members(self, placed: Any) -> list:
        """The value of each client."""
        return [placed.member] * self.num_clients if isinstance(placed, Everyone) else placed.members


def _aggregate(scope: Scope, argument: tuple) -> Any:
    """In the order of the clients; merging is for hierarchies, and there is none here."""
    placed, total, accumulate, _, report = argument
    for member in scope.members(placed):
        total = accumulate.call((total, member))
    return report.call(total)


def _apply(scope: Scope, argument: tuple) -> Any:
    function, value = argument
    return function.call(value)


def _eval_at_clients(scope: Scope, function: Function) -> Clients:
    return Clients(scope.threads.run_each(lambda _: function.call(), [None] * scope.num_clients))


def _eval_at_server(scope: Scope, function: Function) -> Any:
    return function.call()


def _everyone(scope: Scope, value: Any) -> Everyone:
    return Everyone(value)


def _map(scope: Scope, argument: tuple) -> Clients:
    function, placed = argument
    members = scope.members(placed)
    if not function.works:
        return Clients([function.call(member) for member in members])
    return Clients(scope.threads.run_each(function.call, members))


def _map_all_equal(scope: Scope, argument: tuple) -> Everyone:
    function, placed = argument
    return Everyone(function.call(placed.member))


def _select(scope: Scope, argument: tuple) -> Clients:
    """Every key is looked up once, however many clients ask for it."""
    keys, _, server_value, function = argument
    wanted = [member.numpy().tolist() for member in scope.members(keys)]
    distinct = sorted({key for own in wanted for key in own})
    found = {key: function.call((server_value, tf.constant(key, tf.int32))) for key in distinct}
    element = function.type_signature.result
    return Clients([sequence_from([found[key] for key in own], element) for own in wanted])


def _sequence_map(scope: Scope, argument: tuple) -> Any:
    function, sequence = argument
    kind = function.type_signature
    mapped = [function.call(element) for element in elements_of(sequence, kind.parameter)]
    return sequence_from(mapped, kind.result)


def _sequence_reduce(scope: Scope, argument: tuple) -> Any:
    sequence, total, function = argument
    for element in elements_of(sequence, function.type_signature.parameter[1]):
        total = function.call((total, element))
    return total


def _unchanged(scope: Scope, value: Any) -> Any:
    """Values at the server are plain values, and a structure of them is one too."""
    return value


def _zip_at_clients(scope: Scope, argument: Any) -> Any:
    if _all_equal(argument):
        return Everyone(_of_client(argument, 0))
    return Clients([_of_client(argument, index) for index in range(scope.num_clients)])


def _all_equal(value: Any) -> bool:
    return all(map(_all_equal, value)) if isinstance(value, tuple) else isinstance(value, Everyone)


def _of_client(value: Any, index: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_of_client(part, index) for part in value)
    return value.member if isinstance(value, Everyone) else value.members[index]


BY_URI: dict[str, Callable[..., Any]] = {
    "federated_aggregate": _aggregate,
    "federated_apply": _apply,
    "federated_broadcast": _everyone,
    "federated_eval_at_clients": _eval_at_clients,
    "federated_eval_at_server": _eval_at_server,
    "federated_map": _map,
    "federated_map_all_equal": _map_all_equal,
    "federated_select": _select,
    "federated_value_at_clients": _everyone,
    "federated_value_at_server": _unchanged,
    "federated_zip_at_clients": _zip_at_clients,
    "federated_zip_at_server": _unchanged,
    "sequence_map": _sequence_map,
    "sequence_reduce": _sequence_reduce,
}
