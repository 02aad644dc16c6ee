"""ContinualProcess: federated computations for clients that meet one task after another.

`tff.learning.templates.LearningProcess` has no tasks and no client state; continual learning needs both. As in
TFF's own example of stateful clients, client state is placed at the clients and passed in and out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow_federated as tff

from tffcl import errors
from tffcl.templates import placed


@dataclasses.dataclass(frozen=True)
class ContinualProcess:
    """An immutable bundle of computations, type-checked against each other when it is built.

    With S the server's state, C a client's state, D raw and P prepared examples, I what the knowledge base sends
    at the start of a task (`rows` at the server; `keys` and `count` at the clients), U uploads, M metrics,
    N what the parts at the server measured (`<aggregator=..., finalizer=...>`):

      initialize:          ( -> S@SERVER)
      initialize_clients:  (<S@SERVER, {int32[2]}@CLIENTS> -> {C}@CLIENTS)
      begin_task:          (<S@SERVER, {C}@CLIENTS, I> -> {C}@CLIENTS)
      prepare:             (<S@SERVER, {C*}@CLIENTS, I, {D}@CLIENTS> -> {P}@CLIENTS)
      next:                (<S@SERVER, {C*}@CLIENTS, {data of P}@CLIENTS>
                            -> <S@SERVER, {C*}@CLIENTS, {M}@CLIENTS, N@SERVER>)
      end_task:            (<S@SERVER, {C}@CLIENTS, {data of P}@CLIENTS> -> <{C}@CLIENTS, {U}@CLIENTS>)
      evaluate:            (<S@SERVER, {V}@CLIENTS, {P}@CLIENTS> -> {M}@CLIENTS)

    C* is a projection of C: the entries that the computation names, by name (`project` and `merge` in
    `tffcl.program` do the rest). V is one client's view of one task, so that all tasks of all clients are
    evaluated in one call. No type depends on the number of tasks, of clients or of examples: nothing is traced
    twice.

    Attributes:
      task_view: `(client_state, task) -> V`, on numpy values, or on tensors in a graph.
      knowledge_size: values in a row of the knowledge base.
      num_foreign: K, the most rows that a client receives at the start of a task.
      max_classes: labels lie in [0, max_classes), or None.
      work: the client work that it was composed of; None for a process that was not composed.
      message_type: what a client sends in a round, `<update, weight, metrics>`.
    """

    initialize: tff.Computation
    initialize_clients: tff.Computation
    begin_task: tff.Computation
    prepare: tff.Computation
    next: tff.Computation
    end_task: tff.Computation
    evaluate: tff.Computation
    task_view: Callable[[Mapping[str, Any], Any], Mapping[str, Any]]
    knowledge_size: int
    num_foreign: int
    max_classes: int | None = None
    work: Any = None
    message_type: tff.Type | None = None

    def __post_init__(self) -> None:
        server = self.initialize.type_signature.result
        client = self.initialize_clients.type_signature.result
        _expect("initialize", "result", _is_placed(server, tff.SERVER), "S@SERVER", server)
        _expect("initialize_clients", "result", _is_placed(client, tff.CLIENTS), "{C}@CLIENTS", client)
        for name in ("initialize_clients", "begin_task", "prepare", "next", "end_task", "evaluate"):
            computation = getattr(self, name)
            first = computation.type_signature.parameter[0]
            _expect(name, "argument server_state", first.is_assignable_from(server), server, first)
        for name in ("begin_task", "prepare", "next", "end_task"):
            argument = getattr(self, name).type_signature.parameter[1]
            _expect_projection(name, "argument client_states", client, argument)
        _expect_projection("begin_task", "result", client, self.begin_task.type_signature.result)
        result = self.next.type_signature.result
        _expect("next", "result[0]", server.is_assignable_from(result[0]), server, result[0])
        _expect_projection("next", "result[1]", client, result[1])
        _expect("next", "result", len(result) == 4, "<state, clients, metrics, the server's metrics>", result)
        _expect("next", "result[3]", _is_placed(result[3], tff.SERVER), "N@SERVER", result[3])
        _expect_projection("end_task", "result[0]", client, self.end_task.type_signature.result[0])

    @property
    def client_state_type(self) -> tff.StructType:
        """C: everything that a client keeps between calls."""
        return self.initialize_clients.type_signature.result.member


def _is_placed(kind: tff.Type, placement: Any) -> bool:
    return isinstance(kind, tff.FederatedType) and kind.placement is placement


def _expect(computation: str, where: str, holds: bool, expected: Any, found: Any) -> None:
    if not holds:
        raise errors.ContractError(f"{computation}: {where} should be {expected}, found {found}")


def _expect_projection(computation: str, where: str, client: tff.FederatedType, found: tff.Type) -> None:
    """`found` is `{<some entries of C>}@CLIENTS`, with the types that they have in C."""
    _expect(computation, where, _is_placed(found, tff.CLIENTS), f"a projection of {client}", found)
    whole = placed.entries(client)
    for name, entry in placed.entries(found).items():
        expected = whole.get(name)
        fits = expected is not None and expected.is_assignable_from(entry)
        _expect(computation, f"{where}, entry {name!r}", fits, expected or f"one of {sorted(whole)}", entry)
