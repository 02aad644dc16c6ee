"""What the server makes at the end of a task: the generator's loss in numpy, and what is made."""

from __future__ import annotations

import numpy as np
import pytest
import small
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import runtime
from tffcl.errors import ContractError, InputError
from tffcl.finalizers import Synthesis, build_server_update, build_synthesis, generator_loss
from tffcl.models import Generator, KerasNetwork, Whole, input_form, with_label_mask

CLASSES, WIDTH = 4, 3


def log_softmax(scores):
    scores = np.asarray(scores, float)
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("adversarial", [0.0, 1.0, 2.5])
def test_the_generators_loss_by_hand(adversarial):
    rng = np.random.default_rng(0)
    teacher, student = (3 * rng.normal(size=(9, 5)).astype("f") for _ in range(2))
    student[:3] = teacher[:3] + 0.1  # these agree
    labels = rng.integers(0, 5, 9).astype(np.int32)
    log_t, log_s = log_softmax(teacher), log_softmax(student)
    fits = -log_t[np.arange(9), labels].mean()
    differ = teacher.argmax(1) != student.argmax(1)
    assert 0 < differ.sum() < 9
    apart = (np.exp(log_t) * (log_t - log_s)).sum(1)
    expected = fits - adversarial * (differ * apart).mean()
    np.testing.assert_allclose(generator_loss(teacher, student, labels, adversarial), expected, rtol=1e-5)


def test_classes_that_do_not_compete_count_for_nothing_in_the_loss():
    rng = np.random.default_rng(1)
    teacher, student = (rng.normal(size=(6, 3)).astype("f") for _ in range(2))
    labels = rng.integers(0, 3, 6).astype(np.int32)
    wider = [np.concatenate([z, np.full((6, 2), -1e9, "f")], 1) for z in (teacher, student)]
    np.testing.assert_allclose(
        generator_loss(*wider, labels, 1.0), generator_loss(teacher, student, labels, 1.0), rtol=1e-5
    )


@pytest.fixture(name="network", scope="module")
def _network():
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input([WIDTH]), layers.Dense(5, "tanh"), layers.Dense(CLASSES)])
    return with_label_mask(Whole(KerasNetwork(model)), growing=True)


@pytest.fixture(name="kernels", scope="module")
def _kernels(network):
    return np.random.default_rng(2).normal(size=network.kernels.size).astype("f")


def build(network, seed=0, **options):
    inner = build_server_update(tff.TensorType(np.float32, [network.kernels.size]))
    how = Synthesis(**{"count": 10, "steps": 40, "batch_size": 16, **options})
    return build_synthesis(inner, network, Generator(input_form(network), CLASSES, 2, 4), how, seed)


@pytest.fixture(name="made", scope="module")
def _made(network, kernels):
    with runtime.in_process():
        finalizer = build(network)
        first = finalizer.initialize()
        seen = np.array([True, False, True, False])
        ended, measured = finalizer.end_task(first, kernels, seen)
        yield finalizer, first, ended, measured


def test_the_model_says_of_what_was_made_the_class_that_was_asked_for(network, kernels, made):
    _, first, ended, measured = made
    assert not first["synthetic"].any()
    assert ended["tasks"] == 1
    x = ended["synthetic"]
    logits = network.logits(kernels, tf.zeros([0]), tf.zeros([0, 1]), {}, {"features": x}, None).numpy()
    told = np.array([0, 2])[logits[:, [0, 2]].argmax(1)]
    asked = np.array([0, 2] * 5)  # every class so far as often as the other
    assert measured["agreement"] == pytest.approx((told == asked).mean())
    assert measured["agreement"] > 0.7
    assert (measured["rejected"], np.isfinite(measured["loss"])) == (0, True)
    assert len(np.unique(x.round(4), axis=0)) == 10


def test_what_is_made_depends_on_seed_model_and_task_alone(network, kernels, made):
    finalizer, first, ended, _ = made
    seen = np.array([True, False, True, False])
    again, _ = finalizer.end_task(first, kernels, seen)
    np.testing.assert_array_equal(again["synthetic"], ended["synthetic"])
    for other in (
        finalizer.end_task(ended, kernels, seen)[0],
        finalizer.end_task(first, kernels + 0.5, seen)[0],
        build(network, seed=1).end_task(first, kernels, seen)[0],
    ):
        assert not np.allclose(other["synthetic"], ended["synthetic"])


def test_what_would_not_be_finite_is_not_taken(kernels, made):
    finalizer, _, ended, _ = made
    kept, measured = finalizer.end_task(ended, np.full_like(kernels, np.nan), np.ones(CLASSES, bool))
    assert measured["rejected"] == 1
    np.testing.assert_array_equal(kept["synthetic"], ended["synthetic"])


def test_a_round_is_that_of_the_inner_finalizer(kernels, made):
    finalizer, _, ended, _ = made
    delta = np.linspace(0, 1, kernels.size).astype("f")
    inner = build_server_update(tff.TensorType(np.float32, [kernels.size]))
    output, alone = (
        each.next(state, kernels, delta) for each, state in ((finalizer, ended), (inner, inner.initialize()))
    )
    np.testing.assert_array_equal(output.result, alone.result)
    np.testing.assert_array_equal(output.state["synthetic"], ended["synthetic"])
    assert output.measurements == alone.measurements


def test_documents_are_made_too():
    network = with_label_mask(Whole(small.network(places=0)), growing=True)
    inner = build_server_update(tff.TensorType(np.float32, [network.kernels.size]))
    form = input_form(network, 4)
    how = Synthesis(count=6, steps=3, batch_size=4)
    with runtime.in_process():
        finalizer = build_synthesis(inner, network, Generator(form, small.CLASSES, 2, 3), how)
        kernels = network.initial_kernels(tf.constant([1, 2])).numpy()
        ended, _ = finalizer.end_task(finalizer.initialize(), kernels, np.ones(small.CLASSES, bool))
    assert ended["synthetic"].shape == (6, 4, small.D)
    assert ended["synthetic"].any()


def test_parts_that_do_not_fit_are_one_clear_error(network):
    generator = Generator(input_form(network), CLASSES, 2, 4)
    with pytest.raises(ContractError, match="inner finalizer is of"):
        build_synthesis(build_server_update(tff.TensorType(np.float32, [3])), network, generator, Synthesis())
    inner = build_server_update(tff.TensorType(np.float32, [network.kernels.size]))
    with pytest.raises(InputError, match=r"take tffcl\.models\.Whole"):
        build_synthesis(inner, network.inner, generator, Synthesis())
    for options in ({"count": 0}, {"steps": 0}, {"temperature": 0.0}, {"adversarial": -1.0}):
        with pytest.raises(InputError, match=next(iter(options))):
            Synthesis(**options)
