"""Data of an experiment and their division: what is taken where nothing is given, wrong files, words, streams."""

from __future__ import annotations

import logging
import os
import pathlib
import pickle
import types
from unittest import mock

import numpy as np
import pytest
from command_line import wrong
from image_files import idx, write_emnist, write_images

from tffcl import Experiment, datasets
from tffcl.errors import DatasetError, InputError
from tffcl.experiment import densities, loading
from tffcl.flags import parse_run


def logged(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("tffcl"), "propagate", True)
    caplog.set_level(logging.INFO, "tffcl")
    return caplog


def test_text_without_files_is_the_sample_with_its_schedule(tmp_path, monkeypatch, caplog):
    logged(caplog, monkeypatch)
    monkeypatch.setattr(datasets, "load", mock.Mock(side_effect=DatasetError("no network")))
    experiment = Experiment("fedseit", data_dir=str(tmp_path))
    assert loading.usual_data(experiment) == "sample"
    assert "data: trec6 not at hand: taking the small sample that ships; --data-dir" in caplog.text
    taken = experiment.replace(data="sample")
    assert (taken.num_rounds, taken.num_epochs, taken.learning_rate) == (3, 10, 1e-3)


def test_images_are_the_first_at_hand_of_those_of_the_paper(tmp_path, monkeypatch, caplog):
    logged(caplog, monkeypatch)
    monkeypatch.delenv("TFFCL_DATA_DIR", raising=False)

    def taken(method):
        caplog.clear()
        return loading.usual_data(Experiment(method, data_dir=str(tmp_path))), caplog.text

    name, said = taken("fil-ver")
    assert name == "digits"
    assert "data: emnist-balanced and fashion-mnist and mnist not at hand: taking digits" in said
    assert taken("ebr-1x")[0] == taken("confedmade")[0] == "digits"
    write_images(tmp_path / "mnist", (8, 8))
    for method in ("fil-ver", "naive", "confedmade"):
        name, said = taken(method)
        assert name == "mnist"
        assert ("not at hand" in said) == (method == "fil-ver")
    write_images(tmp_path / "fashion-mnist", (8, 8))
    name, said = taken("fil-ver")
    assert name == "fashion-mnist"
    assert "data: emnist-balanced not at hand: taking fashion-mnist" in said
    write_emnist(tmp_path / "gzip")
    assert taken("fil-ver") == ("emnist-balanced", "")
    assert taken("ebr-16x")[0] == taken("finetune")[0] == "mnist"


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("fedseit --data trec6 --data-dir .", ["trec6", "train_5500.label"]),
        ("fedseit --data-dir none", ["none", "no such folder"]),
        ("fedseit --data sample --embeddings v.bin", ["v.bin", "no such file of word vectors"]),
        ("fedseit --data sample --labels-per-task 7", ["labels_per_task=7", "6 labels"]),
        ("confedmade --data digits --num-tasks 11", ["11 different labels", "10"]),
        ("confedmade --data digits --order 2,1,3", ["--order", "1..64", "3 places"]),
        ("confedmade --data digits --assign 3,x", ["--assign", "no label 'x'", "0, 1, 2"]),
        ("confedmade --data digits" + " --assign 3" * 200, ["label 3", "training examples"]),
        ("confedmade --data binary --data-dir .", ["adult.train.data"]),
        ("fil-ver --data digits --num-clients 20", ["examples_per_task=150", "domain 0", "20 clients", "ask for"]),
        ("fil-ver --data digits --domains mild --num-tasks 5", ["--num-tasks: 5", "4 domains"]),
        ("fil-ver --data mnist+fashion --data-dir .", ["mnist", "train-images-idx3-ubyte"]),
    ],
)
def test_what_the_data_cannot_give_is_one_line_and_leaves_nothing(run, tmp_path, line, parts):
    wrong(run("run", *line.split(), cwd=tmp_path), *parts)
    assert list(tmp_path.iterdir()) == []


