"""Foreign adaptives as feature extractors: what is computed once a document equals the direct computation."""

import numpy as np
import pytest
import tensorflow as tf

from tffcl.layers import foreign as foreign_lib
from tffcl.layers.kernels import KernelLayout

D, F, V, PLACES = 5, 3, 9, 3
LAYOUT = KernelLayout((("conv_2", (2, D, F)), ("conv_3", (3, D, F))))
TOKENS = np.int32([[2, 3, 4, 5, 6], [7, 0, 0, 0, 0], [0, 0, 0, 0, 0], [8, 7, 6, 0, 0], [3, 3, 3, 3, 0]])
LENGTH = np.count_nonzero(TOKENS, axis=1).astype(np.int32)
DOCUMENTS = [tf.constant(part) for part in (TOKENS[TOKENS > 0], np.cumsum(LENGTH, dtype="i") - LENGTH, LENGTH)]


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


def attended_by_hand(tokens, vectors, adaptives, attention):
    """`[N, kernels, K, F]`, zero beyond the entries that there are."""
    result = np.zeros((len(tokens), 2, len(attention), F))
    for k, adaptive in enumerate(adaptives):
        result[:, :, k] = direct(tokens, vectors, adaptive, attention[k])
    return result


ATTENTION = np.array([[1.0, -0.7], [0.0, 0.4], [-1.3, 2.0]], np.float32)


@pytest.mark.parametrize("batch_size", [2, 5, 64])
def test_precomputed_responses_give_the_direct_features(world, batch_size):
    vectors, adaptives = world

    @tf.function(input_signature=[tf.TensorSpec([None, LAYOUT.size])])
    def features(rows):
        responses = foreign_lib.foreign_responses(LAYOUT, rows, *DOCUMENTS, vectors, batch_size)
        alpha = tf.transpose(tf.constant(ATTENTION)[: tf.shape(rows)[0]])
        chosen = foreign_lib.chosen_responses(alpha, responses)
        return responses, tf.abs(alpha)[:, :, None, None] * chosen

    for entries in range(PLACES + 1):
        responses, found = features(tf.constant(adaptives[:entries]))
        assert responses.shape == (5, entries, 2, 2 * F)
        expected = attended_by_hand(TOKENS, vectors, adaptives[:entries], ATTENTION)[:, :, :entries]
        np.testing.assert_allclose(np.moveaxis(found, 2, 0), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("entries", [0, 2])
def test_no_documents(world, entries):
    vectors, adaptives = world
    nothing = [tf.zeros([0], tf.int32)] * 3
    responses = foreign_lib.foreign_responses(LAYOUT, tf.constant(adaptives[:entries]), *nothing, vectors)
    assert responses.shape == (0, entries, 2, 2 * F)
    assert foreign_lib.aligned(tf.constant(ATTENTION), responses, PROJECTIONS).shape == (0, 2 * F)


def test_no_places():
    aligned = foreign_lib.aligned(tf.zeros([0, 2]), tf.zeros([4, 0, 2, 2 * F]), tf.zeros([2, 0, F, F]))
    np.testing.assert_array_equal(aligned, np.zeros([4, 2 * F]))


PROJECTIONS = np.random.default_rng(4).normal(size=(2, PLACES, F, F)).astype("f")


def plain(attention, largest, smallest, projections):
    """FedSeIT eq. 2 and 3 as they are printed, from c_max and c_min `[N, K, 2, F]`, in operations of TensorFlow."""
    alpha = attention[:, :, None]
    z = tf.nn.relu(tf.maximum(alpha * largest, alpha * smallest))
    aligned = tf.einsum("nkif,ikfg->nig", z, projections)
    return tf.reshape(aligned, [-1, 2 * F])


def extremes(documents=6, entries=PLACES):
    """c_max and c_min, of both signs, some of them equal, as a document with a single window has them."""
    rng = np.random.default_rng(6)
    one, other = rng.normal(size=(2, documents, entries, 2, F)).astype("f")
    other[0] = one[0]
    return np.maximum(one, other), np.minimum(one, other)


def as_responses(largest, smallest):
    sides = np.stack([np.maximum(largest, 0), np.maximum(-smallest, 0)], axis=2)
    return tf.reshape(sides, [*sides.shape[:3], 2 * F])


def with_gradients(function, attention, projections):
    """`function` of both, and the gradients of a weighted sum of it."""
    attention, projections = tf.constant(attention), tf.constant(projections)
    with tf.GradientTape() as tape:
        tape.watch([attention, projections])
        value = function(attention, projections)
        weights = np.random.default_rng(7).normal(size=value.shape).astype("f")
        total = tf.reduce_sum(value * weights)
    return [value, *tape.gradient(total, [attention, projections])]


@pytest.mark.parametrize("rows", [None, [4, 0, 4]])
@pytest.mark.parametrize("entries", range(PLACES + 1))
def test_aligned_and_its_gradients_are_those_of_equations_2_and_3(entries, rows):
    attention = np.where(ATTENTION == 0, 0.3, ATTENTION).astype("f")  # 0 is a kink
    largest, smallest = extremes(entries=entries)
    pad = [[0, 0], [0, PLACES - entries], [0, 0], [0, 0]]
    taken = range(len(largest)) if rows is None else rows
    padded = [np.pad(extreme[taken], pad) for extreme in (largest, smallest)]
    responses = as_responses(largest, smallest)

    @tf.function
    def aligned(alpha, projections):
        return foreign_lib.aligned(alpha, responses, projections, rows and tf.constant(rows))

    found = with_gradients(aligned, attention, PROJECTIONS)
    expected = with_gradients(lambda alpha, w: plain(alpha, *padded, w), attention, PROJECTIONS)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_attention_of_zero_has_the_gradient_of_its_positive_side():
    largest, smallest = extremes()
    responses = as_responses(largest, smallest)
    above = np.where(ATTENTION == 0, 1e-3, ATTENTION).astype("f")
    _, at_zero, _ = with_gradients(lambda a, w: foreign_lib.aligned(a, responses, w), ATTENTION, PROJECTIONS)
    expected = with_gradients(lambda a, w: plain(a, largest, smallest, w), above, PROJECTIONS)[1]
    assert at_zero[1, 0] != 0 == ATTENTION[1, 0]
    np.testing.assert_allclose(at_zero, expected, rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_finite_differences_through_the_documents(world):
    vectors, adaptives = world
    responses = foreign_lib.foreign_responses(LAYOUT, tf.constant(adaptives), *DOCUMENTS, vectors)
    _, gradient, _ = with_gradients(lambda a, w: foreign_lib.aligned(a, responses, w), ATTENTION, PROJECTIONS)
    weights = np.random.default_rng(7).normal(size=(len(TOKENS), 2 * F)).astype("f")

    def objective(attention):
        z = attended_by_hand(TOKENS, vectors, adaptives, attention)
        aligned = np.einsum("nikf,ikfg->nig", z, PROJECTIONS).reshape(len(TOKENS), 2 * F)
        return (aligned * weights).sum()

    for k, i in np.ndindex(*ATTENTION.shape):
        if ATTENTION[k, i] == 0:
            continue  # a kink: the two sides differ
        moved = [ATTENTION.astype(float) for _ in range(2)]
        moved[0][k, i] += 1e-4
        moved[1][k, i] -= 1e-4
        expected = (objective(moved[0]) - objective(moved[1])) / 2e-4
        assert gradient[k, i].numpy() == pytest.approx(expected, rel=1e-3, abs=1e-4)
