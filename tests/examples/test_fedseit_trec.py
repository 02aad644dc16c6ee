"""The example that a newcomer runs first."""

from __future__ import annotations

import json

import pytest
from command_line import wrong

EXAMPLE = "fedseit_trec.py"


def test_it_has_the_flags_of_the_command(run_example):
    done = run_example("--help")
    assert done.returncode == 0
    assert "--share-dense" in done.stdout


def test_wrong_input_is_one_line(run_example):
    done = run_example("--num-tasks", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fedseit_trec.py: error: Invalid value for '--num-tasks'")


SHORT = (
    "--dataset", "sample", "--num-clients", "2", "--num-tasks", "2", "--num-rounds", "1", "--num-epochs", "1",
    "--selection", "sit", "--share-dense",
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(run_example, folder):
    """How a short run ended, and its run directory."""
    done = run_example(*SHORT)
    assert done.returncode == 0, done.stderr
    (made,) = (folder / "runs").iterdir()
    return done, made


@pytest.mark.slow
def test_it_runs(finished):
    done, made = finished
    assert "TTA %" in done.stdout
    assert f"run directory: runs/{made.name}" in done.stdout
    assert "data: sample" in done.stderr
    assert "word vectors: " in done.stderr
    names = {path.name for path in made.iterdir()}
    assert {"config.json", "history.jsonl", "results.json", "checkpoints", "tensorboard", "plots"} <= names
    results = json.loads((made / "results.json").read_text())
    told = (results["method"], results["dataset"], results["num_clients"])
    assert told == ("fedseit+sit3+dls", "sample", 2)
    assert results["task_averaged_test_accuracy"] > 0
    assert results["seconds"]["per_client_epoch"]["cpu"] > 0


@pytest.mark.slow
def test_clients_with_files_end_as_those_without(run_example, finished, tmp_path):
    done = run_example(*SHORT, "--output-dir", tmp_path / "files", "--client-dir", tmp_path / "clients")
    assert done.returncode == 0, done.stderr
    found = [
        json.loads((folder / "results.json").read_text()) for folder in (finished[1], tmp_path / "files")
    ]
    for one in found:
        del one["seconds"]
    assert found[1].pop("config") == {**found[0].pop("config"), "client_store": "files"}
    assert found[1] == found[0]
    assert len(list((tmp_path / "clients").glob("run-*/client-000?/about.txt"))) == 2


@pytest.mark.slow
def test_its_run_directory_is_protected_from_the_command(run, finished):
    args = ("run", "fedseit", *SHORT, "--output-dir", finished[1])
    wrong(run(*args), "holds a run already", "--resume")
    wrong(run(*args, "--seed", "2", "--resume"), "another configuration", "seed is 1 there and 2 here")


@pytest.mark.slow
def test_report_of_its_run(run, finished):
    _, made = finished
    for plot in (made / "plots").iterdir():
        plot.unlink()
    done = run("report", made, "--markdown")
    assert done.returncode == 0, done.stderr
    assert "| fedseit" in done.stdout
    assert list((made / "plots").glob("*.png"))
