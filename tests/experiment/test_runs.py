"""Runs of seconds from flags to pictures, stopped or not, with clients that keep files, and what protects them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from command_line import built_once, wrong
from image_files import write_emnist
from run_directories import results
from serving import PATIENCE

from tffcl.experiment import frozen
from tffcl.flags import parse_run
from tffcl.program.run_directory import RunDirectory

pytestmark = pytest.mark.slow

MADE = (
    "run", "confedmade", "--data", "digits", "--num-clients", "2", "--num-tasks", "2", "--num-rounds", "1",
    "--num-epochs", "2", "--hidden", "8", "--order-agnostic", "--num-masks", "2", "--runtime", "in-process",
    "--keep", "all",
)  # fmt: skip


@pytest.fixture(scope="module", name="made")
def _made(run, tmp_path_factory):
    """The folder in which a short run was started, and how it ended; the same process serves the runs after it."""
    folder = tmp_path_factory.mktemp("confedmade")
    with built_once():
        yield folder, run(*MADE, "--output-dir", "run", cwd=folder)


def test_a_short_run_of_densities(made):
    folder, (code, stdout, stderr) = made
    assert code == 0, stderr
    assert "NLL nats" in stdout
    assert "task known" in stdout
    assert "tasks of client 2: " in stderr
    found = results(folder / "run")
    assert (found["method"], found["dataset"]) == ("confedmade+oa", "digits")
    # Jensen: the mean of probabilities is no worse than the mean of their logarithms.
    assert found["average_nll_task_known"] <= found["average_nll_one_mask"] + 1e-4
    names = {path.name for path in (folder / "run" / "plots").iterdir()}
    assert names >= {"nll-by-task.png", "attention.png", "samples.png", "nll-matrix.png"}
    assert all(path.stat().st_size > 1000 for path in (folder / "run" / "plots").iterdir())


def test_its_directory_holds_the_experiment_to_start_it_again(made):
    folder, _ = made
    again = parse_run(["confedmade", "--config", str(folder / "run" / "experiment.toml")])
    asked = parse_run(MADE[1:])
    assert (again.named, again.values, again.config()) == (asked.named, asked.values, asked.config())
    recorded = json.loads((folder / "run" / "config.json").read_text())
    for name in set(asked.config()) - {"enrollment"}:
        assert recorded[name] == json.loads(json.dumps(asked.config()[name])), name


def test_a_finished_run_given_again_says_the_same(run, made, no_plots):
    folder, _ = made
    before = results(folder / "run")
    (folder / "run" / "samples.npz").unlink()
    again = run(*MADE, "--output-dir", "run", "--resume", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert (folder / "run" / "samples.npz").exists()
    assert results(folder / "run")["nll"] == before["nll"]


def test_densities_of_clients_with_files_end_as_those_without(run, made, no_plots):
    folder, _ = made
    done = run(*MADE, "--output-dir", "files", "--client-dir", "clients", cwd=folder)
    assert done.returncode == 0, done.stderr
    numbers = [results(folder / name) for name in ("run", "files")]
    for name in ("nll", "nll_task_known", "nll_newest", "average_nll_one_mask"):  # of tasks scored one by one
        one, other = (np.array(each[name], float) for each in numbers)
        np.testing.assert_allclose(other, one, rtol=1e-6)
    assert numbers[0]["bytes_up"] == numbers[1]["bytes_up"]
    assert len(list((folder / "clients").glob("run-*/client-000?/state-*.index"))) == 2 * 5


def test_more_threads_and_fewer_clients_at_once_end_with_the_same_densities(run, tmp_path, no_plots):
    """But for norms; the products are large enough for two threads to share one. Here operations have one thread."""
    flags = ("--hidden", "600", "--num-tasks", "1", "--num-masks", "1", "--output-dir")
    assert run(*MADE, *flags, "one", cwd=tmp_path).returncode == 0
    command = [sys.executable, "-m", "tffcl.cli", *MADE, *flags, "two", "--threads-per-client", "2", "--verbose"]
    environment = {name: value for name, value in os.environ.items() if name != "TF_NUM_INTRAOP_THREADS"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "2 threads each" in done.stderr
    one, two = (results(tmp_path / name) for name in ("one", "two"))
    assert one.pop("server_metrics").keys() == two.pop("server_metrics").keys()
    assert one == two


def test_a_directory_of_another_run_is_protected(run, made):
    folder, _ = made
    wrong(run(*MADE, "--output-dir", "run", cwd=folder), "holds a run already", "--resume")
    other = (*MADE, "--output-dir", "run", "--num-rounds", "2", "--resume")
    wrong(run(*other, cwd=folder), "another configuration", "num_rounds is 1 there and 2 here")


def test_pooled_densities_are_scored_on_each_task(run, tmp_path, no_plots):
    code, stdout, stderr = run(*MADE, "--method", "offline", "--output-dir", "run", cwd=tmp_path)
    assert code == 0, stderr
    found = results(tmp_path / "run")
    assert np.shape(found["nll_of_tasks"]) == (2, 2)
    assert found["average_nll_of_tasks"] == pytest.approx(np.mean(found["nll_of_tasks"]))
    assert f"{found['average_nll_of_tasks']:.2f}" in stdout


def test_noise_on_the_base_is_accounted_for_at_the_end(run, no_plots, tmp_path):
    dp = ("--method", "finetune", "--dp-base-clip", "0.5", "--dp-base-noise", "2", "--runtime", "local")
    done = run("run", "confedmade", "--data", "digits", "--hidden", "5", "--num-clients", "2", "--num-tasks", "2",
               "--num-rounds", "1", "--num-epochs", "1", *dp, "--output-dir", "run", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "epsilon" in done.stdout.split("\n")[0]
    told = results(tmp_path / "run")["privacy"]["base_updates"]
    # Two rounds of all clients, sensitivity two clips, noise of two clips: one Gaussian with a ratio of sqrt(2).
    # The root of its closed form (Balle, Wang, 2018, theorem 8) is 6.57297.
    assert told["epsilon"] == pytest.approx(6.57297, rel=1e-3)
    assert "privacy: the updates of the base are (6.57, 1e-05)-differentially private for a whole client" in done.stdout
    assert "not covered, nor what it tells: metrics and counts of examples" in done.stdout


# -- FIL-VER --------------------------------------------------------------------------------------------------

SIZES = ("--num-rounds", "2", "--num-epochs", "1", "--hidden", "8", "--filters", "4", "--embedding-size", "4",
         "--pretraining-epochs", "2", "--sst-steps", "5", "--client-memory", "30", "--server-memory", "50",
         "--send-per-round", "20", "--runtime", "in-process")  # fmt: skip
VER = ("run", "fil-ver", "--data", "digits", "--num-clients", "2", "--num-tasks", "3", "--examples-per-task", "60",
       *SIZES, "--enrollment", "who.csv", "--dp-clip", "5", "--dp-noise-multiplier", "4",
       "--dp-noise-seed", "3")  # fmt: skip
WHO = "*,*,o\nx,*,o\n"  # nobody is left in task 3


@pytest.fixture(scope="module", name="ver")
def _ver(run, tmp_path_factory):
    """The folder in which a short run was started, and how it ended; a process is built once for an encoder."""
    folder = tmp_path_factory.mktemp("fil-ver")
    (folder / "who.csv").write_text(WHO)
    with built_once():
        yield folder, run(*VER, "--output-dir", "run", cwd=folder)


def test_a_short_run_of_rehearsal(ver):
    folder, (code, stdout, stderr) = ver
    assert code == 0, stderr
    assert "average" in stdout
    assert "pre-training: VEE, central, 60 examples of task 1, 2 epochs: " in stderr
    assert "privacy: none: with --dp-noise-seed, which config.json holds, the noise can be taken off" in stderr
    config = json.loads((folder / "run" / "config.json").read_text())
    assert (config["method"], config["dataset"]) == ("fil-ver+who+dp", "digits rotations")
    assert config["enrollment"] == ["**o", "x*o"]
    assert (config["dp_epsilon"], config["dp_noise_seed"]) == (None, 3)
    found = results(folder / "run")
    assert 0 < found["pretraining_accuracy"] <= 1
    assert np.shape(found["accuracy_by_task"]) == (3, 3)
    # A row is d or 2 d numbers, label, task and priority, four bytes each; the pictures are of 64 pixels.
    assert found["memory"] == {
        "client_rows": 30, "client": 30 * 4 * (2 * 4 + 3), "client_raw_images": 30 * 64,
        "server_rows": 50, "server": 50 * 4 * (4 + 3), "server_raw_images": 50 * 64,
        "encoder": np.load(folder / "run" / "encoder.npz")["values"].nbytes,
    }  # fmt: skip
    for name in ("accuracy-by-round.png", "accuracy-by-task.png", "communication.png"):
        assert (folder / "run" / "plots" / name).stat().st_size > 1000


def test_stopped_after_a_round_it_goes_on_with_its_encoder(run, ver, tmp_path, monkeypatch, no_plots):
    folder, _ = ver
    (tmp_path / "who.csv").write_text(WHO)
    save, calls = RunDirectory.save, []

    def interrupted(self, state):
        save(self, state)
        calls.append(state)
        if len(calls) == 4:  # in the second task
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "save", interrupted)
        code, _, stderr = run(*VER, "--output-dir", "run", cwd=tmp_path)
    assert code == 130, stderr
    encoder = (tmp_path / "run" / "encoder.npz").read_bytes()
    monkeypatch.setattr(frozen, "_pretrained", None)  # nothing may be trained anew
    code, _, stderr = run(*VER, "--output-dir", "run", "--resume", cwd=tmp_path)
    assert code == 0, stderr
    assert "taken from the run directory" in stderr
    assert (tmp_path / "run" / "encoder.npz").read_bytes() == encoder
    # Both a run with the same seed and one that was stopped: all figures are equal.
    assert results(tmp_path / "run") == results(folder / "run")


def test_rehearsal_of_clients_with_files_ends_as_without(run, ver, no_plots):
    folder, _ = ver
    args = (*VER, "--output-dir", "files", "--client-dir", "clients", "--keep", "all")
    code, _, stderr = run(*args, cwd=folder)
    assert code == 0, stderr
    found, expected = results(folder / "files"), results(folder / "run")
    assert found.pop("config") == {**expected.pop("config"), "client_store": "files"}
    assert found == expected
    assert len(list((folder / "clients").glob("run-*/client-000?/about.txt"))) == 2
    for path in (folder / "clients").glob("run-*/client-0001/state-*.index"):
        path.write_bytes(path.read_bytes()[:40])
    wrong(run(*args, "--resume", cwd=folder), "client 1: cannot read version", str(folder / "clients"))


def test_an_encoder_of_another_size_is_not_taken_up(run, ver):
    folder, _ = ver
    larger = (*VER, "--output-dir", "run", "--embedding-size", "5", "--resume")
    wrong(run(*larger, cwd=folder), "encoder.npz", "embedding_size=4", "embedding_size=5")


def test_pooled_domains_are_scored_on_each_task(run, tmp_path, no_plots):
    write_emnist(tmp_path / "data" / "gzip")
    line = ("--data-dir", "data", "--method", "offline-end-to-end", "--num-clients", "2", "--num-tasks", "4",
            "--examples-per-task", "20", "--output-dir", "run")  # fmt: skip
    code, stdout, stderr = run("run", "fil-ver", *SIZES, *line, cwd=tmp_path)
    assert code == 0, stderr
    assert "data: emnist-balanced, images of 8 x 6, 10 labels; tasks: emnist-balanced 0-9, " in stderr
    assert "emnist-balanced 30-39; 2 rounds a task" in stderr
    found = results(tmp_path / "run")
    assert (found["dataset"], found["num_clients"], found["num_tasks"]) == ("emnist-balanced", 1, 1)
    assert found["memory"]["client"] == 0
    # All test examples are scored, as many of each task.
    assert np.shape(found["accuracy_by_task"]) == (1, 4)
    assert found["average_accuracy_by_task"] == pytest.approx(found["task_averaged_test_accuracy"], abs=1e-6)
    assert "task 4" in stdout
    assert f"{100 * found['average_accuracy_by_task']:.1f}" in stdout
    assert not (tmp_path / "run" / "encoder.npz").exists()
