"""FOT as a process: the contract on a Keras network, and sums that are noised or secure."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow_federated as tff
from loading import module_at

from tffcl import runtime, testing
from tffcl.algorithms import build_fot
from tffcl.client_works import LocalTraining
from tffcl.program import ClientTask

world = module_at(pathlib.Path(__file__).parents[1] / "client_works" / "orthogonal_world.py")
TRAINING = LocalTraining(num_epochs=2, batch_size=4, learning_rate=0.05, patience=0)


class Data:
    """Two clients, two tasks; the first task's inputs lie in two dimensions."""

    num_clients, num_tasks = 2, 2

    def task(self, client, task):
        parts = [world.examples(count, 10 * client + task, 2 + task) for count in (9, 3, 4)]
        context = world.context(range(task))
        return ClientTask(context, parts[0], parts[1], context, parts[2], world.CLASSES)


@pytest.fixture(autouse=True, scope="module")
def _in_process():
    with runtime.in_process():
        yield


def played(**options):
    history = testing.History(build_fot(world.network(), training=TRAINING, seed=5, **options), Data())
    history.play()
    return history


@pytest.mark.slow
def test_it_holds_the_contract_on_a_whole_keras_network():
    testing.check_process(build_fot(world.network(), training=TRAINING, seed=5), Data())


@pytest.mark.slow
def test_a_secure_sum_of_gram_sums_keeps_the_same_subspaces():
    plain = played(energy=0.9)
    secure = played(energy=0.9, gram_aggregator=tff.aggregators.SecureSumFactory(1e3, -1e3))
    for name, basis in plain.server["finalizer"]["subspaces"]["bases"].items():
        other = secure.server["finalizer"]["subspaces"]["bases"][name]
        assert len(basis) == len(other) > 0
        np.testing.assert_allclose(other.T @ other, basis.T @ basis, atol=1e-2)
    assert not np.array_equal(secure.server["shared"], played(energy=0.0).server["shared"])


@pytest.mark.slow
def test_noise_on_gram_sums_leaves_orthonormal_bases():
    noised = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(0.5, 2.0, 100.0)
    found = played(energy=0.9, gram_aggregator=noised).server
    assert np.isfinite(found["shared"]).all()
    for basis in found["finalizer"]["subspaces"]["bases"].values():
        np.testing.assert_allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-8)
