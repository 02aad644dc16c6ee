"""The examples: the flags of their commands, the same processes, and runs from first to last."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

import pytest
from command_line import small_vectors, wrong
from loading import module_at
from serving import PATIENCE

from tffcl import runtime, templates
from tffcl.algorithms import fil_ver
from tffcl.experiment import frozen
from tffcl.flags import parse_run

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
OF_METHOD = {"fedseit_trec": "fedseit", "confedmade_mnist": "confedmade", "fil_ver_emnist": "fil-ver"}


def example(name):
    return module_at(EXAMPLES / f"{name}.py")


def test_each_is_tested_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(OF_METHOD)


@pytest.mark.parametrize("name", OF_METHOD)
def test_it_has_the_flags_of_its_command_and_wrong_ones_are_one_line(run, name):
    main = example(name).main
    shown, of_command = run("--help-all", program=main), run("run", OF_METHOD[name], "--help-all")
    assert shown.returncode == 0
    assert f"Usage: {name}.py" in shown.stdout
    flags = [{word for word in each.stdout.split() if word.startswith("--")} for each in (shown, of_command)]
    assert flags[0] == flags[1]
    done = run("--num-tasks", "0", program=main)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{name}.py: error: Invalid value for '--num-tasks'")


@pytest.mark.parametrize("name", OF_METHOD)
def test_it_is_a_program(name):
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Usage: {name}.py" in done.stdout


@pytest.mark.parametrize("name", OF_METHOD)
def test_it_reads_in_a_sitting(name):
    assert len((EXAMPLES / f"{name}.py").read_text().split("\n")) <= 71


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "builder", "flags"),
    [
        ("fedseit_trec", "build_fedseit", "--data sample --retention 0.5 --sparsity 0.1 --retention-form stored "
         "--num-filters 7 --share-dense start --selection sit"),
        ("confedmade_mnist", "build_confedmade", "--data digits --hidden 5 --gate-cutoff 0.1 --adaptive-factor 2"),
        ("fil_ver_emnist", "build_fil_ver", "--data digits --hidden 5 --filters 2 --embedding-size 2 --proximal 0.5 "
         "--pretraining-epochs 1 --sst-steps 7 --client-memory 9 --dp-clip 10 --dp-noise-multiplier 2"),
    ],
)  # fmt: skip
def test_its_process_is_that_of_the_command(monkeypatch, tmp_path, name, builder, flags):
    """Same hyperparameters, network, first values, noise on the base and seed."""
    common = "--num-clients 2 --num-tasks 2 --clients-per-round 1 --dp-base-clip 0.5 --dp-base-noise 4 --seed 3"
    more = ("--embeddings", str(small_vectors(tmp_path))) if name == "fedseit_trec" else ()
    plan = parse_run([OF_METHOD[name], *flags.split(), *common.split(), *more]).plan()
    if plan.method.own_network:
        with runtime.in_process():
            frozen.freeze(plan, True, False)  # the encoder is then at hand for both
    monkeypatch.setattr(templates, "compose_continual_process", lambda *parts: parts)
    monkeypatch.setattr(fil_ver.finalizers, "build_server_side_training", lambda *given: given)
    found = [described(build(plan)) for build in (getattr(example(name), builder), plan.method.process)]
    assert found[0] == found[1]


def described(parts):
    work, factory, finalizer = parts
    told = {name: repr(value) for name, value in vars(work).items() if isinstance(value, (int, float, str, tuple))}
    told["training"] = work.training
    told["options"] = getattr(work, "options", None)
    told["penalties"] = work.penalties._penalties
    told["aggregator"] = repr(type(factory))  # some are classes made by a function
    if hasattr(work, "sharing"):
        told["sharing"], told["model"] = repr(work.sharing), work.model.encoder.values.tobytes()
        told["sst"] = [repr(part) for part in finalizer if type(part).__name__ == "ServerSideTraining"]
        assert told["sst"]
    else:
        told["network"] = (type(work.network), work.network.config, work.network.num_foreign)
    return told


# -- whole runs -----------------------------------------------------------------------------------------------

SHORT = ("--num-clients", "2", "--num-tasks", "2", "--num-rounds", "1", "--num-epochs", "1")
TEXT = (*SHORT, "--data", "sample", "--selection", "sit", "--share-dense", "start", "--embeddings", "small.txt",
        "--num-filters", "4", "--kernel-sizes", "2")  # fmt: skip


@pytest.fixture(scope="module", name="finished")
def _finished(run, tmp_path_factory):
    """What a newcomer runs first: how it ended, the folder, and its run directory."""
    folder = tmp_path_factory.mktemp("example")
    small_vectors(folder)
    done = run(*TEXT, cwd=folder, program=example("fedseit_trec").main)
    assert done.returncode == 0, done.stderr
    (output,) = (folder / "runs").iterdir()
    return done, folder, output / "fedseit"


@pytest.mark.slow
def test_fedseit_runs(finished):
    done, folder, made = finished
    assert "TTA %" in done.stdout
    assert f"run directory: {made.relative_to(folder)}" in done.stdout
    rows = [line.split() for line in done.stdout.partition("over alone+warm")[2].splitlines()]
    assert {row[0] for row in rows[2:5]} == {"fedseit+sit3+aligned", "alone+warm", "fedavg"}
    assert len(re.findall(r"(?m)^.+\? -> [a-z]+ \(\d\.\d\d\)$", done.stdout)) == 2
    assert "data: sample" in done.stderr
    assert "word vectors: " in done.stderr
    names = {path.name for path in made.iterdir()}
    assert names >= {"config.json", "experiment.toml", "history.jsonl", "results.json", "checkpoints", "tensorboard",
                     "plots"}  # fmt: skip
    results = json.loads((made / "results.json").read_text())
    told = (results["method"], results["dataset"], results["num_clients"])
    assert told == ("fedseit+sit3+aligned", "sample", 2)
    assert results["task_averaged_test_accuracy"] > 0
    assert results["seconds"]["per_client_epoch"]["cpu"] > 0


@pytest.mark.slow
def test_clients_with_files_end_as_those_without(run, finished, tmp_path, built_once, no_plots):
    _, folder, made = finished
    args = (*TEXT, "--output-dir", tmp_path / "files", "--client-dir", tmp_path / "clients")
    done = run("run", "fedseit", *args, cwd=folder)
    assert done.returncode == 0, done.stderr
    found = [json.loads((each / "results.json").read_text()) for each in (made, tmp_path / "files")]
    for one in found:
        del one["seconds"]
    assert found[1].pop("config") == {**found[0].pop("config"), "client_store": "files"}
    assert found[1] == found[0]
    assert len(list((tmp_path / "clients").glob("run-*/client-000?/about.txt"))) == 2


@pytest.mark.slow
def test_its_run_directory_is_protected_from_the_command(run, finished, built_once):
    _, folder, made = finished
    args = ("run", "fedseit", *TEXT, "--output-dir", made)
    wrong(run(*args, cwd=folder), "holds a run already", "--resume")
    other = run(*args, "--num-rounds", "2", "--resume", cwd=folder)
    wrong(other, "another configuration", "num_rounds is 1 there and 2 here")


@pytest.mark.slow
def test_report_of_its_run(run, finished):
    *_, made = finished
    for plot in (made / "plots").iterdir():
        plot.unlink()
    done = run("report", made, "--format", "markdown")
    assert done.returncode == 0, done.stderr
    assert "| fedseit" in done.stdout
    assert list((made / "plots").glob("*.png"))


@pytest.mark.slow
def test_confedmade_runs(run, no_plots, tmp_path):
    done = run(*SHORT, "--data", "digits", "--hidden", "8", cwd=tmp_path, program=example("confedmade_mnist").main)
    assert done.returncode == 0, done.stderr
    assert "NLL nats" in done.stdout
    (made,) = (tmp_path / "runs").iterdir()
    assert json.loads((made / "results.json").read_text())["average_nll"] > 0
    assert (made / "samples.npz").exists()


@pytest.mark.slow
def test_fil_ver_compares_methods_and_goes_on(run, tmp_path):
    main = example("fil_ver_emnist").main
    short = (*SHORT, "--data", "digits", "--hidden", "8", "--filters", "4", "--pretraining-epochs", "1", "--sst-steps",
             "2", "--examples-per-task", "60", "--runtime", "in-process", "--output-dir", "both", "--method", "ver",
             "--method", "fil-ver")  # fmt: skip
    done = run(*short, cwd=tmp_path, program=main)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("ver ", "fil-ver "))]
    assert [row[0] for row in rows] == ["ver", "fil-ver"]
    for name in ("accuracy-by-round.png", "accuracy-by-task.png"):
        assert (tmp_path / "both" / name).stat().st_size > 1000
    made = [tmp_path / "both" / method for method in ("ver", "fil-ver")]
    checksums = {json.loads((one / "config.json").read_text())["encoder_checksum"] for one in made}
    assert len(checksums) == 1  # one VEE serves both
    # A finished run is not run again, and its results stand as they were.
    before = [json.loads((one / "results.json").read_text()) for one in made]
    again = run(*short, "--resume", cwd=tmp_path, program=main)
    assert again.returncode == 0, again.stderr
    assert "taken from the run directory" in again.stderr
    assert [json.loads((one / "results.json").read_text()) for one in made] == before
