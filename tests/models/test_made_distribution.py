"""MADE as a distribution: its probabilities, its samples against them, and its ways in."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tffcl import errors
from tffcl.models import MADE, MADEConfig, MADENetwork

CASES = {
    "one order": {"hidden": (7,)},
    "a random order, two layers": {"hidden": (7, 6), "direct": False, "order": "random"},
    "direct alone": {"hidden": ()},
    "three orders": {"hidden": (7,), "num_masks": 3, "order_agnostic": True},
    "three of both": {
        "hidden": (7,),
        "num_masks": 3,
        "order_agnostic": True,
        "connectivity_agnostic": True,
        "activation": "tanh",
    },
}


def everything(size):
    return np.array(list(itertools.product([0, 1], repeat=size)), np.uint8)


def random_made(size=4, seed=0, observed=None, **choices):
    made = MADE(size, seed=seed, observed=observed, **choices)
    for number, variable in enumerate((made.kernels, made.local)):
        variable.assign(np.random.default_rng([seed, number]).normal(size=variable.shape))
    return made


@pytest.mark.parametrize("observed", [None, [1, 1, 0, 1, 1, 0, 1, 1, 1]])
@pytest.mark.parametrize("case", CASES)
def test_probabilities_sum_to_one(case, observed):
    made = random_made(9, observed=observed, **CASES[case])
    x = everything(9)
    x = x if observed is None else x[(x[:, np.array(observed) == 0] == 0).all(axis=1)]
    assert np.exp(made.log_prob(x).numpy().astype(float)).sum() == pytest.approx(1, abs=1e-5)


def test_patterns_are_averaged_in_probability():
    made = random_made(5, **CASES["three of both"])
    alone = [np.exp(made.log_prob_of_pattern(everything(5), j).numpy()) for j in range(3)]
    assert not np.allclose(alone[0], alone[1])
    np.testing.assert_allclose(made.prob(everything(5)), np.mean(alone, axis=0), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(tf.function(made.prob)(everything(5)), np.mean(alone, axis=0), rtol=1e-4, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_samples_are_as_probable_as_log_prob_says(case):
    """Every one of the 2^4 inputs, within five standard errors of its own probability."""
    made, count, x = random_made(4, **CASES[case]), 20000, everything(4)
    drawn = made.sample(count, seed=5).numpy()
    found = np.bincount((drawn @ [8, 4, 2, 1]).astype(int), minlength=16) / count
    expected = made.prob(x).numpy()
    np.testing.assert_array_less(np.abs(found - expected), 5 * np.sqrt(expected * (1 - expected) / count) + 1e-9)


@pytest.fixture(scope="module", name="fitted")
def _fitted():
    """A mixture trained on rows whose second half copies the first, mostly."""
    rng = np.random.default_rng(0)
    first = (rng.random((400, 4)) < [0.2, 0.5, 0.7, 0.9]).astype(np.uint8)
    rows = np.concatenate([first, first ^ (rng.random((400, 4)) < 0.1)], axis=1).astype(np.uint8)
    made = MADE(8, (32,), num_masks=2, order_agnostic=True, seed=2)
    optimizer = tf.keras.optimizers.Adam(0.02)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(made.log_prob(rows))
        optimizer.apply_gradients(zip(tape.gradient(loss, made.trainable_variables), made.trainable_variables))
        return loss

    for _ in range(150):
        loss = step()
    return made, rows, float(loss)


def test_samples_of_a_fitted_model_match_its_marginals(fitted):
    made, rows, loss = fitted
    assert loss < 4.0 < 8 * np.log(2)  # the rows' own entropy is about 3.4
    probabilities, x, count = made.prob(everything(8)).numpy(), everything(8).astype(float), 4000
    drawn = made.sample(count, seed=9).numpy()
    single, pairs = probabilities @ x, x.T @ (x * probabilities[:, None])
    for found, expected in ((drawn.mean(axis=0), single), (drawn.T @ drawn / count, pairs)):
        assert (np.abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) / count)).all()
    np.testing.assert_allclose(single, rows.mean(axis=0), atol=0.05)


def test_samples_depend_on_their_seed_alone():
    made = random_made(6, **CASES["three orders"])
    first = made.sample(50, seed=3).numpy()
    tf.random.uniform([])
    np.testing.assert_array_equal(made.sample(50, seed=3), first)
    np.testing.assert_array_equal(tf.function(lambda: made.sample(50, seed=3))(), first)
    assert (made.sample(50, seed=4).numpy() != first).any()
    key = tf.constant([1, 2])
    np.testing.assert_array_equal(made.sample(9, seed=key), made.sample(9, seed=key))
    assert made.sample(9).shape == (9, 6)


def test_shapes():
    made = random_made(4, **CASES["three orders"])
    assert isinstance(made, tfp.distributions.Distribution)
    assert (made.event_shape, made.batch_shape, made.dtype) == ([4], [], tf.float32)
    for shape in ((), (3,), (2, 3), (0,)):
        drawn = made.sample(shape, seed=1)
        assert drawn.shape == (*shape, 4)
        assert made.log_prob(drawn).shape == shape
    assert made.copy(name="again").log_prob([0, 1, 0, 1]).shape == ()


def test_values_of_any_type_score_the_same():
    made, x = random_made(4), everything(4)
    expected = made.log_prob(x)
    for kind in (np.float32, np.float64, np.int64, bool):
        np.testing.assert_allclose(made.log_prob(x.astype(kind)), expected)
    np.testing.assert_allclose(made.log_prob(x.tolist()), expected)


def test_padded_dimensions_are_neither_scored_nor_drawn():
    made = random_made(5, observed=[1, 1, 0, 1, 0], **CASES["three orders"])
    x = everything(5)
    np.testing.assert_allclose(made.log_prob(x), made.log_prob(x * np.uint8([1, 1, 0, 1, 0])), rtol=1e-6)
    drawn = made.sample(200, seed=1).numpy()
    assert not drawn[:, [2, 4]].any()
    assert drawn[:, [0, 1, 3]].any(axis=0).all()


@pytest.mark.parametrize("hidden", [(1,), (3,)])
def test_one_dimension(hidden):
    made = random_made(1, hidden=hidden)
    one = float(made.prob([1]))
    assert one + float(made.prob([0])) == pytest.approx(1, abs=1e-6)
    assert made.sample(5000, seed=1).numpy().mean() == pytest.approx(one, abs=5 * np.sqrt(0.25 / 5000))


@pytest.mark.parametrize("share", [False, True])
def test_from_task(share):
    config = MADEConfig(5, (6,), order="random", share_biases=share, distinct_masks=True, attention_start=1.0)
    network, key = MADENetwork(config, num_foreign=3), tf.constant([1, 2])
    kernels, local, plan = network.initial_kernels(key), network.initial_local(key), network.initial_plan(key)
    context = {"observed": tf.constant([1.0, 1.0, 1.0, 1.0, 0.0])}
    made = MADE.from_task(network, kernels.numpy(), local.numpy(), plan.numpy(), context["observed"])
    masked = kernels * network.connectivity(plan, 0)
    expected = network.losses(masked, local, None, context, {"x": tf.constant(everything(5))}, None)
    np.testing.assert_allclose(made.log_prob(everything(5)), -expected, rtol=1e-6)
    assert not made.trainable_variables


def test_variables_are_what_is_trained():
    made = MADE(4, (5,))
    assert {v.name.split("/")[-1] for v in made.trainable_variables} == {"kernels:0", "local:0"}
    kernels = tf.Variable(made.kernels + 1.0)
    given = MADE.from_task(made.network, kernels, made.local, made.plan)
    before = given.log_prob([0, 1, 1, 0])
    kernels.assign(kernels * 2.0)
    assert given.log_prob([0, 1, 1, 0]) != before


@pytest.mark.parametrize("value", [[[0, 1, 2, 0]], [[0.5, 0, 0, 1]], [[float("nan"), 0, 0, 1]], [[-1, 0, 0, 1]]])
def test_values_that_are_not_binary_are_input_errors(value):
    with pytest.raises(errors.InputError, match="zeros and ones"):
        MADE(4, (5,)).log_prob(value)


def test_wrong_sizes_are_input_errors():
    made = MADE(4, (5,))
    with pytest.raises(errors.InputError, match="last dimension of 4"):
        made.log_prob([[0, 1, 0]])
    with pytest.raises(errors.InputError, match="hidden"):
        MADE(4, (0,))
    good = {"kernels": made.kernels, "local": made.local, "plan": made.plan, "observed": np.ones(4)}
    for name in good:
        with pytest.raises(errors.InputError, match=name):
            MADE.from_task(made.network, **{**good, name: good[name][:-1]})
    with pytest.raises(errors.InputError, match="permutation"):
        MADE.from_task(made.network, **{**good, "plan": [1, 2, 1, 2, 3, 3]})
