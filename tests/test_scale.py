"""The arithmetic of docs/scale.md, beside figures worked out by hand."""

from __future__ import annotations

import importlib.util
import pathlib
import sys

import pytest

from tffcl.papers import tables

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def benchmark():
    """benchmarks/arithmetic.py, which imports its neighbours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        spec = importlib.util.spec_from_file_location("benchmarks_arithmetic", ROOT / "benchmarks" / "arithmetic.py")
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


def test_a_cost_is_found_again_in_what_it_makes(benchmark):
    points = [(16, 2), (64, 2), (16, 6), (64, 6)]
    found = benchmark.fit(points, [0.5 + 0.25 * workers + 0.125 * clients for clients, workers in points])
    assert (found.fixed, found.worker, found.client) == pytest.approx((0.5, 0.25, 0.125))


def test_a_tree_has_the_nodes_and_seconds_of_each_level(benchmark):
    cost = benchmark.Cost(fixed=1.0, worker=0.01, client=0.001)
    # 1.5 million clients of 10 epochs of 0.06 s in 600 s: 1,500 workers of 1,000 clients each.
    whole = benchmark.Round(1_500_000, 0.06, cost)
    assert whole.workers == 1500
    assert whole.seconds == pytest.approx(1 + 15 + 1500)
    levels, nodes, root, path = whole.tree()
    assert (levels, nodes) == (2, 15 + 1)
    assert root == pytest.approx(1 + 0.15)
    assert path == pytest.approx((1 + 1 + 100) + root)
    # So few workers that the coordinator alone is the tree.
    few = benchmark.Round(50_000, 0.06, cost)
    assert few.tree() == (1, 1, pytest.approx(few.seconds), pytest.approx(few.seconds))
    # 10,100 workers: 101 nodes, two above them, a root.
    assert benchmark.Round(10_100_000, 0.06, cost).tree()[:2] == (3, 101 + 2 + 1)


def test_the_coordinator_is_saturated_where_its_seconds_are_the_round_s(benchmark):
    limit = benchmark.saturation(0.06, benchmark.Cost(fixed=0.0, worker=0.5, client=0.0005))
    assert limit == pytest.approx(600_000)  # 600 workers: 300 s, and 300 s for the clients
    assert benchmark.Round(600_000, 0.06, benchmark.Cost(0.0, 0.5, 0.0005)).seconds == pytest.approx(600)


@pytest.mark.parametrize("place", ["constants", "rounds", "saturation", "simulation"])
def test_the_page_has_places_for_the_tables(place):
    tables.write_table(f"{ROOT / 'docs' / 'scale.md'}#{place}")
