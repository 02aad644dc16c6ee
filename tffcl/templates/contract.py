"""The contract: what a client work, a finalizer and a continual process have to be.

`tff.learning.templates.LearningProcess` has no tasks and no client state; continual learning needs both. As in
TFF's own example of stateful clients, client state is placed at the clients and passed in and out.
"""

from __future__ import annotations

import abc
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.templates import messages

Tensors = Mapping[str, tf.Tensor]


class ClientWork(abc.ABC):
    """What a client does, as plain TensorFlow functions with the types that cross its border.

    A client work knows nothing of placements: `compose_continual_process` wraps its methods into federated
    computations. Its state is a flat mapping from names to few dense tensors. A method takes only the entries of the
    state that it names, and returns the entries that it changes, so that a round moves nothing that it does not use.

    Types (all `OrderedDict`s of `tff.TensorType`, in the order in which the tensors travel):
      state_type: everything that a client keeps between calls. An entry `run_task`, int32, is set by the program
        before `begin_task` to the number of the run's task, which is not the number of tasks that the client has had
        where clients come and go. An entry `secret`, int32 [2], is set by the program to random bits of the operating
        system when the state is first made: for noise that nobody else may know.
      train_reads / train_writes: names of the state that one round reads and changes.
      prepare_reads: names of the state that `prepare` reads.
      evaluate_type: the state of one task at one client, all that `evaluate` reads (see `task_view`).
      context_type: data that belong to all examples of a client (word vectors, for example); no leading N.
      example_type: raw examples, every tensor `[N, ...]`, with `label` among them where the work is supervised.
      prepared_type: `example_type` and whatever `prepare` adds to it, `[N, ...]`.
      shared_type: what the server holds and broadcasts (a tensor type).
      plan_size: entries of the plan, what the server decides once and tells every client at the start.
      knowledge_size: values in a row of the knowledge base, i.e. in `upload["knowledge"]`.
      num_foreign: K, the most rows that a client receives for a task.
      max_classes: labels of a task lie in [0, max_classes); None where there are no labels.
      largest_value: the server takes no float of a larger magnitude from a client.
      handed: names of entries of the state that are the server's: as a task begins, `begin_task` finds in them what
        stands under the same names in the finalizer's state.

    Shown in docs/contract.md.
    """

    state_type: OrderedDict
    train_reads: tuple[str, ...]
    train_writes: tuple[str, ...]
    prepare_reads: tuple[str, ...] = ("key",)
    evaluate_type: OrderedDict
    context_type: OrderedDict
    example_type: OrderedDict
    prepared_type: OrderedDict
    shared_type: tff.TensorType
    plan_size: int = 0
    knowledge_size: int
    num_foreign: int
    max_classes: int | None = None
    largest_value: float = messages.LARGEST
    handed: tuple[str, ...] = ()

    @abc.abstractmethod
    def initialize_shared(self) -> tf.Tensor:
        """The server's first shared value."""

    def initialize_plan(self) -> tf.Tensor:
        """The server's plan, int32 `[plan_size]`."""
        return tf.zeros([0], tf.int32)

    @abc.abstractmethod
    def initialize_client(self, shared: tf.Tensor, plan: tf.Tensor, key: tf.Tensor) -> Tensors:
        """A client's first state, of `state_type`; `key` is int32 `[2]`, the root of all its randomness."""

    @abc.abstractmethod
    def begin_task(self, state: Tensors, shared: tf.Tensor, foreign: tf.Tensor) -> Tensors:
        """The state with fresh parameters for a new task; `foreign` is float32 `[k, knowledge_size]`, k <= K."""

    def prepare(self, state: Tensors, foreign: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        """Examples with all that is frozen for the whole task computed once; by default they stay as they are."""
        del state, foreign, context
        return examples

    @abc.abstractmethod
    def train(
        self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any], round_num: tf.Tensor
    ) -> tuple[Tensors, Tensors, tf.Tensor, Tensors]:
        """One round at one client.

        Args:
          state: the entries `train_reads`.
          shared: the server's shared value.
          data: `context`, `train` and `validation`, of `context_type` and twice `prepared_type`.
          round_num: int32, the server's count of rounds, for seeds.

        Returns:
          The entries `train_writes`; the update (a mapping of tensors, for the aggregator); its weight, float32,
          0 where the client has nothing to say; metrics (a mapping of scalars).
        """

    def limits(self, state: Tensors, data: Mapping[str, Any]) -> Tensors:
        """What the program knows of a client's message of a round without asking it, scalars by name.

        Args:
          state: the entries `train_reads`, as the program hands them to the client.
          data: as for `train`.

        Returns:
          `weight`, float32, the largest that the update may have: the number of training examples unless a work weighs
          its clients otherwise; and what `faults` needs.
        """
        del state
        return {"weight": tf.cast(tf.shape(next(iter(data["train"].values())))[0], tf.float32)}

    def faults(self, update: Tensors, limits: Tensors) -> Sequence[messages.Fault]:
        """What may be wrong with an update beyond its weight and values; runs at the server, as does no other method.

        Args:
          update: as a client sent it, of the type that `train` returns.
          limits: what `limits` returned for that client.

        Returns:
          Pairs of a bool scalar and the text that stands in the history where it is true. The first is told.
        """
        del update, limits
        return ()

    @abc.abstractmethod
    def end_task(self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any]) -> tuple[Tensors, Tensors]:
        """The state with the task put among the past ones, and what the client uploads (`knowledge` in it)."""

    @abc.abstractmethod
    def evaluate(self, view: Tensors, shared: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        """One task's parameters on examples: sums `count`, `loss` and `correct`, or `losses` `[N]` of a density."""

    def infer(self, view: Tensors, shared: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        """How certain of each example one task's parameters are, for `with_task_inference`; of a classifier that keeps
        parameters for each task. By default there are none.

        Returns:
          `entropy`, float32 `[N]`, which is compared between tasks, and `correct`, bool `[N]`, as this task labels.
        """
        del view, shared, context, examples
        raise errors.ContractError(
            f"client work: {type(self).__name__} keeps no parameters of classes for each task, of which one could be "
            "inferred"
        )

    @abc.abstractmethod
    def task_view(self, state: Mapping[str, Any], task: Any) -> OrderedDict:
        """The entries of a client's state with which task number `task` is evaluated: `evaluate_type`.

        Both are numpy values; or, where clients keep their states themselves (`tffcl.program.ClientFiles`), tensors.
        """


class FinalizerProcess(tff.templates.MeasuredProcess):
    """A measured process `(<F@SERVER, W@SERVER, A@SERVER> -> <F@SERVER, W@SERVER, M@SERVER>)`.

    F is the finalizer's own state, W the shared value that the server broadcasts, A the aggregate of the clients'
    updates. A server optimizer and server-side training are both of this kind. M is recorded for each round; an entry
    of it named `rejected` counts what was not taken because it was not finite, and a count above 0 is told to the user.

    Shown with `compose_continual_process`.

    Args:
      initialize_fn: `( -> F@SERVER)`.
      next_fn: of a round, as above.
      end_task_fn: what the server does once, when a task has ended, or None:
        `(<F@SERVER, W@SERVER, bool[L]@SERVER> -> <F@SERVER, M@SERVER>)`; the third argument says which classes there
        were so far.

    Raises:
      ContractError: a computation of another type.
    """

    def __init__(
        self, initialize_fn: tff.Computation, next_fn: tff.Computation, end_task_fn: tff.Computation | None = None
    ):
        super().__init__(initialize_fn, next_fn, next_is_multi_arg=True)
        self.end_task = end_task_fn
        parameter = next_fn.type_signature.parameter
        if len(parameter) != 3:
            raise errors.ContractError(
                f"finalizer: next should take (state, shared, aggregate), found {len(parameter)} arguments"
            )
        shared, result = parameter[1], next_fn.type_signature.result.result
        if not shared.is_assignable_from(result):
            raise errors.ContractError(f"finalizer: next should return {shared} as it took it, found {result}")
        measured = next_fn.type_signature.result.measurements
        if not (isinstance(measured, tff.FederatedType) and measured.placement is tff.SERVER):
            raise errors.ContractError(f"finalizer: measurements should be at the server, found {measured}")
        if end_task_fn is not None:
            state, ended = next_fn.type_signature.parameter[0], end_task_fn.type_signature
            fits = ended.parameter[0].is_assignable_from(state) and state.is_assignable_from(ended.result[0])
            if not fits:
                raise errors.ContractError(f"finalizer: end_task should take and return {state}, found {ended}")


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
      consolidate:         (<S@SERVER, bool[L]@SERVER> -> <S@SERVER, N@SERVER>), or None
      infer:               (<S@SERVER, {V}@CLIENTS, {P}@CLIENTS> -> {<entropy=..., correct=...>}@CLIENTS), or None

    `consolidate` is what the server does by itself when a task has ended, of the classes that there were so far.
    `infer` takes the place of `evaluate` in scores where nobody knows the task of a test example, and is there after
    `with_task_inference`.

    C* is a projection of C: the entries that the computation names, by name (`project` and `merge` in
    `tffcl.program` do the rest). V is one client's view of one task, so that all tasks of all clients are
    evaluated in one call. No type depends on the number of tasks, of clients or of examples: nothing is traced
    twice.

    Shown in docs/contract.md.

    Attributes:
      task_view: `(client_state, task) -> V`, on numpy values, or on tensors in a graph.
      knowledge_size: values in a row of the knowledge base.
      num_foreign: K, the most rows that a client receives at the start of a task.
      max_classes: labels lie in [0, max_classes), or None.
      work: the client work that it was composed of; None for a process that was not composed.
      message_type: what a client sends in a round, `<update, weight, metrics>`.
      handed: names in the finalizer's state of what every client receives as a task begins.
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
    consolidate: tff.Computation | None = None
    handed: tuple[str, ...] = ()
    infer: tff.Computation | None = None

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
        if self.consolidate is not None:
            found = self.consolidate.type_signature.result[0]
            _expect("consolidate", "result[0]", server.is_assignable_from(found), server, found)

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
    whole = messages.entries(client)
    for name, entry in messages.entries(found).items():
        expected = whole.get(name)
        fits = expected is not None and expected.is_assignable_from(entry)
        _expect(computation, f"{where}, entry {name!r}", fits, expected or f"one of {sorted(whole)}", entry)
