"""Clients that send what no client work sends: each is left out of the round, by name, and the run goes on without it.

What such a run comes to is what the same run comes to if that client does not take part in those rounds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections import OrderedDict
from unittest import mock

import numpy as np
import pytest
import rehearsing
import small
import systems
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tffcl import runtime
from tffcl.algorithms import build_fed_curv, build_fedweit, build_fil_ver
from tffcl.client_works import DecomposedWork, LocalTraining, PlainWork, RehearsalWork
from tffcl.finalizers import ServerSideTraining
from tffcl.models import MLP, EmbeddingClassifier, TextCNN, VectorEncoder
from tffcl.program import ClientFiles, cohorts, driver, pretrain, run_program
from tffcl.program.state import client_key
from tffcl.transfers import SIT, NoTransfer, PreviousTask

SEED, CLIENTS, DISHONEST = 5, 3, 1
TRAINING = LocalTraining(num_epochs=1, batch_size=4, learning_rate=0.01, patience=0)
SST = ServerSideTraining(steps=2, batch_size=4, memory=12)


# What a dishonest client sends: (whether it does so, update, weight, metrics) -> (update, weight, metrics).


def vector(value, first=0):
    """All entries of the update's vector from the `first` on are a number, and sent."""

    def act(now, update, weight, metrics):
        own = update.get("weights", update)
        here = tf.logical_and(now, tf.range(own["delta"].shape[0]) >= first)
        bad = OrderedDict(delta=tf.where(here, value, own["delta"]), sent=tf.logical_or(now, own["sent"]))
        return (OrderedDict(update, weights=bad) if "weights" in update else bad), weight, metrics

    return act


def weighs(value):
    return lambda now, update, weight, metrics: (update, tf.where(now, value, weight), metrics)


def reports(name, value):
    def act(now, update, weight, metrics):
        return update, weight, OrderedDict(metrics, **{name: tf.where(now, value, metrics[name])})

    return act


def rows(**changed):
    """Rows for rehearsal, some of whose tensors are passed through functions."""

    def act(now, update, weight, metrics):
        own = update["rehearsal"]
        bad = OrderedDict((name, changed[name](now, own[name]) if name in changed else own[name]) for name in own)
        return OrderedDict(update, rehearsal=bad), weight, metrics

    return act


def plus(amount):
    return lambda now, values: values + tf.where(now, tf.constant(amount, values.dtype), tf.zeros([], values.dtype))


def many(now, values):
    return tf.concat([values, tf.repeat(values[:1], tf.where(now, 498, 0), 0)], 0)


def fewer(now, values):
    return values[tf.cast(now, tf.int32) :]


LARGE = "values should be finite, 1e.06 at most"
ACTS = [
    (f"delta: {LARGE}", vector(np.nan)),
    (f"delta: {LARGE}", vector(-np.inf)),
    (f"delta: {LARGE}", vector(1e38)),
    (f"delta: {LARGE}", vector(-1.1e6)),
    ("weight: should be 0 to 8, found 1e.30", weighs(1e30)),
    ("weight: should be 0 to 8, found 8.5", weighs(8.5)),
    ("weight: should be 0 to 8, found nan", weighs(float("nan"))),
    ("weight: should be 0 to 8, found -1", weighs(-1.0)),
    ("sent: should be 0 or more", reports("sent", -1)),
    ("epochs: should be 0 or more", reports("epochs", -(2**31))),
]
ROWS = [
    (f"rehearsal/vectors: {LARGE}", rows(vectors=plus(np.nan))),
    (f"rehearsal/vectors: {LARGE}", rows(vectors=plus(1e38))),
    ("rehearsal: labels should be 0 to 3", rows(label=plus(999))),
    ("rehearsal: labels should be 0 to 3", rows(label=plus(-999))),
    ("rehearsal: should be 2 rows at most, found 500", rows(vectors=many, label=many, task=many, priority=many)),
    ("rehearsal: vectors, label, task, priority should be equally many", rows(label=fewer)),
    ("rehearsal: rows should be of the task that is learned", rows(task=plus(7))),
]  # fmt: skip


def _config():
    return dataclasses.replace(small.config(), kernel_sizes=(2,))


def _plain_net():
    return TextCNN(_config(), 0)


def _kernels():
    return _plain_net().kernels.size


def _fil_ver():
    return build_fil_ver(
        rehearsing.model(), send_per_round=2, client_memory=4, training=TRAINING, server_side_training=SST
    )


