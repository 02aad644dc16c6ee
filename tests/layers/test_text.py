"""Convolution over ragged documents against loops and tf.nn.conv1d; foreign adaptives against direct computation."""

import numpy as np
import pytest
import tensorflow as tf

from tffcl.layers import text
from tffcl.layers.kernels import KernelLayout

WIDTHS, D, F, V = (2, 4), 5, 3, 9
DOCUMENTS = ([3, 4, 5, 6, 7, 8], [2], [], [1, 1, 1], [5, 1, 5, 1, 5, 1, 5], [8, 7, 6, 5])


@pytest.fixture(name="parts")
def _parts():
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(V, D)).astype("f")
    vectors[:2] = 0  # padding and the unknown word
    kernels = [rng.normal(size=(width, D, F)).astype("f") for width in WIDTHS]
    biases = [rng.normal(size=F).astype("f") for _ in WIDTHS]
    return vectors, kernels, biases


def as_tokens(documents, length=None):
    length = max(map(len, documents)) if length is None else length
    return np.array([d + [0] * (length - len(d)) for d in documents], np.int32).reshape(len(documents), length)


def responses(document, vectors, kernel, widest):
    """conv(x, kernel) at every window of one document, lengthened with zero vectors to the widest kernel."""
    words = [vectors[token] for token in document]
    words += [np.zeros(vectors.shape[1])] * (widest - len(words))
    width = len(kernel)
    rows = []
    for start in range(len(words) - width + 1):
        rows.append(sum(words[start + i] @ kernel[i].astype(float) for i in range(width)))
    return np.array(rows)


def pooled_by_hand(documents, vectors, kernels, biases):
    widest, rows = max(map(len, kernels)), []
    for document in documents:
        row = []
        for kernel, bias in zip(kernels, biases):
            row.extend(np.maximum(responses(document, vectors, kernel, widest) + bias, 0).max(axis=0))
        rows.append(row)
    return np.array(rows)


def _pooled(documents, parts, length=None):
    return text.pooled_convolution(tf.constant(as_tokens(documents, length)), *parts).numpy()


def test_pooled_convolution_of_ragged_documents(parts):
    found = _pooled(DOCUMENTS, parts)
    np.testing.assert_allclose(found, pooled_by_hand(DOCUMENTS, *parts), rtol=1e-5, atol=1e-5)


def test_full_documents_agree_with_conv1d(parts):
    vectors, kernels, biases = parts
    tokens = np.random.default_rng(0).integers(2, V, size=(4, 6)).astype(np.int32)
    expected = []
    for kernel, bias in zip(kernels, biases):
        response = tf.nn.conv1d(tf.gather(vectors, tokens), kernel, stride=1, padding="VALID")
        expected.append(tf.reduce_max(tf.nn.relu(response + bias), axis=1))
    found = text.pooled_convolution(tf.constant(tokens), *parts)
    np.testing.assert_allclose(found, tf.concat(expected, 1), rtol=1e-5, atol=1e-5)


def test_a_document_scores_the_same_alone_and_in_any_batch(parts):
    together = _pooled(DOCUMENTS, parts, length=11)
    for row, document in enumerate(DOCUMENTS):
        alone = _pooled([document], parts)
        np.testing.assert_allclose(alone[0], together[row], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [0, 1, 3])
def test_batches_narrower_than_the_widest_kernel(parts, length):
    documents = [[4, 5, 6][:length], []]
    found = _pooled(documents, parts, length)
    np.testing.assert_allclose(found, pooled_by_hand(documents, *parts), rtol=1e-5, atol=1e-6)


def test_no_documents(parts):
    assert _pooled([], parts, length=6).shape == (0, 6)


def test_empty_and_unknown_documents_see_the_bias_alone(parts):
    biases = np.concatenate(parts[2])
    found = _pooled([[], [1], [1, 1, 1, 1, 1]], parts)
    np.testing.assert_allclose(found, np.tile(np.maximum(biases, 0), (3, 1)), rtol=1e-6)


