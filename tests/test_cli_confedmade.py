"""`tffcl run confedmade`: wrong input is one clear line, and a run of seconds from flags to pictures."""

from __future__ import annotations

import gzip
import json
import struct

import numpy as np
import pytest
from command_line import once, what_is_built, wrong

from tffcl.commands import ConFedMADEOptions
from tffcl.commands.confedmade_flags import METHODS
from tffcl.errors import InputError

RUN = ("run", "confedmade")


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--method", "magic"], ["--method", "magic", "confedmade"]),
        (["--dataset", "mnits"], ["--dataset", "mnits", "fashion-mnist"]),
        (["--hidden", "0"], ["--hidden", "1 unit or more", "0"]),
        (["--hidden", "400,x"], ["--hidden", "400, x"]),
        (["--order", "1,3,3"], ["--order", "1,3,3", "permutation of 1..3"]),
        (["--order", "backwards"], ["--order", "'backwards'", "natural"]),
        (["--order", "2,1", "--order-agnostic"], ["--order", "--order-agnostic", "contradict"]),
        (["--num-masks", "4"], ["--num-masks 4", "--order-agnostic"]),
        (["--hidden", "none", "--no-direct"], ["--hidden none", "--direct"]),
        (["--distinct-masks"], ["--distinct-masks", "confedmade"]),
        (["--sparsity", "-1"], ["--sparsity must be a number 0 or more", "-1"]),
        (["--retention", "nan"], ["--retention must be a number 0 or more"]),
        (["--penalty", "-0.5"], ["--penalty must be a number 0 or more"]),
        (["--proximal", "inf"], ["--proximal must be a number 0 or more"]),
        (["--learning-rate", "0"], ["--learning-rate must be a number above 0"]),
        (["--gate-cutoff", "1"], ["--gate-cutoff", "0<=x<1"]),
        (["--assign", "0,1", "--assign", "1"], ["--assign", "as many tasks"]),
        (["--assign", "0", "--clients-per-round", "2"], ["--clients-per-round 2", "--num-clients 1"]),
        (["--resume"], ["--resume", "--output-dir"]),
        (["--no-such-flag"], ["--no-such-flag"]),
    ],
)
def test_wrong_flags(run, args, parts):
    wrong(run(*RUN, *args), *parts)


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--num-tasks", "11"], ["11 different labels", "10"]),
        (["--order", "2,1,3"], ["--order", "1..3", "digits has 64 inputs"]),
        (["--assign", "3,x"], ["--assign", "no label 'x'", "0, 1, 2"]),
        (["--assign", "3"] * 200, ["label 3", "training examples"]),
    ],
)
def test_what_the_digits_cannot_give(run, tmp_path, args, parts):
    wrong(run(*RUN, "--dataset", "digits", *args, cwd=tmp_path), *parts)
    assert not (tmp_path / "runs").exists()


