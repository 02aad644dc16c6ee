"""Builders: their options reach the parts."""

from collections import OrderedDict
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.algorithms import (
    build_ewc,
    build_fed_avg,
    build_fed_curv,
    build_fedseit,
    build_fedweit,
    build_local,
    decomposed,
    fed_avg,
)
from tffcl.client_works import EWC, Decomposition, FedCurv
from tffcl.models import AlignedTextCNN, TextCNN
from tffcl.program import project
from tffcl.transfers import KnowledgeBase


@pytest.fixture(name="parts_only")
def _parts_only(monkeypatch):
    """Builders then return their client work, and nothing is composed."""
    for module in (decomposed, fed_avg):
        monkeypatch.setattr(module, "compose_continual_process", lambda work, aggregator, finalizer: work)


def test_options_reach_the_parts(small, parts_only):
    options = Decomposition(sparsity=0.5, share_dense=True)
    local = small.training(batch_size=7)
    for build, kind in ((build_fedweit, TextCNN), (build_fedseit, AlignedTextCNN)):
        work = build(small.config(), num_foreign=2, decomposition=options, training=local)
        assert (work.options, work.training) == (options, local)
        assert type(work.network) is kind
        assert (work.num_foreign, work.max_classes) == (2, small.CLASSES)
        assert work.shared_type.shape[0] > work.knowledge_size == work.network.kernels.size


def test_local_is_alone_whatever_it_is_told(small, parts_only):
    work = build_local(small.config(), decomposition=Decomposition(share_dense=True, sparsity=0.5))
    assert not work.options.exchange
    assert work.options.sparsity == 0.5
    assert work.shared_type.shape[0] == work.knowledge_size
    assert work.num_foreign == 0


def test_fedseit_needs_a_place_for_foreign_adaptives(small):
    with pytest.raises(errors.InputError, match="at least 1 place for foreign adaptives, found 0"):
        build_fedseit(small.config(), num_foreign=0)


def test_the_seed_decides_the_first_base(small, parts_only):
    for build in (
        lambda seed: build_fed_avg(small.network(places=0), seed=seed),
        lambda seed: build_local(small.config(), seed=seed),
    ):
        first, again, other = (build(seed).initialize_shared().numpy() for seed in (5, 5, 6))
        np.testing.assert_array_equal(first, again)
        assert (first != other).any()


def test_any_aggregator_and_server_optimizer(small):
    process = build_fedweit(
        small.config(),
        num_foreign=1,
        aggregator=tff.aggregators.UnweightedMeanFactory(),
        server_optimizer=tff.learning.optimizers.build_adam(0.1),
    )
    assert process.next.type_signature.parameter[0].member == process.initialize.type_signature.result.member
    with pytest.raises(errors.ContractError, match="takes a tff.aggregators factory, found str"):
        build_fedweit(small.config(), num_foreign=1, aggregator="mean")


def test_penalties_reach_the_client_work(small, parts_only):
    network = small.network(places=0)
    size = network.kernels.size
    for work, length, kept in (
        (build_ewc(network, weight=2.0, proximal=0.5), size, {"ewc_fisher", "ewc_centre", "ewc_constant"}),
        (build_fed_curv(network, weight=2.0), 3 * size, {"curv_fisher", "curv_pull"}),
    ):
        assert work.shared_type.shape == (length,)
        assert set(work.state_type) - set(build_fed_avg(network).state_type) == kept
    for build, kind in ((build_ewc, EWC), (build_fed_curv, FedCurv)):
        with pytest.raises(errors.InputError, match="weight"):
            build(network, weight=-1.0)
        with mock.patch.object(fed_avg, "PlainWork") as made:
            made.return_value.shared_type = tff.TensorType(np.float32, [size])
            build(network, weight=2.0, fisher_examples=9, seed=4)
        assert made.call_args.kwargs["penalty"] == kind(2.0, fisher_examples=9)
        assert made.call_args.kwargs["seed"] == 4


def test_a_server_optimizer_and_an_aggregator_leave_a_penaltys_sums_alone(small):
    """Adam moves every entry by its rate in the first step: the kernels, and nothing else."""
    adam = tff.learning.optimizers.build_adam(0.1)
    process = build_fed_curv(
        small.network(places=0),
        weight=1.0,
        training=small.training(),
        aggregator=tff.aggregators.UnweightedMeanFactory(),
        server_optimizer=adam,
    )
    server = process.initialize()
    size = small.network(places=0).kernels.size
    state, examples = server["finalizer"], small.examples(6)
    keys = [np.array([0, client], np.int32) for client in range(2)]
    incoming = KnowledgeBase(0).transfer_in([[], []], 0)
    clients = process.begin_task(server, process.initialize_clients(server, keys), incoming)
    one = OrderedDict(context=small.context(), train=examples, validation=examples)
    reads = process.next.type_signature.parameter[1]
    new, changes, *_ = process.next(server, [project(c, reads) for c in clients], [one, one])
    moved = np.abs(new["shared"] - server["shared"])[:size]
    assert moved.max() == pytest.approx(0.1, rel=1e-3)
    summed = np.concatenate([sum(c[name] for c in changes) for name in ("curv_fisher", "curv_pull")])
    np.testing.assert_allclose(new["shared"][size:], summed, rtol=1e-5, atol=1e-7)
    assert {leaf.shape for leaf in tf.nest.flatten(tf.nest.map_structure(np.asarray, state))} == {(), (size,)}
