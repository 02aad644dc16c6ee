"""One contract, held by every algorithm: a small history of two tasks through real TFF, and the same by hand."""

import contextlib
import dataclasses
from collections import OrderedDict
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import runtime
from tffcl.algorithms import (
    build_decomposed,
    build_ewc,
    build_fed_avg,
    build_fed_curv,
    build_fedseit,
    build_fedweit,
    build_local,
    decomposed,
)
from tffcl.client_works import DecomposedWork, PlainWork
from tffcl.models import KerasNetwork, TextCNN
from tffcl.program import project
from tffcl.templates import ContinualProcess
from tffcl.templates.tff_types import entries
from tffcl.transfers import KnowledgeBase

CLIENTS = 3
# Who takes part in a round, and with how many examples: clients come and go, one has none.
FIRST_TASK = [{0: 7, 1: 5, 2: 4}, {0: 7, 2: 0}]
SECOND_TASK = [{0: 6, 1: 3, 2: 5}, {1: 3}]
NOBODY = {0: 0, 1: 0, 2: 0}


def narrow(small):
    """Kernels of one width: several are FedSeIT's matter here, and take longer to trace."""
    return dataclasses.replace(small.config(dropout=0.3), kernel_sizes=(2,))


def plain(small):
    return TextCNN(narrow(small), 0)


def keras_network(small):
    keras = tf.keras
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input([small.D]),
            keras.layers.Dense(5, "relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(small.CLASSES),
        ]
    )
    return KerasNetwork(model, num_foreign=2)


class ReadingWork(DecomposedWork):
    """A work that prepares by an entry of the state that it names itself, and that no other reads there."""

    prepare_reads = ("task", "local")

    def prepare(self, state, foreign, context, examples):
        prepared = super().prepare(state, foreign, context, examples)
        scale = 1.0 + tf.cast(state["task"], tf.float32) + tf.reduce_mean(state["local"])
        return {**prepared, "features": prepared["features"] * scale}


def build_reading(network, **options):
    with mock.patch.object(decomposed, "DecomposedWork", ReadingWork):
        return build_decomposed(network, **options)


ALGORITHMS = {
    "fedseit": lambda s, **o: build_fedseit(s.config(0.3), num_foreign=2, **o),
    "fed_curv": lambda s, **o: build_fed_curv(plain(s), weight=2.0, **o),
    "fedweit": lambda s, **o: build_fedweit(narrow(s), num_foreign=2, **o),
    "local": lambda s, **o: build_local(narrow(s), **o),
    "fed_avg": lambda s, **o: build_fed_avg(plain(s), proximal=0.1, **o),
    "ewc": lambda s, **o: build_ewc(plain(s), weight=20.0, proximal=0.1, **o),
    "keras": lambda s, **o: build_reading(keras_network(s), **o),
}

# What clients send is added up in two ways: as a mean over those that sent an entry, and as a mean weighted by examples
# with sums beside it. What runs at a client needs nothing of a runtime that differs from one algorithm to the next.
OTHER_RUNTIMES = tuple(ALGORITHMS)[:2]  # the first ones: pytest groups tests by the place of a parameter


class Counted:
    """A process, its client work, and how often the work's training was traced."""

    def __init__(self, build, small):
        self.traces = 0

        def counting(method):
            def train(*args):
                self.traces += 1
                return method(*args)

            return train

        patches = [mock.patch.object(kind, "train", counting(kind.train)) for kind in (DecomposedWork, PlainWork)]
        with patches[0], patches[1]:
            self.process = build(small, training=small.training(), seed=11)
        self.work = self.process.task_view.__self__


@pytest.fixture(name="built", scope="module", params=ALGORITHMS)
def _built(request, small):
    return Counted(ALGORITHMS[request.param], small)


def examples(work, small, count, seed):
    if "tokens" in work.context_type:
        return small.examples(count, seed)
    x = np.random.default_rng(seed).normal(size=(count, small.D)).astype("f")
    return OrderedDict(features=x, label=(x[:, 0] > 0).astype(np.int32))


