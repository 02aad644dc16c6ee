"""The Gaussian posterior against TFP's own formula, Monte-Carlo estimates and derivatives by hand."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

from tffcl import errors
from tffcl.layers import GaussianHead
from tffcl.layers import variational as lib

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
