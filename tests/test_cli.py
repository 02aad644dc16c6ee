"""The command line: quick where nothing is to be done, one clear line where the input is wrong."""

from __future__ import annotations

import gc
import logging
import os
import pathlib
import pickle
import subprocess
import sys
import types
from unittest import mock

import click
import numpy as np
import pytest
from command_line import wrong
from serving import PATIENCE

from tffcl import datasets
from tffcl.commands import FedSeITOptions, entry, fedseit_flags, running, text_data
from tffcl.errors import InputError, RunError

HEAVY = ("tensorflow", "tensorflow_federated", "numpy", "matplotlib", "pandas", "gensim", "grpc", "sklearn")


def program(*args, code="from tffcl.cli import main; main()"):
    """Runs the program in a process of its own."""
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["run", "--help"],
        ["run", "fedseit", "--help"],
        ["run", "confedmade", "--help"],
        ["reproduce", "confedmade", "--help"],
        ["report", "--help"],
        ["--version"],
    ],
)
def test_help_imports_nothing_heavy(args):
    done = program(
        *args,
        code=f"""
import atexit, sys
atexit.register(lambda: print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr))
from tffcl.cli import main
main()
""",
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert "tffcl" in done.stdout


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["run", "fedseit", "--method", "magic"], ["--method", "magic", "fedseit"]),
        (["run", "fedseit", "--num-rounds", "0"], ["--num-rounds", "0"]),
        (["run", "fedseit", "--num-clients", "three"], ["--num-clients", "three"]),
        (["run", "fedseit", "--no-such-flag"], ["--no-such-flag"]),
        (["run", "fedseit", "--learning-rate", "nan"], ["--learning-rate must be a number above 0", "nan"]),
        (["run", "fedseit", "--sparsity", "-1"], ["--sparsity must be a number 0 or more"]),
        (["run", "fedseit", "--resume"], ["--resume", "--output-dir"]),
        (["run", "fedseit", "--seed", 2**32], ["--seed", "4294967296"]),
        (["run", "fedseit", "--split-seed", "-1"], ["--split-seed", "-1"]),
        (["run", "fedseit", "--num-clients", "2", "--clients-per-round", "3"], ["--clients-per-round 3", "2"]),
        (["run", "fedseit", "--num-clients", "1"], ["--num-clients 1", "2 or more", "--method fedweit"]),
        (["run", "fedseit", "--min-cluster-size", "5"], ["--min-cluster-size is for --selection sit"]),
        (
            ["run", "fedseit", "--selection", "sit", "--dp-sit-clip", "5"],
            ["--dp-sit-clip and --dp-sit-noise go together"],
        ),
        (
            ["run", "fedseit", "--selection", "sit", "--dp-sit-clip", "5", "--dp-sit-noise", "0"],
            ["--dp-sit-noise must be a number above 0"],
        ),
        (
            ["run", "fedseit", "--runtime", "remote", "--workers", "h:1", "--client-dir", "x"],
            ["--client-dir must be an absolute path", "x"],
        ),
        (["run", "nothing"], ["nothing"]),
        (["report"], ["RUN_DIR"]),
    ],
)
def test_wrong_flags(run, args, parts):
    wrong(run(*args), *parts)


@pytest.mark.parametrize("args", [(), ("run",), ("reproduce",)])
def test_without_a_command_the_help_is_shown_as_it_stands(run, args):
    done = run(*args)
    shown = done.stdout + done.stderr
    assert "Usage: " in shown
    assert "\n\nCommands:\n" in shown
    assert "error" not in shown


def test_reproduce_where_nothing_can_be_written(run, tmp_path):
    (tmp_path / "file").write_text("")
    wrong(run("reproduce", "fedseit", "--output-dir", tmp_path / "file" / "runs"), "file is a file")


def test_no_such_data_and_vectors(run, tmp_path):
    fedseit = ("run", "fedseit")
    wrong(run(*fedseit, "--dataset", "trec7"), "trec7", "known sets are", "trec6")
    wrong(run(*fedseit, "--dataset", "trec6", "--data-dir", tmp_path), "trec6", "train_5500.label", str(tmp_path))
    wrong(run(*fedseit, "--data-dir", tmp_path / "none"), "no such folder")
    wrong(run(*fedseit, "--dataset", "sample", "--embeddings", tmp_path / "v.bin"), "no such file of word vectors")