def test_damaged_image_files(run, tmp_path):
    write_images(tmp_path / "mnist", (28, 28), classes=9, counts=(20, 2))
    args = ("run", "confedmade", "--data", "mnist", "--data-dir", tmp_path)
    # Nobody has a 9.
    wrong(run(*args, "--assign", "1,9", cwd=tmp_path), "9", "0 training examples")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    wrong(run(*args), path.name)
    path.write_bytes(idx(np.zeros([180, 28, 28]), magic=0x0801))
    wrong(run(*args), path.name, "magic")
    path.unlink()
    wrong(run(*args), "train-images-idx3-ubyte", str(tmp_path / "mnist"))


def test_binary_sets_of_another_width_or_content(run, tmp_path):
    args = ("run", "confedmade", "--data", "binary", "--data-dir", tmp_path)
    (tmp_path / "adult.train.data").write_text("0,1,1\n1,0,0\n")
    wrong(run(*args), "adult.train.data", "3 fields", "123")
    (tmp_path / "adult.train.data").write_text("0,1,2\n1,0,0\n")
    wrong(run(*args), "adult.train.data, line 1", "field 3", "0 or 1")


def test_two_sets_of_images_need_both_of_one_size(run, tmp_path):
    write_images(tmp_path / "mnist", (8, 8))
    args = ("run", "fil-ver", "--data", "mnist+fashion", "--data-dir", tmp_path, "--num-clients", "2")
    wrong(run(*args), "fashion-mnist", "train-images-idx3-ubyte", str(tmp_path))
    write_images(tmp_path / "fashion-mnist", (9, 9))
    wrong(run(*args), "image size (9, 9)", "expected (8, 8)")


def test_permutations_keep_the_first_domain_but_in_section_5_1(tmp_path):
    write_images(tmp_path / "mnist", (8, 8))
    for method, kept in (("fil-ver", [True, False, False]), ("none", [False] * 3)):
        line = f"fil-ver --method {method} --data mnist --data-dir {tmp_path} --domains permutations --num-tasks 3"
        experiment = parse_run(line.split())
        every = loading.domains_of(experiment, loading.load(experiment))
        assert [domain.transform is None for domain in every.domains] == kept


def test_binarised_images_are_drawn_with_the_split_seed():
    fixed, drawn = (
        loading.load(Experiment("confedmade", data="digits", binarise=how)) for how in ("threshold", "stochastic")
    )
    again, other = (
        loading.load(Experiment("confedmade", data="digits", binarise="stochastic", split_seed=seed))
        for seed in (42, 7)
    )
    assert fixed.train_x.shape == drawn.train_x.shape
    assert (drawn.train_x != fixed.train_x).any()
    np.testing.assert_array_equal(again.train_x, drawn.train_x)
    assert (other.train_x != drawn.train_x).any()
    assert densities.image_shape(fixed) == (8, 8)


# -- words ----------------------------------------------------------------------------------------------------


def own_texts(folder: pathlib.Path) -> str:
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
    logged(caplog, monkeypatch)
    experiment = parse_run(["fedseit", "--data", own_texts(tmp_path), "--embeddings", "own", *flags])
    encoded = loading.encoded(experiment, loading.load(experiment))
    assert set(encoded.words[2:]) == words
    assert ("--tokeniser unicode" in caplog.text) == ("ascii" in flags)
    assert ("have more than 2 words and are cut" in caplog.text) == ("--max-words" in flags)
    assert {"tokeniser", "max_words", "allow_pickle"} & set(experiment.config()) == set(recorded)


def test_a_union_of_sets_by_name_and_folder_has_one_tokeniser(tmp_path):
    data = f"sample+{own_texts(tmp_path)}"
    experiment = Experiment("fedseit", data=data, tokeniser="ascii")
    texts, own = loading.load(experiment), tmp_path.name
    assert experiment.data_name == texts.name == f"sample+{own}"
    assert texts.label_names[-3:] == tuple(f"{own}/{label}" for label in range(3))
    assert {name.partition("/")[0] for name in texts.label_names[:-3]} == {"sample"}
    with pytest.raises(DatasetError, match="give --tokeniser"):
        loading.load(Experiment("fedseit", data=data))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("sample+digits", "sample\\+digits: data sets of text can be joined, and digits is image data"),
        ("sample+nowhere", "no data set is called 'nowhere'"),
        ("sample+", "no data set is called ''"),
        ("mnist+sample", "data sets of text can be joined, and mnist is image data"),
    ],
)
def test_what_is_no_union_of_texts_is_one_line(data, message):
    with pytest.raises(InputError, match=message):
        Experiment("fedseit", data=data)


