"""`tffcl run fil-ver`: wrong input is one clear line, and a run of seconds from flags to pictures, stopped or not."""

from __future__ import annotations

import gzip
import json
import struct
import subprocess
import sys

import numpy as np
import pytest
from command_line import once, what_is_built, wrong
from serving import PATIENCE

from tffcl.commands import FilVerOptions
from tffcl.commands.fil_ver_flags import METHODS, OFFLINE, SHARED, STUDY
from tffcl.errors import InputError

RUN = ("run", "fil-ver")
DIGITS = (*RUN, "--dataset", "digits")


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--method", "magic"], ["--method", "magic", "fil-ver"]),
        (["--dataset", "mnits"], ["--dataset", "mnits", "fashion-mnist"]),
        (["--domains", "colours"], ["--domains", "colours", "rotations"]),
        (["--pretraining", "none"], ["--pretraining", "none", "central"]),
        (["--hidden", "0"], ["--hidden", "1 or more", "0"]),
        (["--filters", "8,x"], ["--filters", "8, x"]),
        (["--beta", "-1"], ["--beta must be a number 0 or more", "-1"]),
        (["--beta", "nan"], ["--beta must be a number 0 or more"]),
        (["--proximal", "-0.5"], ["--proximal must be a number 0 or more"]),
        (["--learning-rate", "0"], ["--learning-rate must be a number above 0"]),
        (["--sst-learning-rate", "inf"], ["--sst-learning-rate must be a number above 0"]),
        (["--sst-steps", "0"], ["--sst-steps", "0"]),
        (["--client-memory", "-1"], ["--client-memory", "-1"]),
        (["--memory-share", "1.5"], ["--memory-share", "1.5"]),
        (["--memory-per-task"], ["--memory-per-task is for the methods of section 5.1", "ebr-16x"]),
        (["--test-examples", "0"], ["--test-examples", "0"]),
        (["--dp-clip", "1"], ["--dp-clip needs --dp-noise-multiplier"]),
        (["--dp-noise-multiplier", "1"], ["--dp-noise-multiplier needs --dp-clip"]),
        (["--dp-clip", "0", "--dp-noise-multiplier", "1"], ["--dp-clip must be a number above 0"]),
        (["--dp-noise-seed", "1"], ["--dp-noise-seed needs --dp-clip and --dp-noise-multiplier"]),
        (["--method", "ver", "--dp-clip", "1", "--dp-noise-multiplier", "1"], ["ver sends no embeddings", "ebr"]),
        (["--method", "naive", "--num-clients", "3"], ["--num-clients 3", "naive", "one client"]),
        (["--dataset", "digits", "--domains", "classes"], ["--domains classes", "mnist+fashion", "digits"]),
        (["--dataset", "mnist+fashion", "--domains", "mild"], ["mnist+fashion", "classes", "mild"]),
        (["--num-clients", "2", "--clients-per-round", "3"], ["--clients-per-round 3", "--num-clients 2"]),
        (["--resume"], ["--resume", "--output-dir"]),
        (["--no-such-flag"], ["--no-such-flag"]),
    ],
)
def test_wrong_flags(run, args, parts):
    wrong(run(*RUN, *args), *parts)


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--num-clients", "20"], ["examples_per_task=150", "domain 0", "20 clients", "ask for"]),
        (["--clients-per-round", "6"], ["--clients-per-round 6", "--num-clients 5"]),
        (["--domains", "mild", "--num-tasks", "5"], ["--num-tasks 5", "4 domains"]),
        (["--enrollment", "sometimes"], ["--enrollment sometimes", "scattered", "no such file"]),
        (["--enrollment", "."], ["--enrollment .", "a folder"]),
    ],
)
def test_what_the_digits_cannot_give(run, tmp_path, args, parts):
    wrong(run(*DIGITS, *args, cwd=tmp_path), *parts)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ("**\n*o\n*o\n", ["3 x 2", "2 x 2"]),
        ("***\n*oo\n", ["2 x 3", "2 x 2"]),
        ("**\n*\n", ["rows of lengths [2, 1]"]),
        ("", ["rows of lengths []"]),
        ("*,*\n*,?\n", ["client 1, task 1", "'?'", "o (no longer)"]),
        ("active\tno longer\nnot yet\tno longer\n", ["client 1, task 1", "'no longer' cannot stand after 'not yet'"]),
        ("*;x\n*;*\n", ["client 0, task 1", "'not yet' cannot stand after 'active'"]),
    ],
)
def test_enrolment_files(run, tmp_path, table, parts):
    (tmp_path / "who.csv").write_text(table)
    args = ("--num-clients", "2", "--num-tasks", "2", "--enrollment", "who.csv")
    wrong(run(*DIGITS, *args, cwd=tmp_path), "who.csv", *parts)