@pytest.fixture(name="no_vectors")
def _no_vectors(monkeypatch):
    """Word vectors are neither read nor trained: what is wrong has to be said before."""
    for name in ("load_word_vectors", "train_word_vectors"):
        monkeypatch.setattr(datasets, name, mock.Mock(side_effect=AssertionError(name)))


def test_more_labels_than_there_are(run, tmp_path, no_vectors):
    done = run("run", "fedseit", "--dataset", "sample", "--labels-per-task", 7, cwd=tmp_path)
    wrong(done, "labels_per_task=7", "6 labels")
    assert not (tmp_path / "runs").exists()


def test_a_run_that_is_there_is_said_before_word_vectors(run, tmp_path, no_vectors):
    (tmp_path / "config.json").write_text("{}")
    done = run("run", "fedseit", "--dataset", "sample", "--output-dir", tmp_path)
    wrong(done, str(tmp_path), "holds a run already")


@pytest.mark.parametrize("given", [False, True])
def test_no_pickle_is_taken_from_a_default_place(run, tmp_path, given):
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(ran),)

    (tmp_path / "glove").mkdir()
    path = tmp_path / "glove" / "a.bin"
    path.write_bytes(pickle.dumps(Evil()))
    flags = ("--embeddings", path) if given else ("--data-dir", tmp_path)
    done = run("run", "fedseit", "--dataset", "sample", *flags, cwd=tmp_path)
    wrong(done, str(path), "is a pickle", "--allow-pickle", "save_word2vec_format")
    wrong(run("run", "fedseit", "--data-dir", tmp_path, "--allow-pickle"), "--allow-pickle is for a file")
    assert not ran.exists()


def own_texts(folder):
    """A folder of tables in French, by a user who has three labels."""
    rows = "".join(f"l'été {label} {'à ' * label}paris,{label}\n" for label in range(3)) * 5
    for name in ("train.csv", "test.csv"):
        (folder / name).write_text("text,label\n" + rows, encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize(
    ("flags", "words", "recorded"),
    [
        ([], {"l'été", "0", "1", "2", "à", "paris"}, {}),
        (["--tokeniser", "unicode", "--max-words", "2"], {"l'été", "0", "1", "2"}, {"tokeniser", "max_words"}),
        (["--tokeniser", "ascii"], {"l'", "t", "0", "1", "2", "paris"}, {"tokeniser"}),
    ],
)
def test_own_texts_keep_their_letters(tmp_path, caplog, monkeypatch, flags, words, recorded):
    monkeypatch.setattr(logging.getLogger("tffcl"), "propagate", True)
    options = FedSeITOptions.parse(["--dataset", own_texts(tmp_path), "--embeddings", "own", *flags])
    texts, options = text_data.load_texts(options)
    encoded = datasets.encode(texts, text_data.load_vectors(options, texts), max_words=options.max_words)
    assert set(encoded.words[2:]) == words
    assert ("--tokeniser unicode" in caplog.text) == ("ascii" in flags)
    assert ("have more than 2 words and are cut" in caplog.text) == ("--max-words" in flags)
    assert {"tokeniser", "max_words", "allow_pickle"} & set(options.config()) == set(recorded)


def test_report_of_no_run(run, tmp_path):
    wrong(run("report", tmp_path / "nothing"), "nothing: no such run directory")
    wrong(run("report", tmp_path), "expected a run directory")
    wrong(run("report", tmp_path / ("n" * 300)), "no such run directory")
    (tmp_path / "config.json").write_text("{}")
    wrong(run("report", tmp_path), "results.json", "resume the run to finish it")


@pytest.mark.parametrize("flag", ["--output-dir", "--client-dir"])
@pytest.mark.parametrize(
    ("name", "words"),
    [("file", "is a file"), ("gone", "a link to nothing"), ("file/x", "is a file"), ("n" * 300, "name too long"),
     ("\udcc3", "outside of this locale's encoding")],
    ids=ascii,
)  # fmt: skip
def test_directories_that_cannot_be_used_are_named_before_anything_is_done(tmp_path, monkeypatch, flag, name, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "gone").symlink_to("nowhere")
    with pytest.raises(RunError, match=words):
        running.choose_directory(FedSeITOptions.parse([flag, str(tmp_path / name)]), "sample")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "gone"]


def test_a_name_that_leads_nowhere_is_taken_for_no_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "fedseit-sample-seed1").symlink_to("nowhere")
    assert running.choose_directory(FedSeITOptions.parse([]), "sample").name == "fedseit-sample-seed1-2"