def test_word_vectors_where_none_are_given(monkeypatch, tmp_path):
    monkeypatch.delenv("TFFCL_DATA_DIR", raising=False)
    for available, name in ((True, "glove-50"), (False, "own")):
        monkeypatch.setattr("tffcl.datasets.word_vectors.glove_available", lambda available=available: available)
        assert loading._usual_vectors(str(tmp_path)) == name
    (tmp_path / "glove").mkdir()
    path = tmp_path / "glove" / "some.bin"
    path.write_bytes(b"")
    assert loading._usual_vectors(str(tmp_path)) == str(path)
    monkeypatch.setenv("TFFCL_DATA_DIR", str(tmp_path))
    assert loading._usual_vectors(None) == str(path)


@pytest.mark.parametrize("given", [False, True])
def test_no_pickle_is_taken_unless_it_is_allowed(run, tmp_path, given):
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(ran),)

    (tmp_path / "glove").mkdir()
    path = tmp_path / "glove" / "a.bin"
    path.write_bytes(pickle.dumps(Evil()))
    flags = ("--embeddings", path) if given else ("--data-dir", tmp_path)
    done = run("run", "fedseit", "--data", "sample", *flags, cwd=tmp_path)
    wrong(done, str(path), "is a pickle", "--allow-pickle", "save_word2vec_format")
    assert not ran.exists()


@pytest.mark.parametrize("method", ["fedseit", "confedmade", "fil-ver"])
def test_a_run_that_is_there_is_said_before_word_vectors_and_pre_training(run, tmp_path, monkeypatch, method):
    for name in ("load_word_vectors", "train_word_vectors"):
        monkeypatch.setattr(datasets, name, mock.Mock(side_effect=AssertionError(name)))
    (tmp_path / "config.json").write_text("{}")
    data = {"fedseit": "sample"}.get(method, "digits")
    wrong(run("run", method, "--data", data, "--output-dir", tmp_path), str(tmp_path), "holds a run already")


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
def test_wrong_enrolment_tables_are_one_line(run, tmp_path, table, parts):
    (tmp_path / "who.csv").write_text(table)
    line = "fil-ver --data digits --num-clients 2 --num-tasks 2 --enrollment who.csv"
    wrong(run("run", *line.split(), cwd=tmp_path), "who.csv", *parts)


@pytest.mark.parametrize(
    ("name", "parts"), [("sometimes", ["--enrollment: sometimes", "scattered", "no such file"]), (".", ["a folder"])]
)
def test_enrolment_that_is_no_scenario_and_no_table(run, tmp_path, name, parts):
    wrong(run("run", "fil-ver", "--data", "digits", "--enrollment", name, cwd=tmp_path), *parts)


@pytest.mark.parametrize("text", ["*o\nx*\n", "*,o\r\nx , *\r\n\r\n", "\ufeffactive\tno longer\nnot yet\tactive"])
def test_ways_to_write_an_enrolment(tmp_path, text):
    (tmp_path / "who.tsv").write_bytes(text.encode())
    experiment = Experiment("fil-ver", data="digits", num_clients=2, num_tasks=2, enrollment=str(tmp_path / "who.tsv"))
    assert loading.enrollment_of(experiment).table() == ("*o", "x*")


def test_mixed_domains_are_drawn_with_the_seeds_and_cut_on_demand():
    labels = np.repeat(np.arange(4), 40)
    data = types.SimpleNamespace(train_labels=labels, test_labels=labels, label_names=("a/x", "a/y", "b/x", "b/y"))
    drawn = {}
    for seed, most in ((1, None), (1, 5), (2, None)):
        experiment = Experiment(
            "fedseit", scenario="mixed", labels_per_task=2, num_tasks=4, max_train_documents=most, split_seed=seed
        )
        stream = loading.stream_of(experiment, data, 3, loading.enrollment_of(experiment))
        assert {len(t.train) <= 5 for own in stream.tasks for t in own} == {most == 5}
        drawn[seed, most] = [t.labels for own in stream.tasks for t in own]
    assert {*drawn[1, None]} == {(0, 1), (2, 3)}
    assert drawn[1, None] == drawn[1, 5] != drawn[2, None]
    assert "max_train_documents" not in experiment.config()


