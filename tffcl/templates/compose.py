"""compose_continual_process: a client work, an aggregator and a finalizer become one ContinualProcess."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.templates import messages
from tffcl.templates.contract import ClientWork, ContinualProcess, FinalizerProcess
from tffcl.templates.messages import as_type, at_clients, at_server, entries, ordered, select_types

AggregationFactory = Union[tff.aggregators.UnweightedAggregationFactory, tff.aggregators.WeightedAggregationFactory]

_in_parts: contextvars.ContextVar[bool] = contextvars.ContextVar("in_parts", default=False)

_KEY, _COUNT = tff.TensorType(np.int32, [2]), tff.TensorType(np.int32)


def compose_continual_process(
    client_work: ClientWork, aggregator: AggregationFactory, finalizer: FinalizerProcess
) -> ContinualProcess:
    """Builds the process; every algorithm of the library is a call of this function.

    Shown in docs/contract.md.

    Args:
      client_work: what a client does.
      aggregator: any `tff.aggregators` factory for the type of the client work's update. A weighted factory also
        gets the update's weight, which is 0 for a client without data or with a non-finite update.
      finalizer: what the server does with the aggregate.

    Raises:
      ContractError: the parts do not fit; the message names the part, the expected and the found type.
    """
    _check_kinds(client_work, aggregator, finalizer)
    if _in_parts.get():
        return Parts(client_work, aggregator, finalizer)  # type: ignore[return-value]
    return _Composer(client_work, aggregator, finalizer).process()


class Parts(NamedTuple):
    """What a process is composed of."""

    work: ClientWork
    aggregator: AggregationFactory
    finalizer: FinalizerProcess


@contextlib.contextmanager
def in_parts() -> Iterator[None]:
    """Inside, `compose_continual_process` returns `Parts`: no computation is traced, which is what takes seconds.

    For whoever needs the network and the layout of states alone, of a builder that does no more than compose.
    """
    token = _in_parts.set(True)
    try:
        yield
    finally:
        _in_parts.reset(token)


def _check_kinds(client_work: Any, aggregator: Any, finalizer: Any) -> None:
    factories = (tff.aggregators.UnweightedAggregationFactory, tff.aggregators.WeightedAggregationFactory)
    wanted: tuple[tuple[str, Any, tuple, str], ...] = (
        ("client work", client_work, (ClientWork,), "a ClientWork"),
        ("aggregator", aggregator, factories, "a tff.aggregators factory"),
        ("finalizer", finalizer, (FinalizerProcess,), "a FinalizerProcess"),
    )
    for part, found, kinds, name in wanted:
        if not isinstance(found, kinds):
            raise errors.ContractError(f"{part}: expected {name}, found {type(found).__name__}")


class _Composer:
    """Holds the types while the computations are built."""

    def __init__(self, work: ClientWork, aggregator: AggregationFactory, finalizer: FinalizerProcess):
        self.work, self.finalizer = work, finalizer
        self.state = tff.to_type(work.state_type)
        self.plan = tff.TensorType(np.int32, [work.plan_size])
        self.reads = tff.to_type(select_types(work.state_type, work.train_reads))
        self.data = tff.to_type(
            OrderedDict(context=work.context_type, train=work.prepared_type, validation=work.prepared_type)
        )
        self.knowledge = _KnowledgeRows(work.knowledge_size, work.num_foreign)
        self.train = self._train_computation()
        self.limits = self._limits_computation()
        self.admit = self._admit_computation()
        self.weighted = isinstance(aggregator, tff.aggregators.WeightedAggregationFactory)
        self.aggregation = self._aggregation(aggregator)
        self._check_finalizer()

    def _aggregation(self, aggregator: AggregationFactory) -> tff.templates.AggregationProcess:
        update_type = self.train.type_signature.result[1]
        weight = (tff.TensorType(np.float32),) if self.weighted else ()
        try:
            return aggregator.create(update_type, *weight)
        except errors.ContractError:
            raise
        except (TypeError, ValueError) as error:
            raise errors.ContractError(
                f"aggregator: {type(aggregator).__name__} takes no updates of {update_type} "
                f"({' '.join(str(error).split())}); give tffcl.aggregators.gated(...) of one that takes float32 "
                "vectors, and by_name(...) where there are several parts"
            ) from error

    def _check_finalizer(self) -> None:
        _, shared, wanted = self.finalizer.next.type_signature.parameter
        if shared != at_server(self.work.shared_type):
            raise errors.ContractError(
                f"finalizer: takes a shared value of {shared}, the client work shares {self.work.shared_type}"
            )
        aggregate = self.aggregation.next.type_signature.result.result
        if not wanted.is_assignable_from(aggregate):
            raise errors.ContractError(f"finalizer: takes aggregates of {wanted}, the aggregator gives {aggregate}")

    def process(self) -> ContinualProcess:
        """Builds every computation and checks them against each other."""
        initialize = self._initialize()
        server = initialize.type_signature.result.member
        return ContinualProcess(
            initialize=initialize,
            initialize_clients=self._initialize_clients(server),
            begin_task=self._begin_task(server),
            prepare=self._prepare(server),
            next=self._next(server),
            end_task=self._end_task(server),
            evaluate=_of_views(self.work, self.work.evaluate, server),
            task_view=self.work.task_view,
            knowledge_size=self.work.knowledge_size,
            num_foreign=self.work.num_foreign,
            max_classes=self.work.max_classes,
            work=self.work,
            message_type=tff.StructWithPythonType(list(self.train.type_signature.result)[1:], tuple),
            consolidate=self._consolidate(server),
            handed=self.work.handed,
        )

    def _initialize(self) -> tff.Computation:
        work = self.work

        @tff.tensorflow.computation
        def first_shared() -> tf.Tensor:
            return as_type("initialize_shared", "shared", work.initialize_shared(), work.shared_type)

        @tff.tensorflow.computation
        def first_plan() -> tf.Tensor:
            return as_type("initialize_plan", "plan", work.initialize_plan(), self.plan)

        @tff.federated_computation
        def initialize() -> tff.Value:
            return tff.federated_zip(
                OrderedDict(
                    shared=tff.federated_eval(first_shared, tff.SERVER),
                    plan=tff.federated_eval(first_plan, tff.SERVER),
                    aggregator=self.aggregation.initialize(),
                    finalizer=self.finalizer.initialize(),
                    round_num=tff.federated_value(0, tff.SERVER),
                )
            )

        return initialize

    def _initialize_clients(self, server: tff.Type) -> tff.Computation:
        work = self.work

        @tff.tensorflow.computation(work.shared_type, self.plan, _KEY)
        def first_state(shared: tf.Tensor, plan: tf.Tensor, key: tf.Tensor) -> OrderedDict:
            return ordered("initialize_client", work.initialize_client(shared, plan, key), work.state_type)

        @tff.federated_computation(at_server(server), at_clients(_KEY))
        def initialize_clients(server_state: tff.Value, client_keys: tff.Value) -> tff.Value:
            shared = tff.federated_broadcast(server_state.shared)
            plan = tff.federated_broadcast(server_state.plan)
            return tff.federated_map(first_state, (shared, plan, client_keys))

        return initialize_clients

    def _begin_task(self, server: tff.Type) -> tff.Computation:
        work = self.work

        received = (self.state, work.shared_type, self.knowledge.rows_type)
        handed = self._handed() if work.handed else None

        def begun(state: Any, shared: tf.Tensor, foreign: tf.Tensor) -> OrderedDict:
            return ordered("begin_task", work.begin_task(state, shared, foreign), work.state_type)

        if handed is None:
            begin = tff.tensorflow.computation(begun, *received)
        else:

            @tff.tensorflow.computation(*received, handed.type_signature.result)
            def begin(state: OrderedDict, shared: tf.Tensor, foreign: tf.Tensor, own: OrderedDict) -> OrderedDict:
                return begun({**state, **own}, shared, foreign)

        @tff.federated_computation(at_server(server), at_clients(self.state), self.knowledge.type)
        def begin_task(server_state: tff.Value, client_states: tff.Value, transfer_in: tff.Value) -> tff.Value:
            shared = tff.federated_broadcast(server_state.shared)
            arguments = [client_states, shared, self.knowledge.received(transfer_in)]
            if handed is not None:
                arguments.append(tff.federated_broadcast(tff.federated_map(handed, server_state.finalizer)))
            return tff.federated_map(begin, tuple(arguments))

        return begin_task

    def _handed(self) -> tff.Computation:
        """(F -> the entries of the finalizer's state that the client work has handed)."""
        kind = self.finalizer.initialize.type_signature.result.member
        found = entries(kind) if isinstance(kind, tff.StructType) else {}
        for name, wanted in select_types(self.work.state_type, self.work.handed).items():
            if found.get(name) != wanted:
                raise errors.ContractError(f"finalizer: its state should hold {name!r}, {wanted}, found {kind}")

        @tff.tensorflow.computation(kind)
        def pick(state: Any) -> OrderedDict:
            return OrderedDict((name, state[name]) for name in self.work.handed)

        return pick

    def _consolidate(self, server: tff.Type) -> tff.Computation | None:
        ended = self.finalizer.end_task
        if ended is None:
            return None
        classes = ended.type_signature.parameter[2]

        @tff.federated_computation(at_server(server), classes)
        def consolidate(server_state: tff.Value, seen: tff.Value) -> tuple:
            result = ended(server_state.finalizer, server_state.shared, seen)
            new = OrderedDict(
                (name, result[0] if name == "finalizer" else getattr(server_state, name)) for name in entries(server)
            )
            return tff.federated_zip(new), result[1]

        return consolidate

    def _prepare(self, server: tff.Type) -> tff.Computation:
        work = self.work
        reads = tff.to_type(select_types(work.state_type, work.prepare_reads))
        raw = tff.to_type(OrderedDict(context=work.context_type, examples=work.example_type))

        @tff.tensorflow.computation(reads, self.knowledge.rows_type, raw)
        def prepare_one(state: OrderedDict, foreign: tf.Tensor, data: OrderedDict) -> OrderedDict:
            prepared = work.prepare(state, foreign, data["context"], data["examples"])
            return ordered("prepare", prepared, work.prepared_type)

        @tff.federated_computation(at_server(server), at_clients(reads), self.knowledge.type, at_clients(raw))
        def prepare(
            server_state: tff.Value, client_states: tff.Value, transfer_in: tff.Value, client_data: tff.Value
        ) -> tff.Value:
            del server_state
            foreign = self.knowledge.received(transfer_in)
            return tff.federated_map(prepare_one, (client_states, foreign, client_data))

        return prepare

    def _train_computation(self) -> tff.Computation:
        work = self.work
        writes = select_types(work.state_type, work.train_writes)

        @tff.tensorflow.computation(self.reads, work.shared_type, self.data, _COUNT)
        def train(state: OrderedDict, shared: tf.Tensor, data: OrderedDict, round_num: tf.Tensor) -> tuple:
            changed, update, weight, metrics = work.train(state, shared, data, round_num)
            weight = as_type("train", "weight", weight, tff.TensorType(np.float32))
            if "refused" in metrics:
                raise errors.ContractError(
                    "client work: train reports a metric 'refused', which is the server's to say"
                )
            return ordered("train", changed, writes), OrderedDict(update), weight, OrderedDict(metrics)

        return train

    def _limits_computation(self) -> tff.Computation:
        work = self.work

        @tff.tensorflow.computation(self.reads, self.data)
        def limits(state: OrderedDict, data: OrderedDict) -> OrderedDict:
            return OrderedDict(work.limits(state, data))

        return limits

    def _admit_computation(self) -> tff.Computation:
        """What the server takes of a round's message: update, weight, and metrics with the reason of a refusal."""
        work = self.work
        _, *message = self.train.type_signature.result

        @tff.tensorflow.computation(*message, self.limits.type_signature.result)
        def admit(update: OrderedDict, weight: tf.Tensor, metrics: OrderedDict, limits: OrderedDict) -> tuple:
            faults = [
                messages.weight_fault(weight, limits["weight"]),
                *messages.count_faults(metrics),
                *work.faults(update, limits),
            ]
            refused = messages.verdict(update, faults, work.largest_value)
            return (*messages.taken((update, weight), refused), OrderedDict(metrics, refused=refused))

        return admit

    def _next(self, server: tff.Type) -> tff.Computation:
        @tff.tensorflow.computation(_COUNT)
        def one_more(count: tf.Tensor) -> tf.Tensor:
            return count + 1

        @tff.federated_computation(at_server(server), at_clients(self.reads), at_clients(self.data))
        def next_round(server_state: tff.Value, client_states: tff.Value, client_data: tff.Value) -> tuple:
            shared = tff.federated_broadcast(server_state.shared)
            round_num = tff.federated_broadcast(server_state.round_num)
            trained = tff.federated_map(self.train, (client_states, shared, client_data, round_num))
            limits = tff.federated_map(self.limits, (client_states, client_data))
            admitted = tff.federated_map(self.admit, (trained[1], trained[2], trained[3], limits))
            weight = (admitted[1],) if self.weighted else ()
            aggregated = self.aggregation.next(server_state.aggregator, admitted[0], *weight)
            finalized = self.finalizer.next(server_state.finalizer, server_state.shared, aggregated.result)
            new_state = tff.federated_zip(
                OrderedDict(
                    shared=finalized.result,
                    plan=server_state.plan,
                    aggregator=aggregated.state,
                    finalizer=finalized.state,
                    round_num=tff.federated_map(one_more, server_state.round_num),
                )
            )
            measured = OrderedDict(aggregator=aggregated.measurements, finalizer=finalized.measurements)
            return new_state, trained[0], admitted[2], tff.federated_zip(measured)

        return next_round

    def _end_task(self, server: tff.Type) -> tff.Computation:
        work = self.work
        row_type = tff.TensorType(np.float32, [work.knowledge_size])

        @tff.tensorflow.computation(self.state, work.shared_type, self.data)
        def end(state: OrderedDict, shared: tf.Tensor, data: OrderedDict) -> tuple[OrderedDict, OrderedDict]:
            new_state, upload = work.end_task(state, shared, data)
            if "knowledge" not in upload:
                raise errors.ContractError(f"client work: end_task uploaded no 'knowledge'; found {list(upload)}")
            knowledge = as_type("end_task", "knowledge", upload["knowledge"], row_type)
            return ordered("end_task", new_state, work.state_type), OrderedDict(upload, knowledge=knowledge)

        @tff.tensorflow.computation(end.type_signature.result[1])
        def admit(upload: OrderedDict) -> OrderedDict:
            refused = messages.verdict(upload, largest=work.largest_value)
            return OrderedDict(messages.taken(upload, refused), refused=refused)

        @tff.federated_computation(at_server(server), at_clients(self.state), at_clients(self.data))
        def end_task(server_state: tff.Value, client_states: tff.Value, client_data: tff.Value) -> tuple:
            shared = tff.federated_broadcast(server_state.shared)
            ended = tff.federated_map(end, (client_states, shared, client_data))
            return ended[0], tff.federated_map(admit, ended[1])

        return end_task


def with_task_inference(process: ContinualProcess) -> ContinualProcess:
    """The process, whose scores are of examples of which nobody knows the task.

    For each test example the parameters of every task that the client has learned so far are tried, and the task whose
    softmax has the lowest entropy, over the log of its number of classes, is taken; of equal ones the first. The
    prediction is right if that is the example's task, and its most probable class the label.

    Shown in docs/methods.md.

    Args:
      process: of a client work that has `infer`, such as `DecomposedWork` of a classifier.

    Raises:
      ContractError: it was not composed, or its client work has no parameters of classes for each task.
    """
    work = process.work
    if not isinstance(work, ClientWork) or work.max_classes is None:
        raise errors.ContractError(
            f"client work: expected one of a classifier, to infer tasks by; found {type(work).__name__}"
        )
    server = process.initialize.type_signature.result.member
    return dataclasses.replace(process, infer=_of_views(work, work.infer, server))


def _of_views(work: ClientWork, function: Callable[..., Any], server: tff.Type) -> tff.Computation:
    """(<S@SERVER, {V}@CLIENTS, {P}@CLIENTS> -> {what a function of a view and examples gives}@CLIENTS)."""
    view_type = tff.to_type(work.evaluate_type)
    data_type = tff.to_type(OrderedDict(context=work.context_type, examples=work.prepared_type))

    @tff.tensorflow.computation(view_type, work.shared_type, data_type)
    def evaluate_one(view: OrderedDict, shared: tf.Tensor, data: OrderedDict) -> OrderedDict:
        return OrderedDict(function(view, shared, data["context"], data["examples"]))

    @tff.federated_computation(at_server(server), at_clients(view_type), at_clients(data_type))
    def evaluate(server_state: tff.Value, client_views: tff.Value, client_data: tff.Value) -> tff.Value:
        shared = tff.federated_broadcast(server_state.shared)
        return tff.federated_map(evaluate_one, (client_views, shared, client_data))

    return evaluate


class _KnowledgeRows:
    """Rows of the knowledge base on their way to clients, each of which gets its own by `tff.federated_select`.

    `type` is what the knowledge base sends: rows at the server, and for each client the keys and number of its own.
    """

    def __init__(self, knowledge_size: int, num_foreign: int):
        self._size, self._most = knowledge_size, num_foreign
        self.rows_type = tff.TensorType(np.float32, [None, knowledge_size])
        self.type = tff.to_type(
            OrderedDict(
                rows=at_server(self.rows_type),
                keys=at_clients(tff.TensorType(np.int32, [num_foreign])),
                count=at_clients(np.int32),
            )
        )

    def received(self, transfer_in: tff.Value) -> tff.Value:
        """Each client's own rows, `{float32[k, knowledge_size]}@CLIENTS`, k <= K."""
        size, most = self._size, self._most
        if most == 0:
            nothing = tff.tensorflow.computation(lambda count: tf.zeros([0, size]), tff.TensorType(np.int32))
            return tff.federated_map(nothing, transfer_in.count)

        @tff.tensorflow.computation(self.rows_type, tff.TensorType(np.int32))
        def one_row(rows: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(tf.gather(rows, key), [size])

        @tff.tensorflow.computation(self.rows_type)
        def last_key(rows: tf.Tensor) -> tf.Tensor:
            return tf.shape(rows)[0] - 1

        row_type = tff.TensorType(np.float32, [size])

        @tff.tensorflow.computation(tff.SequenceType(row_type), tff.TensorType(np.int32))
        def stack(rows: tf.data.Dataset, count: tf.Tensor) -> tf.Tensor:
            stacked = rows.batch(most).reduce(tf.zeros([0, size]), lambda _, batch: batch)
            return stacked[:count]

        largest = tff.federated_map(last_key, transfer_in.rows)
        chosen = tff.federated_select(transfer_in.keys, largest, transfer_in.rows, one_row)
        return tff.federated_map(stack, (chosen, transfer_in.count))
