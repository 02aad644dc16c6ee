"""compose_continual_process: a client work, an aggregator and a finalizer become one ContinualProcess."""

from __future__ import annotations

from collections import OrderedDict
from typing import Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.templates.client_work import ClientWork
from tffcl.templates.continual_process import ContinualProcess
from tffcl.templates.finalizer import FinalizerProcess
from tffcl.templates.placed import at_clients, at_server

AggregationFactory = Union[
    tff.aggregators.UnweightedAggregationFactory, tff.aggregators.WeightedAggregationFactory
]


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
    return _Composer(client_work, aggregator, finalizer).process()


def select_types(types: OrderedDict, names: tuple[str, ...]) -> OrderedDict:
    """The entries of a mapping of types that are named, in the mapping's order."""
    unknown = [name for name in names if name not in types]
    if unknown:
        raise errors.ContractError(f"client work: no state entry named {unknown[0]!r}; there are {list(types)}")
    return OrderedDict((name, kind) for name, kind in types.items() if name in names)


def _ordered(values, types: OrderedDict) -> OrderedDict:
    """Values in the order and of the types that travel; any other dtype or shape is an error that names the entry."""
    missing = [name for name in types if name not in values]
    if missing:
        raise errors.ContractError(f"client work: returned no entry named {missing[0]!r}; found {list(values)}")
    return OrderedDict((name, _as_type(name, values[name], kind)) for name, kind in types.items())


def _as_type(name: str, value, kind: tff.TensorType) -> tf.Tensor:
    """The value with exactly the static shape of its type: an entry `[None, 5]` stays so even where it is empty."""
    value = tf.convert_to_tensor(value)
    if value.dtype.as_numpy_dtype != kind.dtype or not value.shape.is_compatible_with(kind.shape):
        raise errors.ContractError(
            f"client work: entry {name!r} should be {kind}, found {value.dtype.name}{value.shape}"
        )
    if kind.shape is None or None in kind.shape:
        return tf.compat.v1.placeholder_with_default(value, kind.shape)  # forgets what is known beyond the type
    return tf.ensure_shape(value, kind.shape)


