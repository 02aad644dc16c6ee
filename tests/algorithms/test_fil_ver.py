"""FIL-VER as a whole: who learns from what, what leaves a client, and its variants as parts left out."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections import OrderedDict
from unittest import mock

import numpy as np
import pytest
import rehearsing
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import aggregators, client_works, errors, finalizers, runtime, templates
from tffcl.algorithms import build_fil_ver, fil_ver
from tffcl.client_works import EmbeddingPrivacy, LocalTraining, Proximal, RehearsalModel, RehearsalWork
from tffcl.finalizers import ServerSideTraining, server
from tffcl.models import MLP, EmbeddingClassifier, FrozenEncoder, IdentityEncoder, TextEncoder
from tffcl.program import ClientTask, pretrain, run_program
from tffcl.streams import Enrollment
from tffcl.transfers import NoTransfer

CLIENTS, TASKS = 3, 3
SST = ServerSideTraining(steps=2, batch_size=8, memory=16)
# Clients send all that they have, and the server keeps it.
EVERYTHING = {"server_side_training": ServerSideTraining(steps=1, memory=1000), "send_per_round": 1000}
HIDDEN = (7,)
OTHER_PARTS = {
    "proximal": 0.5,
    "privacy": EmbeddingPrivacy(1.0, 1.0),
    "server_optimizer": tff.learning.optimizers.build_adam(0.01),
    "aggregator": tff.aggregators.UnweightedMeanFactory(),
    "seed": 4,
}


@pytest.fixture(name="_in_process", autouse=True, scope="module")
def _runtime():
    with runtime.in_process():
        yield


@pytest.fixture(name="plain", scope="module")
def _plain(_in_process):
    """FIL-VER with everybody enrolled: results and states, which several tests compare with."""
    return _run(_built())


class Data:
    """Vectors for C clients in T tasks; none where a client is not enrolled. `odd` stands for client 1 in task 0."""

    num_clients, num_tasks = CLIENTS, TASKS

    def __init__(self, enrollment=None, odd=None):
        self._enrollment, self._odd = enrollment or Enrollment.full(CLIENTS, TASKS), odd

    def task(self, client, task):
        if self._odd is not None and (client, task) == (1, 0):
            return self._odd
        here = client in self._enrollment.active(task)
        train, test = (rehearsing.examples(count * here, seed=(client, task, count)) for count in (9 + client, 20))
        none = OrderedDict((name, values[:0]) for name, values in train.items())
        return ClientTask({}, train, none, {}, test, rehearsing.CLASSES)


def _built(sharing="sampled", **options):
    """A process that several tests use: it keeps nothing from run to run."""
    return _build_once(sharing, **options)


def _build(sharing="sampled", **options):
    options.setdefault("server_side_training", SST if sharing != "none" else False)
    options.setdefault("training", LocalTraining(2, 4, 0.05, patience=0))
    return build_fil_ver(
        rehearsing.model(sharing != "embeddings", HIDDEN),
        **{"sharing": sharing, "client_memory": 6, "send_per_round": 2, "seed": 3, **options},
    )


_build_once = functools.cache(_build)


def _run(process, enrollment=None, rounds=2, **options):
    """The results, and the server's state after each round."""
    states, data = [], options.pop("data", None) or Data(enrollment)

    def watched(*args):
        result = process.next(*args)
        states.append(result[0])
        return result

    results = run_program(
        _with_next(process, watched),
        data,
        NoTransfer(),
        num_rounds=rounds,
        seed=5,
        reporters=[],
        enrollment=enrollment,
        **options,
    )
    return results, states


def _with_next(process, function):
    """The process with another function in the place of `next`."""
    stand_in = mock.Mock(side_effect=function, type_signature=process.next.type_signature)
    return dataclasses.replace(process, next=stand_in)


def _weights(states):
    return np.stack([state["shared"] for state in states])


@pytest.mark.slow
def test_without_a_past_task_ver_is_plain_federated_averaging():
    """In the scattered scenario no client ever has a past task: VER without SST is vanilla, to the bit."""
    scattered = Enrollment.scattered(CLIENTS, TASKS)
    (one, ver), (other, vanilla) = (
        _run(process, scattered) for process in (_built("none"), _built("none", client_memory=0))
    )
    np.testing.assert_array_equal(_weights(ver), _weights(vanilla))
    np.testing.assert_array_equal(one.scores, other.scores)


