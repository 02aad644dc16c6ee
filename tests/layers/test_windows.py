"""Convolution over ragged documents against loops and against tf.nn.conv1d."""

import numpy as np
import pytest
import tensorflow as tf

from tffcl.layers import windows

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
    return windows.pooled_convolution(tf.constant(as_tokens(documents, length)), *parts).numpy()


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
    found = windows.pooled_convolution(tf.constant(tokens), *parts)
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
    found = windows.pooled_convolution(tokens, vectors, kernels, biases)[0].numpy()
    np.testing.assert_allclose(found, pooled_by_hand([document], vectors, kernels, biases)[0], rtol=1e-5)
    assert (found < 50.0 - 1e-3).all()
    largest, smallest = windows.pooled_extremes(tokens, vectors, kernels)
    assert (largest.numpy() < 0).all()
    assert (smallest.numpy() <= largest.numpy()).all()


def test_pooled_extremes_are_the_extreme_responses(parts):
    vectors, kernels, _ = parts
    largest, smallest = windows.pooled_extremes(tf.constant(as_tokens(DOCUMENTS)), vectors, kernels)
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
    for function in (windows.max_over_time, tf.math.segment_max):
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
        total = tf.reduce_sum(windows.pooled_convolution(tokens, vectors, [kernel, kernels[1]], biases))
    gradient = tape.gradient(total, kernel).numpy()
    for index in np.ndindex(*kernel.shape):
        ends = []
        for step in (1e-4, -1e-4):
            moved = kernels[0].astype(float)
            moved[index] += step
            ends.append(pooled_by_hand(documents, vectors, [moved, kernels[1]], biases).sum())
        assert gradient[index] == pytest.approx((ends[0] - ends[1]) / 2e-4, abs=1e-3)


def test_lengths_count_at_least_the_widest_kernel():
    np.testing.assert_array_equal(windows.lengths(tf.constant(as_tokens(DOCUMENTS)), 4), [6, 4, 4, 4, 7, 4])


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5], [4], [2, 2], [5, 0, 4], [1], []])
@pytest.mark.parametrize("function", [windows.padded, tf.function(windows.padded)], ids=["eager", "graph"])
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
    assert windows.padded(nothing, tf.zeros([2], tf.int32), tf.zeros([2], tf.int32)).shape == (2, 0)
    assert windows.padded(nothing, nothing, nothing).shape == (0, 0)
