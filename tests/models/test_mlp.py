"""The classifier of embeddings against Keras."""

import numpy as np
import pytest
import tensorflow as tf

from tffcl import errors
from tffcl.models import MLP

KEY = tf.constant([3, 4])
Z = np.random.default_rng(0).normal(size=(7, 5)).astype("f")


def random_weights(mlp):
    return np.random.default_rng(1).normal(size=mlp.weights.size).astype("f")


@pytest.mark.parametrize("hidden", [(), (6,), (6, 8)])
def test_logits_are_those_of_keras(hidden):
    mlp = MLP(5, 3, hidden)
    flat = random_weights(mlp)
    parts = {name: part.numpy() for name, part in mlp.weights.split(flat).items()}
    model = tf.keras.Sequential(
        [tf.keras.Input([5])] + [tf.keras.layers.Dense(width, "relu") for width in hidden] + [tf.keras.layers.Dense(3)]
    )
    model.set_weights([parts[f"{kind}_{layer}"] for layer in range(len(hidden) + 1) for kind in ("linear", "bias")])
    np.testing.assert_allclose(mlp.logits(flat, Z), model(Z), rtol=1e-4, atol=1e-5)
    pieces = tuple(tf.reshape(part, [-1]) for part in mlp.weights.split(flat).values())
    np.testing.assert_array_equal(mlp.logits(pieces, tf.constant(Z)), mlp.logits(flat, Z))


def test_an_embedding_scores_the_same_alone_and_among_others():
    mlp = MLP(5, 3, (6,))
    flat = random_weights(mlp)
    together = mlp.logits(flat, Z)
    for row in range(len(Z)):
        np.testing.assert_allclose(mlp.logits(flat, Z[row : row + 1])[0], together[row], rtol=1e-5, atol=1e-5)
    assert mlp.logits(flat, Z[:0]).shape == (0, 3)


def test_first_weights():
    mlp = MLP(50, 10, (40,))
    parts = mlp.weights.split(mlp.initial(KEY))
    for name, (fan_in, fan_out) in (("linear_0", (50, 40)), ("linear_1", (40, 10))):
        limit = np.sqrt(6 / (fan_in + fan_out))
        assert np.abs(parts[name]).max() <= limit
        assert np.std(parts[name]) == pytest.approx(limit / np.sqrt(3), rel=0.1)
    assert not np.any(parts["bias_0"])
    assert not np.any(parts["bias_1"])
    assert (mlp.initial(KEY).numpy() == mlp.initial(KEY).numpy()).all()


def test_the_paper_s_size():
    assert MLP(256, 10).weights.size == 256 * 1000 + 1000 + 1000 * 1000 + 1000 + 1000 * 10 + 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 3), "inputs: expected at least 1, found 0"),
        ((5, 0), "classes: expected at least 1, found 0"),
        ((5, 3, (4, 0)), r"hidden: expected layers of at least 1 unit, found \(4, 0\)"),
    ],
)
def test_wrong_sizes(arguments, message):
    with pytest.raises(errors.InputError, match=message):
        MLP(*arguments)


def test_weights_of_another_size():
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        MLP(5, 3, (6,)).logits(tf.zeros([7]), Z)