@pytest.mark.slow
def test_the_mean_is_weighted_by_examples():
    """Eq. 1, from what each client's work returns by itself."""
    process = _built("none", client_memory=0)
    work = process.task_view.__self__
    _, states = _run(process, rounds=1)
    shared, counts, deltas = work.initialize_shared(), [], []
    for client in range(CLIENTS):
        runner = rehearsing.Runner(work)
        key = np.random.SeedSequence((5, client)).generate_state(2, np.uint32).view(np.int32)
        runner.state = work.initialize_client(shared, tf.zeros([0], tf.int32), tf.constant(key))
        runner.begin()
        update, weight, _ = runner.train(runner.prepare(Data().task(client, 0).train))
        counts.append(float(weight))
        deltas.append(update["delta"].numpy())
    assert counts == [9, 10, 11]
    expected = shared.numpy() + np.average(deltas, axis=0, weights=counts)
    np.testing.assert_allclose(states[0]["shared"], expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["sampled", "embeddings"])
def test_the_server_remembers_all_tasks_and_clients_that_left(sharing):
    decreasing = Enrollment.decreasing(CLIENTS, TASKS)
    results, states = _run(_built(sharing), decreasing)
    memory = states[-1]["finalizer"]["memory"]
    assert set(memory["task"]) == {0, 1, 2}
    assert all(len(state["finalizer"]["memory"]["label"]) <= SST.memory for state in states)
    assert len(memory["label"]) == SST.memory
    measured = results.server_metrics
    rows = [len(state["finalizer"]["memory"]["label"]) for state in states]
    assert measured["finalizer/rehearsal/rows"] == rows
    assert all(0 < loss < 5 for loss in measured["finalizer/rehearsal/loss"])
    assert measured["finalizer/rehearsal/rejected"] == measured["finalizer/update/rejected"] == [0] * len(states)
    # What is sent is counted: 2 examples a client and round, for as long as the client is there.
    row = 4 * (memory["vectors"].shape[1] + 3)
    size = 4 * states[0]["shared"].size
    assert results.bytes_up_dense[0][0] == size + 2 * row
    away = [client for client in range(CLIENTS) if client not in decreasing.active(TASKS - 1)]
    assert away
    for client in away:
        assert results.bytes_up_dense[client][-1] == 0


@pytest.mark.slow
def test_a_client_that_is_not_there_yet_is_not_rehearsed():
    increasing = Enrollment.increasing(CLIENTS, TASKS)
    seen = [set() for _ in range(TASKS)]
    results, states = _run(_built("stats", **EVERYTHING), increasing)
    for place, state in enumerate(states):
        memory = state["finalizer"]["memory"]
        seen[place // 2] = {tuple(row) for row in memory["vectors"]}
    for task in range(TASKS):
        there = sum(9 + client for t in range(task + 1) for client in increasing.active(t))
        assert len(seen[task]) == there
    assert results.bytes_up_dense[0][0] == 4 * (states[0]["shared"].size + 9 * (2 * rehearsing.SIZE + 3))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["decreasing", "increasing", "scattered"])
def test_rows_are_of_the_run_s_task_whenever_a_client_came(scenario):
    """A client that joins in the third task sends rows of that task, not of its own first."""
    enrollment = getattr(Enrollment, scenario)(CLIENTS, TASKS)
    _, states = _run(_built("stats", **EVERYTHING), enrollment, rounds=1)
    tasks, counts = np.unique(states[-1]["finalizer"]["memory"]["task"], return_counts=True)
    expected = [sum(9 + client for client in enrollment.active(task)) for task in range(TASKS)]
    np.testing.assert_array_equal(tasks, np.arange(TASKS))
    np.testing.assert_array_equal(counts, expected)


def test_a_task_with_nobody_leaves_the_model_as_it_is():
    table = Enrollment.from_table(["*oo", "xx*", "xx*"])
    results, states = _run(_built(), table)
    assert len(states) == 4  # two rounds of the first task and two of the last
    np.testing.assert_array_equal(results.scores[:, 1], results.scores[:, 0])
    measured = results.server_metrics["finalizer/rehearsal/rows"]
    assert measured[2:4] == [None, None]
    assert measured[4] == measured[1] + 2 * 2  # what client 0 had sent is still there


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sharing", "widths", "options"),
    [
        ("none", set(), {}),
        ("sampled", {rehearsing.SIZE}, {}),
        # The noise has a secret, which stays where it is.
        ("sampled", {rehearsing.SIZE}, OTHER_PARTS),
        ("stats", {2 * rehearsing.SIZE}, EVERYTHING),
        ("embeddings", {rehearsing.SIZE}, {}),
    ],
)
def test_nothing_but_what_sharing_names_reaches_the_server(sharing, widths, options):
    """Walks all values placed at the server in a round: the only open rows are those of the sharing."""
    process = _built(sharing, **options)
    size = MLP(rehearsing.SIZE, rehearsing.CLASSES, HIDDEN).weights.size
    rows = set()
    for computation in (process.next, process.end_task, process.begin_task, process.prepare):
        for tensor in _at_server(computation):
            shape = tuple(tensor.shape)
            if not shape or shape == (size,) or 0 in shape:
                continue
            assert shape[0] is None, tensor
            rows.add((str(tensor.dtype), shape[1:]))
    expected = {("float32", (width,)) for width in widths} | ({("int32", ())} if widths else set())
    assert {(kind, shape) for kind, shape in rows if shape != (0,)} == expected