@pytest.mark.parametrize(
    ("scenario", "usual"), [("non-iid", 1 / 8), ("sequence", 1 / 6), ("mixed", 1 / 8), ("domains", 0.0)]
)
def test_examples_are_held_out_as_the_scenario_does_or_on_demand(scenario, usual):
    labels = np.repeat(np.arange(4), 240)
    data = types.SimpleNamespace(
        train_labels=labels, test_labels=labels, label_names=("a/x", "a/y", "b/x", "b/y"), shared_base=None
    )
    kind = {"method": "fedavg", "data": "digits"}
    if scenario == "domains":
        kind["examples_per_task"] = 96
        data.train_labels = data.test_labels = [labels] * 2
    for share in (None, 0.25, 0.0):
        experiment = Experiment(
            **kind, scenario=scenario, num_tasks=2, num_clients=2, validation_share=share,
            **({} if scenario == "domains" else {"labels_per_task": 2}),
        )  # fmt: skip
        stream = loading.stream_of(experiment, data, 2, loading.enrollment_of(experiment))
        expected = usual if share is None else share
        for task in (task for tasks in stream.tasks for task in tasks):
            assert len(task.validation) == expected * (len(task.train) + len(task.validation))
        assert ("validation_share" in experiment.config()) == (share is not None)


def test_fewer_test_documents_on_demand():
    labels = np.repeat(np.arange(4), 40)
    encoded = types.SimpleNamespace(train_labels=labels, test_labels=labels, label_names=("a", "b", "c", "d"))
    sizes = {}
    for more in ({}, {"max_test_documents": 7}):
        experiment = Experiment("fedseit", labels_per_task=2, **more)
        stream = loading.stream_of(experiment, encoded, 3, loading.enrollment_of(experiment))
        sizes[experiment.config().get("max_test_documents")] = {len(t.test) for own in stream.tasks for t in own}
    assert sizes == {None: {80}, 7: {7}}


def test_assigned_tasks_are_those_of_the_table():
    plan = parse_run("confedmade --data digits --assign 0+1,2 --assign 2,0+3".split()).plan()  # noqa: SIM905
    assert plan.task_names == [["0+1", "2"], ["2", "0+3"]]
    alone = parse_run("cl-finetune --data digits --assign 0+1,2 --assign 2,0+3".split()).plan()  # noqa: SIM905
    assert alone.task_names == [["0+1", "2"]]


def test_emnist_is_four_tasks_of_ten_classes_each_upright(tmp_path):
    write_emnist(tmp_path / "gzip")
    experiment = Experiment("fil-ver", data_dir=str(tmp_path), num_clients=2, examples_per_task=20)
    plan = experiment.plan()
    assert (plan.experiment.data, plan.domains, plan.num_tasks) == ("emnist-balanced", "classes", 4)
    assert (plan.dataset.image_size, plan.dataset.num_labels) == ((8, 6), 10)
    for task in range(4):
        for client in range(2):
            one = plan.data.task(client, task)
            assert np.bincount(one.train["label"]).tolist() == [2] * 10
            assert np.bincount(one.test["label"]).tolist() == [1] * 10
            for examples in (one.train, one.test):
                shown = (examples["x"][:, 0] // 255) @ (1 << np.arange(6))
                np.testing.assert_array_equal(shown, examples["label"] + 10 * task)
                assert not examples["x"][:, 1:].any()


def test_more_tasks_than_emnist_has_domains_and_files_that_lack_a_part(run, tmp_path):
    write_emnist(tmp_path / "gzip")
    args = ("run", "fil-ver", "--data-dir", tmp_path, "--data", "emnist-balanced")
    wrong(run(*args, "--num-tasks", "5"), "--num-tasks: 5", "emnist-balanced has 4 domains")
    (tmp_path / "gzip" / "emnist-balanced-test-labels-idx1-ubyte.gz").unlink()
    wrong(run(*args), "emnist-balanced-test-labels-idx1-ubyte", "not found together", "nist.gov")
