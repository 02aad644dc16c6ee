"""Masked Keras layers against plain Keras layers that hold the masked kernel."""

import numpy as np
import pytest
import tensorflow as tf

from tffcl import errors
from tffcl.layers import AutoregressiveMask, DecomposedMaskedDense, MaskedDense

keras = tf.keras
MASK = (np.random.default_rng(1).random((5, 3)) < 0.5).astype("f")


def _randomise(layer, seed=0):
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        if "connectivity" not in weight.name:
            weight.assign(rng.normal(size=weight.shape))


def _inputs(*shape):
    return tf.constant(np.random.default_rng(5).normal(size=shape).astype("f"))


def _plain(layer, kernel, inputs):
    plain = keras.layers.Dense(layer.units, layer.activation)
    plain.build(inputs.shape)
    plain.set_weights([kernel, layer.bias.numpy()])
    return plain(inputs)


@pytest.mark.parametrize("shape", [(4, 5), (2, 6, 5)])
def test_masked_dense_equals_dense_with_the_masked_kernel(shape):
    layer, inputs = MaskedDense(3, MASK, activation="tanh"), _inputs(*shape)
    layer.build(shape)
    _randomise(layer)
    expected = _plain(layer, layer.kernel.numpy() * MASK, inputs)
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tf.function(layer)(inputs), expected, rtol=1e-5, atol=1e-6)


def test_decomposed_masked_dense_is_equation_5():
    layer, inputs = DecomposedMaskedDense(3, MASK, num_foreign=2), _inputs(4, 5)
    layer.build((4, 5))
    _randomise(layer)
    kernel = np.zeros((5, 3), "f")
    for i, j in np.ndindex(5, 3):
        kernel[i, j] = layer.base.numpy()[i, j] / (1 + np.exp(-layer.mask_logits.numpy()[j]))
        kernel[i, j] += layer.adaptive.numpy()[i, j]
        kernel[i, j] += layer.attention.numpy() @ layer.foreign.numpy()[:, i, j]
    np.testing.assert_allclose(layer.theta, kernel * MASK, rtol=1e-5, atol=1e-6)
    expected = _plain(layer, kernel * MASK, inputs)
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("kind", [MaskedDense, DecomposedMaskedDense])
def test_mixed_precision(kind, policy):
    layer, inputs = kind(3, MASK, dtype=policy), _inputs(4, 5)
    assert layer(inputs).dtype == keras.mixed_precision.Policy(policy).compute_dtype
    assert {weight.dtype for weight in layer.weights} == {tf.float32}
    _randomise(layer)
    kernel = layer.kernel.numpy() * MASK if kind is MaskedDense else layer.theta.numpy()
    expected = _plain(layer, kernel, inputs).numpy()
    np.testing.assert_allclose(tf.cast(layer(inputs), tf.float32), expected, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("kind", [MaskedDense, DecomposedMaskedDense])
def test_nothing_is_learned_outside_the_mask_nor_the_mask_itself(kind):
    layer, inputs = kind(3, MASK), _inputs(20, 5)
    model = keras.Sequential([keras.Input([5]), layer])
    assert not any("connectivity" in weight.name for weight in layer.trainable_weights)
    kernels = [w for w in layer.trainable_weights if tuple(w.shape) == MASK.shape]
    before = [w.numpy() for w in kernels]
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(inputs, np.ones([20, 3]), epochs=1, verbose=0)
    for old, new in zip(before, kernels):
        np.testing.assert_array_equal((old != new.numpy()), MASK == 1)
    np.testing.assert_array_equal(layer.connectivity, MASK)


@pytest.mark.parametrize("kind", [MaskedDense, DecomposedMaskedDense])
def test_a_saved_model_keeps_its_masks(kind, tmp_path):
    masks = AutoregressiveMask(5, (6,), direct=False)(tf.constant([1, 2]), [2, 4, 1, 3, 5])
    layers = [kind(6, masks["hidden_0"], activation="relu"), kind(5, masks["output"], name="out")]
    model = keras.Sequential([keras.Input([5]), *layers])
    _randomise(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(_inputs(4, 5)), model(_inputs(4, 5)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(loaded.get_layer("out").connectivity, masks["output"])


def test_without_a_mask_all_is_connected_until_one_is_assigned():
    layer = MaskedDense(3)
    layer.build((None, 5))
    assert layer.connectivity.numpy().all()
    layer.connectivity.assign(MASK)
    assert MaskedDense.from_config(layer.get_config()).units == 3
    _randomise(layer)
    inputs = _inputs(4, 5)
    expected = _plain(layer, layer.kernel.numpy() * MASK, inputs)
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [MaskedDense, DecomposedMaskedDense])
def test_wrong_masks_are_input_errors(kind):
    with pytest.raises(errors.InputError, match=r"expected shape \(4, 3\)"):
        kind(3, MASK).build((None, 4))
    with pytest.raises(errors.InputError, match="zeros and ones"):
        kind(3, MASK * 0.5).build((None, 5))
