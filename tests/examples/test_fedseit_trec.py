"""The example that a newcomer runs first."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "fedseit_trec.py"


def run(*args, cwd):
    return subprocess.run(
        [sys.executable, str(EXAMPLE), *args], cwd=cwd, capture_output=True, text=True, timeout=280
    )


def test_it_has_the_flags_of_the_command(tmp_path):
    done = run("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "--share-dense" in done.stdout


def test_wrong_input_is_one_line(tmp_path):
    done = run("--num-tasks", "0", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fedseit_trec.py: error: Invalid value for '--num-tasks'")


@pytest.mark.slow
def test_it_runs(tmp_path):
    short = ["--dataset", "sample", "--num-clients", "2", "--num-tasks", "2", "--num-rounds", "1"]
    done = run(*short, "--num-epochs", "1", "--selection", "sit", "--share-dense", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "TTA %" in done.stdout
    (results,) = (tmp_path / "runs").glob("*/results.json")
    assert json.loads(results.read_text())["task_averaged_test_accuracy"] > 0
