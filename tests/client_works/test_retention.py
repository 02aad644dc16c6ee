"""Retention: the closed form against brute force, the penalty against numpy."""

import numpy as np
import pytest
import tensorflow as tf

import tffcl
from tffcl import errors
from tffcl.client_works import Decomposition
from tffcl.client_works.decomposed import drift, solved_adaptives
from tffcl.client_works.options import RETENTION_FORMS
from tffcl.layers.kernels import KernelLayout

LAYOUT = KernelLayout((("one", (2, 2)), ("two", (1, 3))))  # 4 + 3 entries, 2 + 3 units


@pytest.fixture(name="past")
def _past():
    """base, mask logits, adaptives and references of two tasks."""
    rng = np.random.default_rng(5)
    shapes = ([7], [2, 5], [2, 7], [2, 7])
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def solved(past, sparsity, retention, form="closed_form"):
    options = Decomposition(sparsity, retention, form)
    return solved_adaptives(options, LAYOUT, *map(tf.constant, past)).numpy()


def spread(masks):
    gate = 1 / (1 + np.exp(-masks.astype(float)))
    return np.concatenate([np.tile(gate[:, :2], [1, 2]), gate[:, 2:]], 1)


@pytest.mark.parametrize(("sparsity", "retention"), [(0.1, 1.0), (0.3, 0.2), (0.0, 1.0)])
def test_closed_form_is_the_minimiser(past, sparsity, retention):
    base, masks, adaptive, reference = past
    found = solved(past, sparsity, retention)
    wanted = reference - base * spread(masks)
    grid = np.linspace(-8, 8, 160001)[:, None, None]
    for task in range(2):
        value = retention * (grid[:, 0] - wanted[task]) ** 2 + sparsity * np.abs(grid[:, 0])
        best = grid[np.argmin(value, 0), 0, 0]
        np.testing.assert_allclose(found[task], best, atol=1.1e-4)
    assert np.abs(found - wanted).max() <= sparsity / (2 * retention) + 1e-6


@pytest.mark.parametrize(("sparsity", "retention"), [(0.1, 1.0), (0.3, 0.2), (0.0, 1.0)])
def test_drift_is_the_minimiser_for_what_changes(past, sparsity, retention):
    base, masks, adaptive, reference = past
    found = solved(past, sparsity, retention, "drift")
    wanted = reference - base * spread(masks)
    grid = np.linspace(-8, 8, 160001)[:, None, None]
    for task in range(2):
        value = retention * (grid[:, 0] - wanted[task]) ** 2 + sparsity * np.abs(grid[:, 0] - adaptive[task])
        np.testing.assert_allclose(found[task], grid[np.argmin(value, 0), 0, 0], atol=1.1e-4)
    # A base that has not moved changes nothing at all.
    still = [base, masks, adaptive, (base * spread(masks) + adaptive).astype("f")]
    np.testing.assert_allclose(solved(still, sparsity, retention, "drift"), adaptive, atol=1e-6)


def test_stored_is_the_kernel_itself(past):
    base, masks, _, reference = past
    np.testing.assert_allclose(solved(past, 0.3, 0.2, "stored"), reference - base * spread(masks), rtol=1e-5)


def test_without_retention_nothing_answers_a_drift(past):
    np.testing.assert_array_equal(solved(past, 0.1, 0.0, "drift"), past[2])


def test_closed_form_without_retention(past):
    assert not solved(past, 0.1, 0.0).any()
    np.testing.assert_array_equal(solved(past, 0.0, 0.0), past[2])  # nothing pulls at A_i: it stays


@pytest.mark.parametrize("form", RETENTION_FORMS)
def test_no_past_tasks(form):
    empty = np.zeros([0, 7], "f")
    assert solved([np.ones(7, "f"), np.zeros([0, 5], "f"), empty, empty], 0.1, 1.0, form).shape == (0, 7)


def test_gradient_form_keeps_what_training_made(past):
    np.testing.assert_array_equal(solved(past, 0.1, 1.0, "gradient"), past[2])


def test_a_known_drift(past):
    base, masks, adaptive, _ = past
    kernel = base * spread(masks) + adaptive
    moved = np.linspace(-1, 1, 7)
    found = drift(LAYOUT, base + moved.astype("f"), masks, adaptive, kernel.astype("f"))
    np.testing.assert_allclose(found, ((moved * spread(masks)) ** 2).sum(), rtol=1e-5)
    # What A does against it counts too: the sum of both differences is squared, not their difference.
    answered = adaptive + (0.5 * moved).astype("f")
    found = drift(LAYOUT, base + moved.astype("f"), masks, answered, kernel.astype("f"))
    np.testing.assert_allclose(found, ((moved * spread(masks) + 0.5 * moved) ** 2).sum(), rtol=1e-5)


def test_wrong_requests():
    with pytest.raises(errors.InputError, match="retention_form.*drift.*closed_form.*gradient.*stored"):
        Decomposition(retention_form="exact")
    for name in ("sparsity", "retention"):
        with pytest.raises(errors.InputError, match=name):
            Decomposition(**{name: -0.1})


@pytest.mark.slow
def test_every_form_learns_three_tasks_through_the_driver(tmp_path):
    """The first task has no past, so that all are alike there; later ones differ."""
    few = {
        "data": "digits", "runtime": "in-process", "num_clients": 2, "num_tasks": 3, "num_rounds": 1, "num_epochs": 1,
        "hidden": (10,), "retention": 1.0,
    }  # fmt: skip
    drift, *others = (
        tffcl.Experiment("confedmade", **few, retention_form=form, output_dir=str(tmp_path / form)).run().scores
        for form in RETENTION_FORMS
    )
    for scores in others:
        np.testing.assert_allclose(scores[:, 0, 0], drift[:, 0, 0], rtol=1e-4)
        assert np.isfinite(scores[:, 2]).all()
        assert not np.array_equal(scores[:, 2, 0], drift[:, 2, 0])
