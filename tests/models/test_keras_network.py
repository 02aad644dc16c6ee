"""KerasNetwork: a Keras model with weights that come as flat vectors, inside and outside of TFF."""

import logging

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.models import KerasNetwork

keras = tf.keras
layers = keras.layers
KEY = tf.constant([1, 2])


def _mlp(rate=0.0):
    return keras.Sequential(
        [keras.Input([5]), layers.Dense(4, "tanh"), layers.Dropout(rate), layers.Dense(4), layers.Dense(3)]
    )


def _images():
    return keras.Sequential(
        [
            keras.Input([4, 4, 1]),
            layers.Conv2D(3, 2, activation="relu"),
            layers.MaxPooling2D(),
            layers.LayerNormalization(),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )


def _words():
    tokens = keras.Input([6], dtype="int32")
    hidden = layers.Embedding(9, 5)(tokens)
    hidden = layers.Conv1D(4, 3, padding="same", activation="relu")(hidden)
    inner = keras.Sequential([keras.Input([6, 4]), layers.Dense(4, "relu"), layers.Flatten()], name="inner")
    return keras.Model(tokens, layers.Dense(3)(inner(hidden)))


def _recurrent():
    return keras.Sequential([keras.Input([6, 5]), layers.Dense(4), layers.SimpleRNN(3), layers.Dense(3)])


def _shared_twice():
    features = keras.Input([5])
    layer = layers.Dense(5, "tanh")
    return keras.Model(features, layers.Dense(3)(tf.nn.relu(layer(layer(features)))))


MODELS = {f.__name__.strip("_"): f for f in (_mlp, _images, _words, _recurrent, _shared_twice)}


def _features(model, count=4):
    kind, shape = model.inputs[0].dtype, [count, *model.inputs[0].shape[1:]]
    rng = np.random.default_rng(0)
    return tf.constant(rng.integers(0, 9, shape) if kind == tf.int32 else rng.normal(size=shape), kind)


def _logits(network, kernels, local, features, key=None):
    return network.logits(kernels, local, tf.zeros(network.attention_shape), {}, {"features": features}, key)


def _randomise(model):
    rng = np.random.default_rng(1)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_the_models_own(name):
    model = _randomise(MODELS[name]())
    network, features = KerasNetwork(model), _features(model)
    assert network.kernels.size + network.local.size == model.count_params()
    kernels, local = network.initial_kernels(KEY), network.initial_local(KEY)
    np.testing.assert_allclose(_logits(network, kernels, local, features), model(features), rtol=1e-5, atol=1e-5)
    compiled = tf.function(_logits)(network, kernels, local, features)
    np.testing.assert_allclose(compiled, model(features), rtol=1e-5, atol=1e-5)


def test_kernels_are_those_below_the_head_and_other_weights_change_the_prediction():
    model = _randomise(_mlp())
    network, features = KerasNetwork(model), _features(model)
    assert [shape for _, shape in network.kernels.parts] == [(5, 4), (4, 4)]
    assert [shape for _, shape in network.local.parts] == [(4,), (4,), (4, 3), (3,)]
    assert network.max_classes == 3
    other = _mlp()
    weights = [2 * weight for weight in model.get_weights()]
    other.set_weights(weights)
    kernels = np.concatenate([weights[0].ravel(), weights[2].ravel()])
    local = np.concatenate([weights[i].ravel() for i in (1, 3, 4, 5)])
    np.testing.assert_allclose(_logits(network, kernels, local, features), other(features), rtol=1e-4)


def test_the_models_variables_stay_as_they_are():
    model = _randomise(_words())
    network, features = KerasNetwork(model), _features(model)
    before = model(features).numpy()
    for _ in range(2):
        _logits(network, tf.zeros([network.kernels.size]), tf.ones([network.local.size]), features)
    np.testing.assert_array_equal(model(features), before)
    own = _logits(network, network.initial_kernels(KEY), network.initial_local(KEY), features)
    np.testing.assert_allclose(own, before, rtol=1e-5, atol=1e-5)


def _sgd(network, count, rate=0.1):
    """`count` steps as a client work takes them: variables, a tape, one while loop, in a `tf.function`."""

    variables = [tf.Variable(tf.zeros([layout.size])) for layout in (network.kernels, network.local)]

    @tf.function(autograph=False)
    def run(kernels, local, features, key):
        variables[0].assign(kernels)
        variables[1].assign(local)

        def one_step(step):
            with tf.GradientTape() as tape:
                values = [variable.read_value() for variable in variables]
                loss = tf.reduce_sum(tf.square(_logits(network, *values, features, key)))
            for variable, gradient in zip(variables, tape.gradient(loss, variables)):
                variable.assign_sub(rate * gradient)
            return (step + 1,)

        tf.while_loop(lambda step: step < count, one_step, (tf.constant(0),))
        return [variable.read_value() for variable in variables]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_trains_in_a_loop_inside_a_federated_computation(tff_context, name):
    model = _randomise(MODELS[name]())
    network, features = KerasNetwork(model), _features(model)
    own = [np.array(network.initial_kernels(KEY)), np.array(network.initial_local(KEY))]

    @tff.tensorflow.computation(
        tff.TensorType(np.float32, [network.kernels.size]),
        tff.TensorType(np.float32, [network.local.size]),
        network.example_type["features"],
    )
    def compute(kernels, local, features):
        logits = _logits(network, kernels, local, features)
        return logits, _sgd(network, 2, rate=1e-3)(kernels, local, features, None)

    logits, moved = compute(*own, features.numpy())
    np.testing.assert_allclose(logits, model(features), rtol=1e-4, atol=1e-4)
    # The same two steps by Keras itself.
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(features)))
        for weight, gradient in zip(model.trainable_weights, tape.gradient(loss, model.trainable_weights)):
            weight.assign_sub(1e-3 * tf.convert_to_tensor(gradient))
    again = KerasNetwork(model)
    np.testing.assert_allclose(moved[0], again.initial_kernels(KEY), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(moved[1], again.initial_local(KEY), rtol=1e-3, atol=1e-4)


def test_dropout_depends_on_its_key_alone(tff_context):
    model = _randomise(_mlp(rate=0.5))
    network, features = KerasNetwork(model), _features(model)
    weights = network.initial_kernels(KEY), network.initial_local(KEY)
    first = _logits(network, *weights, features, KEY).numpy()

    @tff.tensorflow.computation(tff.TensorType(np.int32, [2]))
    def compute(key):
        constants = [tf.constant(np.array(weight)) for weight in weights]
        return _logits(network, *constants, tf.constant(features.numpy()), key)

    np.testing.assert_allclose(compute(KEY.numpy()), first, rtol=1e-5, atol=1e-6)
    assert np.abs(_logits(network, *weights, features, tf.constant([1, 3])) - first).max() > 1e-3
    np.testing.assert_allclose(_logits(network, *weights, features), model(features), rtol=1e-5)


def test_two_dropout_layers_draw_apart():
    model = keras.Sequential(
        [keras.Input([50]), layers.Dropout(0.5), layers.Dropout(0.5), layers.Dense(2), layers.Dense(2)]
    )
    features = tf.ones([200, 50])
    network = KerasNetwork(model)
    probe = keras.Model(network._model.inputs, network._model.layers[1].output)
    with network._substituted([tf.constant(w) for w in network._first], KEY):
        kept = probe(features).numpy()
    assert (kept != 0).mean() == pytest.approx(0.25, abs=0.02)


def test_frozen_weights_stay_as_they_are(tff_context):
    model = _randomise(_words())
    model.layers[1].trainable = False
    network, features = KerasNetwork(model), _features(model)
    assert not any("embedding" in name for name, _ in network.local.parts)
    weights = [np.array(network.initial_kernels(KEY)), np.array(network.initial_local(KEY))]

    @tff.tensorflow.computation(*[tff.TensorType(np.float32, w.shape) for w in weights])
    def compute(kernels, local):
        return _logits(network, kernels, local, tf.constant(features.numpy()))

    np.testing.assert_allclose(compute(*weights), model(features), rtol=1e-4, atol=1e-4)


class _Hidden(layers.Layer):
    """Keeps its weight in a list, where nothing can stand in for it."""

    def build(self, input_shape):
        self.parts = [self.add_weight("scale", [input_shape[-1]])]

    def call(self, inputs):
        return inputs * self.parts[0]


def _with(*hidden, head=None, shape=(5,)):
    return lambda: keras.Sequential([keras.Input(shape), *hidden, layers.Dense(4), head or layers.Dense(3)])


def _two_outputs():
    features = keras.Input([5])
    hidden = layers.Dense(4)(features)
    return keras.Model(features, [layers.Dense(2)(hidden), layers.Dense(2)(hidden)])


def _two_inputs():
    inputs = [keras.Input([5]), keras.Input([5])]
    return keras.Model(inputs, layers.Dense(2)(layers.Dense(3)(inputs[0] + inputs[1])))


REFUSED = {
    "BatchNormalization": _with(layers.BatchNormalization()),
    "compute in float32, found .* in bfloat16": _with(layers.Dense(3, dtype="mixed_bfloat16")),
    "without activation": _with(head=layers.Dense(3, "softmax")),
    "as the last layer": _with(head=layers.Softmax()),
    "below the head to share": lambda: keras.Sequential([keras.Input([5]), layers.Dense(3)]),
    "one output, found 2": _two_outputs,
    "one input, found 2": _two_inputs,
    r"expected logits \[N, classes\]": _with(shape=(6, 5)),
    "SpatialDropout1D": _with(layers.SpatialDropout1D(0.5), layers.Flatten(), shape=(6, 5)),
    "GaussianNoise": _with(layers.GaussianNoise(0.5)),
    "noise_shape": _with(layers.Dropout(0.5, noise_shape=[None, 1])),
    "LSTM": _with(layers.LSTM(3, dropout=0.5), shape=(6, 5)),
    "regularizers": _with(layers.Dense(3, kernel_regularizer="l2")),
    "regularizers and added": _with(layers.Dense(3, activity_regularizer="l2")),
    "constraint": _with(layers.Dense(3, kernel_constraint="non_neg")),
    "float32 weights": _with(layers.Dense(3, dtype="float64")),
    "no attribute of its layer": _with(_Hidden()),
}


@pytest.mark.slow
@pytest.mark.parametrize("message", REFUSED)
def test_refuses(message):
    with pytest.raises(errors.InputError, match=message):
        KerasNetwork(REFUSED[message]())


@pytest.mark.slow
def test_all_that_is_in_the_way_is_told_at_once():
    parts = (
        layers.BatchNormalization(),
        layers.Dense(3, kernel_regularizer="l2", name="held"),
        layers.GaussianNoise(0.5),
    )
    with pytest.raises(errors.InputError) as caught:
        KerasNetwork(_with(*parts, head=layers.Dense(3, "softmax"))())
    told = str(caught.value)
    assert "\n" not in told
    for what in ("BatchNormalization", "without activation", "GaussianNoise", "(of held)", "weight_decay"):
        assert told.count(what) >= 1, what


def test_frozen_statistics_are_used_and_only_what_is_trained_is_given():
    model = _randomise(_with(layers.Dense(5), layers.BatchNormalization(trainable=False))())
    model.layers[1].moving_variance.assign(np.arange(1.0, 6.0))
    network, features = KerasNetwork(model), _features(model)
    given = network.initial_kernels(KEY), network.initial_local(KEY)
    np.testing.assert_allclose(_logits(network, *given, features), model(features), rtol=1e-4, atol=1e-5)
    assert sum(network.weights_by_role["frozen"].values()) == 4 * 5


def _bidirectional():
    return keras.Sequential(
        [
            keras.Input([6], dtype="int32"),
            layers.Embedding(100, 50, name="words"),
            layers.Bidirectional(layers.SimpleRNN(8), name="both"),
            layers.Dense(16, "relu"),
            layers.Dense(4),
        ]
    )


@pytest.mark.slow
def test_what_starts_anew_with_every_task_is_said_and_listed(caplog):
    with caplog.at_level(logging.INFO):
        roles = KerasNetwork(_bidirectional()).weights_by_role
    (line,) = caplog.records
    # By hand: embedding 100 * 50; a direction 8 * (50 + 8 + 1); Dense 16 * 16 + 16; head 16 * 4 + 4.
    assert list(roles["shared"].values()) == [16 * 16]
    assert list(roles["local"].values()) == [5000, *(2 * [400, 64, 8]), 16, 64, 4]
    assert roles["frozen"] == {}
    assert line.levelno == logging.WARNING
    for part in ("256 of 6,284", "6,028 start anew", "words (5,000)", "both (944)"):
        assert part in line.getMessage()
    caplog.clear()
    with caplog.at_level(logging.INFO):
        KerasNetwork(_mlp())
    (line,) = caplog.records
    assert line.levelno == logging.INFO
    assert "36 of 59" in line.getMessage()


def test_a_negative_number_of_places_is_an_input_error():
    with pytest.raises(errors.InputError, match="num_foreign"):
        KerasNetwork(_mlp(), -1)


# -- what layers multiply ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (layers.Dense(3), (5,)),
        (layers.Dense(3, use_bias=False), (4, 5)),
        *(
            (layers.Conv2D(3, (2, 3), padding=padding, strides=strides, dilation_rate=dilation), (6, 7, 2))
            for padding, strides, dilation in (("valid", 1, 1), ("same", 1, 1), ("same", 2, 1), ("same", 1, 2))
        ),
        *((layers.Conv1D(3, 3, padding=padding), (6, 2)) for padding in ("valid", "same", "causal")),
        (layers.Conv1D(3, 2, padding="causal", dilation_rate=2), (6, 2)),
        (layers.Conv1D(3, 3, padding="same", strides=2), (7, 2)),
    ],
)
def test_rows_that_a_layer_multiplies_give_its_outputs(layer, shape):
    layer = type(layer).from_config(layer.get_config())
    inputs = keras.Input(shape)
    outputs = layer(inputs)
    network = KerasNetwork(keras.Model(inputs, layers.Dense(2)(layers.Flatten()(outputs))))
    x = np.random.default_rng(1).normal(size=(4, *shape)).astype("f")
    given = (network.initial_kernels(KEY), network.initial_local(KEY), None, {}, {"features": x})
    rows, of_head = network.layer_inputs(*given)
    bias = layer.bias.numpy() if layer.use_bias else 0
    expected = layer(x).numpy()
    np.testing.assert_allclose(
        rows.numpy() @ layer.kernel.numpy().reshape(-1, 3) + bias, expected.reshape(-1, 3), atol=1e-5
    )
    np.testing.assert_allclose(of_head, expected.reshape(4, -1), atol=1e-5)


