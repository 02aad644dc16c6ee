"""GLFC's class-aware gradient compensation, one example after the other."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_works import CompensatedWork, PlainWork, compensated
from tffcl.models import Whole, with_label_mask

RATE = 0.1


def by_hand(losses, old):
    """Eq. 2 to 4, in loops."""
    gradients = [abs(np.exp(-loss) - 1) for loss in losses]
    means = {kind: np.mean([g for g, of in zip(gradients, old) if of == kind] or [0.0]) for kind in (True, False)}
    return [loss * g / means[bool(of)] if g else 0.0 for loss, g, of in zip(losses, gradients, old)]


@pytest.mark.parametrize("old", [[True, False, True, False, False], [False] * 5, [True] * 5])
def test_the_loss_by_hand(old):
    losses = np.array([0.1, 2.0, 0.7, 3.0, 0.02])
    found = compensated(tf.constant(losses, tf.float32), tf.constant(old))
    np.testing.assert_allclose(found, by_hand(losses, old), rtol=1e-5)


def test_an_example_without_any_loss_counts_for_nothing_and_weights_have_no_gradient():
    losses = tf.constant([0.0, 0.0, 1.5])
    with tf.GradientTape() as tape:
        tape.watch(losses)
        total = tf.reduce_sum(compensated(losses, tf.constant([True, True, False])))
    np.testing.assert_allclose(total, 1.5)
    np.testing.assert_allclose(tape.gradient(total, losses), [0.0, 0.0, 1.0])
    equal = tf.fill([4], 0.8)
    np.testing.assert_allclose(compensated(equal, tf.constant([True, False, False, True])), equal, rtol=1e-6)


def runner_of(small, kind):
    sgd = tff.learning.optimizers.build_sgdm(1.0)
    training = small.training(num_epochs=1, batch_size=64, learning_rate=RATE, optimizer=sgd, patience=0)
    return small.Runner(kind(with_label_mask(Whole(small.network(places=0)), growing=True), training, seed=3))


def test_a_step_of_a_client_is_along_the_weighted_gradient(small):
    """One whole batch: the sum over examples of the weight times the example's own step."""
    runner, plain = runner_of(small, CompensatedWork), runner_of(small, PlainWork)
    words = {**small.context(), "classes": np.ones(small.CLASSES, bool), "known": np.arange(small.CLASSES) < 1}
    data = runner.data(7, words=words)
    state = runner.begin(runner.start())
    kernels = runner.shared + 0.3 * np.random.default_rng(0).normal(size=runner.shared.shape).astype("f")
    _, update, _, metrics = runner.train(state, data, kernels)
    own, steps, losses = {n: state[n] for n in plain.work.state_type}, [], []
    for row in range(7):
        one = {**data, "train": {name: values[row : row + 1] for name, values in data["train"].items()}}
        _, alone, _, said = plain.train(own, one, kernels)
        steps.append(alone["delta"])
        losses.append(float(said["loss"]))
    np.testing.assert_allclose(metrics["loss"], np.mean(losses), rtol=1e-5)
    labels = data["train"]["label"].numpy()
    assert 0 < (labels < 1).sum() < 7
    weights = np.array(by_hand(losses, labels < 1)) / losses
    np.testing.assert_allclose(update["delta"], weights @ np.array(steps) / 7, rtol=1e-3, atol=1e-6)
