"""MADE against independent truth: conditionals in numpy, all 2^D inputs, TFP's network, the Jacobian."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tffcl import errors
from tffcl.models import ABSENT, MADEConfig, MADENetwork
from tffcl.models.made import largest_leak, largest_leak_of_patterns

KEY = tf.constant([3, 4])
CONFIGS = {
    "one layer": MADEConfig(6, (9,)),
    "two layers, random order": MADEConfig(6, (9, 8), direct=False, order="random", activation="tanh"),
    "three layers": MADEConfig(5, (7, 6, 7), activation="sigmoid"),
    "direct alone": MADEConfig(6, ()),
    "shared biases": MADEConfig(6, (9,), share_biases=True),
    "an order of one's own": MADEConfig(4, (9,), order=(2, 4, 1, 3)),
    "many orders": MADEConfig(6, (9,), order_agnostic=True, num_masks=3),
    "many connections": MADEConfig(6, (9, 9), connectivity_agnostic=True, num_masks=3),
    "many of both": MADEConfig(6, (9,), order_agnostic=True, connectivity_agnostic=True, num_masks=3),
    "one input": MADEConfig(1, (4,)),
    "a unit alone": MADEConfig(6, (1,), direct=False),
}


def everything(size):
    return np.array(list(itertools.product([0, 1], repeat=size)), np.uint8)


def random_parameters(network, seed=0):
    rng = np.random.default_rng(seed)
    kernels, local = (rng.normal(size=layout.size).astype("f") for layout in (network.kernels, network.local))
    return tf.constant(kernels), tf.constant(local)


def losses(network, kernels, local, plan, pattern, x, observed=None):
    observed = np.ones(network.config.input_size, "f") if observed is None else observed
    masked = kernels * network.connectivity(plan, pattern)
    found = network.losses(masked, local, None, {"observed": tf.constant(observed)}, {"x": tf.constant(x)}, None)
    return found.numpy()


def by_hand(network, kernels, local, plan, pattern, x, observed):
    """-log prod_d p(x_d | x_<d), where each conditional sees nothing but the dimensions before it."""
    config = network.config
    kernels, connectivity = kernels.numpy().astype(float), network.connectivity(plan, pattern).numpy()
    weights = {k: v.numpy() for k, v in network.kernels.split(tf.constant(kernels * connectivity)).items()}
    weights.update((k, v.numpy().astype(float)) for k, v in network.local.split(local).items())
    activate = {"relu": lambda v: np.maximum(v, 0), "tanh": np.tanh, "sigmoid": lambda v: 1 / (1 + np.exp(-v))}
    order = network.order(plan, pattern).numpy()
    total = np.zeros(len(x))
    for n, d in itertools.product(range(len(x)), range(config.input_size)):
        seen = np.where((order < order[d]) & (observed == 1), x[n].astype(float), 0.0)
        units = seen
        for layer in range(len(config.hidden)):
            units = units @ weights[f"hidden_{layer}"] + weights[f"bias_hidden_{layer}"]
            units = activate[config.activation](units)
        logit = weights["bias_output"][d]
        logit += units @ weights["output"][:, d] if config.hidden else 0.0
        logit += seen @ weights["direct"][:, d] if config.direct else 0.0
        one = 1 / (1 + np.exp(-logit))
        total[n] -= np.log(one if x[n, d] else 1 - one) if observed[d] else 0.0
    return total


@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("case", CONFIGS)
def test_loss_is_the_product_of_conditionals(case, padding):
    network = MADENetwork(CONFIGS[case])
    size = network.config.input_size
    plan, (kernels, local) = network.initial_plan(KEY), random_parameters(network)
    observed = np.where(np.arange(size) < size - padding, 1.0, 0.0).astype("f")
    x = np.random.default_rng(2).integers(0, 2, (7, size)).astype(np.uint8)
    for pattern in range(network.num_patterns):
        found = losses(network, kernels, local, plan, pattern, x, observed)
        expected = by_hand(network, kernels, local, plan, pattern, x, observed)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CONFIGS)
def test_probabilities_of_all_inputs_sum_to_one(case):
    network = MADENetwork(CONFIGS[case])
    plan, x = network.initial_plan(KEY), everything(network.config.input_size)
    for pattern, seed in itertools.product(range(network.num_patterns), range(2)):
        kernels, local = random_parameters(network, seed)
        total = np.exp(-losses(network, kernels, local, plan, pattern, x).astype(float)).sum()
        assert total == pytest.approx(1, abs=1e-5)


def test_probabilities_of_twelve_dimensions_and_of_padded_ones():
    network = MADENetwork(MADEConfig(12, (20, 20), order_agnostic=True, num_masks=2))
    plan, (kernels, local) = network.initial_plan(KEY), random_parameters(network)
    x = everything(12)
    assert np.exp(-losses(network, kernels, local, plan, 1, x)).sum() == pytest.approx(1, abs=1e-5)
    observed = np.float32([1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1])
    scored = losses(network, kernels, local, plan, 1, x, observed)
    alone = (x[:, observed == 0] == 0).all(axis=1)
    assert np.exp(-scored[alone]).sum() == pytest.approx(1, abs=1e-5)
    # What stands in padded dimensions plays no part.
    np.testing.assert_allclose(scored, losses(network, kernels, local, plan, 1, x * observed.astype("u1"), observed))


def test_padded_dimensions_leave_their_weights_alone():
    network = MADENetwork(MADEConfig(6, (9,)))
    plan, (kernels, local) = network.initial_plan(KEY), random_parameters(network)
    masked = kernels * network.connectivity(plan, 0)
    observed = tf.constant([1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    with tf.GradientTape() as tape:
        tape.watch([masked, local])
        found = network.losses(masked, local, None, {"observed": observed}, {"x": tf.ones([3, 6], tf.uint8)}, None)
    gradients = tape.gradient(found, [masked, local])
    parts = {**network.kernels.split(gradients[0]), **network.local.split(gradients[1])}
    assert not parts["hidden_0"].numpy()[4:].any()
    for name in ("output", "direct", "bias_output"):
        assert not parts[name].numpy()[..., 4:].any()
        assert parts[name].numpy()[..., :4].any()


def jacobian(network, kernels, local):
    """|d logit_e / d x_d|, `[D, D]`: output e is that of copy e of a random point."""
    size = network.config.input_size
    copies = tf.tile(np.random.default_rng(1).normal(size=(1, size)).astype("f"), [size, 1])
    with tf.GradientTape() as tape:
        tape.watch(copies)
        total = tf.linalg.trace(network.logits(kernels, local, copies))
    slope = tape.gradient(total, copies, unconnected_gradients="zero")
    return np.abs(tf.convert_to_tensor(slope)).T


@pytest.mark.parametrize("case", CONFIGS)
def test_jacobian_has_no_forbidden_entry(case):
    network = MADENetwork(dataclasses.replace(CONFIGS[case], activation="tanh"))
    (kernels, local), plan = random_parameters(network), network.initial_plan(KEY)
    for pattern in range(network.num_patterns):
        order = network.order(plan, pattern).numpy()
        found = jacobian(network, kernels * network.connectivity(plan, pattern), local)
        assert not found[order[:, None] >= order[None, :]].any()
        assert largest_leak_of_patterns(network, kernels, plan) == 0
        if network.config.direct:
            assert found[order[:, None] < order[None, :]].all()


def test_masks_of_another_pattern_leak():
    """As published, a new order renews all but the output mask. The Jacobian shows it, and so does the sum."""
    network = MADENetwork(MADEConfig(8, (40,), order_agnostic=True, num_masks=2, activation="tanh"))
    (kernels, local), plan = random_parameters(network), network.initial_plan(KEY)
    masks = network.kernels.split(network.connectivity(plan, 0))
    masks["output"] = network.kernels.split(network.connectivity(plan, 1))["output"]
    stale, order = kernels * network.kernels.join(masks), network.order(plan, 0).numpy()
    found = jacobian(network, stale, local)
    assert found[order[:, None] >= order[None, :]].any()
    assert largest_leak(network, stale, order) > 0
    scored = network.losses(stale, local, None, {"observed": tf.ones([8])}, {"x": tf.constant(everything(8))}, None)
    assert abs(np.exp(-scored).sum() - 1) > 0.01


@pytest.mark.parametrize("hidden", [(10,), (10, 8)])
@pytest.mark.parametrize("order", ["natural", "random"])
def test_same_loss_as_the_network_of_tensorflow_probability(hidden, order):
    network = MADENetwork(MADEConfig(7, hidden, direct=False, order=order))
    plan, (kernels, local) = network.initial_plan(KEY), random_parameters(network)
    masked = network.kernels.split(kernels * network.connectivity(plan, 0))
    theirs = tfp.bijectors.AutoregressiveNetwork(
        params=1,
        event_shape=[7],
        hidden_units=list(hidden),
        input_order=network.order(plan, 0).numpy(),
        activation="relu",
    )
    theirs.build([None, 7])
    biases = [value.numpy() for value in network.local.split(local).values()]
    theirs.set_weights([w for pair in zip([m.numpy() for m in masked.values()], biases) for w in pair])
    x = everything(7)
    bernoulli = tfp.distributions.Bernoulli(logits=theirs(x.astype("f"))[..., 0], dtype=tf.float32)
    expected = -tf.reduce_sum(bernoulli.log_prob(x.astype("f")), axis=1)
    np.testing.assert_allclose(losses(network, kernels, local, plan, 0, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CONFIGS)
def test_nothing_beats_fair_coins(case):
    """Over all inputs alike, no density has less than D log 2 nats: what reports less is none."""
    network = MADENetwork(CONFIGS[case])
    (kernels, local), plan = random_parameters(network), network.initial_plan(KEY)
    size = network.config.input_size
    for pattern in range(network.num_patterns):
        mean = losses(network, kernels, local, plan, pattern, everything(size)).mean()
        assert mean >= size * np.log(2) - 1e-4


def test_loss_comes_from_logits():
    network = MADENetwork(MADEConfig(1, ()))
    plan = network.initial_plan(KEY)
    kernels, x = tf.zeros([1]), np.array([[0], [1]], np.uint8)
    for logit in (-80.0, -15.0, -3.0, 0.0, 0.5, 15.0, 80.0):
        expected = [np.logaddexp(0, logit), np.logaddexp(0, -logit)]
        found = losses(network, kernels, tf.constant([logit]), plan, 0, x)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_plans():
    natural = MADENetwork(MADEConfig(5)).initial_plan(KEY).numpy()
    assert natural.tolist() == [3, 4, 1, 2, 3, 4, 5]
    network = MADENetwork(MADEConfig(50, order="random"))
    plan = network.initial_plan(KEY).numpy()
    assert sorted(plan[2:]) == list(range(1, 51))
    np.testing.assert_array_equal(network.initial_plan(KEY), plan)
    assert (network.initial_plan(tf.constant([3, 5])).numpy() != plan).any()
    assert network.client_plan(plan, tf.constant([8, 9])) is plan
    own = MADENetwork(MADEConfig(50, order="random", distinct_masks=True))
    np.testing.assert_array_equal(own.client_plan(plan, tf.constant([8, 9])), own.initial_plan(tf.constant([8, 9])))
    assert own.plan_size == len(plan) == 52


@pytest.mark.parametrize(("orders", "numbers"), [(True, False), (False, True), (True, True)])
def test_patterns_differ_in_what_they_are_told_to(orders, numbers):
    config = MADEConfig(20, (30,), order_agnostic=orders, connectivity_agnostic=numbers, num_masks=2)
    network = MADENetwork(config)
    plan = network.initial_plan(KEY)
    first, second = (network.order(plan, j).numpy() for j in range(2))
    assert (first != second).any() == orders
    masks = [network.kernels.split(network.connectivity(plan, j)) for j in range(2)]
    # A hidden unit's number is how many inputs it sees, whatever the order.
    seen = [mask["hidden_0"].numpy().sum(axis=0) for mask in masks]
    assert (seen[0] != seen[1]).any() == numbers
    traced = tf.function(network.connectivity)
    np.testing.assert_array_equal(traced(plan, tf.constant(1)), network.connectivity(plan, 1))


def test_support_is_what_any_pattern_uses():
    network = MADENetwork(MADEConfig(9, (5,), order_agnostic=True, num_masks=3))
    plan = network.initial_plan(KEY)
    every = np.max([network.connectivity(plan, j) for j in range(3)], axis=0)
    np.testing.assert_array_equal(network.support(plan), every)


@pytest.mark.parametrize("share", [False, True])
def test_first_values_and_layouts(share):
    network = MADENetwork(MADEConfig(30, (40, 20), share_biases=share, attention_start=0.5), num_foreign=2)
    kernels = network.kernels.split(network.initial_kernels(KEY))
    assert network.initial_local(KEY).shape == [network.local.size]
    for name, (first, second) in {"hidden_0": (30, 40), "hidden_1": (40, 20), "output": (20, 30)}.items():
        limit = np.sqrt(6 / (first + second))
        assert kernels[name].shape == (first, second)
        assert 0.9 * limit < np.abs(kernels[name]).max() <= limit
    biases = {"bias_hidden_0", "bias_hidden_1", "bias_output"}
    assert biases <= set(kernels) if share else biases == set(network.local.split(network.initial_local(KEY)))
    assert not any(kernels[name].numpy().any() for name in biases & set(kernels))
    assert (network.initial_attention(KEY).numpy() == 0.5).all()
    assert network.initial_attention(KEY).shape == (2, len(network.kernels.parts))
    connectivity = network.kernels.split(network.connectivity(network.initial_plan(KEY), 0))
    assert all(connectivity[name].numpy().all() for name in biases & set(kernels))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input_size", 0),
        ("hidden", (0,)),
        ("hidden", (5, 0)),
        ("order", "reversed"),
        ("order", (1, 2, 3, 4, 5, 5)),
        ("order", (0, 1, 2, 3, 4, 5)),
        ("num_masks", 0),
        ("num_masks", 2),
        ("activation", "softmax"),
        ("base_scale", 0.0),
        ("attention_start", float("nan")),
    ],
)
def test_wrong_choices_are_input_errors(name, value):
    with pytest.raises(errors.InputError, match=name):
        dataclasses.replace(CONFIGS["one layer"], **{name: value})


@pytest.mark.parametrize(
    ("choices", "match"),
    [
        ({"hidden": (), "direct": False}, "hidden"),
        ({"hidden": (), "connectivity_agnostic": True}, "connectivity_agnostic"),
        ({"order": (2, 1), "order_agnostic": True}, "order"),
    ],
)
def test_choices_that_contradict_each_other_are_input_errors(choices, match):
    with pytest.raises(errors.InputError, match=match):
        MADEConfig(2, **choices)


def test_a_negative_number_of_places_is_an_input_error():
    with pytest.raises(errors.InputError, match="num_foreign"):
        MADENetwork(CONFIGS["one layer"], -1)


@pytest.mark.parametrize("case", ["one layer", "many orders"])
def test_what_an_example_lacks_is_neither_seen_nor_scored(case):
    network = MADENetwork(CONFIGS[case])
    size = network.config.input_size
    plan, (kernels, local) = network.initial_plan(KEY), random_parameters(network)
    x, widths = everything(size), np.arange(2**size) % (size + 1)
    present = np.arange(size) < widths[:, None]
    found = losses(network, kernels, local, plan, 0, np.where(present, x, ABSENT).astype(np.uint8))
    for width in range(size + 1):
        observed = (np.arange(size) < width).astype("f")
        alone = losses(network, kernels, local, plan, 0, x, observed)
        assert np.allclose(found[widths == width], alone[widths == width], atol=1e-5)


def test_a_task_starts_from_how_often_each_dimension_is_one():
    network = MADENetwork(MADEConfig(4, (3,)))
    x = np.array([[1, 0, 1, ABSENT], [1, 0, 0, ABSENT], [1, 0, 1, 1]], np.uint8)
    started = network.start(tf.ones([network.local.size]), {"observed": tf.ones([4])}, {"x": tf.constant(x)})
    parts = network.local.split(started)
    assert np.allclose(parts["bias_output"], np.log([4 / 1, 1 / 4, 3 / 2, 2 / 1]))
    assert np.all(parts["bias_hidden_0"].numpy() == 1)
    shared, none = MADENetwork(MADEConfig(4, (3,), share_biases=True)), tf.zeros([0])
    assert shared.start(none, {"observed": tf.ones([4])}, {"x": tf.constant(x)}) is none


@pytest.mark.slow
@pytest.mark.parametrize("case", CONFIGS)
def test_squared_gradients_are_those_of_one_example_after_the_other(case):
    network = MADENetwork(CONFIGS[case])
    size = network.config.input_size
    plan, (kernels, local) = network.initial_plan(KEY), random_parameters(network)
    weights = kernels * network.connectivity(plan, 0)
    context = {"observed": tf.constant((np.arange(size) < max(1, size - 1)).astype("f"))}
    x = everything(size)[::3]
    total = np.zeros(network.kernels.size)
    for row in range(len(x)):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = network.losses(weights, local, None, context, {"x": tf.constant(x[row : row + 1])}, None)
        total += tape.gradient(loss, weights).numpy() ** 2
    found = network.squared_gradients(weights, local, context, {"x": tf.constant(x)})
    assert np.allclose(found, total, rtol=1e-4, atol=1e-5)
