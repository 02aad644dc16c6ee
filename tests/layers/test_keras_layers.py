"""Keras layers against plain Keras layers that hold the composed kernel, and FedSeIT eq. 3 written as loops."""

import ast
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tffcl import errors, layers
from tffcl.layers import (
    AutoregressiveMask,
    DecomposedConv1D,
    DecomposedConv2D,
    DecomposedDense,
    DecomposedMaskedDense,
    ForeignAlignment,
    MaskedDense,
)

keras = tf.keras

CASES = {
    "dense": (DecomposedDense, keras.layers.Dense, {"units": 3}, (4, 5)),
    "dense on a sequence": (DecomposedDense, keras.layers.Dense, {"units": 3, "activation": "tanh"}, (2, 6, 5)),
    "dense without bias": (DecomposedDense, keras.layers.Dense, {"units": 3, "use_bias": False}, (4, 5)),
    "conv1d": (DecomposedConv1D, keras.layers.Conv1D, {"filters": 3, "kernel_size": 2}, (2, 6, 5)),
    "conv1d causal": (
        DecomposedConv1D,
        keras.layers.Conv1D,
        {"filters": 3, "kernel_size": 3, "padding": "causal", "dilation_rate": 2, "activation": "relu"},
        (2, 6, 5),
    ),
    "conv1d same": (
        DecomposedConv1D,
        keras.layers.Conv1D,
        {"filters": 4, "kernel_size": 3, "padding": "same", "strides": 2, "use_bias": False},
        (2, 7, 5),
    ),
    "conv2d": (
        DecomposedConv2D,
        keras.layers.Conv2D,
        {"filters": 3, "kernel_size": (2, 3), "padding": "same", "activation": "relu"},
        (2, 4, 5, 2),
    ),
}


def _randomise(layer, seed=0):
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        if "connectivity" not in weight.name:
            weight.assign(rng.normal(size=weight.shape))


def _composed(layer):
    """The kernel entry by entry: B sigmoid(m) + A + sum_k alpha_k A_k."""
    base, adaptive, logits = layer.base.numpy(), layer.adaptive.numpy(), layer.mask_logits.numpy()
    kernel = np.zeros_like(base)
    for index in np.ndindex(*base.shape):
        kernel[index] = base[index] / (1 + np.exp(-logits[index[-1]])) + adaptive[index]
        for k in range(layer.num_foreign):
            kernel[index] += layer.attention.numpy()[k] * layer.foreign.numpy()[(k, *index)]
    return kernel


def _plain(kind, arguments, layer, shape):
    plain = kind(**arguments)
    plain.build(shape)
    plain.set_weights([_composed(layer)] + ([layer.bias.numpy()] if layer.use_bias else []))
    return plain


def _inputs(shape):
    return tf.constant(np.random.default_rng(5).normal(size=shape).astype("f"))


