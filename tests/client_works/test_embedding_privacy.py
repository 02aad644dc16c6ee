"""Clipped and noised vectors: norms, the spread of the noise, and what a key decides."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tffcl.client_works import EmbeddingPrivacy
from tffcl.errors import InputError

KEY = tf.constant([3, 5])


def clipped(vectors, clip):
    """What is left without noise: the multiplier is below what float32 can add to numbers near 1."""
    return EmbeddingPrivacy(clip, 1e-12).apply(tf.constant(vectors, tf.float32), KEY).numpy()


def test_clip_by_hand():
    # Norms 5, 0.5, 0, and one whose squares overflow.
    vectors = [[3.0, 4.0], [0.3, -0.4], [0.0, 0.0], [-3e38, 0.0], [3e38, 3e38]]
    half = np.sqrt(0.5)
    expected = [[0.6, 0.8], [0.3, -0.4], [0, 0], [-1, 0], [half, half]]
    np.testing.assert_allclose(clipped(vectors, 1.0), expected, atol=1e-6)


def test_no_norm_exceeds_the_clip_and_shorter_vectors_stay():
    vectors = np.random.default_rng(0).normal(size=(500, 16)).astype(np.float32)
    norms, kept = np.linalg.norm(vectors, axis=1), clipped(vectors, 4.0)
    assert (norms > 4).any()
    assert (norms < 4).any()
    np.testing.assert_allclose(np.linalg.norm(kept, axis=1), np.minimum(norms, 4), rtol=1e-6)
    np.testing.assert_allclose(kept[norms < 4], vectors[norms < 4], rtol=1e-6)


def test_a_vector_that_is_not_finite_leaves_with_noise_alone():
    vectors = [[np.nan, 9.0], [np.inf, 9.0], [0.0, 0.0]]
    np.testing.assert_allclose(clipped(vectors, 1.0), 0, atol=1e-6)
    sent = EmbeddingPrivacy(1.0, 2.0).apply(tf.constant(vectors), KEY)
    zeros = EmbeddingPrivacy(1.0, 2.0).apply(tf.zeros([3, 2]), KEY)
    np.testing.assert_array_equal(sent, zeros)


def test_noise_is_gaussian_with_the_spread_of_multiplier_times_clip():
    privacy = EmbeddingPrivacy(clip=0.5, noise_multiplier=3.0)
    vectors = tf.constant([[0.3, 0.4]] * 50_000)
    noise = privacy.apply(vectors, KEY).numpy() - vectors.numpy()
    # Standard error of a standard deviation over 1e5 numbers: 0.2 %.
    assert noise.std() == pytest.approx(1.5, rel=0.01)
    assert abs(noise.mean()) < 0.02
    assert stats.kstest(noise.ravel() / 1.5, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.02
    assert len(np.unique(noise, axis=0)) > 49_000


def test_the_key_decides_in_a_graph_as_well():
    privacy, vectors = EmbeddingPrivacy(1.0, 1.0), tf.ones([4, 3])
    sent = tf.function(privacy.apply)(vectors, KEY)
    np.testing.assert_allclose(sent, privacy.apply(vectors, KEY), rtol=1e-6)
    assert not np.allclose(sent, privacy.apply(vectors, tf.constant([3, 6])))
    assert privacy.apply(vectors[:0], KEY).shape == [0, 3]


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_a_seed_that_is_none(seed):
    with pytest.raises(InputError, match="seed: expected 0 to"):
        EmbeddingPrivacy(1.0, 1.0, seed)


@pytest.mark.parametrize("name", ["clip", "noise_multiplier"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_settings(name, value):
    with pytest.raises(InputError, match=f"{name}: expected a number above 0, found"):
        EmbeddingPrivacy(**{"clip": 1.0, "noise_multiplier": 1.0, name: value})