# By method: its tasks, its builder, its acts.
METHODS = {
    "fedweit": (
        systems.documents, lambda: build_fedweit(_config(), num_foreign=2, training=TRAINING), ACTS
    ),
    "fed_curv": (
        systems.documents,
        lambda: build_fed_curv(_plain_net(), weight=1.0, training=TRAINING),
        [(f"delta of kernels: {LARGE}" if "delta" in why else why, act) for why, act in ACTS]
        + [("delta: values should be finite, 1e.18 at most", vector(v, _kernels())) for v in (np.nan, 1e38)],
    ),
    "fil-ver": (systems.vectors, lambda: _fil_ver(), ACTS + ROWS),
}  # fmt: skip


def _tampered(acts):
    """Patches: client 1 does the n-th act in round n, and sends no numbers as knowledge of its first task."""
    key = client_key(SEED, DISHONEST)  # a constant of each graph

    def trains(train):
        def method(self, state, shared, data, round_num):
            changed, update, weight, metrics = train(self, state, shared, data, round_num)
            mine = tf.reduce_all(tf.equal(state["key"], key))
            for number, (_, act) in enumerate(acts):
                now = tf.logical_and(mine, tf.equal(round_num, number))
                update, weight, metrics = act(now, update, weight, metrics)
            return changed, update, weight, metrics

        return method

    def ends(end_task):
        def method(self, state, shared, data):
            new, upload = end_task(self, state, shared, data)
            now = tf.logical_and(tf.reduce_all(tf.equal(state["key"], key)), tf.equal(state["task"], 0))
            return new, OrderedDict(knowledge=tf.where(now, np.nan, upload["knowledge"]))

        return method

    for work in (DecomposedWork, PlainWork, RehearsalWork):
        yield mock.patch.object(work, "train", trains(work.train))
        yield mock.patch.object(work, "end_task", ends(work.end_task))


@functools.cache
def built(method, honest=False):
    """The process with the dishonest client, or with honest ones."""
    _, build, acts = METHODS[method]
    with contextlib.ExitStack() as stack:
        for patch in () if honest else _tampered(acts):
            stack.enter_context(patch)
        return build()


class Run:
    """A run, its events and its last state; `without` its client 1 in the rounds of task 0."""

    def __init__(self, process, make, num_rounds, without=False, **options):
        kept, recorder, drawn = [], systems.Recorder(), driver.state_lib.sample_clients

        class Kept(driver._Run):
            def __init__(self, *args, **named):
                super().__init__(*args, **named)
                kept.append(self)

        def others(settings, active, task, *rest):
            some = drawn(settings, active, task, *rest)
            return [client for client in some if task or client != DISHONEST]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver, "_Run", Kept)
            if without:
                patch.setattr(driver.state_lib, "sample_clients", others)
            self.results = run_program(
                process, options.pop("data", None) or systems.Data(make, CLIENTS),
                options.pop("transfer", None) or (PreviousTask() if process.num_foreign else NoTransfer()),
                num_rounds=num_rounds, seed=SEED, reporters=[recorder], **options,
            )  # fmt: skip
        self.events, self.state = recorder.events, kept[0].state

    def everything(self):
        """All that the run came to."""
        state, base = self.state, self.state.base
        clients = [dict(state.store[client]) for client in range(CLIENTS)]
        if "directory" in clients[0]:  # handles, which say nothing of the states
            clients = []
        told = [base.has_summary(entry) for entry in range(len(base))]
        knowledge = (base.entries, base.rows(range(len(base))), told, state.selections)
        scores = [event["accuracy" if "accuracy" in event else "nll"] for event in self.events]
        measured = [event.get("server_metrics") for event in self.events]
        return tree.flatten([state.server, clients, knowledge, scores, measured])

    def reasons(self):
        """Of each round of task 0 who is left out, and why."""
        return [
            event.get("left_out_reasons") for event in self.events if (event["event"], event["task"]) == ("round", 0)
        ]  # fmt: skip


def assert_equal(one, other):
    left, right = one.everything(), other.everything()
    assert len(left) == len(right)
    for found, expected in zip(left, right):
        np.testing.assert_array_equal(found, expected)


def assert_told(run, acts):
    """Who is left out is named with the reason, and nobody else is."""
    reasons = run.reasons()
    assert len(reasons) == len(acts)
    for (expected, _), told in zip(acts, reasons):
        assert list(told) == [str(DISHONEST)]
        assert re.search(expected, told[str(DISHONEST)]), (expected, told)
    rounds = [event for event in run.events if event["event"] == "round"]
    assert [event["left_out"] for event in rounds] == [[DISHONEST]] * len(acts) + [[]] * len(acts)
    for measured in (event["server_metrics"] for event in rounds):
        assert not any(value for path, value in measured.items() if path.endswith("rejected"))


