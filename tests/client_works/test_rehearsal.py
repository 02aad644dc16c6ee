"""Rehearsal against softmax regression in numpy, and what TARGET's client adds to a step."""

from __future__ import annotations

import numpy as np
import pytest
import rehearsing
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works import (
    EWC,
    EmbeddingPrivacy,
    FedCurv,
    LocalTraining,
    PlainWork,
    Proximal,
    RehearsalModel,
    SyntheticWork,
)
from tffcl.models import MLP, InputForm, KerasNetwork, Whole, input_form, with_label_mask

WHOLE = LocalTraining(
    num_epochs=3, batch_size=1000, learning_rate=0.5, patience=0, optimizer=tff.learning.optimizers.build_sgdm(0.5)
)


def _first(runner, count=10, seed=0):
    runner.begin()
    return runner.prepare(rehearsing.examples(count, seed))


def _by_hand(shared, z, labels, steps=3, rate=0.5, proximal=0.0):
    weights = shared.astype(np.float64)
    for _ in range(steps):
        weights = weights - rate * (rehearsing.softmax_gradient(weights, z, labels) + proximal * (weights - shared))
    return weights


@pytest.mark.parametrize("proximal", [0.0, 0.7])
def test_a_round_is_gradient_descent_on_the_new_task_and_all_memories(proximal):
    runner = rehearsing.Runner(rehearsing.work(False, training=WHOLE, client_memory=6, penalty=Proximal(proximal)))
    old = _first(runner)
    update, weight, _ = runner.train(old)
    z, labels = old["stats"].numpy(), old["label"].numpy()
    expected = _by_hand(runner.shared.numpy(), z, labels, proximal=proximal)
    np.testing.assert_allclose(runner.shared + update["delta"], expected, atol=1e-5)
    assert weight == 10
    runner.end(old)
    new = _first(runner, 5, seed=1)
    update, weight, metrics = runner.train(new)
    kept = runner.state["memory_vectors"].numpy(), runner.state["memory_label"].numpy()
    assert {tuple(row) for row in kept[0]} <= {tuple(row) for row in z}
    both = np.concatenate([new["stats"], kept[0]]), np.concatenate([new["label"], kept[1]])
    expected = _by_hand(runner.shared.numpy(), *both, proximal=proximal)
    np.testing.assert_allclose(runner.shared + update["delta"], expected, atol=1e-5)
    assert weight == 5  # eq. 1 counts the client's new examples
    assert (metrics["examples"], metrics["remembered"], metrics["sent"]) == (5, 6, len(update["sent"]))


def test_only_labels_of_the_task_and_of_the_memories_compete():
    """Tasks of labels 0 and 2, then of 1: the label 3, which nobody has, is neither pushed down nor ever the answer."""
    runner = rehearsing.Runner(rehearsing.work(False, training=WHOLE, client_memory=6, label_mask=True))
    memory = np.zeros((0, rehearsing.SIZE), np.float32), np.zeros(0, np.int32)
    for number, (labels, possible) in enumerate((((0, 2), [0, 2]), ((1,), [0, 1, 2]))):
        raw = rehearsing.examples(8, number)
        raw["label"] = np.resize(labels, 8).astype(np.int32)
        runner.context = {"classes": tf.constant(np.isin(np.arange(rehearsing.CLASSES), labels))}
        runner.begin()
        train = runner.prepare(raw)
        update, _, _ = runner.train(train)
        z, label = np.concatenate([train["stats"], memory[0]]), np.concatenate([train["label"], memory[1]])
        expected = runner.shared.numpy().astype(np.float64)
        for _ in range(3):
            expected -= 0.5 * rehearsing.softmax_gradient(expected, z, label, possible)
        np.testing.assert_allclose(runner.shared + update["delta"], expected, atol=1e-5)
        runner.end(train)
        memory = runner.state["memory_vectors"].numpy(), runner.state["memory_label"].numpy()
        sums = runner.work.evaluate({}, runner.shared, runner.context, train)
        kernel, bias = np.split(runner.shared.numpy(), [rehearsing.SIZE * rehearsing.CLASSES])
        scores = train["stats"].numpy() @ kernel.reshape(rehearsing.SIZE, -1) + bias
        best = np.array(labels)[scores[:, list(labels)].argmax(1)]
        assert sums["correct"] == (best == raw["label"]).sum()
    assert set(memory[1]) == {0, 1, 2}


