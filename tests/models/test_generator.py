"""The generator: forms of inputs, documents as a text network reads them, and what it does in numpy."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import small
import tensorflow as tf

from tffcl.errors import InputError
from tffcl.models import MLP, EmbeddingClassifier, Generator, InputForm, KerasNetwork, VectorEncoder, Whole, input_form

KEY = tf.constant([3, 4])


def keras(*shape):
    layers = tf.keras.layers
    flat = layers.GlobalAveragePooling1D() if None in shape else layers.Flatten()
    return KerasNetwork(tf.keras.Sequential([layers.Input(shape), flat, layers.Dense(2), layers.Dense(3)]))


@pytest.mark.parametrize(
    ("network", "words", "shape"),
    [
        (lambda: keras(4), 5, (4,)),
        (lambda: Whole(keras(6, 5, 1)), 5, (6, 5, 1)),
        (lambda: Whole(small.network(places=0)), 5, (5, small.D)),
    ],
)
def test_the_form_is_that_of_the_networks_inputs(network, words, shape):
    form = input_form(network(), words)
    assert (form.shape, form.is_image) == (shape, len(shape) == 3)


def test_inputs_that_are_no_dense_numbers_are_refused_in_a_line():
    encoder = VectorEncoder(4, False, embedding_size=2, hidden=(3,))
    for network in (EmbeddingClassifier(encoder, MLP(2, 3, (3,)), 0.0), small.network(aligned=True), keras(None, 2)):
        with pytest.raises(InputError, match="examples can be made of float32 features of known size") as refused:
            input_form(network)
        assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match="words"):
        input_form(Whole(small.network(places=0)), 0)


@pytest.mark.parametrize("shape", [(4,), (3, 2), (8, 8, 1), (5, 7, 3)])
def test_examples_have_the_form_and_depend_on_key_and_class(shape):
    form = InputForm(shape)
    generator = Generator(form, 3, width=2, noise=4)
    weights = generator.initial(KEY)
    labels = tf.constant([0, 2, 1, 0, 2])
    x, context, examples = generator(weights, labels, KEY)
    assert x.shape == (5, *shape)
    assert not context
    np.testing.assert_array_equal(examples["features"], x)
    if form.is_image:
        assert float(tf.reduce_min(x)) > 0
        assert float(tf.reduce_max(x)) < 1
    np.testing.assert_array_equal(generator(weights, labels, KEY)[0], x)
    assert not np.allclose(generator(weights, labels, KEY + 1)[0], x)
    assert not np.allclose(generator(weights, labels[::-1], KEY)[0], x)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        value = tf.reduce_sum(generator(weights, labels, KEY)[0] ** 2)
    moved = generator.weights.split(tape.gradient(value, weights))
    assert all(float(tf.reduce_max(tf.abs(part))) > 0 for part in moved.values())


def standardised(values):
    axes = tuple(range(values.ndim - 1))
    return (values - values.mean(axes)) / np.sqrt(values.var(axes) + 1e-5)


def active(values):
    values = standardised(values)
    return np.where(values > 0, values, 0.2 * values)


def convolved(image, kernel):
    """3 x 3 with zeros around, one value after the other."""
    rows, columns = image.shape[1:3]
    padded = np.pad(image, [(0, 0), (1, 1), (1, 1), (0, 0)])
    return sum(
        padded[:, i : i + rows, j : j + columns] @ kernel[i, j] for i in range(3) for j in range(3)
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(4,), (6, 5, 1)])
def test_what_it_does_by_hand(shape):
    generator = Generator(InputForm(shape), 3, width=2, noise=4)
    weights = generator.initial(KEY) + 0.1
    labels = tf.constant([0, 2, 1, 0])
    drawn = generator.draw(labels, KEY).numpy()
    np.testing.assert_array_equal(drawn[:, 4:], np.eye(3)[labels])
    own = {name: part.numpy().astype(float) for name, part in generator.weights.split(weights).items()}
    hidden = drawn.astype(float) @ own["linear"]
    if len(shape) == 1:
        expected = active(active(hidden) @ own["hidden"]) @ own["out"] + own["bias"]
    else:
        image = standardised(hidden.reshape(-1, 2, 2, 4))
        for name in ("conv_1", "conv_2"):
            image = active(convolved(image.repeat(2, 1).repeat(2, 2), own[name]))
        image = convolved(image, own["conv_3"]) + own["bias"]
        expected = 1 / (1 + np.exp(-image[:, :6, :5]))
    np.testing.assert_allclose(generator.examples(weights, tf.constant(drawn)), expected, rtol=2e-3, atol=2e-4)


def test_documents_are_read_as_those_of_the_data():
    """Word vectors that stand in a table give the same scores as documents of these words."""
    network = Whole(small.network(places=0))
    kernels = network.initial_kernels(KEY)
    words = np.random.default_rng(0).normal(size=(3, 5, small.D)).astype("f")
    context, examples = InputForm((5, small.D), 5).examples(tf.constant(words))
    made = network.logits(kernels, tf.zeros([0]), None, context, examples, None)
    table = np.concatenate([np.zeros([1, small.D], "f"), words.reshape(-1, small.D)])
    own = OrderedDict(vectors=tf.constant(table), tokens=tf.range(1, 16))
    for row in range(3):
        one = OrderedDict(start=tf.constant([5 * row]), length=tf.constant([5]))
        alone = network.logits(kernels, tf.zeros([0]), None, own, one, None)
        np.testing.assert_allclose(made[row], alone[0], rtol=1e-5)


def test_sizes_that_make_no_sense_are_one_clear_error():
    for options in ({"classes": 0}, {"width": 0}, {"noise": 0}):
        with pytest.raises(InputError, match=next(iter(options))):
            Generator(InputForm((4,)), **{"classes": 3, **options})