def test_options_are_parsed_in_one_place():
    assert FedSeITOptions.parse([]).complete("trec6").learning_rate == 1e-4
    assert FedSeITOptions.parse(["--method", "local", "--share-dense"]).label == "local"
    with pytest.raises(InputError, match="--retention"):
        FedSeITOptions.parse(["--retention", "inf"])


def test_fewer_test_documents_on_demand():
    labels = np.repeat(np.arange(4), 40)
    encoded = types.SimpleNamespace(train_labels=labels, test_labels=labels, label_names=("a", "b", "c", "d"))
    sizes = {}
    for flags in ([], ["--max-test-documents", "7"]):
        options = FedSeITOptions.parse([*flags, "--labels-per-task", "2"])
        stream = text_data.split(options, encoded)
        sizes[options.config().get("max_test_documents")] = {len(t.test) for own in stream.tasks for t in own}
    assert sizes == {None: {80}, 7: {7}}


def test_what_the_flags_of_sit_make():
    from tffcl.commands import fedseit

    plain = FedSeITOptions.parse(["--selection", "sit"])
    made = fedseit.build_transfer(plain)
    assert (made.q, made.min_cluster_size, made.privacy) == (200, 2, None)
    assert not {"max_clusters", "min_cluster_size", "dp_sit_clip", "dp_sit_noise"} & set(plain.config())
    noised = FedSeITOptions.parse(
        ["--selection", "sit", "--min-cluster-size", "9", "--dp-sit-clip", "5", "--dp-sit-noise", "4"]
    )
    made = fedseit.build_transfer(noised)
    assert (made.q, made.min_cluster_size, made.privacy.clip, made.privacy.noise_multiplier) == (4, 9, 5, 4)
    assert noised.label == "fedseit+sit3+sitdp"
    assert noised.config()["dp_sit_noise"] == 4
    few = FedSeITOptions.parse(["--selection", "sit", "--max-clusters", "7"])
    assert fedseit.build_transfer(few).q == 7


def test_default_data(monkeypatch, tmp_path, capsys):
    from tffcl.commands import text_data

    texts, options = text_data.load_texts(FedSeITOptions.parse(["--data-dir", str(tmp_path)]))
    assert texts.name == "sample"
    assert "taking the small sample that ships" in capsys.readouterr().err
    assert (options.num_rounds, options.num_epochs, options.learning_rate) == (3, 10, 1e-3)
    own = FedSeITOptions.parse(["--dataset", "sample", "--num-rounds", "7"])
    assert text_data.load_texts(own)[1].num_rounds == 7


def test_default_vectors(monkeypatch, tmp_path):
    from tffcl.commands import text_data

    monkeypatch.setattr("tffcl.datasets.word_vectors.glove_available", lambda: True)
    assert text_data._default_vectors(str(tmp_path)) == "glove-50"
    monkeypatch.setattr("tffcl.datasets.word_vectors.glove_available", lambda: False)
    assert text_data._default_vectors(str(tmp_path)) == "own"
    (tmp_path / "glove").mkdir()
    path = tmp_path / "glove" / "some.bin"
    path.write_bytes(b"")
    assert text_data._default_vectors(str(tmp_path)) == str(path)
    monkeypatch.setenv("TFFCL_DATA_DIR", str(tmp_path))
    assert text_data._default_vectors(None) == str(pathlib.Path(path))


def test_garbage_is_collected_seldom_until_rounds_begin(monkeypatch):
    """Rounds leave large arrays behind; what is imported and traced before stays."""
    from tffcl import program

    usual, seen = gc.get_threshold(), []
    monkeypatch.setattr(entry, "_USUAL", (500, 5, 5))
    monkeypatch.setattr(program, "run_program", lambda *_, **__: seen.append(gc.get_threshold()))

    @click.command()
    @fedseit_flags
    def command(**flags):
        seen.append(gc.get_threshold())
        options = FedSeITOptions(**flags)
        with running.open_runtime(options):
            running.learn(options, None, None, None, pathlib.Path("nowhere"), {})

    with pytest.raises(SystemExit) as ended:
        entry.exit_with(command, args=["--runtime", "in-process"])
    after = gc.get_threshold()
    gc.set_threshold(*usual)
    assert ended.value.code == 0
    assert seen[0][0] > 50_000
    assert seen[1] == after == (500, 5, 5)