def test_embeddings_are_sampled_anew_at_each_use():
    """Two rounds from the same weights differ by the samples alone; with a narrow posterior they do not."""
    for log_scale, differ in ((-1.0, True), (-10.0, False)):
        runner = rehearsing.Runner(rehearsing.work(training=WHOLE))
        train = _first(runner)
        train["stats"] = tf.concat([train["stats"][:, : rehearsing.SIZE], tf.fill([10, rehearsing.SIZE], log_scale)], 1)
        deltas = [runner.train(train)[0]["delta"].numpy() for _ in range(2)]
        assert np.allclose(*deltas, atol=1e-3) != differ


def test_a_sampled_step_follows_the_expected_gradient():
    """Over many examples the mean gradient at sampled z is near that of many more samples, drawn by numpy."""
    one_step = LocalTraining(1, 10**6, 1.0, patience=0, optimizer=tff.learning.optimizers.build_sgdm(1.0))
    runner = rehearsing.Runner(rehearsing.work(training=one_step))
    train = _first(runner, 20_000)
    update, _, _ = runner.train(train)
    mean, log_scale = np.split(np.tile(train["stats"].numpy(), (5, 1)), 2, axis=1)
    z = mean + np.exp(log_scale) * np.random.default_rng(0).normal(size=mean.shape)
    labels = np.tile(train["label"].numpy(), 5)
    np.testing.assert_allclose(
        update["delta"], -rehearsing.softmax_gradient(runner.shared.numpy(), z, labels), atol=5e-3
    )


def test_memory_is_bounded_and_shared_fairly_by_tasks():
    runner = rehearsing.Runner(rehearsing.work(client_memory=12))
    for task in range(4):
        train = _first(runner, 40, seed=task)
        runner.end(train)
        tasks, counts = np.unique(runner.state["memory_task"], return_counts=True)
        assert counts.sum() == 12
        np.testing.assert_array_equal(tasks, np.arange(task + 1))
        assert np.ptp(counts) <= rehearsing.CLASSES  # labels take turns, so tasks differ by a turn at most


def test_a_task_may_have_a_limit_of_its_own():
    """A tenth of each task, whatever room there is: the same rows as without the limit, but fewer of them."""
    limited = rehearsing.Runner(rehearsing.work(client_memory=12, task_memory=4))
    free = rehearsing.Runner(rehearsing.work(client_memory=12))
    for task in range(3):
        for runner in (limited, free):
            runner.end(_first(runner, 40, seed=task))
        tasks, counts = np.unique(limited.state["memory_task"], return_counts=True)
        np.testing.assert_array_equal(tasks, np.arange(task + 1))
        np.testing.assert_array_equal(counts, [4] * (task + 1))
        if task == 0:
            kept, more = (set(runner.state["memory_priority"].numpy()) for runner in (limited, free))
            assert kept < more
    runner = rehearsing.Runner(rehearsing.work(client_memory=12, task_memory=0))
    runner.end(_first(runner))
    assert len(runner.state["memory_label"]) == 0


def test_without_memory_nothing_is_kept():
    runner = rehearsing.Runner(rehearsing.work(client_memory=0))
    train = _first(runner)
    runner.end(train)
    assert runner.state["memory_vectors"].shape == (0, 2 * rehearsing.SIZE)


def test_memories_may_come_from_another_encoder():
    other = rehearsing.encoder(seed=9)
    runner = rehearsing.Runner(rehearsing.work(client_memory=100, memory_encoder=other))
    raw = rehearsing.examples(10)
    train = _first(runner)
    runner.end(train)
    expected = other.encode({}, {"x": tf.constant(raw["x"])}).numpy()
    assert {tuple(row) for row in runner.state["memory_vectors"].numpy()} == {tuple(row) for row in expected}
    np.testing.assert_array_equal(train["stats"], rehearsing.encoder().encode({}, {"x": tf.constant(raw["x"])}))


