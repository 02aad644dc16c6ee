"""`tffcl sweep`: every combination, on held-out examples alone, and the best of them."""

from __future__ import annotations

import itertools
import json
import sys

import numpy as np
import pytest
from command_line import wrong

from tffcl.flags import parse_run
from tffcl.papers import sweep, workers

SCORES = {("0.1", "1"): (0.5, 0.7), ("0.1", "2"): (0.62, 0.6), ("1", "1"): (0.9, 0.1), ("1", "2"): (0.4, 0.4)}


def finishing(name, scores, split=None):
    def finish(runs, jobs):
        for one in runs:
            experiment = parse_run(one.flags)
            assert experiment.evaluate_on == "validation"
            assert experiment.split_seed == (experiment.seed if split is None else split)
            key = f"{experiment.proximal:g}", str(experiment.num_epochs)
            one.folder.mkdir(parents=True)
            value = scores[key][experiment.seed - 1]
            (one.folder / "config.json").write_text("{}")
            (one.folder / "results.json").write_text(json.dumps({name: value}))
        return []

    return finish


@pytest.mark.parametrize(
    ("name", "best"),
    [("task_averaged_test_accuracy", "--proximal 0.1 --num-epochs 2"), ("average_nll", "--proximal 1 --num-epochs 2")],
)
def test_every_combination_runs_with_every_seed_and_the_best_mean_is_told(run, tmp_path, monkeypatch, name, best):
    monkeypatch.setattr(workers, "finish", finishing(name, SCORES))
    line = f"sweep fedprox --grid proximal=0.1,1 --grid --num-epochs=1,2 --output-dir {tmp_path}/s -- --data iris"
    done = run(*line.split(), "--evaluate-on", "test")  # which does not stand over the sweep's own
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"best on held-out examples: {best}"
    rows = [line.split(" | ")[:2] for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert [tuple(cell.strip("| ") for cell in row) for row in rows] == list(itertools.product(("0.1", "1"), "12"))


@pytest.mark.parametrize("flags", [("--split-seed", "7"), ("--split-seed=7",)])
def test_seeds_are_those_of_the_split_too_unless_the_flags_have_one(run, tmp_path, monkeypatch, flags):
    monkeypatch.setattr(workers, "finish", finishing("task_averaged_test_accuracy", SCORES, split=7))
    line = f"sweep fedprox --grid proximal=0.1,1 --output-dir {tmp_path}/s -- --data iris --num-epochs 1"
    done = run(*line.split(), *flags)
    assert done.returncode == 0, done.stderr


def quadratic(monkeypatch):
    """Runs whose held-out score is best at a proximal weight of 0.1, and how many there were."""
    finished = []

    def finish(runs, jobs):
        for one in (each for each in runs if not each.finished):
            experiment = parse_run(one.flags)
            finished.append(experiment.proximal)
            one.folder.mkdir()  # that of all runs is there, for the logs stand in it
            value = 1 - (np.log10(experiment.proximal) + 1) ** 2 / 20 - experiment.num_epochs / 100
            (one.folder / "config.json").write_text("{}")
            (one.folder / "results.json").write_text(json.dumps({"task_averaged_test_accuracy": value}))
        return []

    monkeypatch.setattr(workers, "finish", finish)
    monkeypatch.setattr(workers.Run, "other_settings", lambda self: None)
    return finished


def test_optuna_draws_trials_by_the_scores_before_and_the_same_ones_again(run, tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    finished = quadratic(monkeypatch)
    line = f"sweep fedprox --grid proximal=1e-4..100 --grid num-epochs=1,2 --optuna 25 --output-dir {tmp_path}/s"
    first, second = (run(*line.split(), "--", "--data", "iris") for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert len(finished) == len(set(finished)) * 2 == 50  # two seeds; of the second call none
    assert first.stdout == second.stdout
    best = first.stdout.splitlines()[-1].split()
    assert best[:4] == ["best", "on", "held-out", "examples:"]
    assert 0.02 < float(best[5]) < 0.5
    assert best[6:] == ["--num-epochs", "1"]
    late, early = (np.abs(np.log10(finished[part]) + 1).mean() for part in (slice(30, None), slice(20)))
    assert late < early  # it looks where it is good


def test_a_search_without_optuna_or_in_no_range_is_one_line(run, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "finish", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "optuna", None)
        wrong(run("sweep", "fedprox", "--grid", "proximal=1..2", "--optuna", "3"), "install the extra `optuna`")
    pytest.importorskip("optuna")
    for grid in ("proximal=2..1", "proximal=a..b", "proximal=1.."):
        wrong(run("sweep", "fedprox", "--grid", grid, "--optuna", "3"), "--grid: expected NAME=LOW..HIGH")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("fedprox --grid proximal", "--grid: expected NAME=VALUE"),
        ("fedprox --grid proximal=1,,2", "--grid: expected NAME=VALUE"),
        ("fedprox --grid proximal=1 --grid proximal=2", "--grid: proximal stands there twice"),
        ("fedprox --grid nonsense=1", "--nonsense"),
        ("fedprox --grid proximal=-1", "--proximal"),
        ("nonsense --grid proximal=1", "nonsense"),
    ],
)
def test_a_grid_that_is_none_is_one_line(run, tmp_path, monkeypatch, line, message):
    monkeypatch.setattr(workers, "finish", None)
    wrong(run("sweep", *line.split(), "--output-dir", tmp_path / "s"), message)
    assert sweep.SCORE == "held out"
