"""Keras layers against plain Keras layers that hold the composed kernel, and FedSeIT eq. 3 written as loops."""

from __future__ import annotations

import ast
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

from tffcl import errors, layers
from tffcl.layers import (
    AutoregressiveMask,
    DecomposedConv1D,
    DecomposedConv2D,
    DecomposedDense,
    DecomposedMaskedDense,
    ForeignAlignment,
    GaussianHead,
    MaskedDense,
)
from tffcl.layers import keras_layers as lib

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
        if "connectivity" not in weight.name:
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


def test_importing_the_room_registers_every_layer_with_keras():
    """`load_model` finds layers by the names under which their modules register them when they are imported."""
    room = pathlib.Path(layers.__file__).parent
    registering = {path.stem for path in room.glob("*.py") if "register_keras_serializable" in path.read_text()}
    assert registering
    imports = [node for node in ast.parse((room / "__init__.py").read_text()).body if isinstance(node, ast.ImportFrom)]
    assert registering <= {alias.name for node in imports for alias in node.names}


MASK = (np.random.default_rng(1).random((5, 3)) < 0.5).astype("f")


def _plain_dense(layer, kernel, inputs):
    plain = keras.layers.Dense(layer.units, layer.activation)
    plain.build(inputs.shape)
    plain.set_weights([kernel, layer.bias.numpy()])
    return plain(inputs)


@pytest.mark.parametrize("shape", [(4, 5), (2, 6, 5)])
def test_masked_dense_equals_dense_with_the_masked_kernel(shape):
    layer, inputs = MaskedDense(3, MASK, activation="tanh"), _inputs(shape)
    layer.build(shape)
    _randomise(layer)
    expected = _plain_dense(layer, layer.kernel.numpy() * MASK, inputs)
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tf.function(layer)(inputs), expected, rtol=1e-5, atol=1e-6)


