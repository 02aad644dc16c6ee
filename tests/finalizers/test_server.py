"""Server-side training against gradient descent in numpy."""

from __future__ import annotations

import functools
from collections import OrderedDict

import numpy as np
import pytest
import rehearsing
import tensorflow_federated as tff

from tffcl import errors, runtime
from tffcl.client_works import Sharing
from tffcl.finalizers import ServerSideTraining, build_server_side_training, build_server_update
from tffcl.models import MLP

CLASSIFIER = MLP(rehearsing.SIZE, rehearsing.CLASSES, ())
SGD = tff.learning.optimizers.build_sgdm(0.5)
SHARED = np.linspace(-1, 1, CLASSIFIER.weights.size).astype(np.float32)
DELTA = np.linspace(0.1, 0.2, CLASSIFIER.weights.size).astype(np.float32)


@pytest.fixture(autouse=True, scope="module")
def _in_process():
    with runtime.in_process():
        yield


@functools.cache
def _finalizer(kind="sampled", seed=0, label_mask=False, **options):
    """One that several tests use: it keeps nothing between calls."""
    settings = {"steps": 3, "learning_rate": 0.5, "batch_size": 1000, "memory": 20, "optimizer": SGD, **options}
    sharing = Sharing(rehearsing.encoder(kind != "embeddings").encoder, kind)
    inner = build_server_update(tff.TensorType(np.float32, SHARED.shape))
    return build_server_side_training(inner, CLASSIFIER, sharing, ServerSideTraining(**settings), seed, label_mask)


def _rows(count, seed=0, task=0, width=rehearsing.SIZE):
    rng = np.random.default_rng(seed)
    return OrderedDict(
        vectors=rng.normal(size=(count, width)).astype(np.float32),
        label=rng.integers(0, rehearsing.CLASSES, count).astype(np.int32),
        task=np.full(count, task, np.int32),
        priority=rng.integers(-(2**31), 2**31, count).astype(np.int32),
    )


def _next(finalizer, state, rows, shared=SHARED, delta=DELTA):
    return finalizer.next(state, shared, OrderedDict(weights=delta, rehearsal=rows))


@pytest.mark.parametrize("steps", [1, 5])
def test_the_aggregate_then_as_many_steps_on_all_that_was_sent(steps):
    finalizer = _finalizer(steps=steps)
    first, second = _rows(7), _rows(6, seed=1, task=1)
    output = _next(finalizer, finalizer.initialize(), first)
    weights, losses = (SHARED + DELTA).astype(np.float64), []
    for _ in range(steps):
        losses.append(_loss(weights, first))
        weights -= 0.5 * rehearsing.softmax_gradient(weights, first["vectors"], first["label"])
    np.testing.assert_allclose(output.result, weights, atol=1e-5)
    np.testing.assert_allclose(output.measurements["rehearsal"]["loss"], np.mean(losses), rtol=1e-4)
    # The next round rehearses on what was saved and on what has newly come (section 3.3).
    output = _next(finalizer, output.state, second, shared=output.result)
    both = {name: np.concatenate([first[name], second[name]]) for name in first}
    weights = weights + DELTA
    for _ in range(steps):
        weights -= 0.5 * rehearsing.softmax_gradient(weights, both["vectors"], both["label"])
    np.testing.assert_allclose(output.result, weights, atol=1e-5)
    assert output.measurements["rehearsal"]["rows"] == 13


def _loss(weights, rows):
    kernel = weights[: rehearsing.SIZE * rehearsing.CLASSES].reshape(rehearsing.SIZE, -1)
    logits = rows["vectors"] @ kernel + weights[rehearsing.SIZE * rehearsing.CLASSES :]
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return -np.log(chances[np.arange(len(logits)), rows["label"]]).mean()


def test_with_a_label_mask_only_labels_in_memory_compete():
    finalizer, rows = _finalizer(label_mask=True), _rows(7)
    rows["label"] = np.resize([3, 1], 7).astype(np.int32)
    output = _next(finalizer, finalizer.initialize(), rows)
    weights = (SHARED + DELTA).astype(np.float64)
    for _ in range(3):
        weights -= 0.5 * rehearsing.softmax_gradient(weights, rows["vectors"], rows["label"], [1, 3])
    np.testing.assert_allclose(output.result, weights, atol=1e-5)