def test_padding_never_wins(parts):
    """All real windows answer below zero; a padded one would answer 0 and, with a positive bias, win."""
    vectors = np.abs(parts[0])
    kernels = [-np.abs(kernel) for kernel in parts[1]]
    biases = [np.full(F, 50.0, np.float32) for _ in kernels]
    document = [4, 5, 6, 7, 8]
    tokens = tf.constant(as_tokens([document, [5] * 12]))
    found = text.pooled_convolution(tokens, vectors, kernels, biases)[0].numpy()
    np.testing.assert_allclose(found, pooled_by_hand([document], vectors, kernels, biases)[0], rtol=1e-5)
    assert (found < 50.0 - 1e-3).all()
    largest, smallest = text.pooled_extremes(tokens, vectors, kernels)
    assert (largest.numpy() < 0).all()
    assert (smallest.numpy() <= largest.numpy()).all()


def test_pooled_extremes_are_the_extreme_responses(parts):
    vectors, kernels, _ = parts
    largest, smallest = text.pooled_extremes(tf.constant(as_tokens(DOCUMENTS)), vectors, kernels)
    for row, document in enumerate(DOCUMENTS):
        every = [responses(document, vectors, kernel, 4) for kernel in kernels]
        np.testing.assert_allclose(largest[row], np.concatenate([r.max(0) for r in every]), atol=1e-5)
        np.testing.assert_allclose(smallest[row], np.concatenate([r.min(0) for r in every]), atol=1e-5)


def test_gradient_of_max_over_time_is_that_of_tensorflow():
    rng = np.random.default_rng(1)
    document = tf.constant([0, 0, 0, 1, 2, 2])
    values = rng.normal(size=(6, 3)).astype("f")
    values[2] = values[0]  # a window that occurs twice in its document
    values, upstream = tf.constant(values), tf.constant(rng.normal(size=(3, 3)).astype("f"))
    gradients = []
    for function in (text.max_over_time, tf.math.segment_max):
        with tf.GradientTape() as tape:
            tape.watch(values)
            result = function(values, document)
        gradients.append(tape.gradient(result, values, upstream).numpy())
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-6)


def test_gradient_of_a_document_with_a_repeated_phrase_is_numeric(parts):
    vectors, kernels, biases = parts
    biases = [np.full(F, 20.0, np.float32) for _ in biases]  # no ReLU at work
    documents = [[5, 6, 7, 8, 2, 5, 6, 7, 8], [3], [4, 5, 4, 5, 4, 5]]
    tokens, kernel = tf.constant(as_tokens(documents)), tf.constant(kernels[0])
    with tf.GradientTape() as tape:
        tape.watch(kernel)
        total = tf.reduce_sum(text.pooled_convolution(tokens, vectors, [kernel, kernels[1]], biases))
    gradient = tape.gradient(total, kernel).numpy()
    for index in np.ndindex(*kernel.shape):
        ends = []
        for step in (1e-4, -1e-4):
            moved = kernels[0].astype(float)
            moved[index] += step
            ends.append(pooled_by_hand(documents, vectors, [moved, kernels[1]], biases).sum())
        assert gradient[index] == pytest.approx((ends[0] - ends[1]) / 2e-4, abs=1e-3)


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5], [4], [2, 2], [5, 0, 4], [1], []])
@pytest.mark.parametrize("function", [text.padded, tf.function(text.padded)], ids=["eager", "graph"])
def test_documents_become_dense_a_batch_at_a_time(rows, function):
    tokens = tf.constant([word for document in DOCUMENTS for word in document], tf.int32)
    length = np.array([len(document) for document in DOCUMENTS], np.int32)
    start, chosen = np.cumsum(length, dtype=np.int32) - length, np.array(rows, np.int64)
    found = function(tokens, tf.constant(start[chosen]), tf.constant(length[chosen])).numpy()
    expected = [DOCUMENTS[row] for row in rows]
    longest = max(map(len, expected), default=0)
    assert found.shape == (len(rows), longest)
    assert found.tolist() == [list(document) + [0] * (longest - len(document)) for document in expected]


