"""Decomposed kernels against loops over numpy arrays."""

import numpy as np
import pytest
import tensorflow as tf

from tffcl import errors
from tffcl.layers import kernels
from tffcl.layers.kernels import KernelLayout, VectorLayout

SHAPES = {"conv": (2, 3, 4), "dense": (5, 2)}
LAYOUT = KernelLayout(tuple(SHAPES.items()))


def _rng():
    return np.random.default_rng(7)


def _random(*shape):
    return _rng().normal(size=shape).astype(np.float32)


def _by_part(flat):
    """The kernels of a flat vector, cut by hand."""
    return {"conv": flat[:24].reshape(2, 3, 4), "dense": flat[24:].reshape(5, 2)}


def test_layout_sizes():
    assert LAYOUT.sizes == (24, 10)
    assert LAYOUT.size == 34
    assert LAYOUT.units == (4, 2)
    assert LAYOUT.mask_size == 6
    assert LAYOUT.slice_of("dense") == slice(24, 34)


def test_split_cuts_in_order_and_join_is_its_inverse():
    flat = np.arange(34, dtype=np.float32)
    parts = LAYOUT.split(tf.constant(flat))
    for name, expected in _by_part(flat).items():
        np.testing.assert_array_equal(parts[name], expected)
    shuffled = {name: parts[name] for name in ("dense", "conv")}
    np.testing.assert_array_equal(LAYOUT.join(shuffled), flat)


@pytest.mark.parametrize("compiled", [False, True])
def test_split_passes_the_gradient_of_each_part_to_its_place(compiled):
    flat = tf.range(34, dtype=tf.float32)

    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(flat)
            total = tf.reduce_sum(LAYOUT.split(flat)["dense"] ** 2)  # the other part stays unused
        return tape.gradient(total, flat)

    expected = np.concatenate([np.zeros(24), 2 * np.arange(24.0, 34.0)])
    np.testing.assert_allclose(tf.function(gradient)() if compiled else gradient(), expected)


def test_split_takes_a_vector_in_pieces_of_whole_parts():
    layout = VectorLayout((("a", (2,)), ("none", (0, 3)), ("b", (1, 2)), ("c", (3,))))
    flat = tf.range(7, dtype=tf.float32)
    for sizes in ([7], [2, 5], [4, 0, 3], [0, 4, 3]):
        parts = layout.split(tuple(tf.split(flat, sizes)))
        assert list(parts) == ["a", "none", "b", "c"]
        np.testing.assert_array_equal(layout.join(parts), flat)
    with pytest.raises(errors.InputError, match="pieces"):
        layout.split((flat[:3], flat[3:]))


def test_split_refuses_a_vector_of_another_size():
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        LAYOUT.split(tf.zeros([35]))


def test_weight_decay_acts_on_parts_with_two_axes_or_more():
    layout = VectorLayout((("a", (2,)), ("none", (0, 3)), ("b", (1, 2)), ("c", (1, 1, 2)), ("d", (1,))))
    np.testing.assert_array_equal(layout.of_kernels(), [0, 0, 1, 1, 1, 1, 0])


def test_empty_layout():
    empty = VectorLayout(())
    assert empty.size == 0
    assert empty.split(tf.zeros([0])) == {}
    assert empty.join({}).shape == (0,)
    assert empty.of_kernels().shape == (0,)


def test_wrong_names_are_input_errors():
    with pytest.raises(errors.InputError, match="name of its own"):
        VectorLayout((("a", (1,)), ("a", (2,))))
    with pytest.raises(errors.InputError, match="no part named 'b'"):
        VectorLayout((("a", (1,)),)).slice_of("b")


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_spread_repeats_each_unit_over_its_column(lead):
    values = _random(*lead, 6)
    spread = LAYOUT.spread(tf.constant(values)).numpy()
    assert spread.shape == (*lead, 34)
    for index in np.ndindex(*lead):
        parts = _by_part(spread[index])
        for unit in range(4):
            assert (parts["conv"][..., unit] == values[index][unit]).all()
        for unit in range(2):
            assert (parts["dense"][..., unit] == values[index][4 + unit]).all()


