"""TARGET's client: what it adds to a step, in numpy."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works import PlainWork, SyntheticWork
from tffcl.models import InputForm, KerasNetwork, Whole, input_form, with_label_mask

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