class ThroughTff:
    """The computations of the process."""

    def __init__(self, built, small):
        self.process, self.work, self.small = built.process, built.work, small
        self.server = self.process.initialize()
        keys = [np.array([5, client], np.int32) for client in range(CLIENTS)]
        self.states = [OrderedDict(state) for state in self.process.initialize_clients(self.server, keys)]

    def begin(self, incoming):
        self.incoming = incoming
        self.states = list(self.process.begin_task(self.server, self.states, incoming))

    def prepared(self, clients, parts):
        """Prepared examples for some clients."""
        reads = self.process.prepare.type_signature.parameter[1]
        context = self.context()
        raw = [OrderedDict(context=context, examples=part) for part in parts]
        incoming = {**self.incoming, "keys": [self.incoming["keys"][c] for c in clients]}
        incoming = OrderedDict(incoming, count=[self.incoming["count"][c] for c in clients])
        states = [project(self.states[c], reads) for c in clients]
        return self.process.prepare(self.server, states, incoming, raw)

    def context(self):
        return self.small.context() if "vectors" in self.work.context_type else OrderedDict()

    def data(self, sizes, seed):
        clients = list(sizes)
        train = [examples(self.work, self.small, sizes[c], 10 * seed + c) for c in clients]
        held_out = [examples(self.work, self.small, 3, 10 * seed + c + 5) for c in clients]
        parts = [self.prepared(clients, each) for each in (train, held_out)]
        return [OrderedDict(context=self.context(), train=one, validation=other) for one, other in zip(*parts)]

    def round(self, sizes, seed):
        reads = self.process.next.type_signature.parameter[1]
        states = [project(self.states[client], reads) for client in sizes]
        self.server, changes, metrics, _ = self.process.next(self.server, states, self.data(sizes, seed))
        for client, change in zip(sizes, changes):
            self.states[client] = OrderedDict(self.states[client], **change)
        assert {one.pop("refused") for one in metrics} == {b""}
        return metrics

    def end(self, sizes, seed):
        self.states, uploads = self.process.end_task(self.server, self.states, self.data(sizes, seed))
        self.states = [OrderedDict(state) for state in self.states]
        return [upload["knowledge"] for upload in uploads]

    def evaluate(self, tasks, seed):
        """Scores of every client for every task."""
        pairs = [(client, task) for client in range(CLIENTS) for task in range(tasks)]
        views = [self.process.task_view(self.states[client], task) for client, task in pairs]
        test = self.prepared(range(CLIENTS), [examples(self.work, self.small, 4, seed + c) for c in range(CLIENTS)])
        data = [OrderedDict(context=self.context(), examples=test[client]) for client, _ in pairs]
        return self.process.evaluate(self.server, views, data)


