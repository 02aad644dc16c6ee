"""compose_continual_process: a client work, an aggregator and a finalizer become one ContinualProcess."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.templates import admission
from tffcl.templates.client_work import ClientWork
from tffcl.templates.continual_process import ContinualProcess
from tffcl.templates.entries import as_type, ordered, select_types
from tffcl.templates.finalizer import FinalizerProcess
from tffcl.templates.incoming import Incoming
from tffcl.templates.placed import at_clients, at_server

AggregationFactory = Union[tff.aggregators.UnweightedAggregationFactory, tff.aggregators.WeightedAggregationFactory]

_KEY, _COUNT = tff.TensorType(np.int32, [2]), tff.TensorType(np.int32)


def compose_continual_process(
    client_work: ClientWork, aggregator: AggregationFactory, finalizer: FinalizerProcess
) -> ContinualProcess:
    """Builds the process; every algorithm of the library is a call of this function.

    Args:
      client_work: what a client does.
      aggregator: any `tff.aggregators` factory for the type of the client work's update. A weighted factory also
        gets the update's weight, which is 0 for a client without data or with a non-finite update.
      finalizer: what the server does with the aggregate.

    Raises:
      ContractError: the parts do not fit; the message names the part, the expected and the found type.
    """
    _check_kinds(client_work, aggregator, finalizer)
    return _Composer(client_work, aggregator, finalizer).process()


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
        self.incoming = Incoming(work.knowledge_size, work.num_foreign)
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
            evaluate=self._evaluate(server),
            task_view=self.work.task_view,
            knowledge_size=self.work.knowledge_size,
            num_foreign=self.work.num_foreign,
            max_classes=self.work.max_classes,
            work=self.work,
            message_type=tff.StructWithPythonType(list(self.train.type_signature.result)[1:], tuple),
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

        @tff.tensorflow.computation(self.state, work.shared_type, self.incoming.rows_type)
        def begin(state: OrderedDict, shared: tf.Tensor, foreign: tf.Tensor) -> OrderedDict:
            return ordered("begin_task", work.begin_task(state, shared, foreign), work.state_type)

        @tff.federated_computation(at_server(server), at_clients(self.state), self.incoming.type)
        def begin_task(server_state: tff.Value, client_states: tff.Value, transfer_in: tff.Value) -> tff.Value:
            shared = tff.federated_broadcast(server_state.shared)
            return tff.federated_map(begin, (client_states, shared, self.incoming.received(transfer_in)))

        return begin_task

    def _prepare(self, server: tff.Type) -> tff.Computation:
        work = self.work
        reads = tff.to_type(select_types(work.state_type, work.prepare_reads))
        raw = tff.to_type(OrderedDict(context=work.context_type, examples=work.example_type))

        @tff.tensorflow.computation(reads, self.incoming.rows_type, raw)
        def prepare_one(state: OrderedDict, foreign: tf.Tensor, data: OrderedDict) -> OrderedDict:
            prepared = work.prepare(state, foreign, data["context"], data["examples"])
            return ordered("prepare", prepared, work.prepared_type)

        @tff.federated_computation(at_server(server), at_clients(reads), self.incoming.type, at_clients(raw))
        def prepare(
            server_state: tff.Value, client_states: tff.Value, transfer_in: tff.Value, client_data: tff.Value
        ) -> tff.Value:
            del server_state
            foreign = self.incoming.received(transfer_in)
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
                admission.weight_fault(weight, limits["weight"]),
                *admission.count_faults(metrics),
                *work.faults(update, limits),
            ]
            refused = admission.verdict(update, faults, work.largest_value)
            return (*admission.taken((update, weight), refused), OrderedDict(metrics, refused=refused))

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
            refused = admission.verdict(upload, largest=work.largest_value)
            return OrderedDict(admission.taken(upload, refused), refused=refused)

        @tff.federated_computation(at_server(server), at_clients(self.state), at_clients(self.data))
        def end_task(server_state: tff.Value, client_states: tff.Value, client_data: tff.Value) -> tuple:
            shared = tff.federated_broadcast(server_state.shared)
            ended = tff.federated_map(end, (client_states, shared, client_data))
            return ended[0], tff.federated_map(admit, ended[1])

        return end_task

    def _evaluate(self, server: tff.Type) -> tff.Computation:
        work = self.work
        view_type = tff.to_type(work.evaluate_type)
        data_type = tff.to_type(OrderedDict(context=work.context_type, examples=work.prepared_type))

        @tff.tensorflow.computation(view_type, work.shared_type, data_type)
        def evaluate_one(view: OrderedDict, shared: tf.Tensor, data: OrderedDict) -> OrderedDict:
            return OrderedDict(work.evaluate(view, shared, data["context"], data["examples"]))

        @tff.federated_computation(at_server(server), at_clients(view_type), at_clients(data_type))
        def evaluate(server_state: tff.Value, client_views: tff.Value, client_data: tff.Value) -> tff.Value:
            shared = tff.federated_broadcast(server_state.shared)
            return tff.federated_map(evaluate_one, (client_views, shared, client_data))

        return evaluate