def _at_server(computation):
    """Types of all tensors that any value placed at the server holds, anywhere in a computation."""
    found, todo = [], [computation.to_building_block()]
    while todo:
        block = todo.pop()
        found += _server_tensors(block.type_signature)
        todo += list(block.children())
    return found


def _server_tensors(kind):
    if isinstance(kind, tff.FederatedType):
        return list(_tensors(kind.member)) if kind.placement is tff.SERVER else []
    return [one for child in kind.children() for one in _server_tensors(child)]


def _tensors(kind):
    if isinstance(kind, tff.TensorType):
        yield kind
    for child in kind.children():
        yield from _tensors(child)


@pytest.mark.slow
def test_built_anew_it_gives_the_same_and_one_trace_serves_every_task_and_any_number_of_clients(plain, monkeypatch):
    traces = collections.Counter()

    def counted(where, name):
        method = getattr(where, name)

        def counting(*args):
            traces[name] += 1
            return method(*args)

        monkeypatch.setattr(where, name, counting)

    names = ("begin_task", "prepare", "train", "end_task", "evaluate")
    for name in names:
        counted(RehearsalWork, name)
    counted(server, "_trainer")
    process = _build()
    _, again = _run(process)
    np.testing.assert_array_equal(_weights(again), _weights(plain[1]))
    _run(process, Enrollment.decreasing(CLIENTS, TASKS))
    assert traces == dict.fromkeys((*names, "_trainer"), 1)


def test_the_frozen_encoder_stays_what_it_was():
    process = _built()
    model = process.task_view.__self__.model
    before = model.encoder.values.tobytes()
    raw = {"x": tf.constant(rehearsing.examples(5)["x"])}
    first = model.encoder.encode({}, raw).numpy()
    _run(process)
    assert model.encoder.values.tobytes() == before
    np.testing.assert_array_equal(model.encoder.encode({}, raw), first)
    with pytest.raises(ValueError, match="read-only"):
        model.encoder.values[0] = 1


@pytest.mark.slow
def test_other_parts_may_be_chosen(plain):
    results, states = _run(_built(**OTHER_PARTS), rounds=1)
    assert np.isfinite(_weights(states)).all()
    assert np.isfinite(results.final_score)
    assert not np.allclose(states[0]["shared"], plain[1][0]["shared"])
    # The seed draws the first classifier, and the server's optimizer has moments.
    first, other = (process.initialize() for process in (_built(), _built(**OTHER_PARTS)))
    assert not np.array_equal(first["shared"], other["shared"])
    assert {np.shape(leaf) for leaf in tf.nest.flatten(other["finalizer"]["inner"])} >= {other["shared"].shape}
    assert {np.shape(leaf) for leaf in tf.nest.flatten(first["finalizer"]["inner"])} <= {()}


def test_every_option_reaches_its_part(monkeypatch):
    made = {}
    for room, names in (
        (client_works, ("RehearsalWork", "Sharing")),
        (aggregators, ("gated",)),
        (finalizers, ("build_server_update", "build_server_side_training")),
    ):
        for name in names:
            made[name] = mock.Mock(wraps=getattr(room, name))
            monkeypatch.setattr(room, name, made[name])
    monkeypatch.setattr(templates, "compose_continual_process", mock.Mock())
    _build(task_memory=5, **OTHER_PARTS)
    told = made["RehearsalWork"].call_args.kwargs
    assert told == {"client_memory": 6, "task_memory": 5, "penalty": [Proximal(0.5)], "seed": 4}
    assert made["Sharing"].call_args.args[1:] == ("sampled", 2, OTHER_PARTS["privacy"])
    assert made["gated"].call_args.args == (OTHER_PARTS["aggregator"],)
    assert made["build_server_update"].call_args.args[1] is OTHER_PARTS["server_optimizer"]
    assert made["build_server_side_training"].call_args.args[3:5] == (SST, 4)


def test_a_killed_run_goes_on_as_if_it_never_was(tmp_path, plain):

    class Killed(Exception):
        pass

    process = _built()
    calls = []

    def dying(*args):
        calls.append(1)
        if len(calls) == 4:  # in the middle of the second task
            raise Killed
        return process.next(*args)

    options = {"num_rounds": 2, "seed": 5, "reporters": [], "output_dir": tmp_path / "killed"}
    with pytest.raises(Killed):
        run_program(_with_next(process, dying), Data(), NoTransfer(), **options)
    resumed = run_program(process, Data(), NoTransfer(), resume=True, **options)
    for name in ("scores", "bytes_up", "bytes_down"):
        np.testing.assert_array_equal(getattr(resumed, name), getattr(plain[0], name))