@pytest.fixture(name="in_process", scope="module")
def _in_process(tff_context):  # which is installed first, for tests here need it too
    with runtime.in_process() as own:
        yield own


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_run_goes_on_as_if_the_client_did_not_take_part(method, in_process):
    make, _, acts = METHODS[method]
    tampered, sends_knowledge = built(method), method == "fedweit"
    run = Run(tampered, make, len(acts))
    assert_told(run, acts)
    ends = [event.get("left_out_reasons") for event in run.events if event["event"] == "task_end"]
    assert ends == [{"1": f"knowledge: {LARGE.replace('1e.06', '1e+06')}"} if sends_knowledge else None, None]
    # Who took part in no round has no knowledge to lie about, unless it is dishonest.
    honest = built(method, honest=True) if sends_knowledge else tampered
    assert_equal(run, Run(honest, make, len(acts), without=True))


@pytest.mark.slow
def test_in_a_worker_and_with_states_in_files(tff_context, tmp_path):
    make, _, acts = METHODS["fil-ver"]
    files = {"client_files": ClientFiles(str(tmp_path / "clients"))}
    with tff.framework.get_context_stack().install(tff_context.context):
        run = Run(built("fil-ver"), make, len(acts), **files)
        assert_told(run, acts)
        assert_equal(run, Run(built("fil-ver"), make, len(acts), without=True, **files))


# What clients tell of their tasks, beside rounds.

SHAPE = r"summary: should be `centroids`, float32 \[1..2, 3\]"
SUMMARIES = [
    ("centroids: values should be finite", lambda rows: {"centroids": np.full_like(rows, np.nan)}),
    ("centroids: values should be finite, 1e.06 at most", lambda rows: {"centroids": rows + np.float32(1e38)}),
    ("centroids: should be numbers", lambda rows: {"centroids": rows.astype(str)}),
    ("centroids: should be numbers", lambda rows: {"centroids": np.full([1, 3], None)}),
    (SHAPE, lambda rows: {"centroids": np.repeat(rows, 9, 0)}),
    (SHAPE, lambda rows: {"centroids": rows[:, :2]}),
    (SHAPE, lambda rows: {"centroids": rows[:0]}),
    (SHAPE, lambda rows: {"centroids": rows.astype(np.float64)}),
    (SHAPE, lambda rows: {"centroids": rows, "more": rows}),
    (SHAPE, lambda rows: {}),
]


@pytest.fixture(name="lies", scope="module")
def _lies(tiny, process, in_process):
    """A run whose client 1 tells something else of its second task, by a function of what it should tell."""

    class Lies(SIT):
        def __init__(self, lie):
            super().__init__(k=tiny.FOREIGN, q=2)
            self._lie = lie

        def summarise(self, vectors, seed):
            told = super().summarise(vectors, seed)
            return self._lie(told["centroids"]) if tuple(seed)[1:] == (DISHONEST, 1) else told

    return lambda lie: Run(
        process, None, 1, data=tiny.TinyData(), transfer=Lies(lie),
        summarise=lambda one: one.train["x"],
    )  # fmt: skip


@pytest.fixture(name="silent", scope="module")
def _silent(lies):
    return lies(lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize(("reason", "act"), SUMMARIES)
def test_a_summary_that_is_none(reason, act, lies, silent):
    """The client receives nothing for that task and is nobody's choice later, as one that tells nothing."""
    lied = lies(act)
    ends = [event.get("left_out_reasons") for event in lied.events if event["event"] == "task_end"]
    assert [ends[0], ends[2]] == [None, None]
    assert list(ends[1]) == ["1"]
    assert re.match(reason, ends[1]["1"])
    assert_equal(lied, silent)


@pytest.mark.slow
def test_pre_training_goes_on_without_it(in_process):
    def network():
        return EmbeddingClassifier(VectorEncoder(rehearsing.INPUTS, True, rehearsing.SIZE, ()), MLP(3, 4, ()))

    def trained(clients, acts=()):
        recorder = systems.Recorder()
        with contextlib.ExitStack() as stack:
            for patch in _tampered(acts):
                stack.enter_context(patch)
            weights = pretrain(
                network(), systems.Data(systems.vectors, CLIENTS), training=TRAINING, num_rounds=3, seed=SEED,
                clients=clients, reporters=[recorder],
            )  # fmt: skip
        return recorder.events, weights

    events, found = trained(None, ACTS[:3])
    assert [event["left_out_reasons"].keys() for event in events] == [{"1"}] * 3
    _, expected = trained([0, 2])
    np.testing.assert_array_equal(found[0].values, expected[0].values)
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("count", [np.nan, np.inf, -5.0, 0.0, 6.0])
def test_a_client_that_tells_of_other_test_examples_has_no_score(count):
    sums = {"count": np.float32(count), "loss": np.float32(2), "correct": np.float32(1)}
    assert cohorts._mean_score(sums, 5) is None
    assert cohorts._mean_score({**sums, "count": np.float32(5)}, 5) == 0.2
