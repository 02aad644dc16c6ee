"""Encoders against Keras models with the same weights, and what may not happen to them."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.models import FrozenEncoder, IdentityEncoder, ImageEncoder, TextEncoder, VectorEncoder
from tffcl.models.encoders import BATCH, draw, mean_of

keras = tf.keras
KEY = tf.constant([3, 4])
RNG = np.random.default_rng(0)
VECTORS = np.concatenate([np.full((2, 6), 9), RNG.normal(size=(8, 6))]).astype("f")  # rows 0 and 1 do not count


def texts(documents):
    """The context and the examples of documents."""
    length = np.int32([len(document) for document in documents])
    tokens = np.int32([token for document in documents for token in document])
    return {"vectors": VECTORS, "tokens": tokens}, {"start": np.cumsum(length, dtype="i") - length, "length": length}


SMALL = {"embedding_size": 4, "hidden": (10, 9)}
CASES = {
    "image": (ImageEncoder((8, 8), filters=(3, 5), **SMALL), {}, {"x": RNG.integers(0, 256, (5, 8, 8)).astype("u1")}),
    "roomy image": (  # large enough to go without padding
        ImageEncoder((17, 16), filters=(3, 5), **SMALL),
        {},
        {"x": RNG.integers(0, 256, (5, 17, 16)).astype("u1")},
    ),
    "image without padding": (
        ImageEncoder((13, 14), filters=(3, 5), padding="valid", **SMALL),
        {},
        {"x": RNG.integers(0, 256, (5, 13, 14)).astype("u1")},
    ),
    "odd image": (
        ImageEncoder((7, 5), False, filters=(3, 5), max_value=16, **SMALL),
        {},
        {"x": RNG.integers(0, 17, (5, 7, 5)).astype("u1")},
    ),
    "one pixel": (ImageEncoder((1, 1), filters=(2, 2), **SMALL), {}, {"x": np.arange(5).reshape(5, 1, 1).astype("u1")}),
    "vector": (VectorEncoder(6, **SMALL), {}, {"x": RNG.normal(size=(5, 6)).astype("f")}),
    "deterministic vector": (VectorEncoder(6, False, 4, ()), {}, {"x": RNG.normal(size=(5, 6)).astype("f")}),
    "text": (TextEncoder(6, **SMALL), *texts([[2, 3, 9], [1, 5], [], [1, 1], [4, 4, 4, 7]])),
    "pixels": (IdentityEncoder((7, 5)), {}, {"x": RNG.integers(0, 256, (5, 7, 5)).astype("u1")}),
}
LEARNING = [name for name in CASES if name != "pixels"]


def random_weights(encoder, scale=0.3):
    return (scale * np.random.default_rng(1).normal(size=encoder.weights.size)).astype("f")


def features(encoder, context, examples):
    """What enters the Keras model."""
    if isinstance(encoder, TextEncoder):
        means = np.zeros((len(examples["start"]), encoder.dimension), "f")
        for row, (start, length) in enumerate(zip(examples["start"], examples["length"])):
            tokens = context["tokens"][start : start + length]
            known = [context["vectors"][token] for token in tokens if token > 1]
            means[row] = np.mean(known, axis=0) if known else 0
        return means
    if isinstance(encoder, VectorEncoder):
        return examples["x"]
    return examples["x"][..., None] / np.float32(encoder.max_value)


def keras_model(encoder, weights):
    """The trunk and each head, made of Keras layers that hold the same weights."""
    parts = {name: part.numpy() for name, part in encoder.weights.split(weights).items()}
    is_image = isinstance(encoder, ImageEncoder)
    inputs = keras.Input([*encoder.shape, 1] if is_image else [encoder.num_features])
    units, named = inputs, []
    for layer, count in enumerate(encoder.filters if is_image else ()):
        convolution = keras.layers.Conv2D(count, 5, padding=encoder.padding, activation="relu")
        named.append((f"conv_{layer}", convolution))
        units = keras.layers.MaxPool2D(2, padding="same")(convolution(units))
    units = keras.layers.Flatten()(units)
    for layer, width in enumerate(encoder.hidden):
        named.append((f"linear_{layer}", keras.layers.Dense(width, "relu")))
        units = named[-1][1](units)
    heads = ("mean", "log_scale") if encoder.variational else ("embedding",)
    named += [(head, keras.layers.Dense(encoder.embedding_size)) for head in heads]
    model = keras.Model(inputs, [layer(units) for _, layer in named[-len(heads) :]])
    assert sum(weight.shape.num_elements() for weight in model.weights) == encoder.weights.size
    for name, layer in named:
        layer.set_weights([parts[name], parts[f"bias_{name}"]])
    return model


@pytest.mark.parametrize("case", LEARNING)
def test_statistics_are_those_of_a_keras_model(case):
    encoder, context, examples = CASES[case]
    weights = random_weights(encoder)
    expected = keras_model(encoder, weights)(features(encoder, context, examples))
    expected = np.concatenate(expected, axis=1) if encoder.variational else np.asarray(expected)
    if encoder.variational:
        expected[:, 4:] = np.clip(expected[:, 4:], -10, 5)
    found = encoder.encode(weights, context, examples)
    assert found.shape == (5, encoder.stats_size)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_pixels_are_their_own_embedding():
    encoder, _, examples = CASES["pixels"]
    found = encoder.encode(tf.zeros([0]), {}, examples)
    np.testing.assert_allclose(found, examples["x"].reshape(5, 35) / 255, rtol=1e-6)
    assert (encoder.weights.size, encoder.stats_size, encoder.variational) == (0, 35, False)
    assert encoder.initial(KEY).shape == (0,)


@pytest.mark.parametrize("case", CASES)
def test_an_example_encodes_the_same_alone_and_among_others(case):
    encoder, context, examples = CASES[case]
    weights = random_weights(encoder)
    together = encoder.encode(weights, context, examples)
    for row in range(5):
        one = {name: values[row : row + 1] for name, values in examples.items()}
        np.testing.assert_allclose(encoder.encode(weights, context, one)[0], together[row], atol=1e-5)


def test_unknown_words_do_not_count():
    encoder = CASES["text"][0]
    weights = random_weights(encoder)
    context, examples = texts([[3, 4], [1, 3, 1, 4], [], [1]])
    found = encoder.encode(weights, context, examples).numpy()
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    np.testing.assert_array_equal(found[2], found[3])
    assert np.isfinite(found).all()
    empty = encoder.encode(weights, *texts([[]]))
    np.testing.assert_allclose(empty[0], found[2], atol=1e-6)


@pytest.mark.parametrize("case", LEARNING)
def test_first_weights(case):
    encoder, context, examples = CASES[case]
    first = encoder.initial(KEY)
    parts = {name: part.numpy() for name, part in encoder.weights.split(first).items()}
    for name, part in parts.items():
        if not name.startswith("bias_"):
            area = np.prod(part.shape[:-2])
            assert 0 < np.abs(part).max() <= np.sqrt(6 / (area * (part.shape[-2] + part.shape[-1])))
        else:
            assert (part == (-4 if name == "bias_log_scale" else 0)).all()
    np.testing.assert_array_equal(encoder.initial(KEY), first)
    assert (encoder.initial(tf.constant([3, 5])).numpy() != first.numpy()).any()
    assert np.isfinite(encoder.encode(first, context, examples)).all()


@pytest.mark.parametrize("weight_scale", [0.3, 30.0])
def test_scale_is_never_nothing_infinite_nor_no_number(weight_scale):
    image, vector = CASES["image"][0], CASES["vector"][0]
    constant = [np.full((2, 8, 8), value, np.uint8) for value in (0, 7, 255)]
    large = [np.full((1, 6), 1e6, "f"), np.float32([[1e6, -1e6, 0, 1e6, 1e6, -1e6]]), np.zeros((1, 6), "f")]
    for encoder, x in [(image, x) for x in (*constant, constant[0][:1])] + [(vector, x) for x in large]:
        stats = encoder.encode(random_weights(encoder, weight_scale), {}, {"x": x}).numpy()
        assert np.isfinite(stats).all()
        scale = np.exp(stats[:, 4:])
        assert ((scale > 0) & np.isfinite(scale)).all()
        assert np.isfinite(draw(stats, KEY, 4, True)).all()


def test_what_is_drawn_and_what_stands_without_noise():
    encoder, _, examples = CASES["image"]
    stats = encoder.encode(random_weights(encoder), {}, examples).numpy()
    np.testing.assert_array_equal(mean_of(encoder, stats), stats[:, :4])
    first = draw(stats, KEY, 4, True).numpy()
    assert (first.shape, (first != stats[:, :4]).all()) == ((5, 4), True)
    np.testing.assert_array_equal(draw(stats, KEY, 4, True), first)
    noise = (first - stats[:, :4]) / np.exp(stats[:, 4:])
    np.testing.assert_allclose(noise, tf.random.stateless_normal([5, 4], KEY), rtol=1e-3, atol=1e-4)
    deterministic = CASES["odd image"][0]
    embeddings = tf.ones([3, 4])
    assert draw(embeddings, KEY, 4, False) is embeddings
    np.testing.assert_array_equal(mean_of(deterministic, embeddings), embeddings)


def test_the_paper_s_sizes():
    variational, deterministic = ImageEncoder((28, 28)), ImageEncoder((28, 28), variational=False)
    shared = 25 * 32 + 32 + 25 * 32 * 64 + 64 + 1024 * 1000 + 1000 + 1000 * 1000 + 1000
    assert deterministic.weights.size == shared + 256 * 1001
    assert variational.weights.size == shared + 2 * 256 * 1001
    assert (variational.stats_size, deterministic.stats_size) == (512, 256)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ImageEncoder((8,)), r"shape: expected the height and width of an image, found \(8,\)"),
        (lambda: ImageEncoder((0, 8)), "shape: expected the height and width"),
        (lambda: ImageEncoder((8, 8), max_value=0), "max_value: expected a positive number, found 0"),
        (lambda: ImageEncoder((8, 8), filters=(3, 0)), "filters: expected at least 1 in each layer"),
        (lambda: ImageEncoder((8, 8), padding="full"), "padding: expected one of auto, same, valid, found 'full'"),
        (lambda: ImageEncoder((8, 8), padding="valid"), "8 x 8 is used up by 2 convolutions"),
        (lambda: ImageEncoder((8, 8), embedding_size=0), "embedding_size: expected at least 1, found 0"),
        (lambda: ImageEncoder((8, 8), initial_log_scale=6.0), "initial_log_scale: expected -10.0 to 5.0, found 6.0"),
        (lambda: VectorEncoder(0), "size: expected at least 1, found 0"),
        (lambda: VectorEncoder(3, hidden=(0,)), "hidden: expected layers of at least 1 unit"),
        (lambda: TextEncoder(0), "dimension: expected at least 1, found 0"),
        (lambda: IdentityEncoder((8, 0)), "shape: expected the height and width"),
    ],
)
def test_wrong_sizes(make, message):
    with pytest.raises(errors.InputError, match=message):
        make()


def test_lists_of_sizes_are_tuples():
    encoder = ImageEncoder([8, 8], filters=[3, 5], hidden=[10, 9], embedding_size=4)
    assert repr(encoder) == repr(CASES["image"][0])
    assert encoder == CASES["image"][0]


# -- frozen ----------------------------------------------------------------------------------------------------


def frozen(case):
    encoder = CASES[case][0]
    return FrozenEncoder(encoder, random_weights(encoder))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("compiled", [False, True])
def test_frozen_encoder_encodes_as_the_encoder_does(case, compiled):
    encoder, context, examples = CASES[case]
    one = frozen(case)
    examples = {**examples, "label": np.zeros(5, "i")}
    run = tf.function(one.encode) if compiled else one.encode
    expected = encoder.encode(one.values, context, examples)
    np.testing.assert_allclose(run(context, examples), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, BATCH - 1, BATCH, BATCH + 1, 3 * BATCH + 7])
def test_frozen_encoder_takes_any_number_of_examples(count):
    one = frozen("image")
    x = np.random.default_rng(5).integers(0, 256, (count, 8, 8)).astype("u1")
    found = one.encode({}, {"x": x})
    assert found.shape == (count, 8)
    if count:
        np.testing.assert_allclose(found, one.encoder.encode(one.values, {}, {"x": x}), atol=1e-4)


@pytest.mark.parametrize("case", ["image", "text"])
def test_frozen_encoder_in_a_federated_computation(tff_context, case):
    one, (_, context, examples) = frozen(case), CASES[case]
    before = one.encode(context, examples)  # the eager function does not get in the way

    @tff.tensorflow.computation(one.encoder.context_type, one.encoder.example_type)
    def encode(context, examples):
        return one.encode(context, examples)

    np.testing.assert_allclose(encode(context, examples), before, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(one.encode(context, examples), before)


def test_frozen_weights_cannot_be_written():
    weights = random_weights(CASES["vector"][0])
    one = FrozenEncoder(CASES["vector"][0], weights)
    before, weights[0] = weights[0], 100
    assert one.values[0] == before
    with pytest.raises(ValueError, match="read-only"):
        one.values[0] = 1
    assert one.num_bytes == 4 * len(weights)


def test_weights_that_do_not_fit():
    encoder = CASES["vector"][0]
    right = random_weights(encoder)
    size = len(right)
    for values, message in (
        (right[:-1], rf"values: VectorEncoder\(.*\) has weights float32\[{size}\], found float32\[{size - 1}\]"),
        (right.astype(float), rf"found float64\[{size}\]"),
        (np.where(np.arange(size) == 3, np.float32("nan"), right), "values: weight 3 is nan; expected finite"),
    ):
        with pytest.raises(errors.InputError, match=message):
            FrozenEncoder(encoder, values)


def test_frozen_weights_of_another_encoder_s_function():
    """Two frozen encoders of one architecture do not share what was compiled for the other."""
    first, other = (frozen("vector"), FrozenEncoder(CASES["vector"][0], np.zeros(CASES["vector"][0].weights.size, "f")))
    examples = CASES["vector"][2]
    assert (first.encode({}, examples).numpy() != 0).any()
    assert not other.encode({}, examples).numpy().any()


def test_padding_suits_the_image_unless_given():
    """The paper's 28 x 28 give 4 x 4 x 64 features, as of LeNet; images too small for that are padded."""
    assert (ImageEncoder((28, 28)).padding, ImageEncoder((28, 28)).num_features) == ("valid", 1024)
    assert (ImageEncoder((8, 8)).padding, ImageEncoder((8, 8)).num_features) == ("same", 256)
    padded = ImageEncoder((28, 28), padding="same")
    assert padded.num_features == 7 * 7 * 64
    assert ImageEncoder((16, 16), filters=(2, 3, 4)).padding == "same"  # three without padding leave nothing