def test_decomposed_kernel_is_equation_1():
    rng = _rng()
    base, adaptive = rng.normal(size=34).astype("f"), rng.normal(size=34).astype("f")
    logits = rng.normal(size=6).astype("f")
    theta = _by_part(kernels.decomposed_kernel(LAYOUT, base, logits, adaptive).numpy())
    bases, adaptives = _by_part(base), _by_part(adaptive)
    for name, first in (("conv", 0), ("dense", 4)):
        for index in np.ndindex(*SHAPES[name]):
            mask = 1.0 / (1.0 + np.exp(-logits[first + index[-1]]))
            expected = bases[name][index] * mask + adaptives[name][index]
            np.testing.assert_allclose(theta[name][index], expected, rtol=1e-5)


def test_decomposed_kernel_of_many_tasks_is_that_of_each():
    base, logits, adaptives = _random(34), _random(3, 6), _random(3, 34)
    together = kernels.decomposed_kernel(LAYOUT, base, logits, adaptives)
    for task in range(3):
        alone = kernels.decomposed_kernel(LAYOUT, base, logits[task], adaptives[task])
        np.testing.assert_allclose(together[task], alone, rtol=1e-6)


@pytest.mark.parametrize("entries", [0, 1, 3])
def test_foreign_sum_is_equation_4(entries):
    attention, foreign = _random(entries, 2), _random(entries, 34)
    expected = np.zeros(34)
    for k in range(entries):
        expected[:24] += attention[k, 0] * foreign[k, :24]
        expected[24:] += attention[k, 1] * foreign[k, 24:]
    found = kernels.foreign_sum(LAYOUT, tf.constant(attention), tf.constant(foreign))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_prune_drops_what_is_not_larger_than_the_threshold():
    values = tf.constant([-2.0, -0.5, 0.0, 0.25, 0.5, 0.75])
    np.testing.assert_array_equal(kernels.prune(values, 0.5), [-2.0, 0.0, 0.0, 0.0, 0.0, 0.75])
    np.testing.assert_array_equal(kernels.prune(values, 0.0), values)


@pytest.mark.parametrize("shape", [(5,), (2, 3), (0, 3)])
def test_absolute_sum_is_that_of_two_operations_and_so_is_its_gradient(shape):
    entries = tf.constant([-1.5, 0.0, 2.0, -0.0, 1e-9, -3.0])
    values = tf.reshape(entries[: np.prod(shape)], shape)
    found = []
    for function in (kernels.absolute_sum, lambda v: tf.reduce_sum(tf.abs(v))):
        with tf.GradientTape() as tape:
            tape.watch(values)
            total = 1e-4 * function(values)
        found.append((total, tape.gradient(total, values)))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_soft_threshold_minimises_its_objective():
    grid = np.linspace(-3, 3, 60001)
    for value in (-2.0, -0.31, 0.0, 0.1, 0.3, 1.7):
        objective = (grid - value) ** 2 / 2 + 0.3 * np.abs(grid)
        found = kernels.soft_threshold(tf.constant([value]), 0.3).numpy()[0]
        assert abs(found - grid[objective.argmin()]) < 1e-4


def test_soft_threshold_at_the_ends():
    values = tf.constant([-1.0, 0.0, 2.0])
    np.testing.assert_array_equal(kernels.soft_threshold(values, 0.0), values)
    np.testing.assert_array_equal(kernels.soft_threshold(values, float("inf")), [0.0, 0.0, 0.0])


@pytest.mark.parametrize("shape", [(40, 30), (5, 40, 30), (3, 3, 20, 10), (200,)])
def test_glorot_limit_is_that_of_keras(shape):
    limit = kernels.glorot_limit(shape)
    drawn = np.abs(tf.keras.initializers.GlorotUniform(seed=1)(shape))
    assert 0.97 * limit < drawn.max() <= limit
