"""The client of Federated Orthogonal Training: its sums against numpy, when they are sent, and what they can hold."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from loading import module_at

from tffcl import errors
from tffcl.client_works import FedCurv, OrthogonalWork, PlainWork
from tffcl.models import AlignedTextCNN
from tffcl.templates.messages import leaves

world = module_at(pathlib.Path(__file__).with_name("orthogonal_world.py"))


@pytest.fixture(name="work", scope="module")
def _work(small):
    return OrthogonalWork(world.network(), small.training(), seed=2)


def data(small, count, seed=0):
    examples = small.tensors(world.examples(count, seed))
    return {"context": small.tensors(world.context()), "train": examples, "validation": examples}


@pytest.fixture(name="client", scope="module")
def _client(work, small):
    """(state in its first task, a function that trains a round)."""
    shared = work.initialize_shared()
    state = work.initialize_client(shared, work.initialize_plan(), tf.constant([1, 2]))
    run = small.compiled(work)

    def train(state, data, number=0):
        reads = {name: state[name] for name in work.train_reads}
        changed, update, weight, metrics = run(reads, shared, data, tf.constant(number))
        return {**state, **changed}, update, float(weight), metrics

    return work.begin_task(state, shared, tf.zeros([0, 0])), train


def expected(shared, features):
    hidden, _ = world.forward(shared, features)
    return np.concatenate([world.triangle(world.with_one(rows)) for rows in (features.astype(float), hidden)])


@pytest.mark.parametrize("count", [0, 1, 33, 70])
def test_the_sums_are_those_of_each_layers_inputs_and_of_a_one(work, small, count):
    shared = work.initialize_shared() + 0.1
    one = data(small, count)
    found = work.gram(shared, tf.zeros([0]), one["context"], one["train"])
    np.testing.assert_allclose(found, expected(shared.numpy(), one["train"]["features"].numpy()), rtol=1e-4, atol=1e-4)


def test_a_bias_that_is_a_clients_own_is_not_among_them(small):
    work = OrthogonalWork(world.network(whole=False), small.training())
    assert [(layer.name, layer.size, layer.bias) for layer in work.layers] == [("0_below_kernel", world.INPUTS, None)]
    features = world.examples(5)["features"]
    local = work.network.initial_local(None)
    found = work.gram(work.initialize_shared(), local, {}, small.tensors(world.examples(5)))
    np.testing.assert_allclose(found, world.triangle(features.astype(float)), rtol=1e-4, atol=1e-4)


def test_they_are_sent_once_with_the_first_round_in_which_the_client_takes_part_again(work, small, client):
    state, train = client
    first, second, nothing = data(small, 9), data(small, 7, seed=1), data(small, 0)
    state, update, _, metrics = train(state, first)
    assert not np.any(update["gram"])
    assert metrics["extra_bytes"] == 0
    shared = work.initialize_shared()
    ended, _ = work.end_task(state, shared, first)
    wanted = expected(shared.numpy(), first["train"]["features"].numpy())
    began = work.begin_task(ended, shared, tf.zeros([0, 0]))
    away, update, weight, metrics = train(began, nothing)  # it has no examples in this round
    assert weight == 0
    assert not np.any(update["gram"])
    np.testing.assert_array_equal(away["gram"], began["gram"])
    back, update, _, metrics = train(away, second, 1)
    np.testing.assert_allclose(update["gram"], wanted, rtol=1e-4, atol=1e-4)
    assert metrics["extra_bytes"] == 4 * work.gram_size
    _, update, _, metrics = train(back, second, 2)
    assert not np.any(update["gram"])
    assert metrics["extra_bytes"] == 0


def test_those_of_a_task_without_any_round_wait_and_add_up(work, small, client):
    state, train = client
    shared, tasks = work.initialize_shared(), [data(small, count, seed=count) for count in (4, 6)]
    for task in tasks:
        state, _ = work.end_task(state, shared, task)
        state = work.begin_task(state, shared, tf.zeros([0, 0]))
    assert state["gram"].shape == (1, work.gram_size)
    _, update, _, _ = train(state, tasks[0])
    wanted = sum(expected(shared.numpy(), task["train"]["features"].numpy()) for task in tasks)
    np.testing.assert_allclose(update["gram"], wanted, rtol=1e-4, atol=1e-4)


def test_without_sums_to_send_it_trains_and_sends_what_fedavgs_client_does(work, small, client):
    state, train = client
    plain = PlainWork(world.network(), small.training(), seed=2)
    one = data(small, 9)
    reads = {name: state[name] for name in plain.train_reads}
    changed, update, weight, _ = small.compiled(plain)(reads, plain.initialize_shared(), one, tf.constant(0))
    after, own, own_weight, _ = train(state, one)
    for name, value in update.items():
        np.testing.assert_array_equal(own["weights"][name], value)
    for name, value in changed.items():
        np.testing.assert_array_equal(after[name], value)
    assert own_weight == weight


def test_no_type_of_what_is_sent_grows_with_the_examples(small, client):
    """What leaves a client is as large for one example as for many; no example's row is among it."""
    state, train = client
    sizes = []
    for count in (1, 50):
        _, update, _, metrics = train(state, data(small, count))
        sizes.append({path: np.shape(value) for path, value in leaves({**update, "metrics": dict(metrics)})})
    assert sizes[0] == sizes[1]
    vectors = {path for path, shape in sizes[0].items() if len(shape)}
    assert vectors == {"weights/delta", "weights/sent", "gram"}


def test_what_is_not_finite_is_not_kept(work, small, client):
    state, _ = client
    one = data(small, 3)
    one["train"] = dict(one["train"], features=one["train"]["features"] * np.nan)
    ended, _ = work.end_task(state, work.initialize_shared(), one)
    assert not np.any(ended["gram"])


def test_what_it_does_not_take_is_said_in_a_line(small):
    with pytest.raises(errors.InputError, match="does not show what its layers multiply; take a KerasNetwork"):
        OrthogonalWork(AlignedTextCNN(small.config(), 0), small.training())
    with pytest.raises(errors.InputError, match="FedCurv has the server keep sums over clients"):
        OrthogonalWork(world.network(), small.training(), penalty=FedCurv(1.0))
