"""What a graph holds is a call's own in this process, or the graph is refused: tables, queues, iterators, readers."""

from __future__ import annotations

import contextlib
import gc

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors, runtime

_KEYS = tff.TensorType(np.int64, [None])
_NOT_THERE = -1


@pytest.fixture(name="in_process", autouse=True)
def _in_process():
    with runtime.in_process(clients_at_once=2) as entered:
        yield entered


def tens(keys):
    return keys * 10


def initializer(keys):
    return tf.lookup.KeyValueTensorInitializer(keys, tens(keys))


def inserted(table, keys, values=None):
    """The table, once it holds the keys."""
    with tf.control_dependencies([table.insert(keys, tens(keys) if values is None else values)]):
        return table.size()


def static(keys):
    return tf.lookup.StaticHashTable(initializer(keys), _NOT_THERE).size()


def vocabulary(keys):
    """Its ids are values of the initializer; one bucket more for what is not there."""
    return tf.lookup.StaticVocabularyTable(initializer(keys), num_oov_buckets=1).size() - 1


def mutable(keys):
    return inserted(tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, _NOT_THERE), keys)


def dense(keys):
    table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, _NOT_THERE, empty_key=-2, deleted_key=-3)
    return inserted(table, keys)


def dense_with_keys_of_the_argument(keys):
    empty = tf.reduce_max(keys) + 1
    table = tf.lookup.experimental.DenseHashTable(
        tf.int64, tf.int64, _NOT_THERE, empty_key=empty, deleted_key=empty + 1
    )
    return inserted(table, keys)


def of_vectors(keys):
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, [_NOT_THERE, _NOT_THERE])
    return inserted(table, keys, tf.stack([keys, keys], 1))


def in_a_function(keys):
    return tf.function(mutable)(keys)


def two_tables(keys):
    return mutable(keys) + static(keys) - tf.cast(tf.size(keys), tf.int64)


def queue(make):
    def size(keys):
        made = make()
        with tf.control_dependencies([made.enqueue_many((keys,))]):
            return tf.cast(made.size(), tf.int64)

    return size


def priorities(keys):
    made = tf.queue.PriorityQueue(100, tf.int64, [[]])
    with tf.control_dependencies([made.enqueue_many((keys, keys))]):
        return tf.cast(made.size(), tf.int64)


def queue_and_table(keys):
    return queue(lambda: tf.queue.FIFOQueue(100, tf.int64, [[]]))(keys) + mutable(keys) - static(keys)


HOLDERS = {
    "static": static,
    "vocabulary": vocabulary,
    "mutable": mutable,
    "dense": dense,
    "dense with keys of the argument": dense_with_keys_of_the_argument,
    "of vectors": of_vectors,
    "in a function": in_a_function,
    "two tables": two_tables,
    "queue": queue(lambda: tf.queue.FIFOQueue(100, tf.int64, [[]])),
    "queue of a name": queue(lambda: tf.queue.FIFOQueue(100, tf.int64, [[]], shared_name="shared")),
    "shuffling queue": queue(lambda: tf.queue.RandomShuffleQueue(100, 0, tf.int64, [[]])),
    "padding queue": queue(lambda: tf.queue.PaddingFIFOQueue(100, tf.int64, [[]])),
    "priority queue": priorities,
    "queue and table": queue_and_table,
}


@pytest.mark.parametrize("size", HOLDERS.values(), ids=HOLDERS)
def test_it_holds_what_its_own_call_and_client_put_into_it(size):
    computation = tff.tensorflow.computation(size, _KEYS)
    everywhere = tff.federated_computation(
        lambda keys: tff.federated_map(computation, keys), tff.FederatedType(_KEYS, tff.CLIENTS)
    )
    for keys in ([1, 2, 3], [7, 8], [9]):
        assert computation(keys) == len(keys)
    assert everywhere([[1], [2, 3], [4, 5, 6], [7]]) == [1, 2, 3, 1]


