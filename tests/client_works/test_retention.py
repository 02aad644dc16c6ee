"""Retention: the closed form against brute force, the penalty against numpy."""

import numpy as np
import pytest
import tensorflow as tf

import tffcl
from tffcl import errors
from tffcl.client_works.retention import ClosedForm, Gradient, build_retention, penalty
from tffcl.layers.kernels import KernelLayout

LAYOUT = KernelLayout((("one", (2, 2)), ("two", (1, 3))))  # 4 + 3 entries, 2 + 3 units


@pytest.fixture(name="past")
def _past():
    """base, mask logits, adaptives and references of two tasks."""
    rng = np.random.default_rng(5)
    shapes = ([7], [2, 5], [2, 7], [2, 7])
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def spread(masks):
    gate = 1 / (1 + np.exp(-masks.astype(float)))
    return np.concatenate([np.tile(gate[:, :2], [1, 2]), gate[:, 2:]], 1)


@pytest.mark.parametrize(("sparsity", "retention"), [(0.1, 1.0), (0.3, 0.2), (0.0, 1.0)])
def test_closed_form_is_the_minimiser(past, sparsity, retention):
    base, masks, adaptive, reference = past
    found = ClosedForm(sparsity, retention).past_adaptives(LAYOUT, *map(tf.constant, past)).numpy()
    wanted = reference - base * spread(masks)
    grid = np.linspace(-8, 8, 160001)[:, None, None]
    for task in range(2):
        value = retention * (grid[:, 0] - wanted[task]) ** 2 + sparsity * np.abs(grid[:, 0])
        best = grid[np.argmin(value, 0), 0, 0]
        np.testing.assert_allclose(found[task], best, atol=1.1e-4)
    assert np.abs(found - wanted).max() <= sparsity / (2 * retention) + 1e-6


def test_closed_form_without_retention(past):
    tensors = list(map(tf.constant, past))
    assert not ClosedForm(0.1, 0.0).past_adaptives(LAYOUT, *tensors).numpy().any()
    # Nothing pulls at A_i: it stays.
    np.testing.assert_array_equal(ClosedForm(0.0, 0.0).past_adaptives(LAYOUT, *tensors), past[2])


@pytest.mark.parametrize("form", ["closed_form", "gradient"])
def test_no_past_tasks(form):
    empty = tf.zeros([0, 7])
    solved = build_retention(form, 0.1, 1.0).past_adaptives(LAYOUT, tf.ones([7]), tf.zeros([0, 5]), empty, empty)
    assert solved.shape == [0, 7]


def test_gradient_form_keeps_what_training_made(past):
    np.testing.assert_array_equal(Gradient().past_adaptives(LAYOUT, *map(tf.constant, past)), past[2])


def test_penalty_of_a_known_drift(past):
    base, masks, adaptive, _ = past
    kernel = base * spread(masks) + adaptive
    drift = np.linspace(-1, 1, 7)
    found = penalty(LAYOUT, base + drift.astype("f"), masks, adaptive, kernel.astype("f"))
    np.testing.assert_allclose(found, ((drift * spread(masks)) ** 2).sum(), rtol=1e-5)
    # What A does against it counts too: the sum of both differences is squared, not their difference.
    moved = adaptive + (0.5 * drift).astype("f")
    found = penalty(LAYOUT, base + drift.astype("f"), masks, moved, kernel.astype("f"))
    np.testing.assert_allclose(found, ((drift * spread(masks) + 0.5 * drift) ** 2).sum(), rtol=1e-5)


def test_wrong_requests():
    with pytest.raises(errors.InputError, match="'closed_form' or 'gradient'"):
        build_retention("exact", 0.1, 1.0)
    with pytest.raises(errors.InputError, match="must not be negative"):
        build_retention("gradient", -0.1, 1.0)


@pytest.mark.slow
def test_both_forms_learn_three_tasks_through_the_driver(tmp_path):
    """The first task has no past, so that both are alike there; later ones differ."""
    few = {
        "data": "digits", "runtime": "in-process", "num_clients": 2, "num_tasks": 3, "num_rounds": 1, "num_epochs": 1,
        "hidden": (10,), "retention": 1.0,
    }  # fmt: skip
    solved, trained = (
        tffcl.Experiment("confedmade", **few, retention_form=form, output_dir=str(tmp_path / form)).run().scores
        for form in ("closed_form", "gradient")
    )
    np.testing.assert_allclose(trained[:, 0, 0], solved[:, 0, 0], rtol=1e-4)
    assert np.isfinite(trained[:, 2]).all()
    assert not np.allclose(trained[:, 2, 0], solved[:, 2, 0], rtol=1e-4)
