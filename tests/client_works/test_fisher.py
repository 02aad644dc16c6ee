"""The Fisher information against one example at a time, and against closed forms."""

import numpy as np
import pytest
import tensorflow as tf

from tffcl.client_works.evaluation import Model
from tffcl.client_works.penalties import diagonal_fisher
from tffcl.models import MADEConfig, MADENetwork

KEY = tf.constant([3, 4])


def one_by_one(network, kernels, local, context, examples, mask=1.0):
    """Gradients of single examples by a tape each, before the mask: float64 `[N, size]`."""
    rows = []
    for row in range(len(next(iter(examples.values())))):
        one = {name: tf.constant(values[row : row + 1]) for name, values in examples.items()}
        with tf.GradientTape() as tape:
            theta = tf.constant(kernels)
            tape.watch(theta)
            attention = tf.zeros(network.attention_shape)
            loss = network.losses(theta * mask, local, attention, context, one, None)[0]
        rows.append(tape.gradient(loss, theta).numpy().astype(float))
    return np.array(rows)


def fisher(network, kernels, local, plan, context, examples, key=KEY, most=100, compiled=False):
    """Operation by operation; or compiled, with an unknown number of examples."""

    def run(examples):
        model = Model(network, tf.constant(kernels), local, tf.zeros(network.attention_shape), plan)
        return diagonal_fisher(model, {"context": context, "train": examples}, key, most)

    examples = {name: tf.constant(values) for name, values in examples.items()}
    if compiled:
        specs = {name: tf.TensorSpec([None, *part.shape[1:]], part.dtype) for name, part in examples.items()}
        run = tf.function(run, [specs], autograph=False)
    return run(examples).numpy()


@pytest.fixture(name="text")
def _text(small):
    network, rng = small.network(places=0, dropout=0.5), np.random.default_rng(0)
    kernels, local = (0.3 * rng.normal(size=part.size).astype("f") for part in (network.kernels, network.local))
    return network, kernels, tf.constant(local), small.tensors(small.context())


def test_squares_of_single_examples_not_of_the_batch(small, text):
    network, kernels, local, context = text
    examples = small.examples(9)
    gradients = one_by_one(network, kernels, local, context, examples)
    found = fisher(network, kernels, local, tf.zeros([0], tf.int32), context, examples, compiled=True)
    np.testing.assert_allclose(found, np.square(gradients).mean(0), rtol=1e-4, atol=1e-8)
    of_batch = np.square(gradients.mean(0))
    assert np.linalg.norm(found) > 1.5 * np.linalg.norm(of_batch)


def test_a_draw_without_replacement_that_hangs_from_the_key(small, text):
    network, kernels, local, context = text
    examples = small.examples(5)
    squares = np.square(one_by_one(network, kernels, local, context, examples))
    plan = tf.zeros([0], tf.int32)
    found = [
        fisher(network, kernels, local, plan, context, examples, tf.constant([0, seed]), most=4)
        for seed in (0, 0, *range(1, 9))
    ]
    np.testing.assert_array_equal(found[0], found[1])
    without_one = [(squares.sum(0) - squares[i]) / 4 for i in range(5)]
    left_out = [np.argmin([np.abs(one - each).max() for each in without_one]) for one in found]
    for one, i in zip(found, left_out):
        np.testing.assert_allclose(one, without_one[i], rtol=1e-4, atol=1e-8)
    assert len(set(left_out)) > 1


def test_no_examples_no_information(small, text):
    network, kernels, local, context = text
    found = fisher(network, kernels, local, tf.zeros([0], tf.int32), context, small.examples(0))
    np.testing.assert_array_equal(found, np.zeros(network.kernels.size))


def made(**options):
    network = MADENetwork(MADEConfig(**options))
    rng = np.random.default_rng(1)
    kernels = rng.normal(size=network.kernels.size).astype("f")
    local = tf.constant(rng.normal(size=network.local.size).astype("f"))
    size = options["input_size"]
    return network, kernels, local, network.initial_plan(tf.constant([1, 2])), {"observed": tf.ones([size])}


def test_logistic_regression_in_closed_form():
    """A MADE of direct connections: F_ij = E[(p_j - x_j)^2 x_i^2], 0 where i does not come before j."""
    network, kernels, local, plan, context = made(input_size=5, hidden=())
    x = np.random.default_rng(2).integers(0, 2, (7, 5))
    weights = np.triu(kernels.reshape(5, 5).astype(float), 1)
    miss = 1 / (1 + np.exp(-(x @ weights + local.numpy()))) - x
    expected = np.triu(np.square(x).T @ np.square(miss) / 7, 1)
    found = fisher(network, kernels, local, plan, context, {"x": x.astype(np.uint8)})
    np.testing.assert_allclose(found.reshape(5, 5), expected, rtol=1e-4, atol=1e-7)


def test_what_the_mask_forbids_has_none():
    network, kernels, local, plan, context = made(input_size=6, hidden=(4,), order="random")
    examples = {"x": np.random.default_rng(3).integers(0, 2, (8, 6)).astype(np.uint8)}
    mask = network.connectivity(plan, 0).numpy()
    gradients = one_by_one(network, kernels, local, context, examples, mask)
    found = fisher(network, kernels, local, plan, context, examples)
    np.testing.assert_allclose(found, np.square(gradients).mean(0), rtol=1e-4, atol=1e-8)
    assert not found[mask == 0].any()
    assert found[mask == 1].any()


def test_all_patterns_of_connectivity_have_a_part():
    network, kernels, local, plan, context = made(
        input_size=6, hidden=(4,), order_agnostic=True, connectivity_agnostic=True, num_masks=3
    )
    examples = {"x": np.array([[1, 0, 1, 1, 0, 1]], np.uint8)}
    squares = [
        np.square(one_by_one(network, kernels, local, context, examples, network.connectivity(plan, j)))[0]
        for j in range(3)
    ]
    repeated = {"x": np.repeat(examples["x"], 6, 0)}
    found = fisher(network, kernels, local, plan, context, repeated, compiled=True)
    np.testing.assert_allclose(found, np.mean(squares, 0), rtol=1e-4, atol=1e-8)
    assert np.abs(squares[0] - squares[1]).max() > 1e-3
