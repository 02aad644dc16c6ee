"""The example of ConFedMADE."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "confedmade_mnist.py"


def run(*args, cwd):
    return subprocess.run(
        [sys.executable, str(EXAMPLE), *args], cwd=cwd, capture_output=True, text=True, timeout=280
    )


def test_it_has_the_flags_of_the_command(tmp_path):
    done = run("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "--gate-cutoff" in done.stdout


def test_wrong_input_is_one_line(tmp_path):
    done = run("--hidden", "0", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("confedmade_mnist.py: error: Invalid value for '--hidden'")


@pytest.mark.slow
def test_it_runs_and_goes_on(tmp_path):
    short = ["--dataset", "digits", "--num-clients", "2", "--num-tasks", "2", "--num-rounds", "1"]
    short += ["--num-epochs", "1", "--hidden", "8"]
    done = run(*short, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "NLL nats" in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    results = json.loads((folder / "results.json").read_text())
    assert results["average_nll"] > 0
    assert (folder / "plots" / "samples.png").exists()
    # What stands in a run directory says the same when a finished run is given again.
    (folder / "samples.npz").unlink()
    again = run(*short, "--output-dir", str(folder), "--resume", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (folder / "samples.npz").exists()
    assert json.loads((folder / "results.json").read_text())["nll"] == results["nll"]
