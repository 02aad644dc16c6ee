"""Masks against the rule itself: paths through the network, counted in numpy, and the Jacobian of its outputs."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tffcl import errors
from tffcl.layers import AutoregressiveMask
from tffcl.layers.autoregressive import as_order, random_order


def _key(seed):
    return tf.constant([seed, 7], tf.int32)


def _order(seed, size):
    return np.random.default_rng(seed).permutation(size) + 1


def paths(masks):
    """Number of paths from each input to each output, `[D, D]`."""
    hidden = [mask.numpy() for name, mask in masks.items() if name != "direct"]
    through = np.linalg.multi_dot(hidden) if hidden else 0
    return through + (masks["direct"].numpy() if "direct" in masks else 0)


def outputs(masks, inputs, seed=0):
    """What a network of random weights under the masks puts out; tanh, so that no unit is ever dead."""
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(size=mask.shape).astype("f") * mask for name, mask in masks.items()}
    direct = weights.pop("direct", None)
    result = 0.0 if direct is None else inputs @ direct
    units = inputs
    for name, weight in weights.items():
        units = units @ weight
        units = tf.tanh(units) if name != "output" else units
    return result + units if weights else result


def jacobian(masks, size):
    """|d output_e / d input_d|, `[D, D]`, at a random point: output e is that of copy e of the point."""
    copies = tf.tile(np.random.default_rng(5).normal(size=(1, size)).astype("f"), [size, 1])
    with tf.GradientTape() as tape:
        tape.watch(copies)
        total = tf.linalg.trace(outputs(masks, copies))
    return np.abs(tape.gradient(total, copies)).T


def leaks(influence, order):
    """Whether any output is under the influence of its own input, or of one whose place is later."""
    return bool((influence[order[:, None] >= order[None, :]] != 0).any())


@hypothesis.settings(max_examples=40)
@hypothesis.given(st.integers(0, 2**31 - 1), st.integers(1, 9), st.lists(st.integers(1, 12), max_size=4), st.booleans())
def test_no_output_sees_its_own_or_a_later_input(seed, size, hidden, direct):
    masks_of = AutoregressiveMask(size, tuple(hidden), direct or not hidden)
    order = _order(seed, size)
    masks = masks_of(_key(seed), order)
    assert not leaks(paths(masks), order)
    assert not leaks(jacobian(masks, size), order)
    if "direct" in masks:  # what may be seen is seen
        assert (paths(masks)[order[:, None] < order[None, :]] > 0).all()


def test_the_check_finds_a_stale_output_mask():
    """The published order-agnostic code renews the first and the direct mask only: outputs see their own input."""
    masks_of = AutoregressiveMask(8, (30,))
    old, new = _order(0, 8), _order(1, 8)
    numbers = masks_of.numbers(_key(0))
    stale = dict(masks_of.of_numbers(numbers, new), output=masks_of.of_numbers(numbers, old)["output"])
    for influence in (paths(stale), jacobian(stale, 8)):
        assert leaks(influence, new)
        assert influence.diagonal().any()
    for order in (old, new):
        assert not leaks(jacobian(masks_of.of_numbers(numbers, order), 8), order)


@pytest.mark.parametrize("name", ["hidden_0", "hidden_1", "output", "direct"])
def test_the_check_finds_any_one_stale_mask(name):
    masks_of = AutoregressiveMask(8, (40, 40))
    old, new = _order(0, 8), _order(1, 8)
    numbers, other = masks_of.numbers(_key(0)), masks_of.numbers(_key(1))
    renewed = masks_of.of_numbers(other, new)
    assert not leaks(jacobian(renewed, 8), new)
    renewed[name] = masks_of.of_numbers(numbers, old)[name]
    assert leaks(jacobian(renewed, 8), new)


def test_masks_are_equation_4():
    masks_of, order = AutoregressiveMask(4, (3, 2)), [3, 1, 4, 2]
    first, second = [1, 3, 2], [3, 2]
    masks = masks_of.of_numbers([first, second], order)
    for (d, k), found in np.ndenumerate(masks["hidden_0"]):
        assert found == (first[k] >= order[d])
    for (k, other), found in np.ndenumerate(masks["hidden_1"]):
        assert found == (second[other] >= first[k])
    for (k, d), found in np.ndenumerate(masks["output"]):
        assert found == (order[d] > second[k])
    for (d, e), found in np.ndenumerate(masks["direct"]):
        assert found == (order[e] > order[d])
    assert all(mask.dtype == tf.float32 for mask in masks.values())
    assert [(name, tuple(mask.shape)) for name, mask in masks.items()] == list(masks_of.parts)


def test_numbers_are_uniform_from_the_least_below():
    counts = np.zeros([5, 6])
    for seed in range(300):
        numbers = AutoregressiveMask(6, (2, 40, 40)).numbers(_key(seed))
        first, second = (n.numpy() for n in numbers[:2])
        assert set(second) <= set(range(first.min(), 6))
        counts[first.min() - 1] += np.bincount(second, minlength=6)
    for least, found in enumerate(counts, 1):
        share = found[least:] / found.sum()
        assert not found[:least].any()
        np.testing.assert_allclose(share, 1 / (6 - least), atol=4 * np.sqrt(0.25 / found.sum()))


@pytest.mark.parametrize("hidden", [(1,), (5,), (1, 1), (4, 1, 3)])
def test_one_input_and_units_alone(hidden):
    """D = 1: the output stands under biases alone, which reach it through the hidden units."""
    masks = AutoregressiveMask(1, hidden)(_key(3), [1])
    assert not masks["hidden_0"].numpy().any()
    assert not masks["direct"].numpy().any()
    assert masks["output"].numpy().all()
    wide = AutoregressiveMask(7, hidden)(_key(3), _order(2, 7))
    assert not leaks(jacobian(wide, 7), _order(2, 7))


def test_traced_with_a_key_and_an_order_of_the_moment():
    masks_of = AutoregressiveMask(6, (5, 4))
    traced = tf.function(masks_of.__call__, reduce_retracing=True)
    for seed in range(3):
        order = tf.constant(_order(seed, 6), tf.int32)
        for name, mask in masks_of(_key(seed), order).items():
            np.testing.assert_array_equal(traced(_key(seed), order)[name], mask)
    assert traced.experimental_get_tracing_count() == 1


def test_draws_depend_on_their_key_alone():
    first = AutoregressiveMask(30, (50, 50)).numbers(_key(1))
    again = AutoregressiveMask(30, (50, 50)).numbers(_key(1))
    other = AutoregressiveMask(30, (50, 50)).numbers(_key(2))
    for one, same, different in zip(first, again, other):
        np.testing.assert_array_equal(one, same)
        assert (one != different).numpy().any()
    assert (first[0] != first[1]).numpy().any()
    np.testing.assert_array_equal(random_order(_key(1), 20), random_order(_key(1), 20))
    assert (random_order(_key(1), 20) != random_order(_key(2), 20)).numpy().any()
    assert sorted(random_order(_key(1), 20).numpy()) == list(range(1, 21))


@pytest.mark.parametrize(
    "order", [[0, 1, 2], [1, 2, 2], [1, 2], [1, 2, 3, 4], [1.5, 2, 3], [[1, 2, 3]], tf.constant([1, 1, 1])]
)
def test_an_order_that_is_no_permutation_is_an_input_error(order):
    with pytest.raises(errors.InputError, match="permutation of 1..3"):
        AutoregressiveMask(3, (2,))(_key(0), order)


def test_orders_of_any_kind_of_integer():
    for order in ([2, 1], (2, 1), np.array([2, 1]), np.array([2, 1], np.uint8), tf.constant([2, 1], tf.int64)):
        found = as_order(order, 2)
        assert found.dtype == tf.int32
        assert found.numpy().tolist() == [2, 1]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [((0, (3,)), "input_size"), ((3, (0,)), "hidden"), ((3, (4, 0)), "hidden"), ((3, (), False), "hidden")],
)
def test_wrong_sizes_are_input_errors(arguments, match):
    with pytest.raises(errors.InputError, match=match):
        AutoregressiveMask(*arguments)
    with pytest.raises(errors.InputError, match="2 layers"):
        AutoregressiveMask(3, (4, 4)).of_numbers([[1, 1, 1, 1]], [1, 2, 3])
