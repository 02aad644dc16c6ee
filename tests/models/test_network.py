"""Draws that depend on their key alone."""

import numpy as np
import pytest
import tensorflow as tf

from tffcl.models.network import dropout, glorot_uniform

KEY, OTHER = tf.constant([1, 2]), tf.constant([1, 3])


def test_glorot_uniform_has_the_moments_of_keras():
    drawn = glorot_uniform([(4, 30, 60), (60, 40), (7,)], KEY)
    for values, fans in ((drawn[0], 4 * 30 + 4 * 60), (drawn[1], 60 + 40)):
        limit = np.sqrt(6 / fans)
        assert np.abs(values).max() <= limit
        assert np.mean(values) == pytest.approx(0, abs=0.05 * limit)
        assert np.std(values) == pytest.approx(limit / np.sqrt(3), rel=0.05)
    assert not drawn[2].numpy().any()


def test_glorot_uniform_scale_and_key():
    plain, again = glorot_uniform([(20, 30)] * 2, KEY), glorot_uniform([(20, 30)] * 2, KEY)
    for first, second in zip(plain, again):
        np.testing.assert_array_equal(first, second)
    assert (plain[0].numpy() != plain[1].numpy()).any()
    assert (plain[0].numpy() != glorot_uniform([(20, 30)], OTHER)[0].numpy()).any()
    np.testing.assert_allclose(glorot_uniform([(20, 30)], KEY, 0.2)[0], 0.2 * plain[0], rtol=1e-4, atol=1e-7)


def test_dropout_drops_a_share_and_keeps_the_mean():
    kept = dropout(tf.ones([200, 100]), 0.3, KEY).numpy()
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1 / (1 - np.float32(0.3)))}
    assert (kept == 0).mean() == pytest.approx(0.3, abs=0.01)
    assert kept.mean() == pytest.approx(1, abs=0.02)


def test_dropout_depends_on_its_key_alone():
    values = tf.ones([20, 10])
    first = dropout(values, 0.5, KEY).numpy()
    tf.random.uniform([])
    np.testing.assert_array_equal(tf.function(dropout)(values, 0.5, KEY), first)
    assert (dropout(values, 0.5, OTHER).numpy() != first).any()


def test_no_key_or_no_rate_drops_nothing():
    values = tf.constant([[1.0, 2.0]])
    assert dropout(values, 0.5, None) is values
    assert dropout(values, 0.0, KEY) is values