def _odd(count=5, label=None, classes=rehearsing.CLASSES, **changes):
    train = rehearsing.examples(count, seed=count)
    if label is not None:
        train["label"] = np.full(count, label, np.int32)
    train.update(changes)
    return ClientTask(
        {}, train, {name: values[:0] for name, values in train.items()}, {}, rehearsing.examples(4), classes
    )


@pytest.mark.parametrize("odd", [_odd(label=2), _odd(count=1), _odd(x=np.full([5, rehearsing.INPUTS], 1e6, "f"))])
def test_a_client_with_one_class_or_one_example_or_huge_ones_takes_part(odd):
    results, states = _run(_built(), rounds=1, data=Data(odd=odd))
    assert np.isfinite(_weights(states)).all()
    assert not np.isnan(results.scores[1, -1]).any()
    assert results.server_metrics["finalizer/rehearsal/rejected"] == [0] * TASKS


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (_odd(count=0), "client 1, task 0: no training examples"),
        (_odd(label=rehearsing.CLASSES), r"client 1, task 0, train: label 4 at row 0; expected 0\.\.3"),
        (_odd(label=-1), r"client 1, task 0, train: label -1 at row 0; expected 0\.\.3"),
        (_odd(classes=9), "client 1, task 0: has 9 classes; the process takes 1 to 4"),
        (_odd(x=np.zeros([5, 6], "f")), r"client 1, task 0, train: x should be float32\[\?,5\], found float32\[5, 6\]"),
        (_odd(x=np.full([5, 5], np.nan, "f")), "client 1, task 0, train: x holds a value that is not finite, at row 0"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_used_are_named(odd, message):
    with pytest.raises(errors.InputError, match=message):
        _run(_built(), data=Data(odd=odd))


def test_an_enrollment_of_another_shape():
    with pytest.raises(errors.InputError, match="is for 3 clients x 2 tasks, but the data has 3 clients x 3 tasks"):
        _run(_built(), Enrollment.full(3, 2), data=Data())


class Texts:
    """Documents of five words, of which one label's point one way and the other's the other."""

    num_clients, num_tasks = 2, 2

    def task(self, client, task):
        rng = np.random.default_rng((client, task))
        label = np.arange(12, dtype=np.int32) % 2
        vectors = rng.normal(size=(10, 4)).astype("f")
        vectors[:2], vectors[2:6, 0], vectors[6:, 0] = 0, 3, -3
        tokens = rng.integers(2, 6, [12, 7])[:, :5].astype(np.int32) + 4 * label[:, None]
        context = {"vectors": vectors, "tokens": tokens.ravel()}
        places = {"start": np.arange(0, 60, 5, np.int32), "length": np.full(12, 5, np.int32)}
        examples = {**places, "label": label}
        none = {name: values[:0] for name, values in examples.items()}
        return ClientTask(context, examples, none, context, examples, 2)


@pytest.mark.slow
def test_texts_from_federated_pre_training_to_rehearsal():
    network = EmbeddingClassifier(TextEncoder(4, True, 3, (6,)), MLP(3, 2, (5,)), 1e-4)
    training = LocalTraining(10, 4, 0.02, patience=0)
    frozen, first = pretrain(network, Texts(), training=training, num_rounds=2, seed=1, reporters=[])
    model = RehearsalModel(frozen, network.mlp, first)
    process = build_fil_ver(model, server_side_training=SST, training=LocalTraining(2, 4, 0.01, patience=0))
    results = run_program(process, Texts(), NoTransfer(), num_rounds=1, seed=5, reporters=[])
    assert results.final_score > 0.9
    assert results.server_metrics["finalizer/rehearsal/rows"] == [16, 16]


def test_what_contradicts_itself_is_said(monkeypatch):
    raw = IdentityEncoder((2, 2))
    naive = RehearsalModel(FrozenEncoder(raw, np.zeros(0, np.float32)), MLP(4, 3, ()))
    for bad, match in (
        (lambda: _build(server_side_training=False), "clients would send what nobody uses; take 'none'"),
        (lambda: _build(sharing="none", server_side_training=True), "needs a sharing"),
        (lambda: _build(sharing="everything"), "sharing: expected one of"),
        (lambda: build_fil_ver(naive, sharing="embeddings"), "sends the clients' raw data"),
    ):
        with pytest.raises(errors.InputError, match=match):
            bad()
    monkeypatch.setattr(templates, "compose_continual_process", mock.Mock())
    assert build_fil_ver(naive, sharing="embeddings", share_raw_data=True)
    assert build_fil_ver(naive, sharing="none", server_side_training=False)  # naive rehearsal at the client
    assert fil_ver.TRAINING.patience == 0