class ByHand(ThroughTff):
    """The same client work called directly; the server in numpy."""

    def __init__(self, built, small):
        self.process, self.work, self.small = built.process, built.work, small
        self.shared, self.round_num = self.work.initialize_shared().numpy(), 0
        self.run = small.compiled(self.work)
        shared = tf.constant(self.shared)
        self.states = [
            small.numpy(self.work.initialize_client(shared, self.work.initialize_plan(), tf.constant([5, client])))
            for client in range(CLIENTS)
        ]

    @property
    def server(self):
        return {"shared": self.shared, "round_num": self.round_num}

    def rows(self, client):
        count = self.incoming["count"][client]
        return tf.constant(self.incoming["rows"][self.incoming["keys"][client][:count]])

    def begin(self, incoming):
        self.incoming, small = incoming, self.small
        self.states = [
            small.numpy(self.work.begin_task(small.tensors(state), tf.constant(self.shared), self.rows(client)))
            for client, state in enumerate(self.states)
        ]

    def prepared(self, clients, parts):
        work, tensors = self.work, self.small.tensors
        context, prepared = tensors(self.context()), []
        for client, part in zip(clients, parts):
            reads = tensors({name: self.states[client][name] for name in work.prepare_reads})
            prepared.append(dict(work.prepare(reads, self.rows(client), context, tensors(part))))
        return prepared

    def round(self, sizes, seed):
        updates, weights, reported = [], [], []
        for client, data in zip(sizes, self.data(sizes, seed)):
            state = {name: tf.constant(self.states[client][name]) for name in self.work.train_reads}
            data = {**data, "context": self.small.tensors(data["context"])}
            changed, update, weight, metrics = self.run(
                state, tf.constant(self.shared), data, tf.constant(self.round_num)
            )
            self.states[client] = {**self.states[client], **self.small.numpy(changed)}
            updates.append(self.small.numpy(update))
            weights.append(float(weight))
            reported.append(metrics)
        sent = np.array([update["sent"] for update in updates], float)
        if isinstance(self.work, PlainWork):
            sent *= np.array(weights)[:, None]
        total = sum(weight * update["delta"] for weight, update in zip(sent, updates))
        total /= np.maximum(sent.sum(0), 1)
        # What stands after the kernels are a penalty's sums over clients (FedCurv).
        size = self.work.network.kernels.size
        if isinstance(self.work, PlainWork):
            total[size:] = sum(update["delta"][size:] for update in updates)
        self.shared = (self.shared + total).astype("f")
        self.round_num += 1
        return reported

    def end(self, sizes, seed):
        ended = [
            self.work.end_task(self.small.tensors(s), tf.constant(self.shared), d)
            for s, d in zip(self.states, self.data(sizes, seed))
        ]
        self.states = [self.small.numpy(state) for state, _ in ended]
        return [upload["knowledge"].numpy() for _, upload in ended]

    def evaluate(self, tasks, seed):
        scores = []
        for client in range(CLIENTS):
            part = examples(self.work, self.small, 4, seed + client)
            (test,) = self.prepared([client], [part])
            for task in range(tasks):
                view = self.small.tensors(self.work.task_view(self.states[client], task))
                context = self.small.tensors(self.context())
                scores.append(self.work.evaluate(view, tf.constant(self.shared), context, test))
        return scores


def play(player):
    """Two tasks; the second begins with 0, 1 and K entries. Returns all that came out."""
    base, most = KnowledgeBase(player.work.knowledge_size), player.work.num_foreign
    trail = []
    player.begin(base.transfer_in([[]] * CLIENTS, most))
    trail += [player.round(sizes, seed) for seed, sizes in enumerate(FIRST_TASK)]
    trail.append(player.evaluate(1, seed=50))
    for client, knowledge in enumerate(player.end(FIRST_TASK[0], seed=0)):
        base.add(client, 0, knowledge)
    selections = [[1, 2][:most], [2][:most], []]
    player.begin(base.transfer_in(selections, most))
    trail += [player.round(sizes, seed + 2) for seed, sizes in enumerate(SECOND_TASK)]
    trail.append(player.evaluate(2, seed=60))
    return [trail, player.server["shared"], [dict(state) for state in player.states]]


@pytest.fixture(scope="module")
def two_workers():
    """Not entered: each test says which context is its own."""
    with contextlib.closing(runtime.local(num_threads=1, num_workers=2)) as made:
        yield made


@pytest.fixture(name="played", scope="module")
def _played(built, small, tff_context):
    pipeline = tff_context.context._async_context._compiler_pipeline
    with mock.patch.object(pipeline, "_compiler_fn", mock.Mock(wraps=pipeline._compiler_fn)) as compiler:
        player = ThroughTff(built, small)
        result = play(player)
        return player, result, compiler.call_count


def flat(values):
    return [np.asarray(value) for value in tf.nest.flatten(tf.nest.map_structure(np.asarray, _plain(values)))]


def _plain(values):
    if isinstance(values, dict):
        return {name: _plain(value) for name, value in values.items()}
    return [_plain(value) for value in values] if isinstance(values, (list, tuple)) else values