@pytest.mark.parametrize("text", ["*o\nx*\n", "*,o\r\nx , *\r\n\r\n", "\ufeffactive\tno longer\nnot yet\tactive"])
def test_ways_to_write_an_enrolment(tmp_path, text):
    from tffcl.commands import fil_ver_data

    (tmp_path / "who.tsv").write_bytes(text.encode())
    args = ["--num-clients", "2", "--num-tasks", "2", "--enrollment", str(tmp_path / "who.tsv")]
    options = FilVerOptions.parse(args)
    assert fil_ver_data.load_enrollment(options).table() == ("*o", "x*")
    assert options.label == "fil-ver+who"


def idx(array):
    head = struct.pack(">I", 0x0800 + array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(head + array.astype(np.uint8).tobytes())


def write_images(folder, side, prefixes=("train", "t10k"), classes=10):
    """Files in the layout of MNIST: 30 training and 10 test images of each class, all of one grey."""
    folder.mkdir()
    for prefix, count in zip(prefixes, (30, 10)):
        labels = np.arange(count * classes) % classes
        images = np.broadcast_to(labels[:, None, None], [len(labels), side, side])
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(idx(images))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(idx(labels))


def test_two_sets_of_images(run, tmp_path):
    from tffcl.commands import fil_ver_data

    write_images(tmp_path / "mnist", 8)
    args = (*RUN, "--dataset", "mnist+fashion", "--data-dir", tmp_path, "--num-clients", "2")
    wrong(run(*args), "fashion-mnist", "train-images-idx3-ubyte", str(tmp_path))
    write_images(tmp_path / "fashion-mnist", 9)
    wrong(run(*args), "image size (9, 9)", "expected (8, 8)")
    wrong(run(*RUN, "--dataset", "mnist", "--data-dir", tmp_path), "training examples of label 0")
    options = FilVerOptions.parse(["--dataset", "mnist", "--data-dir", str(tmp_path), "--domains", "permutations"])
    domains, _ = fil_ver_data.load_domains(options)
    assert [domain.transform is None for domain in domains.domains] == [True, False, False, False]


def test_default_data(tmp_path, monkeypatch, capsys):
    from tffcl.commands import fil_ver_data

    def taken(*args):
        options = FilVerOptions.parse(["--data-dir", str(tmp_path), *args])
        domains, complete = fil_ver_data.load_domains(options)
        return complete.dataset, domains.name, len(domains), capsys.readouterr().err.split("\n")

    monkeypatch.delenv("TFFCL_DATA_DIR", raising=False)
    *found, said = taken()
    assert found == ["digits", "digits rotations", 4]
    assert said[0].startswith("data: emnist-balanced and fashion-mnist and mnist not at hand: taking digits")
    write_images(tmp_path / "mnist", 8)
    *found, said = taken("--method", "naive", "--num-tasks", "3")
    assert found == ["mnist", "mnist permutations", 3]
    assert "not at hand" not in said[0]
    assert taken()[0] == "mnist"
    write_images(tmp_path / "fashion-mnist", 8)
    *found, said = taken("--num-tasks", "2")
    assert found == ["fashion-mnist", "fashion-mnist rotations", 2]
    assert said[0].startswith("data: emnist-balanced not at hand: taking fashion-mnist")
    assert "tasks: 0 degrees, 180 degrees" in said[1]
    prefixes = ("emnist-balanced-train", "emnist-balanced-test")
    write_images(tmp_path / "emnist", 8, prefixes, classes=47)
    assert taken()[:3] == ("emnist-balanced", "emnist-balanced", 4)
    assert taken("--domains", "mild")[1] == "emnist-balanced mild"


@pytest.fixture(name="emnist")
def _emnist(tmp_path):
    """A folder with EMNIST balanced as its authors give it out: official names, and images stored column by column.

    Every class has 6 training and 2 test images of 8 x 6 (rows x columns), which show the number of the class as bits
    in the top row; the rest is dark.
    """
    folder = tmp_path / "data" / "gzip"
    folder.mkdir(parents=True)
    for part, count in (("train", 6), ("test", 2)):
        labels = np.repeat(np.arange(47), count)
        upright = np.zeros([len(labels), 8, 6])
        upright[:, 0] = 255 * (labels[:, None] >> np.arange(6) & 1)
        (folder / f"emnist-balanced-{part}-images-idx3-ubyte.gz").write_bytes(idx(upright.transpose(0, 2, 1)))
        (folder / f"emnist-balanced-{part}-labels-idx1-ubyte.gz").write_bytes(idx(labels))
    return folder.parent


def test_emnist_is_four_tasks_of_ten_classes_each_upright(emnist):
    from tffcl import program
    from tffcl.commands import fil_ver_data

    args = ["--data-dir", str(emnist), "--num-clients", "2", "--examples-per-task", "20"]
    domains, options = fil_ver_data.load_domains(FilVerOptions.parse(args))
    assert (options.dataset, options.domains, options.num_tasks) == ("emnist-balanced", "classes", 4)
    assert (domains.image_size, domains.num_labels) == ((8, 6), 10)
    stream = fil_ver_data.split(options, domains, fil_ver_data.load_enrollment(options))
    data = program.DomainClientData(domains, stream)
    for task in range(4):
        for client in range(2):
            one = data.task(client, task)
            assert np.bincount(one.train["label"]).tolist() == [2] * 10
            assert np.bincount(one.test["label"]).tolist() == [1] * 10
            for examples in (one.train, one.test):
                shown = (examples["x"][:, 0] // 255) @ (1 << np.arange(6))
                np.testing.assert_array_equal(shown, examples["label"] + 10 * task)
                assert not examples["x"][:, 1:].any()


def test_emnist_from_the_command_line_and_pooled_tasks_are_scored_one_by_one(run, emnist, tmp_path, no_plots):
    args = [flag for flag in SHORT if flag not in ("--dataset", "digits")]
    tiny = ("--num-tasks", "4", "--examples-per-task", "20", "--enrollment", "full", "--num-rounds", "1")
    args += [*tiny, "--data-dir", emnist, "--method", "offline-end-to-end"]
    code, stdout, stderr = run(*args, cwd=tmp_path)
    assert code == 0, stderr
    assert "data: emnist-balanced, images of 8 x 6, 10 labels; tasks: emnist-balanced 0-9, " in stderr
    assert "emnist-balanced 30-39; 1 rounds a task" in stderr
    results = stripped(tmp_path / "run")
    assert (results["dataset"], results["num_clients"], results["num_tasks"]) == ("emnist-balanced", 1, 1)
    assert results["memory"]["client"] == 0
    # All test examples are scored, as many of each task.
    assert np.shape(results["accuracy_by_task"]) == (1, 4)
    assert results["average_accuracy_by_task"] == pytest.approx(results["task_averaged_test_accuracy"], abs=1e-6)
    assert "task 4" in stdout
    assert f"{100 * results['average_accuracy_by_task']:.1f}" in stdout
    assert not (tmp_path / "run" / "encoder.npz").exists()
    wrong(
        run(*RUN, "--data-dir", emnist, "--dataset", "emnist-balanced", "--num-tasks", "5"),
        "--num-tasks 5", "emnist-balanced has 4 domains",
    )  # fmt: skip
    (emnist / "gzip" / "emnist-balanced-test-labels-idx1-ubyte.gz").unlink()
    wrong(
        run(*RUN, "--data-dir", emnist, "--dataset", "emnist-balanced"),
        "emnist-balanced-test-labels-idx1-ubyte", "not found together", "nist.gov",
    )  # fmt: skip


def test_options_and_labels():
    options = FilVerOptions.parse(["--hidden", "7, 5"]).complete("digits")
    assert (options.hidden, options.num_clients, options.num_tasks, options.num_rounds) == ((7, 5), 5, 4, 4)
    assert FilVerOptions.parse([]).complete("fashion-mnist").hidden == (1000, 1000)
    assert FilVerOptions.parse([]).complete("mnist+fashion").domains == "classes"
    assert [
        FilVerOptions.parse(["--method", method, "--memory-per-task"]).complete("mnist").task_memory
        for method in ("ebr-1x", "ebr-16x", "naive-end-to-end")
    ] == [200, 2000, 200]
    study = FilVerOptions.parse(["--method", "ebr-16x"]).complete("mnist")
    assert (study.num_clients, study.num_tasks, study.domains) == (1, 10, "permutations")
    args = ["--method", "ebr", "--pretraining", "federated", "--dp-clip", "1", "--dp-noise-multiplier", "2"]
    assert FilVerOptions.parse(args).label == "ebr+federated+dp"
    with pytest.raises(InputError, match="--beta"):
        FilVerOptions.parse(["--beta", "-1"])


@pytest.mark.parametrize("args", [(*RUN, "--help"), ("reproduce", "fil-ver", "--help"), (*RUN, "--hidden", "0")])
def test_help_and_errors_import_nothing_heavy(args):
    code = """
import atexit, sys
heavy = ("tensorflow", "tensorflow_federated", "matplotlib", "sklearn")
atexit.register(lambda: print([name for name in heavy if name in sys.modules], file=sys.stderr))
from tffcl.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stderr.endswith("[]\n")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_its_client_work(method, monkeypatch):
    from tffcl.algorithms import fed_avg, fil_ver
    from tffcl.commands import fil_ver as command
    from tffcl.commands import fil_ver_data, fil_ver_models

    works = []
    for module in (fed_avg, fil_ver):
        monkeypatch.setattr(
            module, "compose_continual_process", lambda work, *parts: works.append((work, parts)) or work
        )
    monkeypatch.setattr(fil_ver, "build_server_side_training", lambda *given: given)

    def untrained(options, domains, stream):
        encoder = fil_ver_models.build_encoder(options, domains)
        network = fil_ver_models.build_network(options, domains)
        first = network.mlp.initial([1, 2]).numpy()
        return fil_ver_models.models.FrozenEncoder(encoder, encoder.initial([1, 2]).numpy()), first

    monkeypatch.setattr(fil_ver_models, "_pretrained", untrained)
    small = ["--hidden", "3", "--filters", "2", "--embedding-size", "2", "--num-tasks", "3", "--proximal", "0.25"]
    options = FilVerOptions.parse(["--method", method, "--dataset", "digits", *small])
    domains, options = fil_ver_data.load_domains(options)
    stream = fil_ver_data.split(options, domains, fil_ver_data.load_enrollment(options))
    frozen = fil_ver_models.model_of(options, domains, stream, None)
    command.build_process(options, domains, frozen)
    data = command.client_data(options, domains, stream)
    ((work, parts),) = works
    assert work._proximal == 0.25
    assert data.num_clients == (1 if method in (*OFFLINE, *STUDY) else 5)
    assert data.num_tasks == (1 if method in OFFLINE else 3)
    if method.endswith("end-to-end"):
        assert frozen is None
        assert not work.network.encoder.variational
        return
    encoder = work.model.encoder.encoder
    assert encoder.variational == (method in ("fil-ver", "ver-stats", "ver", "vanilla", "offline"))
    assert encoder.name == ("identity" if method == "naive" else "image")
    assert work.sharing.kind == SHARED.get(method, "none")
    has_sst = isinstance(parts[-1], tuple)  # what the patched builder of the finalizer was given
    assert has_sst == (method in ("fil-ver", "ver-stats", "ebr"))
    memory = {"vanilla": 0, "none": 0, "random-encoder": 0, "noise": 80, "naive": 80, "ebr-1x": 80, "ebr-16x": 800}
    assert work._capacity == (0 if method in OFFLINE else memory.get(method, 150))
    assert work._task_capacity is None
    assert (work.model.memory_encoder is not None) == (method == "noise")
    assert (frozen.accuracy is not None) == (method not in ("naive", "random-encoder"))


def test_replayed_images_are_those_of_past_tasks():
    from tffcl import datasets, program
    from tffcl.commands import fil_ver_data
    from tffcl.commands.fil_ver_replay import ReplayedDomainData

    options = FilVerOptions.parse(["--method", "naive-end-to-end", "--examples-per-task", "40", "--num-tasks", "3"])
    options = options.complete("digits")
    domains = datasets.permutations(datasets.load_images("digits"), 3, 7)
    stream = fil_ver_data.split(options, domains, fil_ver_data.load_enrollment(options))
    assert options.remembered == 8
    divided = program.DomainClientData(domains, stream)
    replayed = ReplayedDomainData(domains, stream, 20, 3)
    for task, past in ((0, 0), (1, 20), (2, 10)):
        found, own = replayed.task(0, task), divided.task(0, task)
        assert len(found.train["label"]) == 40 + past * task
        np.testing.assert_array_equal(found.train["x"][:40], own.train["x"])
        np.testing.assert_array_equal(found.test["x"], own.test["x"])
        for earlier in range(task):
            rows = slice(40 + past * earlier, 40 + past * (earlier + 1))
            known = {(x.tobytes(), label) for x, label in zip(*divided.task(0, earlier).train.values())}
            replay = list(zip(found.train["x"][rows], found.train["label"][rows]))
            assert all((x.tobytes(), label) for x, label in replay)
            assert {(x.tobytes(), label) for x, label in replay} <= known
            assert np.bincount(found.train["label"][rows]).tolist() == [past // 10] * 10
    limited = ReplayedDomainData(domains, stream, 20, 3, task_memory=5)
    assert [len(limited.task(0, task).train["label"]) for task in range(3)] == [40, 45, 50]


SHORT = (
    *DIGITS, "--num-clients", "2", "--num-tasks", "3", "--num-rounds", "2", "--num-epochs", "1", "--hidden", "8",
    "--filters", "4", "--embedding-size", "4", "--pretraining-epochs", "2", "--sst-steps", "5", "--examples-per-task",
    "60", "--client-memory", "30", "--server-memory", "50", "--send-per-round", "20", "--enrollment", "who.csv",
    "--runtime", "in-process", "--output-dir", "run",
)  # fmt: skip
PRIVATE = ("--dp-clip", "5", "--dp-noise-multiplier", "4", "--dp-noise-seed", "3")
WHO = "*,*,o\nx,*,o\n"  # nobody is left in task 3


@pytest.fixture(scope="module", name="built_once")
def _built_once():
    """What takes most of a short run's time is made once for what is the same: flags, and the encoder's weights."""
    from tffcl.commands import fil_ver, fil_ver_models

    def asked(options, domains, frozen):
        return what_is_built(options), domains.name, frozen.checksum

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fil_ver, "build_process", once(fil_ver.build_process, asked))
        pretrained = once(fil_ver_models._pretrained, lambda options, *_: what_is_built(options))
        patch.setattr(fil_ver_models, "_pretrained", pretrained)
        yield


@pytest.fixture(scope="module", name="finished")
def _finished(run, built_once, tmp_path_factory):
    """The folder in which a short run was started, and how it ended."""
    folder = tmp_path_factory.mktemp("fil-ver")
    (folder / "who.csv").write_text(WHO)
    return folder, run(*SHORT, *PRIVATE, cwd=folder)


def test_a_short_run(finished):
    folder, (code, stdout, stderr) = finished
    assert code == 0, stderr
    assert "average" in stdout
    assert "pre-training: VEE, central, 60 examples of task 1, 2 epochs: " in stderr
    assert "privacy: none: with --dp-noise-seed, which config.json holds, the noise can be taken off" in stderr
    config = json.loads((folder / "run" / "config.json").read_text())
    assert (config["method"], config["dataset"]) == ("fil-ver+who+dp", "digits rotations")
    assert config["enrollment"] == ["**o", "x*o"]
    assert (config["dp_epsilon"], config["dp_noise_seed"]) == (None, 3)
    results = json.loads((folder / "run" / "results.json").read_text())
    assert 0 < results["pretraining_accuracy"] <= 1
    assert np.shape(results["accuracy_by_task"]) == (3, 3)
    # A row is d or 2 d numbers, label, task and priority, four bytes each; the pictures are of 64 pixels.
    assert results["memory"] == {
        "client_rows": 30, "client": 30 * 4 * (2 * 4 + 3), "client_raw_images": 30 * 64,
        "server_rows": 50, "server": 50 * 4 * (4 + 3), "server_raw_images": 50 * 64,
        "encoder": np.load(folder / "run" / "encoder.npz")["values"].nbytes,
    }  # fmt: skip
    for name in ("accuracy-by-round.png", "accuracy-by-task.png", "communication.png"):
        assert (folder / "run" / "plots" / name).stat().st_size > 1000


def test_epsilon_is_told(capsys):
    from tffcl.commands import fil_ver

    args = PRIVATE[: PRIVATE.index("--dp-noise-seed")]
    assert fil_ver._epsilon(FilVerOptions.parse(args)) == pytest.approx(1.99, abs=0.01)
    assert "each vector that is sent is (1.99, 1e-05)-differentially private" in capsys.readouterr().err
    assert fil_ver._epsilon(FilVerOptions.parse([])) is None
    assert not capsys.readouterr().err


def stripped(folder):
    results = json.loads((folder / "results.json").read_text())
    del results["seconds"]
    return results


def test_stopped_after_a_round_it_goes_on_with_its_encoder(run, finished, tmp_path, monkeypatch, no_plots):
    from tffcl.commands import fil_ver_models
    from tffcl.program.run_directory import RunDirectory

    folder, _ = finished
    (tmp_path / "who.csv").write_text(WHO)
    save, calls = RunDirectory.save, []

    def interrupted(self, state):
        save(self, state)
        calls.append(state)
        if len(calls) == 4:  # in the second task
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "save", interrupted)
        code, _, stderr = run(*SHORT, *PRIVATE, cwd=tmp_path)
    assert code == 130, stderr
    encoder = (tmp_path / "run" / "encoder.npz").read_bytes()
    monkeypatch.setattr(fil_ver_models, "_pretrained", None)  # nothing may be trained anew
    code, _, stderr = run(*SHORT, *PRIVATE, "--resume", cwd=tmp_path)
    assert code == 0, stderr
    assert "taken from the run directory" in stderr
    assert (tmp_path / "run" / "encoder.npz").read_bytes() == encoder
    # Both a run with the same seed and one that was stopped: all figures are equal.
    assert stripped(tmp_path / "run") == stripped(folder / "run")


def test_clients_with_files_end_as_those_without(run, finished, no_plots):
    folder, _ = finished
    args = (*SHORT[:-1], "files", *PRIVATE, "--client-dir", "clients")
    code, _, stderr = run(*args, cwd=folder)
    assert code == 0, stderr
    found, expected = stripped(folder / "files"), stripped(folder / "run")
    assert found.pop("config") == {**expected.pop("config"), "client_store": "files"}
    assert found == expected
    assert len(list((folder / "clients").glob("run-*/client-000?/about.txt"))) == 2
    for path in (folder / "clients").glob("run-*/client-0001/state-*.index"):
        path.write_bytes(path.read_bytes()[:40])
    wrong(run(*args, "--resume", cwd=folder), "client 1: cannot read version", str(folder / "clients"))


def test_its_directory_is_protected(run, finished):
    folder, _ = finished
    wrong(run(*SHORT, *PRIVATE, cwd=folder), "holds a run already", "--resume")
    wrong(
        run(*SHORT, *PRIVATE, "--num-rounds", "3", "--resume", cwd=folder),
        "another configuration",
        "num_rounds is 2 there and 3 here",
    )
    larger = (*SHORT, *PRIVATE, "--embedding-size", "5", "--resume")
    wrong(run(*larger, cwd=folder), "encoder.npz", "embedding_size=4", "embedding_size=5")
