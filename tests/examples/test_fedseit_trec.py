"""The example that a newcomer runs first."""

from __future__ import annotations

import json

import pytest

EXAMPLE = "fedseit_trec.py"


def test_it_has_the_flags_of_the_command(run_example):
    done = run_example("--help")
    assert done.returncode == 0
    assert "--share-dense" in done.stdout


def test_wrong_input_is_one_line(run_example):
    done = run_example("--num-tasks", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fedseit_trec.py: error: Invalid value for '--num-tasks'")


@pytest.mark.slow
def test_it_runs(run_example, tmp_path):
    short = ["--dataset", "sample", "--num-clients", "2", "--num-tasks", "2", "--num-rounds", "1"]
    done = run_example(*short, "--num-epochs", "1", "--selection", "sit", "--share-dense")
    assert done.returncode == 0, done.stderr
    assert "TTA %" in done.stdout
    (results,) = (tmp_path / "runs").glob("*/results.json")
    assert json.loads(results.read_text())["task_averaged_test_accuracy"] > 0