def test_every_call_of_a_shared_layer_and_the_layers_of_a_model_inside_are_seen():
    twice, nested = KerasNetwork(_shared_twice()), KerasNetwork(_words())
    assert [len(rows) for rows in _layer_inputs(twice)] == [8, 4]
    assert [tuple(rows.shape) for rows in _layer_inputs(nested)] == [(24, 15), (24, 4), (4, 24)]
    first, second = np.split(_layer_inputs(twice)[0].numpy(), 2)
    kernel, bias = (weight.numpy() for weight in twice.plain().layers[1].weights)
    np.testing.assert_allclose(second, np.tanh(first @ kernel + bias), atol=1e-6)


def _layer_inputs(network):
    given = (network.initial_kernels(KEY), network.initial_local(KEY), None, {})
    return network.layer_inputs(*given, {"features": _features(network.plain())})


def test_layers_that_are_frozen_or_in_groups_are_not_among_those_that_are_seen():
    model = keras.Sequential(
        [
            keras.Input([4, 4, 2]),
            layers.Conv2D(4, 2, groups=2),
            layers.Conv2D(3, 2, trainable=False),
            layers.Conv2D(3, 2, name="seen"),
            layers.Flatten(),
            layers.Dense(3, name="head"),
        ]
    )
    network = KerasNetwork(model)
    assert [layer.kernel.partition("/")[2] for layer in network.layers] == ["seen/kernel:0", "head/kernel:0"]