def idx(array, magic=None):
    head = struct.pack(">I", magic or 0x0800 + array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


@pytest.fixture(name="mnist")
def _mnist(tmp_path):
    """A folder of 40 pictures in MNIST's layout, in which nobody has a 9."""
    (tmp_path / "mnist").mkdir()
    for part, count in (("train", 180), ("t10k", 18)):
        labels = np.arange(count) % 9
        pictures = np.zeros([count, 28, 28], np.uint8)
        (tmp_path / "mnist" / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pictures)))
        (tmp_path / "mnist" / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return tmp_path


def test_damaged_image_files(run, mnist):
    args = (*RUN, "--dataset", "mnist", "--data-dir", mnist)
    path = mnist / "mnist" / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    wrong(run(*args), path.name)
    path.write_bytes(gzip.compress(idx(np.zeros([180, 28, 28]), magic=0x0801)))
    wrong(run(*args), path.name, "magic")
    path.unlink()
    wrong(run(*args), "train-images-idx3-ubyte", str(mnist / "mnist"))


def test_a_digit_that_clients_lack(run, mnist):
    args = (*RUN, "--data-dir", mnist, "--assign", "1,9", "--output-dir", mnist / "run")
    wrong(run(*args), "9", "0 training examples")


def test_binary_sets_of_another_width_or_content(run, tmp_path):
    args = (*RUN, "--dataset", "binary", "--data-dir", tmp_path)
    wrong(run(*args), "adult.train.data")
    (tmp_path / "adult.train.data").write_text("0,1,1\n1,0,0\n")
    wrong(run(*args), "adult.train.data", "3 fields", "123")
    (tmp_path / "adult.train.data").write_text("0,1,2\n1,0,0\n")
    wrong(run(*args), "adult.train.data, line 1", "field 3", "0 or 1")


def test_default_data(mnist, monkeypatch, capsys):
    from tffcl.commands import vector_data

    monkeypatch.delenv("TFFCL_DATA_DIR", raising=False)
    (mnist / "other").mkdir()
    for folder, name in ((mnist, "mnist"), (mnist / "other", "digits")):
        vectors, options = vector_data.load_vectors(ConFedMADEOptions.parse(["--data-dir", str(folder)]))
        assert vectors.name == options.dataset == name
        assert vector_data.image_shape(vectors) == ((28, 28) if name == "mnist" else (8, 8))
    assert "mnist is not at hand: taking digits" in capsys.readouterr().err
    shape = vectors.train_x.shape
    drawn = ConFedMADEOptions.parse(["--dataset", "digits", "--binarise", "stochastic"])
    other = vector_data.load_vectors(drawn)[0]
    assert other.train_x.shape == shape
    assert vector_data.fingerprint(other) != vector_data.fingerprint(vectors)


def test_options_and_labels():
    assert ConFedMADEOptions.parse([]).complete("binary").num_tasks == 4
    digits = ConFedMADEOptions.parse(["--hidden", "7", "--hidden", "5"]).complete("digits")
    assert (digits.hidden, digits.num_rounds, digits.num_masks, digits.dataset) == ((7, 5), 5, 1, "digits")
    assert ConFedMADEOptions.parse(["--connectivity-agnostic"]).complete("mnist").num_masks == 8
    assigned = ConFedMADEOptions.parse(["--assign", "0+1,2", "--assign", "2,0"])
    assert (assigned.num_clients, assigned.num_tasks) == (2, 2)
    assert assigned.assign == ((("0", "1"), ("2",)), (("2",), ("0",)))
    label = ConFedMADEOptions.parse(["--method", "finetune", "--distinct-masks", "--order-agnostic"]).label
    assert label == "finetune+oa+distinct"
    with pytest.raises(InputError, match="--proximal"):
        ConFedMADEOptions.parse(["--proximal", "-1"])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_its_client_work(method, monkeypatch):
    from tffcl.algorithms import decomposed, fed_avg
    from tffcl.commands import confedmade

    for module in (decomposed, fed_avg):
        monkeypatch.setattr(module, "compose_continual_process", lambda work, aggregator, finalizer: work)

    args = ["--method", method, "--hidden", "3", "--num-tasks", "2"]
    options = ConFedMADEOptions.parse(args).complete("digits")
    transfer = confedmade.build_transfer(options)
    work = confedmade.build_process(options, 4, transfer)
    decomposes = method in ("confedmade", "fedweit-made", "fedweit-made-sync")
    assert work.num_foreign == (2 if decomposes else 0)
    assert work.network.config.share_biases != decomposes
    assert work.network.config.synchronised == (method != "fedweit-made")


SHORT = (
    *RUN, "--dataset", "digits", "--num-clients", "2", "--num-tasks", "2", "--num-rounds", "1", "--num-epochs", "2",
    "--hidden", "8", "--runtime", "in-process", "--output-dir", "run",
)  # fmt: skip


@pytest.fixture(scope="module", name="finished")
def _finished(run, tmp_path_factory):
    """The folder in which a short run was started, and how it ended; the same process serves the runs after it."""
    from tffcl.commands import confedmade

    folder = tmp_path_factory.mktemp("confedmade")
    with pytest.MonkeyPatch.context() as patch:
        build = once(confedmade.build_process, lambda options, width, _: (what_is_built(options), width))
        patch.setattr(confedmade, "build_process", build)
        yield folder, run(*SHORT, "--order-agnostic", "--num-masks", "2", cwd=folder)


def test_a_short_run(finished):
    folder, (code, stdout, stderr) = finished
    assert code == 0, stderr
    assert "NLL nats" in stdout
    assert "task known" in stdout
    assert "tasks of client 2: " in stderr
    results = json.loads((folder / "run" / "results.json").read_text())
    assert (results["method"], results["dataset"]) == ("confedmade+oa", "digits")
    # Jensen: the mean of probabilities is no worse than the mean of their logarithms.
    assert results["average_nll_task_known"] <= results["average_nll_one_mask"] + 1e-4
    names = {path.name for path in (folder / "run" / "plots").iterdir()}
    assert names >= {"nll_by_task.png", "attention.png", "samples.png", "accuracy_matrix.png"}
    assert all(path.stat().st_size > 1000 for path in (folder / "run" / "plots").iterdir())


def test_a_finished_run_given_again_says_the_same(run, finished, no_plots):
    folder, _ = finished
    before = json.loads((folder / "run" / "results.json").read_text())
    (folder / "run" / "samples.npz").unlink()
    again = run(*SHORT, "--order-agnostic", "--num-masks", "2", "--resume", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert (folder / "run" / "samples.npz").exists()
    assert json.loads((folder / "run" / "results.json").read_text())["nll"] == before["nll"]


def test_clients_with_files_end_as_those_without(run, finished, no_plots):
    folder, _ = finished
    args = ("--order-agnostic", "--num-masks", "2", "--client-dir", "clients")
    done = run(*SHORT[:-1], "files", *args, cwd=folder)
    assert done.returncode == 0, done.stderr
    numbers = [json.loads((folder / name / "results.json").read_text()) for name in ("run", "files")]
    for name in ("nll", "nll_task_known", "nll_newest", "average_nll_one_mask"):  # of tasks scored one by one
        one, other = (np.array(each[name], float) for each in numbers)
        np.testing.assert_allclose(other, one, rtol=1e-6)
    assert numbers[0]["bytes_up"] == numbers[1]["bytes_up"]
    assert len(list((folder / "clients").glob("run-*/client-000?/state-*.index"))) == 2 * 5


def test_its_directory_is_protected(run, finished):
    folder, _ = finished
    wrong(run(*SHORT, cwd=folder), "holds a run already", "--resume")
    other = (*SHORT, "--order-agnostic", "--num-masks", "2", "--num-rounds", "2", "--resume")
    wrong(run(*other, cwd=folder), "another configuration", "num_rounds is 1 there and 2 here")


def test_pooled_tasks_are_scored_one_by_one(run, tmp_path, no_plots):
    code, stdout, stderr = run(*SHORT, "--method", "offline", cwd=tmp_path)
    assert code == 0, stderr
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert np.shape(results["nll_of_tasks"]) == (2, 2)
    assert results["average_nll_of_tasks"] == pytest.approx(np.mean(results["nll_of_tasks"]))
    assert f"{results['average_nll_of_tasks']:.2f}" in stdout