@pytest.mark.parametrize("num_foreign", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_plain_layer_with_the_composed_kernel(case, num_foreign):
    decomposed, kind, arguments, shape = CASES[case]
    layer, inputs = decomposed(num_foreign=num_foreign, **arguments), _inputs(shape)
    layer.build(shape)
    _randomise(layer)
    expected = _plain(kind, arguments, layer, shape)(inputs)
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(tf.function(layer)(inputs), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(layer.theta, _composed(layer), rtol=1e-5, atol=1e-5)


def test_first_values():
    layer = DecomposedDense(3, num_foreign=2, adaptive_factor=4.0)
    layer.build((None, 5))
    np.testing.assert_allclose(layer.adaptive, layer.base / 4.0)
    for variable in (layer.mask_logits, layer.attention, layer.foreign):
        assert not variable.numpy().any()
    assert layer.mask_logits.shape == (3,)
    assert layer.foreign.shape == (2, 5, 3)


def test_foreign_kernels_are_frozen_and_all_else_is_trained():
    layer, inputs = DecomposedDense(3, num_foreign=2), _inputs((4, 5))
    layer.build((4, 5))
    _randomise(layer)
    names = {weight.name for weight in layer.trainable_weights}
    assert names == {"kernel:0", "bias:0", "mask_logits:0", "adaptive:0", "attention:0"}
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(layer(inputs)))
    for gradient in tape.gradient(loss, layer.trainable_weights):
        assert np.abs(gradient).max() > 0
    before = [weight.numpy() for weight in layer.trainable_weights], layer.foreign.numpy()
    model = keras.Sequential([keras.Input([5]), layer])
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(inputs, np.ones([4, 3]), epochs=1, verbose=0)
    assert all((old != new.numpy()).any() for old, new in zip(before[0], layer.trainable_weights))
    np.testing.assert_array_equal(layer.foreign, before[1])


def test_variables_are_the_same_before_and_after_calls():
    layer, inputs = DecomposedDense(3, num_foreign=1), _inputs((4, 5))
    layer.build((4, 5))
    before = [id(weight) for weight in layer.weights]
    for _ in range(3):
        layer(inputs)
        tf.function(layer)(inputs)
    assert [id(weight) for weight in layer.weights] == before
    assert layer.kernel is layer.base


@pytest.mark.parametrize("case", ["dense", "conv1d causal", "conv2d"])
def test_config_round_trip(case):
    decomposed, _, arguments, shape = CASES[case]
    layer = decomposed(num_foreign=2, adaptive_factor=3.0, name="mine", **arguments)
    again = decomposed.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert (again.num_foreign, again.adaptive_factor, again.name) == (2, 3.0, "mine")
    again.build(shape)
    assert again.attention.shape == (2,)


@pytest.mark.parametrize("ending", ["keras", "h5"])
def test_a_saved_model_predicts_the_same(tmp_path, ending):
    words = keras.Input([6, 5])
    hidden = DecomposedConv1D(4, 3, num_foreign=2, padding="same", activation="relu")(words)
    hidden = keras.layers.LayerNormalization()(hidden)
    hidden = keras.layers.GlobalMaxPooling1D()(hidden)
    hidden = keras.layers.Dense(4, "tanh")(hidden)
    model = keras.Model(words, DecomposedDense(3)(hidden))
    _randomise(model)
    model.save(tmp_path / f"model.{ending}")
    loaded = keras.models.load_model(tmp_path / f"model.{ending}")
    inputs = _inputs((2, 6, 5))
    np.testing.assert_allclose(loaded(inputs), model(inputs), rtol=1e-5, atol=1e-6)
    for old, new in zip(model.weights, loaded.weights):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_mixed_precision(case, policy):
    """Variables are float32 whoever builds the layer: Keras does at its first call, in the precision of that call."""
    decomposed, kind, arguments, shape = CASES[case]
    layer, inputs = decomposed(num_foreign=1, dtype=policy, **arguments), _inputs(shape)
    assert layer(inputs).dtype == keras.mixed_precision.Policy(policy).compute_dtype
    assert {weight.dtype for weight in layer.weights} == {tf.float32}
    np.testing.assert_array_equal(layer.adaptive.numpy(), layer.base.numpy() / np.float32(5))
    _randomise(layer)
    with tf.GradientTape() as tape:
        result = layer(inputs)
        loss = tf.reduce_sum(tf.square(tf.cast(result, tf.float32)))
    expected = _plain(kind, arguments, layer, shape)(inputs).numpy()
    np.testing.assert_allclose(tf.cast(result, tf.float32), expected, atol=0.02 * np.abs(expected).max())
    for gradient in tape.gradient(loss, layer.trainable_weights):
        assert gradient.dtype == tf.float32
        assert np.abs(gradient).max() > 0


def test_wrong_arguments_are_input_errors():
    with pytest.raises(errors.InputError, match="num_foreign"):
        DecomposedDense(3, num_foreign=-1)
    with pytest.raises(errors.InputError, match="adaptive_factor"):
        DecomposedConv1D(3, 2, adaptive_factor=0)


def test_importing_the_room_registers_every_layer_with_keras():
    """`load_model` finds layers by the names under which their modules register them when they are imported."""
    room = pathlib.Path(layers.__file__).parent
    registering = {path.stem for path in room.glob("*.py") if "register_keras_serializable" in path.read_text()}
    assert registering
    imports = [node for node in ast.parse((room / "__init__.py").read_text()).body if isinstance(node, ast.ImportFrom)]
    assert registering <= {alias.name for node in imports for alias in node.names}


MASK = (np.random.default_rng(1).random((5, 3)) < 0.5).astype("f")


def _plain_dense(layer, kernel, inputs):
    plain = keras.layers.Dense(layer.units, layer.activation)
    plain.build(inputs.shape)
    plain.set_weights([kernel, layer.bias.numpy()])
    return plain(inputs)


@pytest.mark.parametrize("shape", [(4, 5), (2, 6, 5)])
def test_masked_dense_equals_dense_with_the_masked_kernel(shape):
    layer, inputs = MaskedDense(3, MASK, activation="tanh"), _inputs(shape)
    layer.build(shape)
    _randomise(layer)
    expected = _plain_dense(layer, layer.kernel.numpy() * MASK, inputs)
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tf.function(layer)(inputs), expected, rtol=1e-5, atol=1e-6)


