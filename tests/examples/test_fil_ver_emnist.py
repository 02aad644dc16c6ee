"""The example of FIL-VER."""

from __future__ import annotations

import json

import pytest
from command_line import once

EXAMPLE = "fil_ver_emnist.py"


def test_it_has_the_flags_of_the_command(run_example):
    done = run_example("--help")
    assert done.returncode == 0
    assert "--enrollment" in done.stdout
    assert "vanilla, ver, ver-stats, fil-ver" in " ".join(done.stdout.split())


def test_wrong_input_is_one_line(run_example):
    done = run_example("--hidden", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fil_ver_emnist.py: error: Invalid value for '--hidden'")


@pytest.fixture
def built_once(monkeypatch):
    """What takes most of a short run's time is made once for what a run sends: all else is the same."""
    from tffcl import algorithms

    build = once(algorithms.build_fil_ver, lambda model, sharing, **_: sharing)
    for place in (algorithms, algorithms.fil_ver):
        monkeypatch.setattr(place, "build_fil_ver", build)


@pytest.mark.slow
def test_it_compares_methods_and_goes_on(run, example, built_once, folder):
    short = [
        "--dataset", "digits", "--num-clients", "2", "--num-tasks", "2", "--num-rounds", "1", "--hidden", "8",
        "--num-epochs", "1", "--filters", "4", "--pretraining-epochs", "1", "--sst-steps", "2", "--examples-per-task",
        "60", "--runtime", "in-process", "--output-dir", "both", "--method", "ver", "--method", "fil-ver",
    ]  # fmt: skip
    done = run(*short, cwd=folder, command=example.main)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("ver ", "fil-ver "))]
    assert [row[0] for row in rows] == ["ver", "fil-ver"]
    assert done.stderr.count("pre-training: ") == 1  # one VEE serves both
    for name in ("accuracy-by-round.png", "accuracy-by-task.png"):
        assert (folder / "both" / name).stat().st_size > 1000
    made = [folder / "both" / method for method in ("ver", "fil-ver")]
    checksums = {json.loads((one / "config.json").read_text())["encoder_checksum"] for one in made}
    assert len(checksums) == 1
    # A finished run is not run again, and its results stand as they were.
    before = [json.loads((one / "results.json").read_text()) for one in made]
    again = run(*short, "--resume", cwd=folder, command=example.main)
    assert again.returncode == 0, again.stderr
    assert "taken from the run directory" in again.stderr
    assert [json.loads((one / "results.json").read_text()) for one in made] == before