def test_types(built):
    process = built.process
    assert isinstance(process, ContinualProcess)
    state = entries(process.client_state_type)
    for name in ("begin_task", "end_task"):
        assert entries(getattr(process, name).type_signature.parameter[1]) == state
    assert set(entries(process.next.type_signature.result[1])) == set(built.work.train_writes)
    assert {"count", "loss", "correct"} == set(entries(process.evaluate.type_signature.result))
    reported = set(entries(process.next.type_signature.result[2]))
    assert {"loss", "validation_loss", "epochs", "examples", "sent", "non_finite", "learning_rate"} <= reported
    assert entries(process.end_task.type_signature.result[1])["knowledge"].shape == (process.knowledge_size,)


def test_nothing_is_traced_or_compiled_again(built, played):
    assert built.traces == 1
    assert 0 < played[2] <= 7  # one for each computation; fewer where an earlier process had the same


def test_the_same_again_is_the_same_to_the_bit(built, small, played):
    again = play(ThroughTff(built, small))
    for one, other in zip(flat(played[1]), flat(again)):
        np.testing.assert_array_equal(one, other)


def test_it_is_what_the_client_work_does_without_tff(built, small, played):
    expected = play(ByHand(built, small))
    found = flat(played[1])
    assert len(found) == len(flat(expected))
    for one, other in zip(found, flat(expected)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("built", OTHER_RUNTIMES, indirect=True)
def test_it_is_the_same_in_other_runtimes(built, small, played, two_workers):
    """Up to rounding; in this process the number of threads changes nothing at all."""
    results = []
    for clients_at_once in (1, 3):
        with runtime.in_process(clients_at_once=clients_at_once):
            results.append(flat(play(ThroughTff(built, small))))
    for one, three in zip(*results):
        np.testing.assert_array_equal(one, three)
    with tff.framework.get_context_stack().install(two_workers.context):
        results.append(flat(play(ThroughTff(built, small))))
    for found in results[1:]:
        assert_close(found, flat(played[1]))
    assert built.traces == 1


def assert_close(found, expected):
    """Equal in dtypes, and in values up to rounding."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_learning_moved_something(built, small, played):
    _, (trail, shared, states), _ = played
    assert all(np.isfinite(score["loss"]) for score in trail[-1])
    first = built.process.initialize()["shared"]
    alone = isinstance(built.work, DecomposedWork) and not built.work.options.exchange
    assert np.array_equal(shared, first) == alone
    assert [len(state["past_local"]) for state in states] == [1, 1, 1]


def test_when_nobody_has_examples_nothing_changes_and_it_is_reported(played):
    player, _, _ = played
    server, states = player.server, list(player.states)
    metrics = player.round(NOBODY, seed=9)
    np.testing.assert_array_equal(player.server["shared"], server["shared"])
    assert [int(m["examples"]) for m in metrics] == [0, 0, 0]
    assert [int(m["sent"]) for m in metrics] == [0, 0, 0]
    assert [int(m["non_finite"]) for m in metrics] == [0, 0, 0]
    for before, after in zip(states, player.states):
        for name, value in before.items():
            np.testing.assert_array_equal(after[name], value)
    player.server, player.states = server, states


def test_one_client_with_nan_leaves_the_others_as_they_are(built, played):
    player, _, _ = played
    server, states = player.server, list(player.states)
    sizes = {0: 6, 1: 5}
    data = player.data(sizes, seed=7)
    spoiled = poisoned(data[1])
    reads = player.process.next.type_signature.parameter[1]
    projected = [project(states[client], reads) for client in sizes]
    alone, changes, *_ = player.process.next(server, projected[:1], data[:1])
    both, changes_both, metrics, _ = player.process.next(server, projected, [data[0], spoiled])
    assert [int(m["non_finite"]) for m in metrics] == [0, 1]
    np.testing.assert_array_equal(both["shared"], alone["shared"])
    for name, value in changes[0].items():
        np.testing.assert_array_equal(changes_both[0][name], value)
        np.testing.assert_array_equal(changes_both[1][name], states[1][name])


def poisoned(data):
    if "vectors" in data["context"]:
        vectors = data["context"]["vectors"].copy()
        vectors[1:] = np.nan
        return OrderedDict(data, context=OrderedDict(data["context"], vectors=vectors))
    train = OrderedDict(data["train"])
    train["features"] = np.full_like(train["features"], np.nan)
    return OrderedDict(data, train=train)