def test_decomposed_masked_dense_is_equation_5():
    layer, inputs = DecomposedMaskedDense(3, MASK, num_foreign=2), _inputs((4, 5))
    layer.build((4, 5))
    _randomise(layer)
    kernel = np.zeros((5, 3), "f")
    for i, j in np.ndindex(5, 3):
        kernel[i, j] = layer.base.numpy()[i, j] / (1 + np.exp(-layer.mask_logits.numpy()[j]))
        kernel[i, j] += layer.adaptive.numpy()[i, j]
        kernel[i, j] += layer.attention.numpy() @ layer.foreign.numpy()[:, i, j]
    np.testing.assert_allclose(layer.theta, kernel * MASK, rtol=1e-5, atol=1e-6)
    expected = _plain_dense(layer, kernel * MASK, inputs)
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("kind", [MaskedDense, DecomposedMaskedDense])
def test_mixed_precision_under_a_mask(kind, policy):
    layer, inputs = kind(3, MASK, dtype=policy), _inputs((4, 5))
    assert layer(inputs).dtype == keras.mixed_precision.Policy(policy).compute_dtype
    assert {weight.dtype for weight in layer.weights} == {tf.float32}
    _randomise(layer)
    kernel = layer.kernel.numpy() * MASK if kind is MaskedDense else layer.theta.numpy()
    expected = _plain_dense(layer, kernel, inputs).numpy()
    np.testing.assert_allclose(tf.cast(layer(inputs), tf.float32), expected, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("kind", [MaskedDense, DecomposedMaskedDense])
def test_nothing_is_learned_outside_the_mask_nor_the_mask_itself(kind):
    layer, inputs = kind(3, MASK), _inputs((20, 5))
    model = keras.Sequential([keras.Input([5]), layer])
    assert not any("connectivity" in weight.name for weight in layer.trainable_weights)
    kernels = [w for w in layer.trainable_weights if tuple(w.shape) == MASK.shape]
    before = [w.numpy() for w in kernels]
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(inputs, np.ones([20, 3]), epochs=1, verbose=0)
    for old, new in zip(before, kernels):
        np.testing.assert_array_equal((old != new.numpy()), MASK == 1)
    np.testing.assert_array_equal(layer.connectivity, MASK)


@pytest.mark.parametrize("kind", [MaskedDense, DecomposedMaskedDense])
def test_a_saved_model_keeps_its_masks(kind, tmp_path):
    masks = AutoregressiveMask(5, (6,), direct=False)(tf.constant([1, 2]), [2, 4, 1, 3, 5])
    layers = [kind(6, masks["hidden_0"], activation="relu"), kind(5, masks["output"], name="out")]
    model = keras.Sequential([keras.Input([5]), *layers])
    _randomise(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(_inputs((4, 5))), model(_inputs((4, 5))), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(loaded.get_layer("out").connectivity, masks["output"])


def test_without_a_mask_all_is_connected_until_one_is_assigned():
    layer = MaskedDense(3)
    layer.build((None, 5))
    assert layer.connectivity.numpy().all()
    layer.connectivity.assign(MASK)
    assert MaskedDense.from_config(layer.get_config()).units == 3
    _randomise(layer)
    inputs = _inputs((4, 5))
    expected = _plain_dense(layer, layer.kernel.numpy() * MASK, inputs)
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [MaskedDense, DecomposedMaskedDense])
def test_wrong_masks_are_input_errors(kind):
    with pytest.raises(errors.InputError, match=r"expected shape \(4, 3\)"):
        kind(3, MASK).build((None, 4))
    with pytest.raises(errors.InputError, match="zeros and ones"):
        kind(3, MASK * 0.5).build((None, 5))


@pytest.mark.parametrize("places", [0, 1, 3])
def test_alignment_is_equation_3(places, tmp_path):
    rng = np.random.default_rng(0)
    own, foreign = rng.normal(size=(4, 5)).astype("f"), rng.normal(size=(4, places, 5)).astype("f")
    inputs = tf.keras.Input([5]), tf.keras.Input([places, 5])
    layer = ForeignAlignment()
    model = tf.keras.Model(inputs, layer(inputs))
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape))
    project, augment = layer.foreign_projection.numpy(), layer.augment_projection.numpy()
    expected = []
    for n in range(4):
        joined = np.concatenate([foreign[n, k] for k in range(places)] or [np.zeros(0)])
        expected.append(np.concatenate([own[n], joined @ project]) @ augment)
    np.testing.assert_allclose(model([own, foreign]), expected, rtol=1e-4, atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded([own, foreign]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shapes", [[(2, 5)], [(2, 5), (2, 3, 4)], [(2, 5), (2, 5)]])
def test_wrong_shapes_for_alignment_are_input_errors(shapes):
    with pytest.raises(errors.InputError, match=r"expected inputs \[N, F\] and \[N, K, F\]"):
        ForeignAlignment()([tf.zeros(shape) for shape in shapes])
