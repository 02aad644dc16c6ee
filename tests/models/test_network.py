"""Draws that depend on their key alone."""

import numpy as np
import pytest
import tensorflow as tf

from tffcl.layers import VectorLayout
from tffcl.models.network import CLASSES, competing, dropout, glorot_uniform, occurring

KEY, OTHER = tf.constant([1, 2]), tf.constant([1, 3])


def drawn(shapes, key=KEY, scale=1.0):
    layout = VectorLayout(tuple((str(number), shape) for number, shape in enumerate(shapes)))
    return [values.numpy() for values in layout.split(glorot_uniform(layout, key, scale)).values()]


def test_glorot_uniform_has_the_moments_of_keras():
    conv, dense, bias = drawn([(4, 30, 60), (60, 40), (7,)])
    for values, fans in ((conv, 4 * 30 + 4 * 60), (dense, 60 + 40)):
        limit = np.sqrt(6 / fans)
        assert np.abs(values).max() <= limit
        assert np.mean(values) == pytest.approx(0, abs=0.05 * limit)
        assert np.std(values) == pytest.approx(limit / np.sqrt(3), rel=0.05)
    assert not bias.any()


def test_glorot_uniform_scale_and_key():
    plain, again = drawn([(20, 30)] * 2), drawn([(20, 30)] * 2)
    for first, second in zip(plain, again):
        np.testing.assert_array_equal(first, second)
    assert (plain[0] != plain[1]).any()
    assert (plain[0] != drawn([(20, 30)], OTHER)[0]).any()
    np.testing.assert_allclose(drawn([(20, 30)], scale=0.2)[0], 0.2 * plain[0], rtol=1e-4, atol=1e-7)
    assert drawn([]) == []


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


def test_only_labels_that_may_occur_compete():
    """Softmax, its gradient and the best label are those of the numpy softmax over the possible labels alone."""
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(6, 5)).astype(np.float32) * 9, np.array([1, 4, 1, 4, 4, 1], np.int32)
    possible = np.array([False, True, False, False, True])
    logits = tf.Variable(scores)
    with tf.GradientTape() as tape:
        masked = competing(logits, {CLASSES: tf.constant(possible)})
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, masked)
    among = scores[:, possible].astype(np.float64)
    chances = np.exp(among) / np.exp(among).sum(1, keepdims=True)
    places = np.searchsorted(np.flatnonzero(possible), labels)
    np.testing.assert_allclose(losses, -np.log(chances[np.arange(6), places]), rtol=1e-4, atol=1e-6)
    gradient = np.zeros((6, 5))
    gradient[:, possible] = chances - np.eye(2)[places]
    np.testing.assert_allclose(tape.gradient(losses, logits), gradient, atol=1e-5)
    np.testing.assert_array_equal(tf.argmax(masked, 1), np.flatnonzero(possible)[among.argmax(1)])
    assert competing(logits, {}) is logits


def test_labels_that_occur():
    assert occurring(tf.constant([3, 1, 3]), 5).numpy().tolist() == [False, True, False, True, False]
    assert occurring(tf.zeros([0], tf.int32), 2).numpy().tolist() == [False, False]