class _Composer:
    """Holds the types while the computations are built."""

    def __init__(self, work: ClientWork, aggregator: AggregationFactory, finalizer: FinalizerProcess):
        self.work = work
        self.state = tff.to_type(work.state_type)
        self.reads = tff.to_type(select_types(work.state_type, work.train_reads))
        self.data = tff.to_type(
            OrderedDict(context=work.context_type, train=work.prepared_type, validation=work.prepared_type)
        )
        self.train = self._train_computation()
        update_type = self.train.type_signature.result[1]
        weighted = isinstance(aggregator, tff.aggregators.WeightedAggregationFactory)
        if weighted:
            self.aggregation = aggregator.create(update_type, tff.TensorType(np.float32))
        else:
            self.aggregation = aggregator.create(update_type)
        self.weighted = weighted
        self.finalizer = finalizer
        aggregate = self.aggregation.next.type_signature.result.result
        wanted = finalizer.next.type_signature.parameter[2]
        if not wanted.is_assignable_from(aggregate):
            raise errors.ContractError(f"finalizer: takes aggregates of {wanted}, the aggregator gives {aggregate}")

    def process(self) -> ContinualProcess:
        """Builds every computation and checks them against each other."""
        initialize = self._initialize()
        server = initialize.type_signature.result.member
        incoming = self._transfer_type()
        return ContinualProcess(
            initialize=initialize,
            initialize_clients=self._initialize_clients(server),
            begin_task=self._begin_task(server, incoming),
            prepare=self._prepare(server, incoming),
            next=self._next(server),
            end_task=self._end_task(server),
            evaluate=self._evaluate(server),
            task_view=self.work.task_view,
            knowledge_size=self.work.knowledge_size,
            num_foreign=self.work.num_foreign,
            max_classes=self.work.max_classes,
        )

    def _initialize(self):
        work = self.work

        @tff.tensorflow.computation
        def first_shared():
            return work.initialize_shared()

        @tff.federated_computation
        def initialize():
            return tff.federated_zip(
                OrderedDict(
                    shared=tff.federated_eval(first_shared, tff.SERVER),
                    aggregator=self.aggregation.initialize(),
                    finalizer=self.finalizer.initialize(),
                    round_num=tff.federated_value(0, tff.SERVER),
                )
            )

        return initialize

    def _initialize_clients(self, server: tff.Type):
        work = self.work

        @tff.tensorflow.computation(work.shared_type, tff.TensorType(np.int32, [2]))
        def first_state(shared, key):
            return _ordered(work.initialize_client(shared, key), work.state_type)

        @tff.federated_computation(
            at_server(server), at_clients(tff.TensorType(np.int32, [2]))
        )
        def initialize_clients(server_state, client_keys):
            return tff.federated_map(first_state, (tff.federated_broadcast(server_state.shared), client_keys))

        return initialize_clients

    def _transfer_type(self):
        """What the knowledge base sends: rows at the server, and for each client the keys of its own."""
        keys = tff.TensorType(np.int32, [self.work.num_foreign])
        return tff.to_type(
            OrderedDict(
                rows=at_server(tff.TensorType(np.float32, [None, self.work.knowledge_size])),
                keys=at_clients(keys),
                count=at_clients(np.int32),
            )
        )

    def _foreign(self, transfer_in):
        """Each client's own rows, `{float32[k, knowledge_size]}@CLIENTS`."""
        size, most = self.work.knowledge_size, self.work.num_foreign
        rows_type = tff.TensorType(np.float32, [None, size])
        if most == 0:
            empty = tff.tensorflow.computation(lambda count: tf.zeros([0, size]), tff.TensorType(np.int32))
            return tff.federated_map(empty, transfer_in.count)

        @tff.tensorflow.computation(rows_type, tff.TensorType(np.int32))
        def one_row(rows, key):
            return tf.ensure_shape(tf.gather(rows, key), [size])

        @tff.tensorflow.computation(rows_type)
        def last_key(rows):
            return tf.shape(rows)[0] - 1

        @tff.tensorflow.computation(tff.SequenceType(tff.TensorType(np.float32, [size])), tff.TensorType(np.int32))
        def stack(rows, count):
            stacked = rows.batch(most).reduce(tf.zeros([0, size]), lambda _, batch: batch)
            return stacked[:count]

        largest = tff.federated_map(last_key, transfer_in.rows)
        chosen = tff.federated_select(transfer_in.keys, largest, transfer_in.rows, one_row)
        return tff.federated_map(stack, (chosen, transfer_in.count))

    def _begin_task(self, server: tff.Type, incoming: tff.Type):
        work = self.work
        foreign_type = tff.TensorType(np.float32, [None, work.knowledge_size])

        @tff.tensorflow.computation(self.state, work.shared_type, foreign_type)
        def begin(state, shared, foreign):
            return _ordered(work.begin_task(state, shared, foreign), work.state_type)

        @tff.federated_computation(at_server(server), at_clients(self.state), incoming)
        def begin_task(server_state, client_states, transfer_in):
            shared = tff.federated_broadcast(server_state.shared)
            return tff.federated_map(begin, (client_states, shared, self._foreign(transfer_in)))

        return begin_task

    def _prepare(self, server: tff.Type, incoming: tff.Type):
        work = self.work
        reads = tff.to_type(select_types(work.state_type, work.prepare_reads))
        foreign_type = tff.TensorType(np.float32, [None, work.knowledge_size])
        raw = tff.to_type(OrderedDict(context=work.context_type, examples=work.example_type))

        @tff.tensorflow.computation(reads, foreign_type, raw)
        def prepare_one(state, foreign, data):
            prepared = work.prepare(state, foreign, data["context"], data["examples"])
            return _ordered(prepared, work.prepared_type)

        @tff.federated_computation(
            at_server(server), at_clients(reads), incoming, at_clients(raw)
        )
        def prepare(server_state, client_states, transfer_in, client_data):
            del server_state
            return tff.federated_map(prepare_one, (client_states, self._foreign(transfer_in), client_data))

        return prepare

    def _train_computation(self):
        work = self.work
        writes = select_types(work.state_type, work.train_writes)

        @tff.tensorflow.computation(self.reads, work.shared_type, self.data, tff.TensorType(np.int32))
        def train(state, shared, data, round_num):
            changed, update, weight, metrics = work.train(state, shared, data, round_num)
            return _ordered(changed, writes), OrderedDict(update), weight, OrderedDict(metrics)

        return train

    def _next(self, server: tff.Type):
        @tff.tensorflow.computation(tff.TensorType(np.int32))
        def one_more(count):
            return count + 1

        @tff.federated_computation(
            at_server(server), at_clients(self.reads), at_clients(self.data)
        )
        def next_round(server_state, client_states, client_data):
            shared = tff.federated_broadcast(server_state.shared)
            round_num = tff.federated_broadcast(server_state.round_num)
            trained = tff.federated_map(self.train, (client_states, shared, client_data, round_num))
            weight = (trained[2],) if self.weighted else ()
            aggregated = self.aggregation.next(server_state.aggregator, trained[1], *weight)
            finalized = self.finalizer.next(server_state.finalizer, server_state.shared, aggregated.result)
            new_state = tff.federated_zip(
                OrderedDict(
                    shared=finalized.result,
                    aggregator=aggregated.state,
                    finalizer=finalized.state,
                    round_num=tff.federated_map(one_more, server_state.round_num),
                )
            )
            return new_state, trained[0], trained[3]

        return next_round

    def _end_task(self, server: tff.Type):
        work = self.work

        @tff.tensorflow.computation(self.state, self.data)
        def end(state, data):
            new_state, upload = work.end_task(state, data)
            return _ordered(new_state, work.state_type), OrderedDict(upload)

        @tff.federated_computation(
            at_server(server), at_clients(self.state), at_clients(self.data)
        )
        def end_task(server_state, client_states, client_data):
            del server_state
            ended = tff.federated_map(end, (client_states, client_data))
            return ended[0], ended[1]

        return end_task

    def _evaluate(self, server: tff.Type):
        work = self.work
        view_type = tff.to_type(work.evaluate_type)
        data_type = tff.to_type(OrderedDict(context=work.context_type, examples=work.prepared_type))

        @tff.tensorflow.computation(view_type, work.shared_type, data_type)
        def evaluate_one(view, shared, data):
            return OrderedDict(work.evaluate(view, shared, data["context"], data["examples"]))

        @tff.federated_computation(
            at_server(server), at_clients(view_type), at_clients(data_type)
        )
        def evaluate(server_state, client_views, client_data):
            shared = tff.federated_broadcast(server_state.shared)
            return tff.federated_map(evaluate_one, (client_views, shared, client_data))

        return evaluate
