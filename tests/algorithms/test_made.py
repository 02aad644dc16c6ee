"""The builders of MADE: what each decides, whatever it is told."""

import dataclasses

import pytest

from tffcl import templates
from tffcl.algorithms import build_confedmade, build_fed_made, build_fedweit_made, made
from tffcl.client_works import Decomposition, LocalTraining
from tffcl.models import MADEConfig

CONFIG = MADEConfig(input_size=4, hidden=(5,))
DISTINCT = dataclasses.replace(CONFIG, distinct_masks=True)


@pytest.fixture(autouse=True)
def _parts_only(monkeypatch):
    """Builders then return their client work, and nothing is composed."""
    monkeypatch.setattr(templates, "compose_continual_process", lambda work, aggregator, finalizer: work)


def test_fed_made_shares_everything_and_leaves_the_masks_to_the_configuration():
    for config in (CONFIG, DISTINCT):
        work = build_fed_made(config)
        assert work.network.config == dataclasses.replace(config, share_biases=True)
        assert work.network.local.size == 0
        assert work.training == made.TRAINING


def test_fedweit_made_ignores_the_mask_unless_it_is_synchronised():
    naive = build_fedweit_made(CONFIG, num_foreign=3)
    starred = build_fedweit_made(DISTINCT, num_foreign=3, synchronised=True)
    assert (naive.network.config.distinct_masks, starred.network.config.distinct_masks) == (True, False)
    for work in (naive, starred):
        assert not work.options.connectivity_aware
        assert (work.options.sparsity, work.options.retention, work.options.adaptive_factor) == (1e-4, 100, 3)
        assert work.num_foreign == 3


def test_confedmade_knows_of_its_synchronised_masks():
    training, decomposition = LocalTraining(batch_size=7), Decomposition(gate_cutoff=0.4)
    naive = dataclasses.replace(decomposition, connectivity_aware=False)
    work = build_confedmade(DISTINCT, num_foreign=2, training=training, decomposition=naive)
    assert (work.training, work.options) == (training, decomposition)
    assert not work.network.config.distinct_masks
    assert not work.network.config.share_biases