def test_prepared_statistics_are_the_frozen_encoders():
    runner = rehearsing.Runner(rehearsing.work())
    raw = rehearsing.examples(300)
    runner.begin()
    expected = rehearsing.encoder().encode({}, {"x": tf.constant(raw["x"])})
    np.testing.assert_array_equal(runner.prepare(raw)["stats"], expected)


@pytest.mark.parametrize("sharing", ["none", "sampled", "stats"])
def test_a_client_without_examples_says_nothing(sharing):
    runner = rehearsing.Runner(rehearsing.work(sharing=sharing, client_memory=5))
    runner.end(_first(runner))  # it has memories, but no new task
    before = {name: np.array(value) for name, value in runner.state.items()}
    update, weight, metrics = runner.train(runner.prepare(rehearsing.examples(0)))
    assert weight == 0
    assert metrics["examples"] == 0
    weights = update if sharing == "none" else update["weights"]
    assert not np.any(weights["sent"])
    if sharing != "none":
        assert len(update["rehearsal"]["label"]) == 0
        assert metrics["extra_bytes"] == 0
    for name, value in before.items():
        np.testing.assert_array_equal(runner.state[name], value)


@pytest.mark.parametrize("count", [1, 2])
def test_very_few_examples_are_enough(count):
    runner = rehearsing.Runner(rehearsing.work(sharing="sampled", client_memory=5))
    train = _first(runner, count)
    update, weight, metrics = runner.train(train)
    assert weight == count
    assert metrics["extra_bytes"] == count * 4 * (rehearsing.SIZE + 3)
    assert np.isfinite(update["weights"]["delta"]).all()
    assert len(runner.train(train)[0]["rehearsal"]["label"]) == 0  # all were sent


class Noise:
    """What a client sends of nothing but zeros: its noise, whatever the order."""

    def __init__(self, seed=None):
        privacy = EmbeddingPrivacy(1.0, 2.0, seed)
        self._runner = rehearsing.Runner(rehearsing.work(False, "embeddings", 10, privacy=privacy))
        self._train = _first(self._runner)
        self._train["stats"] = tf.zeros_like(self._train["stats"])
        self._state = dict(self._runner.state)

    def of(self, **entries):
        self._runner.state = {**self._state, **{name: tf.constant(value) for name, value in entries.items()}}
        noise = self._runner.train(self._train)[0]["rehearsal"]["vectors"].numpy()
        return noise[np.lexsort(noise.T)]


def test_noise_for_privacy_follows_from_the_client_s_secret_and_from_nothing_else():
    sent = Noise()
    noise = sent.of(secret=[1, 2])
    assert noise.shape == (10, rehearsing.SIZE)
    assert noise.std() == pytest.approx(2.0, rel=0.4)
    np.testing.assert_array_equal(sent.of(secret=[1, 2]), noise)  # what runs again tells nothing new
    assert not np.isclose(sent.of(secret=[1, 3]), noise).any()
    assert not np.isclose(sent.of(secret=[1, 2], task=1), noise).any()
    # The run's seed decides in which order examples are sent, and nothing of the noise.
    np.testing.assert_array_equal(sent.of(secret=[1, 2], key=[7, 9]), noise)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the secret is all zeros"):
        sent.of(secret=[0, 0])


def test_noise_of_a_test_follows_from_seeds():
    sent = Noise(seed=3)
    noise = sent.of()
    np.testing.assert_array_equal(sent.of(), noise)
    assert not np.isclose(sent.of(key=[7, 9]), noise).any()
    assert not np.isclose(Noise(seed=4).of(), noise).any()


def test_a_client_whose_weights_are_not_finite_sends_nothing_and_keeps_its_state():
    runner = rehearsing.Runner(rehearsing.work(sharing="stats"))
    train = _first(runner)
    train["stats"] = tf.where(tf.range(10)[:, None] == 3, float("nan"), train["stats"])
    update, weight, metrics = runner.train(train)
    assert metrics["non_finite"] == 1
    assert weight == 0
    assert len(update["rehearsal"]["label"]) == 0
    assert runner.state["offered"] == 0
    assert not np.any(update["weights"]["delta"])


