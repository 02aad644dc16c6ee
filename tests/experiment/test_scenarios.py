"""Streams of an experiment: enrolment tables, assigned tasks, fewer test examples, EMNIST's four tasks."""

from __future__ import annotations

import types

import numpy as np
import pytest
from command_line import wrong
from image_files import write_emnist

from tffcl import Experiment
from tffcl.experiment import scenarios
from tffcl.flags import parse_run


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
    assert scenarios.enrollment_of(experiment).table() == ("*o", "x*")


def test_fewer_test_documents_on_demand():
    labels = np.repeat(np.arange(4), 40)
    encoded = types.SimpleNamespace(train_labels=labels, test_labels=labels, label_names=("a", "b", "c", "d"))
    sizes = {}
    for more in ({}, {"max_test_documents": 7}):
        experiment = Experiment("fedseit", labels_per_task=2, **more)
        stream = scenarios.label_stream(experiment, encoded, 3)
        sizes[experiment.config().get("max_test_documents")] = {len(t.test) for own in stream.tasks for t in own}
    assert sizes == {None: {80}, 7: {7}}


def test_mixed_domains_are_drawn_with_the_seeds_and_cut_on_demand():
    labels = np.repeat(np.arange(4), 40)
    data = types.SimpleNamespace(train_labels=labels, test_labels=labels, label_names=("a/x", "a/y", "b/x", "b/y"))
    drawn = {}
    for seed, most in ((1, None), (1, 5), (2, None)):
        experiment = Experiment(
            "fedseit", scenario="mixed", labels_per_task=2, num_tasks=4, max_train_documents=most, split_seed=seed
        )
        stream = scenarios.label_stream(experiment, data, 3)
        assert {len(t.train) <= 5 for own in stream.tasks for t in own} == {most == 5}
        drawn[seed, most] = [t.labels for own in stream.tasks for t in own]
    assert {*drawn[1, None]} == {(0, 1), (2, 3)}
    assert drawn[1, None] == drawn[1, 5] != drawn[2, None]
    assert "max_train_documents" not in experiment.config()


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
