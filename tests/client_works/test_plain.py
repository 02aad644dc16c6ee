"""The plain client work against hand computation: FedAvg and FedProx, and GLFC's gradient compensation in loops."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors, runtime
from tffcl.client_works import CompensatedWork, Phase, PlainWork, Proximal, compensated
from tffcl.models import Whole, with_label_mask


@pytest.fixture(name="runner", scope="module")
def _runner(small):
    return small.Runner(PlainWork(small.network(places=0), small.training(num_epochs=1, batch_size=64), seed=3))


def test_one_step_moves_kernels_and_local_parts(small, runner):
    state = runner.begin(runner.start())
    after, update, weight, metrics = runner.train(state, runner.data(12))
    assert update["sent"].all()
    assert weight == 12
    assert metrics["sent"] == runner.work.network.kernels.size
    layout = runner.work.network.kernels
    assert all(np.abs(part).max() > 0 for part in layout.split(update["delta"]).values())
    before, now = (runner.work.network.local.split(s["local"]) for s in (state, after))
    assert all((before[name].numpy() != now[name].numpy()).any() for name in before)


def test_gradient_steps_by_hand(small):
    """Two full-batch SGD steps with FedProx against numeric gradients of the objective in numpy."""
    mu, rate = 3.0, 0.1
    training = small.training(
        num_epochs=2, batch_size=64, learning_rate=rate, optimizer=tff.learning.optimizers.build_sgdm(9.0)
    )
    runner = small.Runner(PlainWork(small.network(places=0), training, penalty=Proximal(mu)))
    state, batch, vectors = runner.begin(runner.start()), small.examples(3), small.context()["vectors"]

    def loss(base, local):
        parts = {k: v.numpy() for k, v in runner.work.network.local.split(tf.constant(local.astype("f"))).items()}
        scores = small.logits(base, parts, None, (), small.documents(batch), vectors, aligned=False)
        return small.cross_entropies(scores, batch["label"]).mean()

    base, local = runner.shared.astype(float), state["local"].astype(float)
    after, update, _, _ = runner.train(state, runner.data(3, held_out=0))
    for _ in range(2):
        gradient = np.array(
            [(loss(base + 1e-5 * e, local) - loss(base - 1e-5 * e, local)) / 2e-5 for e in np.eye(len(base))]
        )
        base_new = base - rate * (gradient + mu * (base - runner.shared))
        slope = np.array(
            [(loss(base, local + 1e-3 * e) - loss(base, local - 1e-3 * e)) / 2e-3 for e in np.eye(len(local))]
        )
        base, local = base_new, local - rate * slope
    np.testing.assert_allclose(update["delta"], base - runner.shared, atol=1e-4)
    np.testing.assert_allclose(after["local"], local, atol=1e-4)


def test_old_tasks_are_evaluated_with_the_newest_kernels(small, runner):
    state, data = runner.begin(runner.start()), runner.data()
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, *state["local"].shape)).astype("f")
    state, knowledge = runner.end({**state, "local": first}, data)
    assert knowledge.shape == (0,)
    state = {**runner.begin(state), "local": second}
    newest, batch = rng.normal(size=runner.shared.shape).astype("f"), small.examples(4, seed=100)
    for task, local in enumerate((first, second)):
        parts = {k: v.numpy() for k, v in runner.work.network.local.split(tf.constant(local)).items()}
        scores = small.logits(newest, parts, None, (), small.documents(batch), small.context()["vectors"], False)
        found = runner.evaluate(state, task, data, shared=newest)
        np.testing.assert_allclose(found["loss"], small.cross_entropies(scores, batch["label"]).sum(), rtol=1e-4)
        assert found["correct"] == (scores.argmax(1) == batch["label"]).sum()


def test_local_parameters_that_are_kept_go_on_and_serve_all_tasks(small):
    runner = small.Runner(PlainWork(small.network(places=0), small.training(num_epochs=1), keep_local=True))
    state, data = runner.begin(runner.start()), runner.data()
    state, *_ = runner.train(state, data)
    learned = np.array(state["local"])
    state, _ = runner.end(state, data)
    state = runner.begin(state)
    np.testing.assert_array_equal(state["local"], learned)
    assert learned.any()
    state, *_ = runner.train(state, data)
    for task in (0, 1):
        np.testing.assert_array_equal(runner.work.task_view(state, task)["local"], state["local"])


def test_a_client_without_examples_is_left_out(runner):
    state = runner.begin(runner.start())
    after, update, weight, metrics = runner.train(state, runner.data(0, held_out=0))
    for name, value in state.items():
        np.testing.assert_array_equal(after[name], value)
    assert weight == 0
    assert not update["sent"].any()
    assert not update["delta"].any()
    assert metrics["examples"] == metrics["sent"] == metrics["non_finite"] == 0


def test_a_client_with_nan_in_its_vectors_is_left_out(small, runner):
    words = small.context()
    words["vectors"][3:5] = np.nan
    state = runner.begin(runner.start())
    after, update, weight, metrics = runner.train(state, runner.data(words=words))
    assert metrics["non_finite"] == 1
    np.testing.assert_array_equal(after["local"], state["local"])
    assert weight == 0
    assert not update["delta"].any()


def test_wrong_networks_and_weights(small):
    with pytest.raises(errors.InputError, match="no places for foreign adaptives, found 2"):
        PlainWork(small.network(places=2), small.training())
    with pytest.raises(errors.InputError, match="weight"):
        Proximal(-1.0)


def test_phases_train_one_part_after_the_other_as_fedrep_does(small):
    """First the head with the body as it came, then the body with that head."""
    sgd = tff.learning.optimizers.build_sgdm(1.0)
    training = small.training(num_epochs=1, batch_size=64, learning_rate=0.1, optimizer=sgd, patience=0)
    phases = (Phase(("local",), num_epochs=3), Phase(("base",)))
    runner = small.Runner(PlainWork(small.network(places=0), training, phases=phases))
    state, data = runner.begin(runner.start()), runner.data(6)
    after, update, _, metrics = runner.train(state, data)
    network, base, local = runner.work.network, tf.constant(runner.shared), tf.constant(state["local"])

    def slope(of):
        with tf.GradientTape() as tape:
            tape.watch([base, local])
            parts = (tf.zeros(network.attention_shape), data["context"], data["train"], None)
            loss = tf.reduce_mean(network.losses(base, local, *parts))
        return tape.gradient(loss, of)

    for _ in range(3):
        local -= 0.1 * slope(local)
    moved = -0.1 * slope(base)
    np.testing.assert_allclose(after["local"], local, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(update["delta"], moved, rtol=1e-3, atol=1e-6)
    assert metrics["epochs"] == 4


def test_a_head_that_goes_on_begins_as_the_network_says_inside_a_tff_computation_too(small):
    """In a graph of TFF's `==` compares objects, not values."""
    work = PlainWork(small.network(places=0), small.training(), seed=3, keep_local=True)
    state = tff.to_type(work.state_type)

    @tff.tensorflow.computation(state, work.shared_type)
    def begin(state, shared):
        return work.begin_task(state, shared, tf.zeros([0, 0]))["local"]

    shared = work.initialize_shared()
    first = small.numpy(work.initialize_client(shared, work.initialize_plan(), tf.constant([1, 2])))
    wanted = work.begin_task(small.tensors(first), shared, tf.zeros([0, 0]))["local"].numpy()
    assert wanted.any()
    with runtime.in_process():
        np.testing.assert_array_equal(begin(first, shared.numpy()), wanted)
        later = dict(first, task=np.int32(0), local=wanted + 1)
        np.testing.assert_array_equal(begin(later, shared.numpy()), wanted + 1)


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