def test_evaluation_stands_at_mu_and_counts_everything():
    runner = rehearsing.Runner(rehearsing.work())
    test = _first(runner, 700, seed=4)  # more than a batch
    sums = runner.work.evaluate({"task": tf.constant(0)}, runner.shared, {}, test)
    kernel = runner.shared.numpy()[: rehearsing.SIZE * rehearsing.CLASSES].reshape(rehearsing.SIZE, -1)
    logits = test["stats"].numpy()[:, : rehearsing.SIZE] @ kernel
    labels = test["label"].numpy()
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert sums["count"] == 700
    assert sums["correct"] == (logits.argmax(1) == labels).sum()
    np.testing.assert_allclose(sums["loss"], -np.log(chances[np.arange(700), labels]).sum(), rtol=1e-5)


def test_validation_stands_at_mu():
    runner = rehearsing.Runner(rehearsing.work(training=WHOLE))
    train = _first(runner)
    validation = runner.prepare(rehearsing.examples(50, seed=5))
    update, _, metrics = runner.train(train, validation)
    sums = runner.work.evaluate({}, runner.shared + update["delta"], {}, validation)
    np.testing.assert_allclose(metrics["validation_loss"], sums["loss"] / 50, rtol=1e-5)


def test_a_first_classifier_may_be_given():
    first = np.linspace(-1, 1, MLP(rehearsing.SIZE, rehearsing.CLASSES, ()).weights.size).astype(np.float32)
    np.testing.assert_array_equal(rehearsing.work(initial=first).initialize_shared(), first)
    drawn = [rehearsing.work(seed=seed).initialize_shared().numpy() for seed in (1, 1, 2)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


def test_what_does_not_fit_is_said():
    encoder = rehearsing.encoder()
    for bad, match in (
        (lambda: RehearsalModel(encoder, MLP(7, 2)), "classifier: takes 7 inputs, the encoder gives embeddings of 3"),
        (lambda: rehearsing.model(initial=np.zeros(3, "f")), r"initial: expected float32\[16\], all finite"),
        (lambda: rehearsing.model(memory_encoder=rehearsing.encoder(False)), "memory_encoder: gives 3 numbers"),
        (lambda: rehearsing.work(client_memory=-1), "client_memory: expected a number that is not negative, found -1"),
        (lambda: rehearsing.work(task_memory=-1), "task_memory: expected a number that is not negative"),
        (lambda: rehearsing.work(penalty=FedCurv(1.0)), "FedCurv has the server keep sums over clients"),
    ):
        with pytest.raises(errors.InputError, match=match):
            bad()


def test_ewc_holds_the_classifier_where_its_embeddings_say_that_it_matters():
    runner = rehearsing.Runner(rehearsing.work(False, training=WHOLE, client_memory=0, penalty=EWC(2.0)))
    assert {"ewc_fisher", "ewc_centre"} <= set(runner.work.state_type)
    task = _first(runner, 4, seed=1)
    runner.end(task)
    z, labels = np.asarray(task["stats"]), np.asarray(task["label"])
    weights = runner.shared.numpy()
    by_hand = np.mean(
        [np.square(rehearsing.softmax_gradient(weights, z[row : row + 1], labels[row : row + 1])) for row in range(4)],
        axis=0,
    )
    np.testing.assert_allclose(runner.state["ewc_fisher"], by_hand, rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(runner.state["ewc_centre"], weights)


WIDTH, CLASSES, RATE = 3, 4, 0.1


def linear():
    """Scores that are linear in all that is trained but for one hidden unit, which numpy knows."""
    tf.keras.utils.set_random_seed(1)
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input([WIDTH]), layers.Dense(2), layers.Dense(CLASSES)])
    return with_label_mask(Whole(KerasNetwork(model)), growing=True)


def scores(network, kernels, x):
    weights = {name: part.numpy().astype(float) for name, part in network.kernels.split(tf.constant(kernels)).items()}
    below, bias, head, offset = (weights[name] for name in sorted(weights))
    return (x @ below + bias) @ head + offset


def softmax(z):
    z = np.exp(z - z.max(axis=1, keepdims=True))
    return z / z.sum(axis=1, keepdims=True)


def training(small):
    sgd = tff.learning.optimizers.build_sgdm(1.0)
    return small.training(num_epochs=1, batch_size=64, learning_rate=RATE, optimizer=sgd, patience=0)


