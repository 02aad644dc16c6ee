"""Every runtime gives the values that a local worker gives, in the same form.

TensorFlow's kernels in its own wheel and in TFF's worker are two builds, which round differently, and several workers
sum in another order: equal is equal to about 1e-6. In this process alone, whatever the number of threads, equal is
equal to the bit.
"""

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

RUNTIMES = {
    "in_process": lambda: runtime.in_process(clients_at_once=2),
    "two_workers": lambda: runtime.local(num_threads=1, num_workers=2),
}


@pytest.fixture(name="other", scope="module", params=RUNTIMES)
def _other(request):
    with RUNTIMES[request.param]() as entered:
        yield entered


@pytest.fixture(name="assert_equal")
def _assert_equal(tff_context, other):
    """Compares the results of a function in a local worker and in another runtime."""

    def compare(run):
        results = []
        for each in (other, tff_context):
            with tff.framework.get_context_stack().install(each.context):
                results.append(run())
        assert_same(*results)

    return compare


def assert_same(found, expected):
    """Equal in form (containers, dtypes, what is an array, and whether it can be written to), and up to 1e-6."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            assert_same(one, other)
    elif isinstance(expected, tf.data.Dataset):
        assert found.element_spec == expected.element_spec
        assert_same(list(found.as_numpy_iterator()), list(expected.as_numpy_iterator()))
    else:
        assert getattr(found, "dtype", None) == getattr(expected, "dtype", None)
        if isinstance(expected, np.ndarray):
            assert found.flags.writeable == expected.flags.writeable
        if np.asarray(expected).dtype.kind == "f":
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(found, expected)


@tff.tensorflow.computation
def _values_of_every_type():
    return OrderedDict(
        text=tf.constant("abc"),
        texts=tf.constant(["a", "b"]),
        number=tf.constant(3),
        truth=tf.constant(True),
        vector=tf.constant([1.0, 2.0]),
        half=tf.constant([1.0], tf.bfloat16),
        empty=tf.zeros([0, 3]),
        pair=(tf.constant(1.5), OrderedDict(b=tf.constant([1]), a=tf.constant(2))),
        sequence=tf.data.Dataset.range(3).map(lambda n: OrderedDict(b=n, a=2 * n)),
    )


def test_values_of_every_type(assert_equal):
    assert_equal(_values_of_every_type)


_two_values = tff.tensorflow.computation(lambda: OrderedDict(z=tf.constant("u"), a=tf.constant([5])))
_add_one = tff.tensorflow.computation(lambda x: x + 1, _INT)
_add = tff.tensorflow.computation(lambda a, b: a + b, (_INT, _INT))
_as_float = tff.tensorflow.computation(lambda x: tf.cast(x, tf.float32), _INT)


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
        mean=tff.federated_mean(tff.federated_map(_as_float, x), x),
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


@pytest.mark.parametrize("clients", [[1, 2, 4], [np.int32(5)], [1, 2, 3, 4, 5, 6]])
def test_every_placement(assert_equal, clients):
    assert_equal(lambda: _every_placement(clients, 7, 9))


def test_no_clients(other):
    """TFF's own deserialisation refuses this for one worker."""
    with tff.framework.get_context_stack().install(other.context):
        found = _every_placement([], 7, 9)
    assert (found["clients"], found["each"], found["mapped"], found["total"]) == ([], [], [], 0)


@pytest.mark.parametrize("size", [3, 50_000])
def test_large_and_small_values_in_the_order_of_the_clients(assert_equal, size):
    total = tff.tensorflow.computation(lambda x: tf.reduce_sum(x), _VECTOR)

    @tff.federated_computation(_VECTORS, tff.FederatedType(_VECTOR, tff.SERVER))
    def compute(x, y):
        sums = tff.federated_map(total, x)
        return x, sums, tff.federated_mean(sums), tff.federated_broadcast(y), y

    clients = [np.arange(size, dtype=np.float32) / size + n for n in range(5)]
    assert_equal(lambda: compute(clients, clients[0]))


def test_sequences_go_in_as_lists_and_data_sets(assert_equal):
    sequence_type = tff.SequenceType(OrderedDict(b=_VECTOR, a=_INT))

    @tff.tensorflow.computation(sequence_type)
    def total(sequence):
        return sequence.reduce(0.0, lambda t, e: t + tf.reduce_sum(e["b"]) * tf.cast(e["a"], tf.float32))

    @tff.federated_computation(tff.FederatedType(sequence_type, tff.CLIENTS))
    def compute(sequences):
        return tff.federated_map(total, sequences), sequences

    elements = [OrderedDict(b=np.arange(2, dtype=np.float32), a=n) for n in (1, 2, 3)]
    assert_equal(lambda: compute([elements, elements[:1], []]))
    data = tf.data.Dataset.from_tensor_slices(OrderedDict(b=np.ones([4, 2], "f"), a=np.arange(4, dtype="i")))
    assert_equal(lambda: compute([data]))


