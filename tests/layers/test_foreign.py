"""Foreign adaptives as feature extractors: what is computed once a document equals the direct computation."""

import numpy as np
import pytest
import tensorflow as tf

from tffcl.layers import foreign as foreign_lib
from tffcl.layers.kernels import KernelLayout

D, F, V, PLACES = 5, 3, 9, 3
LAYOUT = KernelLayout((("conv_2", (2, D, F)), ("conv_3", (3, D, F))))
TOKENS = tf.constant([[2, 3, 4, 5, 6], [7, 0, 0, 0, 0], [0, 0, 0, 0, 0], [8, 7, 6, 0, 0], [3, 3, 3, 3, 0]])


@pytest.fixture(name="world")
def _world():
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(V, D)).astype("f")
    vectors[0] = 0
    return vectors, rng.normal(size=(PLACES, LAYOUT.size)).astype("f")


def direct(tokens, vectors, adaptive, alpha):
    """max over time of relu(conv(x, alpha A)) for each kernel, window by window: `[N, kernels, F]`."""
    kernels = adaptive[: 2 * D * F].reshape(2, D, F), adaptive[2 * D * F :].reshape(3, D, F)
    result = np.zeros((len(tokens), 2, F))
    for n, document in enumerate(np.asarray(tokens)):
        words = vectors[document[: max(3, np.count_nonzero(document))]].astype(float)
        for i, kernel in enumerate(kernels):
            width = len(kernel)
            for start in range(len(words) - width + 1):
                response = np.einsum("wd,wdf->f", words[start : start + width], alpha[i] * kernel)
                result[n, i] = np.maximum(result[n, i], response)
    return result


def by_kernel(responses):
    """`[N, kernels, k, F]` of what `attended` gives."""
    return tf.stack([tf.reshape(r, [tf.shape(r)[0], tf.shape(r)[1] // F, F]) for r in responses], axis=1)


def attended_by_hand(tokens, vectors, adaptives, attention):
    """`[N, kernels, K, F]`, zero beyond the entries that there are."""
    result = np.zeros((len(tokens), 2, len(attention), F))
    for k, adaptive in enumerate(adaptives):
        result[:, :, k] = direct(tokens, vectors, adaptive, attention[k])
    return result


ATTENTION = np.array([[1.0, -0.7], [0.0, 0.4], [-1.3, 2.0]], np.float32)


@pytest.mark.parametrize("batch_size", [2, 5, 64])
def test_precomputed_extremes_give_the_direct_features(world, batch_size):
    vectors, adaptives = world

    @tf.function(input_signature=[tf.TensorSpec([None, LAYOUT.size])])
    def features(rows):
        largest, smallest = foreign_lib.foreign_extremes(LAYOUT, rows, TOKENS, vectors, batch_size)
        return largest, smallest, by_kernel(foreign_lib.attended(tf.constant(ATTENTION), largest, smallest))

    for entries in range(PLACES + 1):
        largest, smallest, found = features(tf.constant(adaptives[:entries]))
        assert largest.shape == smallest.shape == (5, entries, 2 * F)
        expected = attended_by_hand(TOKENS, vectors, adaptives[:entries], ATTENTION)[:, :, :entries]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("entries", [0, 2])
def test_no_documents(world, entries):
    vectors, adaptives = world
    nothing = tf.zeros([0, 5], tf.int32)
    largest, smallest = foreign_lib.foreign_extremes(
        LAYOUT, tf.constant(adaptives[:entries]), nothing, vectors
    )
    assert largest.shape == (0, entries, 2 * F)
    found = by_kernel(foreign_lib.attended(tf.constant(ATTENTION), largest, smallest))
    assert found.shape == (0, 2, entries, F)


def test_no_places():
    empty = tf.zeros([4, 0, 2 * F])
    response = foreign_lib.attended(tf.zeros([0, 2]), empty, empty)
    assert [joined.shape for joined in response] == [(4, 0)] * 2
    aligned = foreign_lib.align(response, [tf.zeros([0, F])] * 2)
    np.testing.assert_array_equal(aligned, np.zeros([4, 2 * F]))


def test_align_is_equation_3():
    rng = np.random.default_rng(4)
    response = rng.normal(size=(5, 2, PLACES, F)).astype("f")
    projections = [rng.normal(size=(PLACES * F, F)).astype("f") for _ in range(2)]
    expected = np.zeros((5, 2, F))
    for n in range(5):
        for i, projection in enumerate(projections):
            for k in range(PLACES):
                expected[n, i] += response[n, i, k] @ projection[k * F : (k + 1) * F]
    joined = [tf.reshape(response[:, i], [5, -1]) for i in range(2)]
    found = foreign_lib.align(joined, projections)
    np.testing.assert_allclose(found, expected.reshape(5, 2 * F), rtol=1e-5, atol=1e-5)


def test_places_beyond_the_entries_count_as_zero():
    rng = np.random.default_rng(5)
    projections = [rng.normal(size=(PLACES * F, F)).astype("f") for _ in range(2)]
    few = [rng.normal(size=(4, F)).astype("f") for _ in range(2)]
    padded = [np.pad(joined, [[0, 0], [0, (PLACES - 1) * F]]) for joined in few]
    found = foreign_lib.align([tf.constant(joined) for joined in few], projections)
    np.testing.assert_allclose(found, foreign_lib.align(padded, projections), rtol=1e-6, atol=1e-6)


def test_attention_gets_the_gradient_of_the_direct_computation(world):
    vectors, adaptives = world
    attention = tf.constant(ATTENTION)
    largest, smallest = foreign_lib.foreign_extremes(LAYOUT, tf.constant(adaptives), TOKENS, vectors)
    with tf.GradientTape() as tape:
        tape.watch(attention)
        total = tf.add_n([tf.reduce_sum(r) for r in foreign_lib.attended(attention, largest, smallest)])
    gradient = tape.gradient(total, attention).numpy()
    for k, i in np.ndindex(*ATTENTION.shape):
        if ATTENTION[k, i] == 0:
            continue  # a kink: the two sides differ
        ends = []
        for step in (1e-4, -1e-4):
            moved = ATTENTION.astype(float)
            moved[k, i] += step
            ends.append(attended_by_hand(TOKENS, vectors, adaptives, moved).sum())
        assert gradient[k, i] == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-3)