def test_no_words_at_all():
    nothing = tf.zeros([0], tf.int32)
    assert text.padded(nothing, tf.zeros([2], tf.int32), tf.zeros([2], tf.int32)).shape == (2, 0)
    assert text.padded(nothing, nothing, nothing).shape == (0, 0)


# -- foreign adaptives: FedSeIT eq. 2 and 3 -----------------------------------------------------------------------

PLACES = 3
LAYOUT = KernelLayout((("conv_2", (2, D, F)), ("conv_3", (3, D, F))))
TOKENS = np.int32([[2, 3, 4, 5, 6], [7, 0, 0, 0, 0], [0, 0, 0, 0, 0], [8, 7, 6, 0, 0], [3, 3, 3, 3, 0]])
LENGTH = np.count_nonzero(TOKENS, axis=1).astype(np.int32)
FLAT = [tf.constant(part) for part in (TOKENS[TOKENS > 0], np.cumsum(LENGTH, dtype="i") - LENGTH, LENGTH)]


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


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [2, 5, 64])
def test_precomputed_responses_give_the_direct_features(world, batch_size):
    vectors, adaptives = world

    @tf.function(input_signature=[tf.TensorSpec([None, LAYOUT.size])])
    def features(rows):
        responses = text.foreign_responses(LAYOUT, rows, *FLAT, vectors, batch_size)
        alpha = tf.transpose(tf.constant(ATTENTION)[: tf.shape(rows)[0]])
        chosen = text.chosen_responses(alpha, responses)
        return responses, tf.abs(alpha)[:, :, None, None] * chosen

    for entries in range(PLACES + 1):
        responses, found = features(tf.constant(adaptives[:entries]))
        assert responses.shape == (5, entries, 2, 2 * F)
        expected = attended_by_hand(TOKENS, vectors, adaptives[:entries], ATTENTION)[:, :, :entries]
        np.testing.assert_allclose(np.moveaxis(found, 2, 0), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("entries", [0, 2])
def test_no_documents_for_foreign_adaptives(world, entries):
    vectors, adaptives = world
    nothing = [tf.zeros([0], tf.int32)] * 3
    responses = text.foreign_responses(LAYOUT, tf.constant(adaptives[:entries]), *nothing, vectors)
    assert responses.shape == (0, entries, 2, 2 * F)
    assert text.aligned(tf.constant(ATTENTION), responses, PROJECTIONS).shape == (0, 2 * F)


def test_no_places_for_foreign_adaptives():
    aligned = text.aligned(tf.zeros([0, 2]), tf.zeros([4, 0, 2, 2 * F]), tf.zeros([2, 0, F, F]))
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


@pytest.mark.slow
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
        return text.aligned(alpha, responses, projections, rows and tf.constant(rows))

    found = with_gradients(aligned, attention, PROJECTIONS)
    expected = with_gradients(lambda alpha, w: plain(alpha, *padded, w), attention, PROJECTIONS)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_attention_of_zero_has_the_gradient_of_its_positive_side():
    largest, smallest = extremes()
    responses = as_responses(largest, smallest)
    above = np.where(ATTENTION == 0, 1e-3, ATTENTION).astype("f")
    _, at_zero, _ = with_gradients(lambda a, w: text.aligned(a, responses, w), ATTENTION, PROJECTIONS)
    expected = with_gradients(lambda a, w: plain(a, largest, smallest, w), above, PROJECTIONS)[1]
    assert at_zero[1, 0] != 0 == ATTENTION[1, 0]
    np.testing.assert_allclose(at_zero, expected, rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_finite_differences_through_the_documents(world):
    vectors, adaptives = world
    responses = text.foreign_responses(LAYOUT, tf.constant(adaptives), *FLAT, vectors)
    _, gradient, _ = with_gradients(lambda a, w: text.aligned(a, responses, w), ATTENTION, PROJECTIONS)
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