def data(known):
    rng = np.random.default_rng(3)
    context = {"classes": np.ones(CLASSES, bool), "known": np.array(known)}
    rows = {"features": rng.normal(size=(6, WIDTH)).astype("f"), "label": rng.integers(0, CLASSES, 6).astype(np.int32)}
    return tf.nest.map_structure(tf.constant, {"context": context, "train": rows, "validation": rows})


def begun(work, small, synthetic=None):
    runner = small.Runner(work)
    state = runner.start()
    if synthetic is not None:
        state["synthetic"] = synthetic
    return runner, runner.begin(state)


@pytest.mark.parametrize(("weight", "temperature"), [(1.0, 2.0), (3.0, 1.0)])
def test_a_step_adds_the_divergence_on_what_was_made_by_hand(small, weight, temperature):
    """One whole batch, and as many synthetic examples: the change against FedAvg's is the gradient of the term."""
    network, count = linear(), 5
    made = np.random.default_rng(4).normal(size=(count, WIDTH)).astype("f")
    work = SyntheticWork(
        network, training(small), input_form(network), count=count, weight=weight, temperature=temperature
    )
    runner, state = begun(work, small, made)
    np.testing.assert_allclose(state["synthetic_scores"], scores(network, runner.shared, made), rtol=1e-4, atol=1e-5)
    known = np.array([True, False, True, True])
    moved = runner.shared + 0.3 * np.random.default_rng(5).normal(size=runner.shared.shape).astype("f")
    _, update, _, metrics = runner.train(state, data(known), moved)
    plain = small.Runner(PlainWork(network, training(small)))
    _, free, _, alone = plain.train({name: state[name] for name in plain.work.state_type}, data(known), moved)
    assert metrics["loss"] == alone["loss"]  # of its own examples

    def term(kernels):
        p, q = (softmax(scores(network, each, made)[:, known] / temperature) for each in (runner.shared, kernels))
        return weight * temperature**2 * (p * np.log(p / q)).sum(axis=1).mean()

    at = moved.astype(np.float64)
    steps = 1e-3 * np.eye(len(at))
    slope = np.array([(term((at + e).astype("f")) - term((at - e).astype("f"))) / 2e-3 for e in steps])
    assert np.abs(slope).max() > 1e-2
    np.testing.assert_allclose(update["delta"] - free["delta"], -RATE * slope, rtol=2e-2, atol=2e-4)


@pytest.mark.parametrize("case", ["nothing was made", "no class was before"])
def test_without_a_past_a_round_is_that_of_fedavg(small, case):
    network = linear()
    made = np.ones([5, WIDTH], "f") if case == "no class was before" else np.zeros([5, WIDTH], "f")
    known = [False] * CLASSES if case == "no class was before" else [True] * CLASSES
    work = SyntheticWork(network, training(small), InputForm((WIDTH,)), count=5, weight=3.0)
    runner, state = begun(work, small, made)
    plain = small.Runner(PlainWork(network, training(small)))
    _, update, _, _ = runner.train(state, data(known), runner.shared + 1)
    _, free, _, _ = plain.train({name: state[name] for name in plain.work.state_type}, data(known), runner.shared + 1)
    np.testing.assert_array_equal(update["delta"], free["delta"])


def test_nothing_is_sent_but_what_fedavg_sends(small):
    network = linear()
    work = SyntheticWork(network, training(small), InputForm((WIDTH,)), count=5, weight=1.0)
    runner, state = begun(work, small)
    _, update, weight, _ = runner.train(state, data([True] * CLASSES))
    assert {name: value.shape for name, value in update.items()} == {
        "delta": (network.kernels.size,), "sent": (network.kernels.size,),
    }  # fmt: skip
    assert weight == 6
    assert runner.end(state, data([True] * CLASSES))[1].size == 0


def test_what_cannot_be_is_one_clear_error(small):
    network, form = linear(), InputForm((WIDTH,))
    for options in ({"count": 0}, {"weight": 0.0}, {"temperature": 0.0}, {"weight": -1.0}):
        with pytest.raises(errors.InputError, match=next(iter(options))):
            SyntheticWork(network, training(small), form, **{"count": 5, "weight": 1.0, **options})
    with pytest.raises(errors.InputError, match="which classes came before"):
        SyntheticWork(Whole(network.inner), training(small), form, count=5, weight=1.0)