def test_each_pass_takes_every_row_once():
    """Steps of a small rate follow the sum over batches: one pass over 10 rows in batches of 4 is 4 + 4 + 2."""
    rate = 1e-3
    finalizer = _finalizer(steps=3, batch_size=4, learning_rate=rate, memory=100)
    rows = _rows(10)
    moved = _next(finalizer, finalizer.initialize(), rows).result - (SHARED + DELTA)
    # To first order in the rate the last batch of 2 counts its rows twice as much as the batches of 4.
    singles = np.stack(
        [rehearsing.softmax_gradient(SHARED + DELTA, rows["vectors"][[i]], rows["label"][[i]]) for i in range(10)]
    )
    shares = np.linalg.lstsq(singles.T, -moved / rate, rcond=None)[0]
    np.testing.assert_allclose(np.sort(shares), [0.25] * 8 + [0.5] * 2, atol=0.02)


def test_the_memory_stays_of_one_size_and_fair():
    finalizer = _finalizer()
    state = finalizer.initialize()
    for task in range(3):
        for round_num in range(3):
            state = _next(finalizer, state, _rows(30, (task, round_num), task)).state
            memory = state["memory"]
            assert len(memory["label"]) == 20
        tasks, counts = np.unique(memory["task"], return_counts=True)
        np.testing.assert_array_equal(tasks, np.arange(task + 1))
        assert np.ptp(counts) <= rehearsing.CLASSES


def test_an_empty_memory_leaves_the_aggregate():
    finalizer = _finalizer()
    output = _next(finalizer, finalizer.initialize(), _rows(0))
    np.testing.assert_array_equal(output.result, SHARED + DELTA)
    assert output.measurements["rehearsal"]["loss"] == 0


def test_what_diverges_is_not_taken():
    finalizer = _finalizer()
    rows = _rows(5)
    rows["vectors"][2] = np.nan
    output = _next(finalizer, finalizer.initialize(), rows)
    np.testing.assert_array_equal(output.result, SHARED + DELTA)
    assert output.measurements["rehearsal"]["rejected"] == 1


def test_statistics_are_sampled_at_each_use_and_samples_are_not():
    rows = _rows(6, width=2 * rehearsing.SIZE)
    rows["vectors"][:, rehearsing.SIZE :] = -0.5
    results = {}
    for kind in ("stats", "sampled"):
        finalizer = _finalizer(kind) if kind == "stats" else _finalizer()
        given = rows if kind == "stats" else OrderedDict(rows, vectors=rows["vectors"][:, : rehearsing.SIZE].copy())
        first = _next(finalizer, finalizer.initialize(), given)
        none = OrderedDict((name, value[:0]) for name, value in given.items())
        again = _next(finalizer, first.state, none)  # another round, the same rows and weights
        results[kind] = first.result, again.result
    assert not np.allclose(*results["stats"], atol=1e-3)
    np.testing.assert_allclose(*results["sampled"], atol=1e-6)
    # The samples have the posterior's mean: what is learned from them is alike.
    assert np.corrcoef(results["stats"][0], results["sampled"][0])[0, 1] > 0.9


def test_the_seed_decides_the_order():
    rows = _rows(10)
    found = []
    for seed in (1, 1, 2):
        finalizer = _finalizer(batch_size=2, seed=seed)
        found.append(_next(finalizer, finalizer.initialize(), rows).result)
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_adam_is_the_default_optimizer():
    finalizer = _finalizer(optimizer=None, steps=1, learning_rate=0.01)
    rows = _rows(9)
    moved = _next(finalizer, finalizer.initialize(), rows).result - (SHARED + DELTA)
    gradient = rehearsing.softmax_gradient(SHARED + DELTA, rows["vectors"], rows["label"])
    np.testing.assert_allclose(moved, -0.01 * np.sign(gradient), atol=1e-4)  # Adam's first step


def test_what_does_not_fit_is_said():
    for options, match in (
        ({"steps": 0}, "steps must be a whole number, 1 or more; got 0"),
        ({"memory": 0}, "memory must be a whole number"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"learning_rate": 0.0}, "learning_rate: expected a number above 0"),
    ):
        with pytest.raises(errors.InputError, match=match):
            ServerSideTraining(**options)
    with pytest.raises(errors.InputError, match="needs a sharing"):
        _finalizer("none")
    other = build_server_update(tff.TensorType(np.float32, [3]))
    with pytest.raises(errors.ContractError, match="inner finalizer is of"):
        build_server_side_training(other, CLASSIFIER, Sharing(rehearsing.encoder().encoder))


