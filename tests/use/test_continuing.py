"""A run goes on with new data: what it learned stays, new labels get columns, and what cannot go on is one line."""

from __future__ import annotations

import csv
import functools
import json

import command_line
import numpy as np
import pytest
import tensorflow as tf
from command_line import wrong

import tffcl
from tffcl import datasets, use
from tffcl.layers.kernels import VectorLayout
from tffcl.use import continuing

pytestmark = pytest.mark.usefixtures("built_once")

TEXTS = datasets.load("sample")
OPTIONS = {"data": "sample", "num_filters": 4, "kernel_sizes": (2,), "num_clients": 2, "num_tasks": 2, "num_rounds": 1,
           "num_epochs": 1, "labels_per_task": 2, "runtime": "in-process"}  # fmt: skip


@functools.cache
def _trained(folder, method, **more):
    """A run's directory."""
    target = folder / f"{method}{'-'.join(map(str, more.values()))}"
    vectors = str(command_line.small_vectors(folder))
    tffcl.Experiment(method, output_dir=str(target), embeddings=vectors, **OPTIONS, **more).run()
    return target


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    yield tmp_path_factory.mktemp("continued")
    _trained.cache_clear()


@pytest.fixture(scope="module")
def table(folder):
    """New texts of two labels that the run knows and two that it does not, with a word that it does not know."""
    path = folder / "new.csv"
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for text, label in zip(TEXTS.train_texts[:240], TEXTS.train_labels):
            name = TEXTS.label_names[label]
            rows.writerow([f"{text} zorgle", name if name in ("human", "number") else f"new {name}"])
    return path


def _probabilities(run, client, task, texts):
    return run.model(client, task)(tf.constant(texts))["probabilities"].numpy()


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"share_dense": "start"}], ids=["a head a task", "one head"])
def test_a_run_learns_further_tasks_of_new_labels(folder, table, tmp_path, more):
    run = tffcl.load_run(_trained(folder, "fedweit", **more))
    before = {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()}
    options = {"num_tasks": 2, "output_dir": tmp_path / "more", "runtime": "in-process"}
    results = use.continue_run(run, str(table), **options)
    assert {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()} == before
    # The history begins with that of the run; past tasks have no test examples any more.
    np.testing.assert_array_equal(results.scores[:, :2, :2], run.scores)
    assert np.isnan(results.scores[:, 2:, :2]).all()
    assert np.isfinite(results.scores[:, 3, 2:]).all()
    went_on = tffcl.load_run(tmp_path / "more")
    assert [task.labels for task in went_on.clients[0].tasks[:2]] == [task.labels for task in run.clients[0].tasks]
    assert any(label.startswith("new ") for task in went_on.clients[0].tasks[2:] for label in task.labels)
    old, new = run.state, went_on.state
    assert new.selections[:2] == old.selections
    assert new.base.entries[: len(old.base)] == old.base.entries
    np.testing.assert_array_equal(new.base.rows([0]), old.base.rows([0]))
    np.testing.assert_array_equal(new.store[1]["past_mask_logits"][:2], old.store[1]["past_mask_logits"])
    # Before and after, each entry of a past kernel is within lambda_1 / (2 lambda_2) of what its task left.
    experiment = went_on.plan.experiment
    bound = 2 * experiment.sparsity / (2 * experiment.retention)
    for task in (0, 1):
        moved = went_on.parameters(0, task).kernels - run.parameters(0, task).kernels
        assert 0 < np.abs(moved).max() <= bound * 1.001
        texts = list(TEXTS.test_texts[:30])
        np.testing.assert_allclose(
            _probabilities(went_on, 0, task, texts), _probabilities(run, 0, task, texts), atol=0.05
        )
    # Models of new tasks score what the driver scored.
    frame = use.evaluate(went_on, str(table), [0])
    assert set(frame.task) == {0, 1, 2, 3}


