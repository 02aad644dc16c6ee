"""decompose(): a Keras model with composed kernels, and what it refuses."""

import numpy as np
import pytest
import tensorflow as tf

from tffcl import errors
from tffcl.layers import DecomposedConv1D, DecomposedConv2D, DecomposedDense
from tffcl.models import decompose

keras = tf.keras


def _text_model():
    tokens = keras.Input([6], dtype="int32")
    words = keras.layers.Embedding(9, 5)(tokens)
    hidden = keras.layers.Conv1D(4, 3, padding="same", activation="relu")(words)
    hidden = keras.layers.LayerNormalization()(hidden)
    hidden = keras.layers.TimeDistributed(keras.layers.Dense(3))(hidden)
    hidden = keras.layers.Flatten()(hidden)
    inner = keras.Sequential([keras.Input([18]), keras.layers.Dense(4, "tanh", use_bias=False)], name="inner")
    return keras.Model(tokens, keras.layers.Dense(2)(inner(hidden)))


def _leaves(model):
    for layer in model.layers:
        yield from _leaves(layer) if isinstance(layer, keras.Model) else [layer]


def _randomise(model):
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    return model


TOKENS = tf.constant([[1, 2, 3, 4, 5, 6], [8, 8, 7, 0, 0, 0]])
KINDS = (DecomposedDense, DecomposedConv1D, DecomposedConv2D)


def test_a_composed_kernel_equal_to_the_models_own_predicts_the_same():
    model = _randomise(_text_model())
    copy = decompose(model)
    replaced = [layer for layer in _leaves(copy) if isinstance(layer, KINDS)]
    assert [type(layer) for layer in replaced] == [DecomposedConv1D, DecomposedDense, DecomposedDense]
    for layer in replaced:
        np.testing.assert_allclose(layer.adaptive, layer.base / 5.0)
        layer.mask_logits.assign(np.full(layer.mask_logits.shape, 30.0))  # sigmoid(30) is 1
        layer.adaptive.assign(tf.zeros_like(layer.adaptive))
    np.testing.assert_allclose(copy(TOKENS), model(TOKENS), rtol=1e-5, atol=1e-5)


def test_equals_a_model_composed_by_hand():
    model = _randomise(_text_model())
    copy = decompose(model, num_foreign=2, adaptive_factor=3.0)
    rng = np.random.default_rng(1)
    for old, new in zip(_leaves(model), _leaves(copy)):
        if not isinstance(new, KINDS):
            continue
        for part in (new.mask_logits, new.adaptive, new.attention, new.foreign):
            part.assign(rng.normal(size=part.shape))
        mask = 1 / (1 + np.exp(-new.mask_logits.numpy()))
        kernel = old.kernel.numpy() * mask + new.adaptive.numpy()
        kernel += sum(new.attention.numpy()[k] * new.foreign.numpy()[k] for k in range(2))
        old.kernel.assign(kernel)
    np.testing.assert_allclose(copy(TOKENS), model(TOKENS), rtol=1e-4, atol=1e-4)


def test_first_prediction_and_the_original_stay_as_they_are():
    model = _randomise(_text_model())
    before = [weight.numpy() for weight in model.weights]
    copy = decompose(model, adaptive_factor=2.0)  # sigmoid(0) B + B / 2 = B
    np.testing.assert_allclose(copy(TOKENS), model(TOKENS), rtol=1e-5, atol=1e-5)
    _randomise(copy)
    for old, weight in zip(before, model.weights):
        np.testing.assert_array_equal(old, weight)


