"""Decomposed Keras layers against plain Keras layers that hold the composed kernel."""

import numpy as np
import pytest
import tensorflow as tf

from tffcl import errors
from tffcl.layers import DecomposedConv1D, DecomposedConv2D, DecomposedDense

keras = tf.keras

CASES = {
    "dense": (DecomposedDense, keras.layers.Dense, {"units": 3}, (4, 5)),
    "dense on a sequence": (DecomposedDense, keras.layers.Dense, {"units": 3, "activation": "tanh"}, (2, 6, 5)),
    "dense without bias": (DecomposedDense, keras.layers.Dense, {"units": 3, "use_bias": False}, (4, 5)),
    "conv1d": (DecomposedConv1D, keras.layers.Conv1D, {"filters": 3, "kernel_size": 2}, (2, 6, 5)),
    "conv1d causal": (
        DecomposedConv1D,
        keras.layers.Conv1D,
        {"filters": 3, "kernel_size": 3, "padding": "causal", "dilation_rate": 2, "activation": "relu"},
        (2, 6, 5),
    ),
    "conv1d same": (
        DecomposedConv1D,
        keras.layers.Conv1D,
        {"filters": 4, "kernel_size": 3, "padding": "same", "strides": 2, "use_bias": False},
        (2, 7, 5),
    ),
    "conv2d": (
        DecomposedConv2D,
        keras.layers.Conv2D,
        {"filters": 3, "kernel_size": (2, 3), "padding": "same", "activation": "relu"},
        (2, 4, 5, 2),
    ),
}


def _randomise(layer, seed=0):
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape))


def _composed(layer):
    """The kernel entry by entry: B sigmoid(m) + A + sum_k alpha_k A_k."""
    base, adaptive, logits = layer.base.numpy(), layer.adaptive.numpy(), layer.mask_logits.numpy()
    kernel = np.zeros_like(base)
    for index in np.ndindex(*base.shape):
        kernel[index] = base[index] / (1 + np.exp(-logits[index[-1]])) + adaptive[index]
        for k in range(layer.num_foreign):
            kernel[index] += layer.attention.numpy()[k] * layer.foreign.numpy()[(k, *index)]
    return kernel


def _plain(kind, arguments, layer, shape):
    plain = kind(**arguments)
    plain.build(shape)
    plain.set_weights([_composed(layer)] + ([layer.bias.numpy()] if layer.use_bias else []))
    return plain


def _inputs(shape):
    return tf.constant(np.random.default_rng(5).normal(size=shape).astype("f"))


@pytest.mark.parametrize("num_foreign", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_plain_layer_with_the_composed_kernel(case, num_foreign):
    decomposed, kind, arguments, shape = CASES[case]
    layer, inputs = decomposed(num_foreign=num_foreign, **arguments), _inputs(shape)
    layer.build(shape)
    _randomise(layer)
    expected = _plain(kind, arguments, layer, shape)(inputs)
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(tf.function(layer)(inputs), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(layer.theta, _composed(layer), rtol=1e-5, atol=1e-5)


def test_first_values():
    layer = DecomposedDense(3, num_foreign=2, adaptive_factor=4.0)
    layer.build((None, 5))
    np.testing.assert_allclose(layer.adaptive, layer.base / 4.0)
    for variable in (layer.mask_logits, layer.attention, layer.foreign):
        assert not variable.numpy().any()
    assert layer.mask_logits.shape == (3,)
    assert layer.foreign.shape == (2, 5, 3)


def test_foreign_kernels_are_frozen_and_all_else_is_trained():
    layer, inputs = DecomposedDense(3, num_foreign=2), _inputs((4, 5))
    layer.build((4, 5))
    _randomise(layer)
    names = {weight.name for weight in layer.trainable_weights}
    assert names == {"kernel:0", "bias:0", "mask_logits:0", "adaptive:0", "attention:0"}
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(layer(inputs)))
    for gradient in tape.gradient(loss, layer.trainable_weights):
        assert np.abs(gradient).max() > 0
    before = [weight.numpy() for weight in layer.trainable_weights], layer.foreign.numpy()
    model = keras.Sequential([keras.Input([5]), layer])
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(inputs, np.ones([4, 3]), epochs=1, verbose=0)
    assert all((old != new.numpy()).any() for old, new in zip(before[0], layer.trainable_weights))
    np.testing.assert_array_equal(layer.foreign, before[1])


def test_variables_are_the_same_before_and_after_calls():
    layer, inputs = DecomposedDense(3, num_foreign=1), _inputs((4, 5))
    layer.build((4, 5))
    before = [id(weight) for weight in layer.weights]
    for _ in range(3):
        layer(inputs)
        tf.function(layer)(inputs)
    assert [id(weight) for weight in layer.weights] == before
    assert layer.kernel is layer.base


@pytest.mark.parametrize("case", ["dense", "conv1d causal", "conv2d"])
def test_config_round_trip(case):
    decomposed, _, arguments, shape = CASES[case]
    layer = decomposed(num_foreign=2, adaptive_factor=3.0, name="mine", **arguments)
    again = decomposed.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert (again.num_foreign, again.adaptive_factor, again.name) == (2, 3.0, "mine")
    again.build(shape)
    assert again.attention.shape == (2,)


@pytest.mark.parametrize("ending", ["keras", "h5"])
def test_a_saved_model_predicts_the_same(tmp_path, ending):
    words = keras.Input([6, 5])
    hidden = DecomposedConv1D(4, 3, num_foreign=2, padding="same", activation="relu")(words)
    hidden = keras.layers.LayerNormalization()(hidden)
    hidden = keras.layers.GlobalMaxPooling1D()(hidden)
    hidden = keras.layers.Dense(4, "tanh")(hidden)
    model = keras.Model(words, DecomposedDense(3)(hidden))
    _randomise(model)
    model.save(tmp_path / f"model.{ending}")
    loaded = keras.models.load_model(tmp_path / f"model.{ending}")
    inputs = _inputs((2, 6, 5))
    np.testing.assert_allclose(loaded(inputs), model(inputs), rtol=1e-5, atol=1e-6)
    for old, new in zip(model.weights, loaded.weights):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_mixed_precision(case, policy):
    """Variables are float32 whoever builds the layer: Keras does at its first call, in the precision of that call."""
    decomposed, kind, arguments, shape = CASES[case]
    layer, inputs = decomposed(num_foreign=1, dtype=policy, **arguments), _inputs(shape)
    assert layer(inputs).dtype == keras.mixed_precision.Policy(policy).compute_dtype
    assert {weight.dtype for weight in layer.weights} == {tf.float32}
    np.testing.assert_array_equal(layer.adaptive.numpy(), layer.base.numpy() / np.float32(5))
    _randomise(layer)
    with tf.GradientTape() as tape:
        result = layer(inputs)
        loss = tf.reduce_sum(tf.square(tf.cast(result, tf.float32)))
    expected = _plain(kind, arguments, layer, shape)(inputs).numpy()
    np.testing.assert_allclose(tf.cast(result, tf.float32), expected, atol=0.02 * np.abs(expected).max())
    for gradient in tape.gradient(loss, layer.trainable_weights):
        assert gradient.dtype == tf.float32
        assert np.abs(gradient).max() > 0


def test_wrong_arguments_are_input_errors():
    with pytest.raises(errors.InputError, match="num_foreign"):
        DecomposedDense(3, num_foreign=-1)
    with pytest.raises(errors.InputError, match="adaptive_factor"):
        DecomposedConv1D(3, 2, adaptive_factor=0)
