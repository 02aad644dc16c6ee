"""Eq. 7 and 9 against numpy and Keras, and training steps of a client with a network that keeps nothing local."""

import numpy as np
import pytest
import tensorflow as tf

from tffcl import errors
from tffcl.client_works import LocalTraining, PlainWork
from tffcl.models import MLP, EmbeddingClassifier, ImageEncoder, TextEncoder, VectorEncoder

KEY = tf.constant([3, 4])
RNG = np.random.default_rng(0)
X, LABELS = RNG.normal(size=(9, 6)).astype("f"), RNG.integers(0, 3, 9).astype("i")
EXAMPLES = {"x": X, "label": LABELS}


def network(variational=True, **options):
    encoder = VectorEncoder(6, variational, embedding_size=4, hidden=(8,))
    return EmbeddingClassifier(encoder, MLP(4, 3, (7,)), **options)


def random_kernels(net):
    return tf.constant((0.4 * np.random.default_rng(1).normal(size=net.kernels.size)).astype("f"))


def losses(net, kernels, key=None, examples=EXAMPLES):
    return net.losses(kernels, tf.zeros([0]), None, {}, examples, key).numpy()


def cross_entropy(net, kernels, z):
    logits = net.mlp.logits(net.split(kernels)[1], z).numpy().astype(float)
    return np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(9), LABELS]


def statistics(net, kernels):
    stats = net.encoder.encode(net.split(kernels)[0], {}, EXAMPLES).numpy().astype(float)
    return stats[:, :4], stats[:, 4:]


@pytest.mark.parametrize("beta", [0.0, 1e-4, 0.3])
def test_loss_is_equation_9(beta):
    net = network(beta=beta)
    kernels = random_kernels(net)
    mean, log_scale = statistics(net, kernels)
    z = mean + np.exp(log_scale) * tf.random.stateless_normal([9, 4], KEY).numpy()
    divergence = 0.5 * (np.exp(2 * log_scale) + mean**2 - 1 - 2 * log_scale).sum(axis=1)
    expected = cross_entropy(net, kernels, z.astype("f")) + beta * divergence
    np.testing.assert_allclose(losses(net, kernels, KEY), expected, rtol=1e-4)


def test_without_a_key_the_loss_is_the_cross_entropy_at_the_mean():
    net = network(beta=0.3)
    kernels = random_kernels(net)
    expected = cross_entropy(net, kernels, statistics(net, kernels)[0].astype("f"))
    np.testing.assert_allclose(losses(net, kernels), expected, rtol=1e-4)


def test_loss_of_a_deterministic_encoder_is_equation_7():
    net = network(variational=False, beta=0.3)
    kernels = random_kernels(net)
    expected = cross_entropy(net, kernels, statistics(net, kernels)[0].astype("f"))
    for key in (None, KEY):
        np.testing.assert_allclose(losses(net, kernels, key), expected, rtol=1e-4)


def test_logits_are_those_of_keras():
    net = network()
    kernels = random_kernels(net)
    parts = {name: part.numpy() for name, part in net.kernels.split(kernels).items()}
    layers = ["encoder/{}linear_0", "encoder/{}mean", "classifier/{}_0", "classifier/{}_1"]
    dense = tf.keras.layers.Dense
    model = tf.keras.Sequential([tf.keras.Input([6]), dense(8, "relu"), dense(4), dense(7, "relu"), dense(3)])
    values = []
    for name in layers:
        classifier = name.startswith("classifier")
        values.append(parts[name.format("linear" if classifier else "")])
        values.append(parts[name.format("bias" if classifier else "bias_")])
    model.set_weights(values)
    found = net.logits(kernels, tf.zeros([0]), None, {}, EXAMPLES, None)
    np.testing.assert_allclose(found, model(X), rtol=1e-4, atol=1e-5)
    sampled = net.logits(kernels, tf.zeros([0]), None, {}, EXAMPLES, KEY)
    assert (sampled.numpy() != found.numpy()).any()


def test_gradients_reach_every_part():
    net = network(beta=0.3)
    kernels = random_kernels(net)
    with tf.GradientTape() as tape:
        tape.watch(kernels)
        loss = tf.reduce_mean(net.losses(kernels, tf.zeros([0]), None, {}, EXAMPLES, KEY))
    gradient = tape.gradient(loss, kernels)
    assert all(part.numpy().any() for part in net.kernels.split(gradient).values())
    # Along one direction, against a difference.
    direction = tf.constant(np.random.default_rng(2).normal(size=net.kernels.size).astype("f"))
    ahead, behind = (losses(net, kernels + step * direction, KEY).mean() for step in (1e-3, -1e-3))
    assert (ahead - behind) / 2e-3 == pytest.approx(float(tf.tensordot(gradient, direction, 1)), rel=2e-2)


