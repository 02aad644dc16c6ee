"""Builders: their options reach the parts."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tffcl import errors
from tffcl.algorithms import build_fed_avg, build_fedseit, build_fedweit, build_local, decomposed, fed_avg
from tffcl.client_works import Decomposition
from tffcl.models import AlignedTextCNN, TextCNN


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
    optimizer = tff.learning.optimizers.build_adam(0.1)
    for aggregator in (tff.aggregators.UnweightedMeanFactory(), tff.learning.robust_aggregator()):
        process = build_fedweit(
            small.config(), num_foreign=1, aggregator=aggregator, server_optimizer=optimizer
        )
        assert (
            process.next.type_signature.parameter[0].member == process.initialize.type_signature.result.member
        )
    with pytest.raises(errors.ContractError, match="takes a tff.aggregators factory, found str"):
        build_fedweit(small.config(), num_foreign=1, aggregator="mean")
