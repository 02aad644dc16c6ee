"""The example of ConFedMADE."""

from __future__ import annotations

import json

import pytest

EXAMPLE = "confedmade_mnist.py"


def test_it_has_the_flags_of_the_command(run_example):
    done = run_example("--help")
    assert done.returncode == 0
    assert "--gate-cutoff" in done.stdout


def test_wrong_input_is_one_line(run_example):
    done = run_example("--hidden", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("confedmade_mnist.py: error: Invalid value for '--hidden'")


@pytest.mark.slow
def test_it_runs(run, example, no_plots, folder):
    short = ["--dataset", "digits", "--num-clients", "2", "--num-tasks", "2", "--num-rounds", "1"]
    short += ["--num-epochs", "1", "--hidden", "8"]
    done = run(*short, cwd=folder, command=example.main)
    assert done.returncode == 0, done.stderr
    assert "NLL nats" in done.stdout
    (made,) = (folder / "runs").iterdir()
    results = json.loads((made / "results.json").read_text())
    assert results["average_nll"] > 0
    assert (made / "samples.npz").exists()