def test_kernels_are_the_encoder_s_and_then_the_classifier_s():
    net = network()
    first = net.initial_kernels(KEY)
    assert first.shape == (net.kernels.size,)
    encoder, classifier = net.split(first)
    assert (encoder.shape[0], classifier.shape[0]) == (net.encoder.weights.size, net.mlp.weights.size)
    named = net.kernels.split(first)
    for name, part in net.encoder.weights.split(encoder).items():
        np.testing.assert_array_equal(named[f"encoder/{name}"], part)
    for name, part in net.mlp.weights.split(classifier).items():
        np.testing.assert_array_equal(named[f"classifier/{name}"], part)
    np.testing.assert_array_equal(net.initial_kernels(KEY), first)
    assert (net.local.size, net.max_classes, net.num_foreign, net.attention_shape[0]) == (0, 3, 0, 0)
    assert (list(net.example_type), list(net.context_type)) == (["x", "label"], [])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda e: EmbeddingClassifier(e, MLP(5, 3)), "mlp: takes embeddings of 5 dimensions, VectorEncoder.* gives 4"),
        (lambda e: EmbeddingClassifier(e, MLP(4, 3), beta=-1.0), "beta: expected a finite number .* found -1.0"),
        (lambda e: EmbeddingClassifier(e, MLP(4, 3), beta=float("nan")), "beta: expected a finite number"),
    ],
)
def test_parts_that_do_not_fit(make, message):
    with pytest.raises(errors.InputError, match=message):
        make(VectorEncoder(6, embedding_size=4))


# -- with a client work ------------------------------------------------------------------------------------------


def small(name):
    """A network, a context and examples of 40."""
    rng = np.random.default_rng(3)
    label = rng.integers(0, 3, 40).astype("i")
    if name == "text":
        vectors = np.concatenate([np.zeros((2, 6)), rng.normal(size=(9, 6))]).astype("f")
        context = {"vectors": vectors, "tokens": rng.integers(1, 11, 200).astype("i")}
        examples = {"start": np.arange(0, 200, 5, "i"), "length": np.full(40, 5, "i"), "label": label}
        return TextEncoder(6, embedding_size=4, hidden=(8, 8)), context, examples
    examples = {"x": rng.integers(0, 256, (40, 6, 6)).astype("u1"), "label": label}
    return ImageEncoder((6, 6), name == "image", 4, (3, 4), (8, 8)), {}, examples


def one_round(work, examples, context, compiled=False):
    """Operation by operation; or compiled, where it has more than a few steps."""
    shared = work.initialize_shared()
    state = work.initialize_client(shared, tf.zeros([0], tf.int32), KEY)
    state = work.begin_task(state, shared, tf.zeros([0, 0]))
    data = {
        "context": context,
        "train": {name: tf.constant(values) for name, values in examples.items()},
        "validation": {name: tf.constant(values[:7]) for name, values in examples.items()},
    }
    reads = {name: state[name] for name in work.train_reads}
    train = work.train if compiled else work.trainer().python_function
    return shared, train(reads, shared, data, tf.constant(0))


@pytest.mark.parametrize("name", ["image", "deterministic image", "text"])
def test_one_step_moves_every_part(name):
    encoder, context, examples = small(name)
    net = EmbeddingClassifier(encoder, MLP(4, 3, (7,)), beta=1e-2)
    work = PlainWork(net, LocalTraining(num_epochs=1, batch_size=40, learning_rate=1e-3))
    _, (changed, update, weight, metrics) = one_round(work, examples, context)
    assert float(weight) == 40
    assert changed["local"].shape == (0,)
    assert np.isfinite(metrics["loss"])
    assert np.isfinite(metrics["validation_loss"])
    for part, delta in net.kernels.split(update["delta"]).items():
        assert delta.numpy().any(), f"{part} has not moved"


@pytest.mark.slow
def test_training_learns_and_evaluation_stands_at_the_mean():
    encoder, context, examples = small("image")
    net = EmbeddingClassifier(encoder, MLP(4, 3, (7,)))
    work = PlainWork(net, LocalTraining(num_epochs=60, batch_size=10, learning_rate=5e-3, patience=0))
    shared, (_, update, *_) = one_round(work, examples, context, compiled=True)
    view = {"plan": tf.zeros([0], tf.int32), "local": tf.zeros([0])}
    before = work.evaluate(view, shared, context, examples)
    after = work.evaluate(view, shared + update["delta"], context, examples)
    assert float(after["loss"]) < 0.5 * float(before["loss"])
    kernels = shared + update["delta"]
    logits = net.logits(kernels, tf.zeros([0]), None, context, examples, None).numpy()
    assert int(after["correct"]) == (logits.argmax(axis=1) == examples["label"]).sum()
    assert float(after["loss"]) == pytest.approx(losses(net, kernels, None, examples).sum(), rel=1e-4)
