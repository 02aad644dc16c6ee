"""What runs in this process gives the numbers that a worker gives.

TensorFlow's kernels in its own wheel and in TFF's worker are two builds, which round differently: equal is equal to
about 1e-6. In this process alone, whatever the number of threads, equal is equal to the bit.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import runtime

_VECTOR = tff.TensorType(np.float32, [3])


def in_all(tff_context, run):
    """What `run` gives in a worker, and here with one client and with three at once."""
    stack = tff.framework.get_context_stack()
    with stack.install(tff_context.context):
        results = [run()]
    for at_once in (1, 3):
        with runtime.in_process(clients_at_once=at_once):
            results.append(run())
    return [[np.asarray(leaf) for leaf in tf.nest.flatten(result)] for result in results]


def assert_equal(worker, one, three):
    assert len(worker) == len(one) == len(three)
    for expected, found, again in zip(worker, one, three):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, again)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def aggregate(factory, weighted=False):
    """Two rounds of an aggregation process over three clients."""
    kinds = (_VECTOR, tff.TensorType(np.float32)) if weighted else (_VECTOR,)
    process = factory.create(*kinds)
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
    assert_equal(*in_all(tff_context, aggregate(factory, weighted)))


def test_a_differentially_private_mean_is_that_of_clipped_updates():
    run = aggregate(tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1e-9, 3, clip=1.0))
    clients = np.array([[n, -2.0 * n, 0.1] for n in range(1, 4)])
    expected = (clients / np.linalg.norm(clients, axis=1, keepdims=True)).mean(0)
    with runtime.in_process():
        for result, _ in run():
            np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_noise_is_drawn_anew_in_each_call():
    run = aggregate(tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1.0, 3, clip=1.0))
    with runtime.in_process():
        results = [output[0] for _ in range(2) for output in run()]
    assert len({result.tobytes() for result in results}) == 4


@tff.tensorflow.computation(tff.TensorType(np.int32))
def _draw(_):
    return tf.random.uniform([])


def test_clients_draw_each_their_own():
    compute = tff.federated_computation(lambda x: tff.federated_map(_draw, x), tff.FederatedType(np.int32, tff.CLIENTS))
    with runtime.in_process(clients_at_once=2):
        assert len({float(value) for value in compute([0] * 8) + compute([0] * 8)}) == 16


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

    assert_equal(*in_all(tff_context, run))