def test_a_sequence_without_a_placement_is_mapped_and_reduced(assert_equal):
    @tff.federated_computation(tff.SequenceType(_INT))
    def compute(sequence):
        return tff.sequence_reduce(tff.sequence_map(_add_one, sequence), 0, _add)

    assert_equal(lambda: compute([1, 2, 3]))


def test_select_gives_each_client_its_own_in_order(assert_equal):
    keys = tff.FederatedType(tff.TensorType(np.int32, [2]), tff.CLIENTS)
    rows = tff.FederatedType(tff.TensorType(np.float32, [None, 2]), tff.SERVER)
    pick = tff.tensorflow.computation(lambda rows, key: tf.ensure_shape(rows[key], [2]), rows.member, _INT)

    @tff.federated_computation(keys, rows)
    def compute(keys, rows):
        return tff.federated_select(keys, tff.federated_value(3, tff.SERVER), rows, pick)

    assert_equal(lambda: compute([[2, 0], [0, 1], [1, 1]], np.arange(6, dtype=np.float32).reshape(3, 2)))


# -- whole processes -------------------------------------------------------------------------------------------


def in_all(tff_context, run):
    """What `run` gives in a worker, and in this process with one client and with three at once."""
    with tff.framework.get_context_stack().install(tff_context.context):
        results = [run()]
    for at_once in (1, 3):
        with runtime.in_process(clients_at_once=at_once):
            results.append(run())
    return [[np.asarray(leaf) for leaf in tf.nest.flatten(result)] for result in results]


def assert_equal_and_repeatable(worker, one, three):
    assert len(worker) == len(one) == len(three)
    for expected, found, again in zip(worker, one, three):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, again)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def aggregate(factory, weighted=False):
    """Two rounds of an aggregation process over three clients."""
    vector = tff.TensorType(np.float32, [3])
    process = factory.create(*((vector, tff.TensorType(np.float32)) if weighted else (vector,)))
    clients = [np.array([n, -2.0 * n, 0.1], np.float32) for n in range(1, 4)]
    weights = ([np.float32(1), np.float32(2), np.float32(0)],) if weighted else ()

    def run():
        state, outputs = process.initialize(), []
        for _ in range(2):
            output = process.next(state, clients, *weights)
            state = output.state
            outputs.append((output.result, output.measurements))
        return outputs

    return run


@pytest.mark.parametrize(
    ("factory", "weighted"),
    [
        (tff.aggregators.MeanFactory(), True),
        (tff.aggregators.UnweightedMeanFactory(), False),
        (tff.aggregators.clipping_factory(2.0, tff.aggregators.SumFactory()), False),
    ],
    ids=["mean", "unweighted mean", "clipped sum"],
)
def test_tff_s_aggregators(tff_context, factory, weighted):
    assert_equal_and_repeatable(*in_all(tff_context, aggregate(factory, weighted)))


@pytest.mark.slow
def test_tff_learning_s_weighted_fed_avg(tff_context):
    spec = OrderedDict(x=tf.TensorSpec([None, 2], tf.float32), y=tf.TensorSpec([None, 1], tf.float32))

    def model_fn():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones", input_shape=[2])])
        return tff.learning.models.from_keras_model(
            model, tf.keras.losses.MeanSquaredError(), input_spec=spec, metrics=[tf.keras.metrics.MeanSquaredError()]
        )

    process = tff.learning.algorithms.build_weighted_fed_avg(
        model_fn,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1, 0.9),
        server_optimizer_fn=tff.learning.optimizers.build_adam(0.1),
    )
    rng = np.random.default_rng(1)
    x = [rng.normal(size=(5 + n, 2)).astype("f") for n in range(3)]
    data = [tf.data.Dataset.from_tensor_slices(OrderedDict(x=a, y=a[:, :1] - 2 * a[:, 1:])).batch(3) for a in x]

    def run():
        state = process.initialize()
        for _ in range(3):
            output = process.next(state, data)
            state = output.state
        weights = process.get_model_weights(state)
        return [list(weights.trainable), output.metrics["client_work"]["train"]]

    assert_equal_and_repeatable(*in_all(tff_context, run))
