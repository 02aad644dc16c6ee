"""Several workers give the numbers that one gives, up to the order of float sums."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import runtime

_INT = tff.TensorType(np.int32)
_INTS = tff.FederatedType(_INT, tff.CLIENTS)
_VECTOR = tff.TensorType(np.float32, [None])
_VECTORS = tff.FederatedType(_VECTOR, tff.CLIENTS)


@pytest.fixture(name="two", scope="module")
def _two():
    with runtime.local(num_threads=1, num_workers=2) as entered:
        yield entered


def in_both(tff_context, two, run):
    """What `run` gives over two workers, and in one."""
    stack = tff.framework.get_context_stack()
    results = []
    for each in (two, tff_context):
        with stack.install(each.context):
            results.append(run())
    return results


def assert_same(found, expected):
    """Equal in form, dtypes, and up to 1e-6 in value."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            assert_same(one, other)
    elif isinstance(expected, tf.data.Dataset):
        assert_same(list(found.as_numpy_iterator()), list(expected.as_numpy_iterator()))
    else:
        assert getattr(found, "dtype", None) == getattr(expected, "dtype", None)
        if isinstance(expected, (bytes, str)) or getattr(expected, "dtype", np.dtype("f")).kind in "OSU":
            np.testing.assert_array_equal(found, expected)
        else:
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


_two_values = tff.tensorflow.computation(lambda: OrderedDict(z=tf.constant("u"), a=tf.constant([5])))
_add_one = tff.tensorflow.computation(lambda x: x + 1, _INT)


@tff.federated_computation(_INTS, tff.FederatedType(_INT, tff.SERVER), _INT)
def _every_placement(x, server, loose):
    return OrderedDict(
        clients=x,
        everyone=tff.federated_broadcast(tff.federated_eval(_two_values, tff.SERVER)),
        each=tff.federated_eval(_two_values, tff.CLIENTS),
        mapped=tff.federated_map(_add_one, x),
        same=tff.federated_map(_add_one, tff.federated_value(3, tff.CLIENTS)),
        server=tff.federated_map(_add_one, server),
        total=tff.federated_sum(x),
        mean=tff.federated_mean(
            tff.federated_map(tff.tensorflow.computation(lambda y: tf.cast(y, tf.float32), _INT), x), x
        ),
        extremes=(tff.federated_min(x), tff.federated_max(x)),
        of_everyone=tff.federated_sum(tff.federated_broadcast(server)),
        zipped=tff.federated_zip((x, OrderedDict(b=x, a=tff.federated_value(1, tff.CLIENTS)))),
        all_same=tff.federated_zip((tff.federated_broadcast(server), tff.federated_value(2, tff.CLIENTS))),
        at_server=tff.federated_zip((server, tff.federated_sum(x))),
        nothing=tff.federated_value((), tff.SERVER),
        text=tff.federated_value("abc", tff.SERVER),
        loose=loose,
        again=server,
    )


@pytest.mark.parametrize("clients", [[1, 2, 4], [5], [1, 2, 3, 4, 5, 6]])
def test_every_placement(tff_context, two, clients):
    assert_same(*in_both(tff_context, two, lambda: _every_placement(clients, 7, 9)))


def test_no_clients(two):
    """TFF's own deserialisation refuses this for one worker."""
    with tff.framework.get_context_stack().install(two.context):
        found = _every_placement([], 7, 9)
    assert (found["clients"], found["each"], found["mapped"], found["total"]) == ([], [], [], 0)


@pytest.mark.parametrize("size", [3, 50_000])
def test_large_and_small_values_in_the_order_of_the_clients(tff_context, two, size):
    total = tff.tensorflow.computation(lambda x: tf.reduce_sum(x), _VECTOR)

    @tff.federated_computation(_VECTORS, tff.FederatedType(_VECTOR, tff.SERVER))
    def compute(x, y):
        sums = tff.federated_map(total, x)
        return x, sums, tff.federated_mean(sums), tff.federated_broadcast(y), y

    clients = [np.arange(size, dtype=np.float32) / size + n for n in range(5)]
    assert_same(*in_both(tff_context, two, lambda: compute(clients, clients[0])))


def test_select_and_sequences(tff_context, two):
    keys = tff.FederatedType(tff.TensorType(np.int32, [2]), tff.CLIENTS)
    rows = tff.FederatedType(tff.TensorType(np.float32, [None, 2]), tff.SERVER)
    pick = tff.tensorflow.computation(lambda rows, key: tf.ensure_shape(rows[key], [2]), rows.member, _INT)
    reduce = tff.tensorflow.computation(
        lambda s: s.reduce(np.float32(0), lambda t, e: t + tf.reduce_sum(e)), tff.SequenceType(np.float32)
    )
    data = tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS)

    @tff.federated_computation(keys, rows, data)
    def compute(keys, rows, data):
        picked = tff.federated_select(keys, tff.federated_value(3, tff.SERVER), rows, pick)
        return picked, tff.federated_map(reduce, data), data

    wanted = [[2, 0], [0, 1], [1, 1]]
    data = [tf.data.Dataset.range(n).map(lambda x: tf.cast(x, tf.float32)) for n in (3, 0, 5)]
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert_same(*in_both(tff_context, two, lambda: compute(wanted, table, data)))


def test_a_computation_without_clients_and_a_sequence_without_a_place(tff_context, two):
    add = tff.tensorflow.computation(lambda a, b: a + b, (_INT, _INT))

    @tff.federated_computation(tff.SequenceType(_INT))
    def compute(sequence):
        return tff.sequence_reduce(tff.sequence_map(_add_one, sequence), 0, add)

    assert_same(*in_both(tff_context, two, lambda: compute([1, 2, 3])))
    assert_same(*in_both(tff_context, two, _two_values))