def test_what_comes_out_of_a_queue_is_what_its_own_client_put_in():
    @tff.tensorflow.computation(_KEYS)
    def through(keys):
        made = tf.queue.FIFOQueue(1000, tf.int64, [[]])
        with tf.control_dependencies([made.enqueue_many((keys,))]):
            return made.dequeue_many(tf.size(keys))

    everywhere = tff.federated_computation(
        lambda keys: tff.federated_map(through, keys), tff.FederatedType(_KEYS, tff.CLIENTS)
    )
    given = [np.arange(client, client + 400) for client in range(20)]
    np.testing.assert_array_equal(everywhere(given), given)


def test_a_call_that_fails_leaves_nothing_in_a_queue():
    @tff.tensorflow.computation(_KEYS)
    def size(keys):
        made = tf.queue.FIFOQueue(100, tf.int64, [[]])
        with tf.control_dependencies([made.enqueue_many((keys,))]):
            check = tf.debugging.assert_positive(keys)
        with tf.control_dependencies([check]):
            return made.size()

    for keys in ([1, 2], [3, -1], [4]):
        with pytest.raises(errors.OperationError) if -1 in keys else contextlib.nullcontext():
            assert size(keys) == len(keys)


def test_keys_of_another_client_are_not_found():
    @tff.tensorflow.computation(_KEYS, _KEYS)
    def look(keys, wanted):
        return tf.lookup.StaticHashTable(initializer(keys), _NOT_THERE).lookup(wanted)

    kind = tff.FederatedType(_KEYS, tff.CLIENTS)
    look_everywhere = tff.federated_computation(lambda k, w: tff.federated_map(look, (k, w)), kind, kind)
    given = [[1, 2], [2, 3], [4, 5]]
    for wanted in ([2, 9], [3, 4]):
        expected = [[10 * key if key in keys else _NOT_THERE for key in wanted] for keys in given]
        np.testing.assert_array_equal(look_everywhere(given, [wanted] * 3), expected)


@pytest.mark.slow
def test_a_table_lives_as_long_as_the_data_set_that_reads_it():
    @tff.tensorflow.computation(_KEYS)
    def looked_up(keys):
        table = tf.lookup.StaticHashTable(initializer(keys), _NOT_THERE)
        return tf.data.Dataset.range(1, 4).map(table.lookup)

    first, second = looked_up([1, 2]), looked_up([2, 3])
    gc.collect()
    assert list(first.as_numpy_iterator()) == [10, 20, _NOT_THERE]
    assert list(second.as_numpy_iterator()) == [_NOT_THERE, 20, 30]


def _accumulated(keys):
    accumulator = tf.compat.v1.ConditionalAccumulator(tf.float32, shape=[])
    with tf.control_dependencies([accumulator.apply_grad(1.0)]):
        return accumulator.num_accumulated()


def _reference(keys):
    variable = tf.compat.v1.Variable(0, use_resource=False)
    return tf.compat.v1.assign_add(variable, 1)


def _one_shot(keys):
    return tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()


def _staged(keys):
    area = tf.raw_ops.Stage(values=[keys])
    with tf.control_dependencies([area]):
        return tf.raw_ops.StageSize(dtypes=[tf.int64])


def _read(keys):
    return tf.raw_ops.ReaderNumRecordsProducedV2(reader_handle=tf.raw_ops.IdentityReaderV2())


def _mapped_over_a_variable(keys):
    """A variable in the body of a function, which would stand under one name for all calls."""

    def step(key):
        handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name="own")
        tf.raw_ops.AssignVariableOp(resource=handle, value=key)
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)

    return tf.data.Dataset.from_tensor_slices(keys).map(step).reduce(np.int64(0), lambda a, b: a + b)


REFUSED = {
    "ResourceConditionalAccumulator": _accumulated,
    "VariableV2": _reference,
    "OneShotIterator": _one_shot,
    "Stage": _staged,
    "IdentityReaderV2": _read,
    "VarHandleOp": _mapped_over_a_variable,
}


@pytest.mark.parametrize("operation", REFUSED)
def test_what_would_stay_from_call_to_call_is_refused_in_one_line(operation):
    computation = tff.tensorflow.computation(REFUSED[operation], _KEYS)
    with pytest.raises(errors.RunError, match=f"cannot run {operation}.*runtime.local") as caught:
        computation([1, 2])
    assert "\n" not in str(caught.value)