def test_decomposed_masked_dense_is_equation_5():
    layer, inputs = DecomposedMaskedDense(3, MASK, num_foreign=2), _inputs((4, 5))
    layer.build((4, 5))
    _randomise(layer)
    kernel = np.zeros((5, 3), "f")
    for i, j in np.ndindex(5, 3):
        kernel[i, j] = layer.base.numpy()[i, j] / (1 + np.exp(-layer.mask_logits.numpy()[j]))
        kernel[i, j] += layer.adaptive.numpy()[i, j]
        kernel[i, j] += layer.attention.numpy() @ layer.foreign.numpy()[:, i, j]
    np.testing.assert_allclose(layer.theta, kernel * MASK, rtol=1e-5, atol=1e-6)
    expected = _plain_dense(layer, kernel * MASK, inputs)
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("kind", [MaskedDense, DecomposedMaskedDense])
def test_mixed_precision_under_a_mask(kind, policy):
    layer, inputs = kind(3, MASK, dtype=policy), _inputs((4, 5))
    assert layer(inputs).dtype == keras.mixed_precision.Policy(policy).compute_dtype
    assert {weight.dtype for weight in layer.weights} == {tf.float32}
    _randomise(layer)
    kernel = layer.kernel.numpy() * MASK if kind is MaskedDense else layer.theta.numpy()
    expected = _plain_dense(layer, kernel, inputs).numpy()
    np.testing.assert_allclose(tf.cast(layer(inputs), tf.float32), expected, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("kind", [MaskedDense, DecomposedMaskedDense])
def test_nothing_is_learned_outside_the_mask_nor_the_mask_itself(kind):
    layer, inputs = kind(3, MASK), _inputs((20, 5))
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
    np.testing.assert_allclose(loaded(_inputs((4, 5))), model(_inputs((4, 5))), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(loaded.get_layer("out").connectivity, masks["output"])


def test_without_a_mask_all_is_connected_until_one_is_assigned():
    layer = MaskedDense(3)
    layer.build((None, 5))
    assert layer.connectivity.numpy().all()
    layer.connectivity.assign(MASK)
    assert MaskedDense.from_config(layer.get_config()).units == 3
    _randomise(layer)
    inputs = _inputs((4, 5))
    expected = _plain_dense(layer, layer.kernel.numpy() * MASK, inputs)
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [MaskedDense, DecomposedMaskedDense])
def test_wrong_masks_are_input_errors(kind):
    with pytest.raises(errors.InputError, match=r"expected shape \(4, 3\)"):
        kind(3, MASK).build((None, 4))
    with pytest.raises(errors.InputError, match="zeros and ones"):
        kind(3, MASK * 0.5).build((None, 5))


@pytest.mark.parametrize("places", [0, 1, 3])
def test_alignment_is_equation_3(places, tmp_path):
    rng = np.random.default_rng(0)
    own, foreign = rng.normal(size=(4, 5)).astype("f"), rng.normal(size=(4, places, 5)).astype("f")
    inputs = tf.keras.Input([5]), tf.keras.Input([places, 5])
    layer = ForeignAlignment()
    model = tf.keras.Model(inputs, layer(inputs))
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape))
    project, augment = layer.foreign_projection.numpy(), layer.augment_projection.numpy()
    expected = []
    for n in range(4):
        joined = np.concatenate([foreign[n, k] for k in range(places)] or [np.zeros(0)])
        expected.append(np.concatenate([own[n], joined @ project]) @ augment)
    np.testing.assert_allclose(model([own, foreign]), expected, rtol=1e-4, atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded([own, foreign]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shapes", [[(2, 5)], [(2, 5), (2, 3, 4)], [(2, 5), (2, 5)]])
def test_wrong_shapes_for_alignment_are_input_errors(shapes):
    with pytest.raises(errors.InputError, match=r"expected inputs \[N, F\] and \[N, K, F\]"):
        ForeignAlignment()([tf.zeros(shape) for shape in shapes])


tfd = tfp.distributions
KEY, OTHER = tf.constant([1, 2]), tf.constant([1, 3])
EXTREMES = [-np.inf, -1e30, -1e6, -200.0, -11.0, 0.0, 6.0, 200.0, 1e6, 1e30, np.inf]


def statistics(count=6, size=5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, size)).astype("f"), rng.uniform(-3, 1, (count, size)).astype("f")


def test_divergence_is_that_of_tfp():
    mean, log_scale = statistics()
    own = tfd.MultivariateNormalDiag(mean.astype(float), np.exp(log_scale.astype(float)))
    prior = tfd.MultivariateNormalDiag(np.zeros(5), np.ones(5))
    expected = tfd.kl_divergence(own, prior)
    np.testing.assert_allclose(lib.divergence(mean, log_scale), expected, rtol=1e-5)
    np.testing.assert_allclose(
        tfd.kl_divergence(lib.posterior(mean, log_scale), tfd.MultivariateNormalDiag(np.zeros(5, "f"))),
        expected,
        rtol=1e-4,
    )


def test_divergence_is_the_mean_difference_of_log_densities():
    mean, log_scale = statistics()
    mean, log_scale = mean.astype(float), log_scale.astype(float)
    draws = mean + np.exp(log_scale) * np.random.default_rng(1).normal(size=(100_000, *mean.shape))
    own = stats.norm.logpdf(draws, mean, np.exp(log_scale))
    differences = (own - stats.norm.logpdf(draws)).sum(axis=-1)
    error = differences.std(axis=0) / np.sqrt(len(draws))
    found = lib.divergence(mean.astype("f"), log_scale.astype("f"))
    assert (np.abs(differences.mean(axis=0) - found) < 5 * error).all()


def test_divergence_of_the_prior_is_nothing_and_small_ones_keep_their_digits():
    assert not lib.divergence(tf.zeros([2, 256]), tf.zeros([2, 256])).numpy().any()
    small = np.full((1, 256), 1e-3, "f")
    exact = 256 * (1e-6 / 2 + np.expm1(2e-3) / 2 - 1e-3)
    assert lib.divergence(small, small).numpy()[0] == pytest.approx(exact, rel=1e-3)


def test_samples_have_the_mean_and_the_variance():
    mean, log_scale = np.float32([[0.5, -2.0, 30.0]]), np.float32([[0.0, -3.0, 1.5]])
    count, scale = 100_000, np.exp(log_scale[0])
    draws = lib.sample_posterior(np.repeat(mean, count, 0), np.repeat(log_scale, count, 0), KEY).numpy()
    assert (np.abs(draws.mean(axis=0) - mean[0]) < 5 * scale / np.sqrt(count)).all()
    np.testing.assert_allclose(draws.var(axis=0, ddof=1), scale**2, rtol=5 * np.sqrt(2 / count))
    correlations = np.corrcoef(draws.T)
    assert np.abs(correlations - np.eye(3)).max() < 5 / np.sqrt(count)


def test_samples_depend_on_their_key_alone():
    mean, log_scale = statistics()
    first = lib.sample_posterior(mean, log_scale, KEY).numpy()
    tf.random.uniform([])
    np.testing.assert_allclose(tf.function(lib.sample_posterior)(mean, log_scale, KEY), first, rtol=1e-6)
    assert (lib.sample_posterior(mean, log_scale, OTHER).numpy() != first).all()


def test_gradients_reach_mean_and_scale():
    mean, log_scale = map(tf.constant, statistics())
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([mean, log_scale])
        divergence = lib.divergence(mean, log_scale)
        sample = lib.sample_posterior(mean, log_scale, KEY)
    by_mean, by_scale = tape.gradient(divergence, [mean, log_scale])
    np.testing.assert_allclose(by_mean, mean, rtol=1e-5)
    np.testing.assert_allclose(by_scale, np.exp(2 * log_scale) - 1, rtol=1e-4, atol=1e-6)
    by_mean, by_scale = tape.gradient(sample, [mean, log_scale])
    np.testing.assert_array_equal(by_mean, np.ones_like(mean))
    np.testing.assert_allclose(by_scale, sample - mean, rtol=1e-3, atol=1e-6)  # sigma * epsilon


@pytest.mark.parametrize("value", EXTREMES)
def test_scale_is_never_nothing_nor_infinite(value):
    log_scale, mean = tf.fill([1, 3], np.float32(value)), tf.fill([1, 3], np.float32(1e6))
    scale = lib.safe_scale(log_scale).numpy()
    assert ((scale >= np.exp(lib.LOWEST) * (1 - 1e-6)) & (scale <= np.exp(lib.HIGHEST) * (1 + 1e-6))).all()
    own = lib.posterior(mean, log_scale)
    for found in (
        lib.divergence(mean, log_scale),
        lib.sample_posterior(mean, log_scale, KEY),
        own.stddev(),
        own.log_prob(mean),
    ):
        assert np.isfinite(found).all()


def test_what_is_no_number_stays_none():
    nan = tf.fill([1, 2], np.nan)
    assert np.isnan(lib.safe_scale(nan)).all()
    assert np.isnan(lib.divergence(tf.zeros([1, 2]), nan)).all()
    assert np.isnan(lib.divergence(nan, tf.zeros([1, 2]))).all()
    assert np.isnan(lib.sample_posterior(tf.zeros([1, 2]), nan, KEY)).all()


def test_beyond_the_range_only_gradients_that_lead_back():
    log_scale = tf.constant([7.0, 7.0, -12.0, -12.0, 0.0, 0.0])
    with tf.GradientTape() as tape:
        tape.watch(log_scale)
        # Descent goes against the gradient: with +1 downwards.
        held = lib.safe_log_scale(log_scale) * tf.constant([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    np.testing.assert_array_equal(tape.gradient(held, log_scale), [1, 0, 0, -1, 1, -1])


def head_and_model(size=3):
    tf.keras.utils.set_random_seed(1)
    inputs = tf.keras.Input([4])
    head = GaussianHead(size)
    return head, tf.keras.Model(inputs, head(inputs))


def test_keras_head_gives_the_posterior_of_its_layers():
    head, model = head_and_model()
    x = np.random.default_rng(0).normal(size=(6, 4)).astype("f")
    found = model(x)
    assert isinstance(found, tfd.Distribution)
    np.testing.assert_allclose(found.mean(), x @ head.mean.kernel.numpy() + head.mean.bias.numpy(), rtol=1e-5)
    expected = np.exp(x @ head.log_scale.kernel.numpy() - 2.0)
    np.testing.assert_allclose(found.stddev(), expected, rtol=1e-5)
    assert tf.convert_to_tensor(found).shape == (6, 3)


@pytest.mark.slow
def test_keras_model_trains_through_samples():
    inputs = tf.keras.Input([4])
    tf.keras.utils.set_random_seed(1)
    head = GaussianHead(3)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(head(inputs)))
    model.compile("adam", "mse")
    before = model.get_weights()
    assert len(before) == 6
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("f")
    model.fit(x, x[:, :1], epochs=2, verbose=0)
    assert all((old != new).any() for old, new in zip(before, model.get_weights()))


def test_keras_head_is_made_again_from_its_settings():
    head = GaussianHead(3, initial_log_scale=-1.0, name="z")
    again = GaussianHead.from_config(head.get_config())
    assert (again.units, again.initial_log_scale, again.name) == (3, -1.0, "z")
    again.build([None, 4])
    again(tf.zeros([1, 4]))
    np.testing.assert_array_equal(again.log_scale.bias, np.full(3, -1, "f"))


def test_keras_head_without_units():
    with pytest.raises(errors.InputError, match="units: expected at least 1, found 0"):
        GaussianHead(0)
