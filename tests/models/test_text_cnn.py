"""TextCNN and AlignedTextCNN against a full forward pass in numpy (FedSeIT eq. 1-3)."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tffcl import errors
from tffcl.models import AlignedTextCNN, TextCNN, TextCNNConfig

D, F, C, V, PLACES = 5, 3, 4, 9, 3
CONFIG = TextCNNConfig(embedding_size=D, max_classes=C, kernel_sizes=(2, 3), num_filters=F, base_scale=1.0)
TOKENS = np.array([[2, 3, 4, 5, 6], [7, 0, 0, 0, 0], [0, 0, 0, 0, 0], [8, 7, 6, 0, 0], [3, 1, 3, 1, 3]], np.int32)
KEY = tf.constant([3, 4])


def _random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("f")


@pytest.fixture(name="context")
def _context():
    vectors = _random(V, D, seed=1)
    vectors[:2] = 0
    return {"vectors": tf.constant(vectors), "tokens": tf.constant(TOKENS[TOKENS > 0])}


def features(tokens, vectors, kernels, biases):
    """max over time of relu(conv + bias), document by document: `[N, kernels, F]`."""
    result = np.zeros((len(tokens), len(kernels), F))
    for n, document in enumerate(tokens):
        words = vectors[document[: max(3, np.count_nonzero(document))]].astype(float)
        for i, (kernel, bias) in enumerate(zip(kernels, biases)):
            width = len(kernel)
            responses = [
                sum(words[s + j] @ kernel[j] for j in range(width)) + bias for s in range(len(words) - width + 1)
            ]
            result[n, i] = np.maximum(np.max(responses, axis=0), 0)
    return result


def cut(flat, shapes):
    """The arrays of a flat vector, by name and in order."""
    parts, start = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        parts[name] = flat[start : start + size].reshape(shape)
        start += size
    assert start == len(flat)
    return parts


KERNELS = {2: (2, D, F), 3: (3, D, F)}


def aligned_logits(kernels, local, attention, adaptives, tokens, vectors, mean=False):
    """FedSeIT eq. 2 and 3, W_f for each kernel size, then W_c, ReLU and head; with `mean`, one block of W_f for all."""
    blocks = 1 if mean else PLACES
    parts = cut(
        local,
        {
            "b2": (F,),
            "b3": (F,),
            "f2": (blocks * F, F),
            "f3": (blocks * F, F),
            "augment": (4 * F, 2 * F),
            "augment_bias": (2 * F,),
            "head": (2 * F, C),
            "head_bias": (C,),
        },
    )
    own = features(tokens, vectors, list(cut(kernels, KERNELS).values()), [parts["b2"], parts["b3"]])
    aligned = np.zeros((len(tokens), 2, F))
    for k, adaptive in enumerate(adaptives):
        weighed = [attention[k, i] * kernel for i, kernel in enumerate(cut(adaptive, KERNELS).values())]
        foreign = features(tokens, vectors, weighed, np.zeros((2, F)))
        for i, projection in enumerate((parts["f2"], parts["f3"])):
            block = projection / len(adaptives) if mean else projection[k * F : (k + 1) * F]
            aligned[:, i] += foreign[:, i] @ block
    joined = np.concatenate([own.reshape(len(tokens), -1), aligned.reshape(len(tokens), -1)], axis=1)
    hidden = np.maximum(joined @ parts["augment"] + parts["augment_bias"], 0)
    return hidden @ parts["head"] + parts["head_bias"]


def _examples():
    length = np.count_nonzero(TOKENS, axis=1).astype(np.int32)
    label = tf.zeros([len(TOKENS)], tf.int32)
    return {"start": np.cumsum(length, dtype=np.int32) - length, "length": length, "label": label}


def _prepared(network, adaptives, context):
    return network.prepare(tf.constant(adaptives), context, _examples())


@pytest.mark.parametrize("projection", ["each", "mean"])
@pytest.mark.parametrize("entries", [0, 1, 2, 3])
def test_aligned_logits_are_equations_1_to_3(context, entries, projection):
    network = AlignedTextCNN(dataclasses.replace(CONFIG, foreign_projection=projection), PLACES)
    kernels, local = _random(network.kernels.size), _random(network.local.size, seed=2)
    attention, adaptives = _random(PLACES, 2, seed=3), _random(entries, network.kernels.size, seed=4)
    assert attention.min() < 0 < attention.max()
    prepared = _prepared(network, adaptives, context)
    assert list(prepared) == list(network.prepared_type)
    found = network.logits(kernels, local, tf.constant(attention), context, prepared, None)
    expected = aligned_logits(
        kernels, local, attention, adaptives, TOKENS, context["vectors"].numpy(), projection == "mean"
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_with_one_place_the_mean_is_the_sum(context):
    adaptives, attention = _random(1, 75, seed=4), tf.constant(_random(1, 2, seed=3))
    networks = [AlignedTextCNN(dataclasses.replace(CONFIG, foreign_projection=p), 1) for p in ("each", "mean")]
    kernels, local = _random(networks[0].kernels.size), _random(networks[0].local.size, seed=2)
    found = [n.logits(kernels, local, attention, context, _prepared(n, adaptives, context), None) for n in networks]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("kind", [TextCNN, AlignedTextCNN])
def test_a_batch_is_scored_as_its_examples_are_among_all(context, kind):
    network, rows = kind(CONFIG, PLACES), [4, 0, 2]
    kernels, local = _random(network.kernels.size), _random(network.local.size, seed=2)
    attention = tf.constant(_random(PLACES, 2, seed=3))
    prepared = _prepared(network, _random(2, network.kernels.size, seed=4), context)
    batch = network.batch(prepared, tf.constant(rows))
    everything = network.logits(kernels, local, attention, context, prepared, None)
    found = network.logits(kernels, local, attention, context, batch, None)
    np.testing.assert_allclose(found, tf.gather(everything, rows), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(batch["start"], prepared["start"][rows])


@pytest.mark.parametrize("places", [0, PLACES])
def test_local_parameters_in_pieces(context, places):
    network = AlignedTextCNN(CONFIG, places)
    kernels, local = _random(network.kernels.size), tf.constant(_random(network.local.size, seed=2))
    attention = tf.constant(_random(places, 2, seed=3))
    prepared = _prepared(network, _random(places, network.kernels.size, seed=4), context)
    pieces = tuple(tf.split(local, network.local_pieces))
    assert pieces[1].shape == [2 * places * F * F]
    whole, apart = (network.logits(kernels, v, attention, context, prepared, None) for v in (local, pieces))
    np.testing.assert_array_equal(whole, apart)


def test_plain_logits(context):
    network = TextCNN(CONFIG, num_foreign=PLACES)
    kernels, local = _random(network.kernels.size), _random(network.local.size, seed=2)
    parts = cut(local, {"b2": (F,), "b3": (F,), "head": (2 * F, C), "head_bias": (C,)})
    biases = [parts["b2"], parts["b3"]]
    own = features(TOKENS, context["vectors"].numpy(), list(cut(kernels, KERNELS).values()), biases)
    expected = own.reshape(len(TOKENS), -1) @ parts["head"] + parts["head_bias"]
    found = network.logits(kernels, local, tf.zeros([PLACES, 2]), context, _examples(), None)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("projection", ["each", "mean"])
def test_foreign_adaptives_change_the_prediction_and_all_parts_get_a_gradient(context, projection):
    network = AlignedTextCNN(dataclasses.replace(CONFIG, foreign_projection=projection), PLACES)
    kernels, local = tf.constant(_random(network.kernels.size)), tf.constant(_random(network.local.size))
    attention = tf.constant(_random(PLACES, 2, seed=3))
    logits = []
    for seed in (4, 5):
        prepared = _prepared(network, _random(PLACES, network.kernels.size, seed=seed), context)
        with tf.GradientTape() as tape:
            tape.watch([kernels, local, attention])
            logits.append(network.logits(kernels, local, attention, context, prepared, None))
            loss = tf.reduce_sum(tf.square(logits[-1]))
    assert np.abs(logits[0] - logits[1]).max() > 1e-2
    kernel_gradient, local_gradient, attention_gradient = tape.gradient(loss, [kernels, local, attention])
    assert (attention_gradient.numpy() != 0).all()
    for layout, gradient in ((network.kernels, kernel_gradient), (network.local, local_gradient)):
        for name, part in layout.split(gradient).items():
            assert np.abs(part).max() > 0, name


def test_no_places_for_foreign_adaptives(context):
    network = AlignedTextCNN(CONFIG, 0)
    local = network.initial_local(KEY)
    prepared = _prepared(network, np.zeros([0, network.kernels.size], "f"), context)
    logits = network.logits(network.initial_kernels(KEY), local, tf.zeros([0, 2]), context, prepared, None)
    assert np.isfinite(logits).all()


@pytest.mark.parametrize(("kind", "centre"), [(TextCNN, 0.0), (AlignedTextCNN, 1.0)])
def test_first_values(kind, centre):
    config = dataclasses.replace(CONFIG, base_scale=0.2)
    network, plain = kind(config, 50), kind(CONFIG, 50)
    np.testing.assert_allclose(network.initial_kernels(KEY), 0.2 * plain.initial_kernels(KEY), rtol=1e-4, atol=1e-7)
    for name, part in network.kernels.split(plain.initial_kernels(KEY)).items():
        width = int(name[-1])
        assert np.abs(part).max() == pytest.approx(np.sqrt(6 / (width * (D + F))), rel=0.15)
    for name, part in network.local.split(network.initial_local(KEY)).items():
        assert part.numpy().any() == ("bias" not in name), name
    attention = network.initial_attention(KEY).numpy()
    assert attention.shape == (50, 2)
    assert np.abs(attention - centre).max() == pytest.approx(0.1, rel=0.1)
    assert abs((attention - centre).mean()) < 0.03


def test_dropout_depends_on_its_key_alone(context):
    network = TextCNN(dataclasses.replace(CONFIG, dropout=0.5))
    kernels, local = _random(network.kernels.size), _random(network.local.size)

    def logits(key):
        return network.logits(kernels, local, tf.zeros([0, 2]), context, _examples(), key).numpy()

    np.testing.assert_array_equal(logits(KEY), logits(KEY))
    assert (logits(KEY) != logits(tf.constant([3, 5]))).any()
    assert (logits(KEY) != logits(None)).any()


@pytest.mark.parametrize(
    ("name", "value"),
    [("embedding_size", 0), ("max_classes", 0), ("num_filters", 0), ("kernel_sizes", ()), ("kernel_sizes", (0,)),
     ("kernel_sizes", (3, 3)), ("dropout", 1.0), ("dropout", -0.1)],
)  # fmt: skip
def test_wrong_sizes_are_input_errors(name, value):
    with pytest.raises(errors.InputError, match=name):
        dataclasses.replace(CONFIG, **{name: value})


@pytest.mark.parametrize("kind", [TextCNN, AlignedTextCNN])
def test_a_negative_number_of_places_is_an_input_error(kind):
    with pytest.raises(errors.InputError, match="num_foreign"):
        kind(CONFIG, -1)


def test_rows_that_layers_multiply_are_the_windows_of_documents_and_the_pooled_features(context):
    network = TextCNN(CONFIG)
    kernels, local = _random(network.kernels.size, seed=2), _random(network.local.size, seed=3)
    batch = {"start": np.array([0, 6], np.int32), "length": np.array([5, 3], np.int32)}
    *windows, pooled = network.layer_inputs(kernels, local, None, context, batch)
    vectors, tokens = context["vectors"].numpy(), TOKENS[[0, 3]]
    for width, rows in zip((2, 3), windows):
        expected = [
            vectors[document[start : start + width]].reshape(-1)
            for document in tokens
            for start in range(np.count_nonzero(document) - width + 1)
        ]
        np.testing.assert_array_equal(rows, expected)
    parts = cut(local, {"b2": (F,), "b3": (F,), "head": (2 * F, C), "head_bias": (C,)})
    wanted = features(tokens, vectors, list(cut(kernels, KERNELS).values()), [parts["b2"], parts["b3"]])
    np.testing.assert_allclose(pooled, wanted.reshape(2, -1), atol=1e-5)
    logits = network.logits(kernels, local, None, context, batch, None)
    np.testing.assert_allclose(pooled.numpy() @ parts["head"] + parts["head_bias"], logits, atol=1e-5)
    assert [layer.kernel for layer in network.layers] == ["conv_2", "conv_3", "head_kernel"]
