"""Subspaces of layer inputs against numpy's SVD, and updates that leave a layer's outputs there as they were."""

from __future__ import annotations

import pathlib
from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from loading import module_at

from tffcl import errors, runtime
from tffcl.client_works import LocalTraining, OrthogonalWork
from tffcl.finalizers import build_orthogonal_update, build_server_update
from tffcl.finalizers.gram import extended

world = module_at(pathlib.Path(__file__).parents[1] / "client_works" / "orthogonal_world.py")
WORK = OrthogonalWork(world.network(), LocalTraining())
SIZE = WORK.shared_type.shape[0]
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True, scope="module")
def _in_process():
    with runtime.in_process():
        yield


def rows(count, size, seed=0):
    """Inputs whose energy is spread unevenly over their directions."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, size)) @ np.diag(2.0 ** -np.arange(size)) @ rng.normal(size=(size, size))


def by_svd(basis, x, share):
    """The fewest singular vectors of what is left of X that with the basis have the share of its energy."""
    left = x - x @ basis.T @ basis
    _, values, directions = np.linalg.svd(left, full_matrices=False)
    seen, total, count = np.sum((x @ basis.T) ** 2), np.sum(x**2), 0
    while seen < share * total and count < np.linalg.matrix_rank(left):
        seen, count = seen + values[count] ** 2, count + 1
    return np.concatenate([basis, directions[:count]])


def assert_spans(found, wanted):
    np.testing.assert_allclose(found @ found.T, np.eye(len(found)), atol=1e-8)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found.T @ found, wanted.T @ wanted, atol=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("count", [3, 40])
def test_a_basis_has_the_directions_of_svd_and_gains_those_of_what_is_left(share, count):
    basis = found = np.zeros((0, 7))
    for seed in range(3):
        x = rows(count, 7, seed)
        basis = by_svd(basis, x, share)
        found = extended(tf.constant(found), tf.constant(x.T @ x), tf.constant(share, tf.float64)).numpy()
        assert_spans(found, basis)
    assert len(found) == {0.0: 0, 1.0: 7}.get(share, len(found))


def test_what_is_in_the_basis_already_adds_nothing():
    x = rows(40, 7)[:, :4] @ np.eye(4, 7)
    basis = by_svd(np.zeros((0, 7)), x, 1.0)
    again = extended(tf.constant(basis), tf.constant(x.T @ x), tf.constant(1.0, tf.float64))
    assert again.shape == (4, 7)


def update(delta, gram=None):
    return OrderedDict(weights=delta, gram=np.zeros(WORK.gram_size, "f") if gram is None else gram)


def gram_of(shared, features):
    hidden, _ = world.forward(shared, features)
    parts = [world.triangle(world.with_one(each)) for each in (features, hidden)]
    return np.concatenate(parts).astype("f")


def finalizer(energy, work=WORK, optimizer=None, **options):
    return build_orthogonal_update(build_server_update(work.shared_type, optimizer), work, energy, **options)


def vector(scale=1.0):
    return (scale * RNG.normal(size=SIZE)).astype("f")


@pytest.mark.parametrize("optimizer", [None, tff.learning.optimizers.build_adam(0.1)], ids=["sgd", "adam"])
def test_outputs_for_inputs_in_a_subspace_stay_while_others_move(optimizer):
    update_of, shared = finalizer(0.9, optimizer=optimizer), vector()
    state, old = update_of.initialize(), world.examples(30, rank=3)["features"].astype(float)
    before = [np.concatenate(pair) for pair in pairs(shared)]
    for number in range(4):
        gram = gram_of(shared, old) if number == 0 else None
        output = update_of.next(state, shared, update(vector(), gram))
        state, shared = output.state, output.result
    after = [np.concatenate(pair) for pair in pairs(shared)]
    bases = list(state["subspaces"]["bases"].values())
    assert [len(basis) for basis in bases] == list(output.measurements["subspaces"]["kept"].values())
    for basis, one, other, x in zip(bases, before, after, (old, None)):
        assert 0 < len(basis) < basis.shape[1]
        np.testing.assert_allclose(basis @ one, basis @ other, rtol=1e-5, atol=1e-5)
        outside = np.eye(basis.shape[1]) - basis.T @ basis
        assert np.abs(outside @ (one - other)).max() > 0.1
        if x is not None:
            inside = world.with_one(x) @ basis.T @ basis
            np.testing.assert_allclose(inside @ one, inside @ other, rtol=1e-5, atol=1e-5)


def pairs(shared):
    """(kernel, bias as a row) of each layer."""
    kernel, bias, head, head_bias = world.split(shared)
    return (kernel, bias[None]), (head, head_bias[None])


def test_the_sums_of_a_round_hold_for_its_own_update():
    old = world.examples(30, rank=3)["features"].astype(float)
    shared, made = vector(), finalizer(1.0)
    after = made.next(made.initialize(), shared, update(vector(), gram_of(shared, old))).result
    np.testing.assert_allclose(world.forward(after, old)[1], world.forward(shared, old)[1], rtol=1e-4, atol=1e-4)
    assert np.abs(after - shared).max() > 0.1


def test_without_a_share_of_energy_it_is_the_update_to_the_bit():
    plain, made, shared = build_server_update(WORK.shared_type), finalizer(0.0), vector()
    states = [plain.initialize(), made.initialize()]
    for number in range(3):
        delta, gram = vector(), gram_of(shared, rows(9, world.INPUTS, number))
        wanted = plain.next(states[0], shared, delta)
        found = made.next(states[1], shared, update(delta, gram))
        np.testing.assert_array_equal(found.result, wanted.result)
        states, shared = [wanted.state, found.state], wanted.result


@pytest.mark.parametrize("growth", [0.0, 0.3])
def test_the_share_grows_with_each_arrival(growth):
    made, shared = finalizer(0.5, growth=growth), vector()
    state, basis = made.initialize(), np.zeros((0, world.INPUTS + 1))
    for number in range(3):
        x = rows(30, world.INPUTS, number)
        state = made.next(state, shared, update(vector(0.0), gram_of(shared, x))).state
        state = made.next(state, shared, update(vector(0.0))).state  # nothing arrives
        basis = by_svd(basis, world.with_one(x), min(1.0, 0.5 + number * growth))
        assert_spans(state["subspaces"]["bases"]["0_below_kernel"], basis)
    assert state["subspaces"]["arrivals"] == 3


def test_sums_that_are_not_finite_are_left_out_and_counted():
    made, gram = finalizer(0.9), np.full(WORK.gram_size, np.nan, "f")
    shared = vector()
    output = made.next(made.initialize(), shared, update(vector(), gram))
    assert output.measurements["subspaces"]["rejected"] == 1
    assert not any(output.measurements["subspaces"]["kept"].values())
    assert np.isfinite(output.result).all()


def test_other_weights_are_learned_in_the_first_task_alone():
    work = OrthogonalWork(world.network(normalised=True), LocalTraining())
    made, shared = finalizer(0.9, work), np.zeros(work.shared_type.shape, "f")
    layout, delta = work.network.kernels, np.ones(work.shared_type.shape, "f")
    others = [layout.slice_of(name) for name, _ in layout.parts if "normalization" in name]
    assert len(others) == 2
    nothing = np.zeros(work.gram_size, "f")
    first = made.next(made.initialize(), shared, OrderedDict(weights=delta, gram=nothing))
    gram = np.concatenate([world.triangle(rows(9, layer.size)) for layer in work.layers]).astype("f")
    second = made.next(first.state, first.result, OrderedDict(weights=delta, gram=gram))
    for place in others:
        assert (first.result[place] == 1).all()
        assert (second.result[place] == 1).all()
    assert np.abs(second.result - first.result).max() > 0.1


def test_what_cannot_be_is_said_in_a_line():
    for options in ({"energy": 1.5}, {"energy": -0.1}, {"energy": float("nan")}, {"energy": 0.5, "growth": 2.0}):
        with pytest.raises(errors.InputError, match=r"(energy|growth): expected 0 to 1, found"):
            finalizer(**options)
    with pytest.raises(errors.ContractError, match="finalizer: inner is of"):
        build_orthogonal_update(build_server_update(tff.TensorType(np.float32, [3])), WORK, 0.5)
