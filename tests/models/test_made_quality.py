"""How well MADE learns, by the benchmark's own training: fair coins, and two public sets."""

import importlib.util
import pathlib
import sys

import numpy as np
import pytest

from tffcl.models import MADEConfig, MADENetwork

SCHEDULE = {"batch_size": 100, "learning_rate": 3e-3, "patience": 4, "decays": 2, "max_epochs": 200, "seed": 0,
            "weight_decay": 0.0}  # fmt: skip


@pytest.fixture(scope="module", name="benchmark")
def _benchmark():
    path = pathlib.Path(__file__).parents[2] / "benchmarks" / "made.py"
    spec = importlib.util.spec_from_file_location("tffcl_benchmarks_made", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def _trained(benchmark, rows, config, **schedule):
    held_out, rows = np.split(np.random.default_rng(0).permutation(rows), [len(rows) // 10])
    schedule = benchmark.Schedule(**{**SCHEDULE, **schedule})
    outcome = benchmark.train(MADENetwork(config), rows, held_out, schedule)
    benchmark.check_blind(outcome.made)
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize("masks", [1, 4])
def test_fair_coins_cannot_be_predicted(benchmark, masks):
    """The published order-agnostic model reports 13.81 nats for 30 coins, whose entropy is 20.79."""
    coins = np.random.default_rng(1).integers(0, 2, (2000, 30)).astype(np.uint8)
    config = MADEConfig(30, (40,), order_agnostic=masks > 1, num_masks=masks)
    outcome = _trained(benchmark, coins, config, max_epochs=8)
    fresh = np.random.default_rng(2).integers(0, 2, (2000, 30)).astype(np.uint8)
    found = benchmark.scorer(outcome.made)(fresh)
    assert 30 * np.log(2) - 0.01 < found < 30 * np.log(2) + 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "patterns", "schedule", "target"),
    [
        ("adult", {"order_agnostic": True, "num_masks": 4}, {"max_epochs": 40, "learning_rate": 5e-3}, 13.2),
        ("connect4", {}, {"max_epochs": 12, "learning_rate": 1e-2, "patience": 1}, 12.1),
    ],
)
def test_public_sets(benchmark, data_dir, name, patterns, schedule, target):
    rows, valid = benchmark.load(name, data_dir)
    outcome = _trained(benchmark, rows, MADEConfig(rows.shape[1], (300,), **patterns), **schedule)
    assert benchmark.scorer(outcome.made)(valid) <= target
