"""The example that a newcomer runs first."""

from __future__ import annotations

import json

import pytest
from command_line import once, small_vectors, wrong

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
    "--selection", "sit", "--share-dense", "--embeddings", "small.txt",
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(run_example, folder):
    """How a short run ended, in a process of its own, and its run directory."""
    small_vectors(folder)
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


@pytest.fixture(scope="module")
def built_once():
    """What takes most of a short run's time is made once in this process, whichever program asks for it."""
    from tffcl import algorithms

    with pytest.MonkeyPatch.context() as patch:
        build = once(algorithms.build_fedseit, lambda *args, **options: repr((args, options)))
        patch.setattr(algorithms, "build_fedseit", build)
        yield


@pytest.mark.slow
def test_clients_with_files_end_as_those_without(run, example, finished, folder, tmp_path, built_once, no_plots):
    args = (*SHORT, "--output-dir", tmp_path / "files", "--client-dir", tmp_path / "clients")
    done = run(*args, cwd=folder, command=example.main)
    assert done.returncode == 0, done.stderr
    found = [json.loads((folder / "results.json").read_text()) for folder in (finished[1], tmp_path / "files")]
    for one in found:
        del one["seconds"]
    assert found[1].pop("config") == {**found[0].pop("config"), "client_store": "files"}
    assert found[1] == found[0]
    assert len(list((tmp_path / "clients").glob("run-*/client-000?/about.txt"))) == 2


@pytest.mark.slow
def test_its_run_directory_is_protected_from_the_command(run, finished, folder, built_once):
    args = ("run", "fedseit", *SHORT, "--output-dir", finished[1])
    wrong(run(*args, cwd=folder), "holds a run already", "--resume")
    other = run(*args, "--num-rounds", "2", "--resume", cwd=folder)
    wrong(other, "another configuration", "num_rounds is 1 there and 2 here")


@pytest.mark.slow
def test_report_of_its_run(run, finished):
    _, made = finished
    for plot in (made / "plots").iterdir():
        plot.unlink()
    done = run("report", made, "--markdown")
    assert done.returncode == 0, done.stderr
    assert "| fedseit" in done.stdout
    assert list((made / "plots").glob("*.png"))