@pytest.mark.slow
def test_a_run_that_was_continued_can_be_continued_and_resumed(folder, table, tmp_path):
    def go_on(source, target, **more):
        return use.continue_run(
            tffcl.load_run(source), str(table), output_dir=tmp_path / target, runtime="in-process", **more
        )

    first = go_on(_trained(folder, "fedavg"), "a")
    again = go_on(tmp_path / "a", "b")
    assert again.scores.shape == (2, 4, 4)
    np.testing.assert_array_equal(again.scores[:, :3, :3], first.scores)
    settings = json.loads((tmp_path / "b" / "config.json").read_text())
    assert settings["continued_at_task"] == 3
    resumed = go_on(tmp_path / "a", "b", resume=True)
    np.testing.assert_array_equal(resumed.scores, again.scores)


def test_columns_of_new_labels_have_first_values():
    old = VectorLayout((("kernel", (2, 3)), ("bias", (3,)), ("other", (2,))))
    new = VectorLayout((("kernel", (2, 5)), ("bias", (5,)), ("other", (2,))))
    values, first = np.arange(22.0).reshape(2, 11).astype(np.float32), -np.arange(17.0).astype(np.float32)
    grown = continuing._with_columns(values, first, old, new)
    for row, flat in zip(values, grown):
        expected = np.concatenate([row[:6].reshape(2, 3), first[:10].reshape(2, 5)[:, 3:]], axis=1)
        np.testing.assert_array_equal(flat[:10].reshape(2, 5), expected)
        np.testing.assert_array_equal(flat[10:15], [*row[6:9], *first[13:15]])
        np.testing.assert_array_equal(flat[15:], row[9:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "flags", "words"),
    [
        ("fedavg", ["--tasks", "iris"], "learned from text data, and iris holds vector data"),
        ("fedavg", ["--tasks", "nothing.csv"], "nothing.csv"),
        ("fedavg", ["--tasks", "empty.csv"], "empty.csv"),
        ("fedavg", ["--tasks", "binary.csv"], "byte 0x80 is not utf-8"),
        ("fedavg", ["--tasks", "columns.csv"], "expected one column 'text'"),
        ("fedavg", ["--tasks", "TABLE", "--text-column", "words"], "has no column 'words'"),
        ("fedavg", ["--tasks", "TABLE", "--labels-per-task", "4"], "the run's heads have 2"),
        ("fedavg", ["--tasks", "TABLE", "--embeddings", "WIDE"], "expected 8 dimensions"),
        ("fedavg", ["--tasks", "TABLE", "--output-dir", "RUN"], "is the run that is continued"),
        ("replay", ["--tasks", "TABLE"], "learns from the data of past tasks"),
    ],
)
def test_what_cannot_go_on_is_one_line(folder, table, tmp_path, run, method, flags, words):
    place = _trained(folder, method)
    (tmp_path / "wide.txt").write_text("zorgle 1 2 3\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "columns.csv").write_text("width,label\n1,a\n")
    (tmp_path / "binary.csv").write_bytes(bytes(range(128, 256)))
    places = {"TABLE": table, "RUN": place, "WIDE": tmp_path / "wide.txt"}
    wrong(run("continue", place, *[places.get(flag, flag) for flag in flags], cwd=tmp_path), words)
    assert not (place.parent / f"{place.name}-continued").exists()


def test_places_for_more_adaptives_weigh_nothing_in_past_tasks():
    from tffcl.program.state import ClientStore, RunState
    from tffcl.transfers import KnowledgeBase

    held = {"attention": np.ones([2, 3], np.float32), "past_attention": np.ones([4, 2, 3], np.float32)}
    state = RunState(None, ClientStore([{**held, "task": np.int32(4)}]), KnowledgeBase(1))
    more = continuing._with_places(state, 2).store[0]
    for name, axis in (("attention", 0), ("past_attention", 1)):
        np.testing.assert_array_equal(np.take(more[name], [0, 1], axis), held[name])
        assert not np.take(more[name], [2, 3], axis).any()
        assert state.store[0][name].shape == held[name].shape