def test_convolutions_over_images_and_a_model_built_by_its_first_call():
    model = keras.Sequential(
        [keras.layers.Conv2D(3, 2, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    images = tf.random.stateless_normal([2, 4, 4, 1], [0, 0])
    model(images)
    copy = decompose(model, adaptive_factor=2.0)
    np.testing.assert_allclose(copy(images), model(images), rtol=1e-5, atol=1e-5)


def test_a_decomposed_model_trains_and_loads(tmp_path):
    copy = decompose(_text_model(), num_foreign=1)
    copy.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    copy.fit(TOKENS, np.array([0, 1]), verbose=0)
    copy.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(TOKENS), copy(TOKENS), rtol=1e-5, atol=1e-6)


class _Subclassed(keras.Model):
    def __init__(self):
        super().__init__(name="subclassed")
        self.dense = keras.layers.Dense(2)

    def call(self, inputs):
        return self.dense(inputs)


def _sequential(*layers):
    return keras.Sequential([keras.Input([5]), *layers])


def _called(model):
    model(tf.zeros([1, 5]))
    return model


def _normalised(layer):
    return _sequential(keras.layers.Dense(3), layer)


FREEZE = "changes what it keeps while it trains.*trainable=False"
REFUSED = {
    f"BatchNormalization 'own' {FREEZE}": lambda: _normalised(keras.layers.BatchNormalization(name="own")),
    f"BatchNormalization 'inner' {FREEZE}": lambda: _sequential(
        keras.Sequential([keras.Input([5]), keras.layers.BatchNormalization(name="inner")]), keras.layers.Dense(3)
    ),
    f"SyncBatchNormalization {FREEZE}".replace(" c", " 'of_all' c"): lambda: _normalised(
        keras.layers.experimental.SyncBatchNormalization(name="of_all")
    ),
    f"TimeDistributed 'each' {FREEZE}": lambda: _sequential(
        keras.layers.Dense(6),
        keras.layers.Reshape([2, 3]),
        keras.layers.TimeDistributed(keras.layers.BatchNormalization(), name="each"),
    ),
    f"LSTM 'remembers' {FREEZE}": lambda: keras.Sequential(
        [
            keras.Input(batch_shape=[2, 3, 4]),
            keras.layers.Dense(4),
            keras.layers.LSTM(2, stateful=True, name="remembers"),
        ]
    ),
    r"layer .* \(type SpectralNormalization\) cannot be compiled for training": lambda: _normalised(
        keras.layers.SpectralNormalization(keras.layers.Dense(3))
    ),
    "expected a built": lambda: keras.Sequential([keras.layers.Dense(3)]),
    "expected a built functional": lambda: "model",
    r"no Dense, Conv1D or Conv2D layer to decompose among \['Flatten'\]": lambda: _sequential(keras.layers.Flatten()),
    "neither functional nor sequential": lambda: _called(_Subclassed()),
    "subclassed is neither": lambda: _sequential(_called(_Subclassed()), keras.layers.Dense(2)),
}


def _frozen(model):
    model.trainable = False
    return model


FROZEN = {
    "a layer": lambda: _normalised(keras.layers.BatchNormalization(trainable=False)),
    "a model inside": lambda: _sequential(
        _frozen(keras.Sequential([keras.Input([5]), keras.layers.Dense(4), keras.layers.BatchNormalization()])),
        keras.layers.Dense(3),
    ),
    "of all workers": lambda: _normalised(keras.layers.experimental.SyncBatchNormalization(trainable=False)),
}


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_statistics_serve_and_stay_as_they_are(name):
    model, inputs = FROZEN[name](), tf.random.stateless_normal([4, 5], [1, 2])
    rng = np.random.default_rng(3)
    for weight in model.weights:
        weight.assign(rng.uniform(0.5, 2, weight.shape))
    copy = decompose(model, adaptive_factor=2.0)
    np.testing.assert_allclose(copy(inputs, training=True), model(inputs), rtol=1e-4, atol=1e-5)
    before = [weight.numpy() for weight in copy.non_trainable_weights]
    copy.compile("sgd", "mse", run_eagerly=True)
    copy.fit(inputs, np.ones([4, 3]), verbose=0)
    assert len(before) >= 2
    for old, new in zip(before, copy.non_trainable_weights):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("message", REFUSED)
def test_refuses(message):
    with pytest.raises(errors.InputError, match=message):
        decompose(REFUSED[message]())