# -- server update -----------------------------------------------------------------------------------------------------


pytestmark = pytest.mark.usefixtures("tff_context")


def run(finalizer, shared, *aggregates):
    state = finalizer.initialize()
    for aggregate in aggregates:
        output = finalizer.next(state, shared, np.array(aggregate, np.float32))
        state, shared = output.state, output.result
    return shared, output


def test_default_adds_the_aggregate_and_keeps_every_bit_where_it_is_zero():
    shared = np.array([1.0, -7e-9, 0.0, 1e-30, 3.0, np.float32(0.1)], np.float32)
    aggregate = [0.0, 0.0, -0.0, 0.0, -0.5, np.float32(0.2)]
    finalizer = build_server_update(tff.TensorType(np.float32, [6]))
    result, output = run(finalizer, shared, aggregate)
    assert result[:4].tobytes() == shared[:4].tobytes()
    np.testing.assert_array_equal(result, shared + np.array(aggregate, np.float32))
    np.testing.assert_allclose(output.measurements["update_norm"], np.hypot(0.5, 0.2), rtol=1e-6)
    assert output.measurements["rejected"] == 0


def test_another_optimizer_steps_along_the_aggregate():
    rate, beta_1, beta_2, epsilon = 0.1, 0.9, 0.99, 1e-3
    optimizer = tff.learning.optimizers.build_adam(rate, beta_1, beta_2, epsilon)
    aggregates = np.array([[1.0, -2.0], [0.5, 3.0], [0.0, 1.0]], np.float32)
    finalizer = build_server_update(tff.TensorType(np.float32, [2]), optimizer)
    result, _ = run(finalizer, np.zeros(2, np.float32), *aggregates)
    first, second, expected = np.zeros(2), np.zeros(2), np.zeros(2)
    for step, gradient in enumerate(-aggregates.astype(np.float64), 1):
        first = beta_1 * first + (1 - beta_1) * gradient
        second = beta_2 * second + (1 - beta_2) * gradient**2
        scale = np.sqrt(1 - beta_2**step) / (1 - beta_1**step)
        expected -= rate * scale * first / (np.sqrt(second) + epsilon)
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_an_aggregate_that_is_not_finite_changes_nothing_and_is_reported():
    optimizer = tff.learning.optimizers.build_sgdm(0.5, momentum=0.9)
    finalizer = build_server_update(tff.TensorType(np.float32, [2]), optimizer)
    shared = np.array([1.0, 2.0], np.float32)
    spoiled, output = run(finalizer, shared, [1.0, 1.0], [np.nan, 1.0])
    clean, _ = run(finalizer, shared, [1.0, 1.0])
    np.testing.assert_array_equal(spoiled, clean)
    assert output.measurements["rejected"] == 1
    assert output.measurements["update_norm"] == 0.0
    after_spoiled, _ = run(finalizer, shared, [1.0, 1.0], [np.nan, 1.0], [1.0, 0.0])
    after_clean, _ = run(finalizer, shared, [1.0, 1.0], [1.0, 0.0])
    np.testing.assert_array_equal(after_spoiled, after_clean)


def test_an_optimizer_may_be_kept_to_the_first_entries():
    optimizer = tff.learning.optimizers.build_adam(0.1)
    aggregates = [[0.3, -0.2, 5.0], [0.1, 0.4, -2.0]]
    whole = build_server_update(tff.TensorType(np.float32, [3]), optimizer, optimized=2)
    result, output = run(whole, np.array([1.0, 2.0, 7.0], np.float32), *aggregates)
    part = build_server_update(tff.TensorType(np.float32, [2]), optimizer)
    expected, alone = run(part, np.array([1.0, 2.0], np.float32), *[a[:2] for a in aggregates])
    np.testing.assert_array_equal(result, [*expected, 10.0])
    assert output.measurements == alone.measurements
    _, output = run(whole, result, [np.nan, 0.0, 1.0])
    np.testing.assert_array_equal(output.result, result)
    with pytest.raises(errors.ContractError, match="a vector of 4 entries or more"):
        build_server_update(tff.TensorType(np.float32, [3]), optimizer, optimized=4)


@pytest.mark.parametrize("wrong", [tff.TensorType(np.int32, [2]), tff.TensorType(np.float32, [None])])
def test_another_shared_type_is_one_clear_error(wrong):
    with pytest.raises(errors.ContractError, match="server update: shared_type should be a float32 tensor"):
        build_server_update(wrong)
