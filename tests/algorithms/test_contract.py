"""One contract, held by every method of the registry; and the same history by hand, without TFF."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import OrderedDict
from unittest import mock

import numpy as np
import pytest
import rehearsing
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import client_works, runtime, testing
from tffcl.algorithms import build_decomposed, build_ewc, build_fed_curv, build_fedseit, build_local
from tffcl.algorithms.fil_ver import FilVerMethod
from tffcl.algorithms.method import LABELS
from tffcl.algorithms.registry import METHODS
from tffcl.client_works import DecomposedWork, FusedAdam, PlainWork, RehearsalModel
from tffcl.models import (
    MLP,
    EmbeddingClassifier,
    FrozenEncoder,
    IdentityEncoder,
    KerasNetwork,
    TextCNN,
    VectorEncoder,
    Whole,
    with_label_mask,
)
from tffcl.models.registry import NETWORKS, MADEConfig, TextCNNConfig
from tffcl.program import ClientTask
from tffcl.templates.messages import entries

CLIENTS, TASKS, FOREIGN, IMAGE, PIXELS = 3, 2, 2, (2, 2), 4
# Two runtimes sum in different orders: a sum of n float32 terms is off by n 2^-24 of its terms at most, here of order
# 1. The longest have about 100 terms, and each of the 16 steps of the history adds its own error. Adam divides
# gradients by their own size; with an epsilon as large as the learning rate it makes no error larger.
LEARNING_RATE, STEPS, TERMS = 0.01, 16, 100
ROUNDING = STEPS * TERMS * 2.0**-24
# Of the methods and of ALGORITHMS; the others beside them take minutes together.
FAST, FAST_BY_HAND = ("fedavg",), ("fedseit", "keras")
# Aggregated in two ways: by a mean over the clients that sent an entry, and by a mean weighted by examples with sums
# beside it. What runs at a client needs nothing of a runtime that differs from one algorithm to the next.
OTHER_RUNTIMES = ("fedseit", "fed_curv")


def training(small):
    return small.training(learning_rate=LEARNING_RATE, optimizer=FusedAdam(epsilon=LEARNING_RATE))


def narrow(small):
    """Kernels of one width: several are FedSeIT's matter here, and take longer to trace."""
    return dataclasses.replace(small.config(dropout=0.3), kernel_sizes=(2,))


class Data:
    """Examples of three clients in two tasks, of different numbers; `draw(count, seed)` makes them."""

    num_clients, num_tasks = CLIENTS, TASKS

    def __init__(self, draw, context, num_classes):
        self._draw, self._context, self._num_classes = draw, context, num_classes

    def task(self, client, task):
        counts = ((7, 5, 4), (6, 3, 5))
        parts = [
            self._draw(count, 100 * task + 10 * client + place)
            for place, count in enumerate((counts[task][client], 3, 4))
        ]
        train, validation, test = parts
        return ClientTask(self._context, train, validation, self._context, test, self._num_classes)


def data_of(process, small):
    """Data for the network of a process; of a growing head all classes are there, and one was before."""
    data = _data_of(process, small)
    types = process.work.context_type
    if "known" in types:
        size = types["known"].shape[0]
        data._context = OrderedDict(data._context, classes=np.ones(size, bool), known=np.arange(size) < 1)
        data._num_classes, draw = size, data._draw
        data._draw = lambda *drawn: OrderedDict((n, v % size if n == "label" else v) for n, v in draw(*drawn).items())
    return data


def _data_of(process, small):
    if "tokens" in process.work.context_type:
        return Data(small.examples, small.context(), small.CLASSES)
    if "observed" in process.work.context_type:
        return Data(_bits, OrderedDict(observed=np.ones(PIXELS, np.float32)), None)
    if "features" in process.work.example_type:
        return Data(lambda *drawn: _features(small.D, *drawn), OrderedDict(), small.CLASSES)
    if process.work.example_type["x"].dtype == np.uint8:
        return Data(_images, OrderedDict(), rehearsing.CLASSES)
    return Data(rehearsing.examples, OrderedDict(), rehearsing.CLASSES)


def _images(count, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (count, *IMAGE)).astype(np.uint8)
    return OrderedDict(x=x, label=rng.integers(0, rehearsing.CLASSES, count).astype(np.int32))


def _bits(count, seed):
    return OrderedDict(x=np.random.default_rng(seed).integers(0, 2, (count, PIXELS)).astype(np.uint8))


def _features(size, count, seed):
    x = np.random.default_rng(seed).normal(size=(count, size)).astype("f")
    return OrderedDict(features=x, label=(x[:, 0] > 0).astype(np.int32))


# -- every method of the registry --------------------------------------------------------------------------------------


class SmallPlan:
    """What a method asks of a plan, with the smallest sizes."""

    seed, num_clients, num_tasks, examples_per_task = 11, CLIENTS, TASKS, 10

    def __init__(self, method, small):
        self.method, self.training, self.num_classes = method, training(small), small.CLASSES
        self._small, self._text, self.recorded = small, LABELS in method.learns, {}
        self.input_shape = (small.D if self._text else PIXELS,)

    def group(self, kind):
        if kind is TextCNNConfig:
            return narrow(self._small)
        sizes = {"input_size": PIXELS, "hidden": (5,)} if kind is MADEConfig else {}
        names = {field.name for field in dataclasses.fields(kind)}
        return kind(**sizes, **{name: value for name, value in self.method.defaults.items() if name in names})

    def aggregator(self):
        return None

    def network(self):
        part = NETWORKS.get("textcnn" if self._text else "made")
        network = part.build(self, FOREIGN if self.method.foreign else 0)
        return with_label_mask(Whole(network), growing=True) if self.method.growing else network

    def plain_encoder(self):
        encoder = VectorEncoder(rehearsing.INPUTS, variational=False, embedding_size=rehearsing.SIZE, hidden=())
        return FrozenEncoder(encoder, encoder.initial(tf.constant([1, 2])).numpy())

    def rehearsal_model(self, pretrained, noise):
        if self.method.encoder == "identity":
            raw = FrozenEncoder(IdentityEncoder(IMAGE), np.zeros(0, np.float32))
            return RehearsalModel(raw, MLP(PIXELS, rehearsing.CLASSES, ()))
        return rehearsing.model(self.method.encoder == "variational", (3,))

    def embedding_classifier(self):
        encoder = VectorEncoder(rehearsing.INPUTS, False, embedding_size=rehearsing.SIZE, hidden=(6,))
        return EmbeddingClassifier(encoder, MLP(rehearsing.SIZE, rehearsing.CLASSES, (3,)), 0.0)


def _by_process():
    """The methods of the registry by what decides their processes: most baselines differ in their data alone."""
    groups = {}
    for name in METHODS.names:
        method = METHODS.get(name)
        if isinstance(method, FilVerMethod):
            key = (method.sharing, method.encoder, bool(method.memory)) if method.frozen else "end to end"
        else:
            options = (*method.options.values(), *method.defaults.items())
            key = (method.builder, options, method.foreign, LABELS in method.learns)
        groups.setdefault(key, []).append(method)
    return [
        pytest.param(
            methods[0],
            id="+".join(each.name for each in methods),
            marks=[] if any(each.name in FAST for each in methods) else [pytest.mark.slow],
        )
        for methods in groups.values()
    ]


@pytest.mark.parametrize("method", _by_process())
def test_every_method_holds_the_contract(method, small):
    with runtime.in_process():
        process = method.process(SmallPlan(method, small))
        testing.check_process(process, data_of(process, small))


# -- by hand -----------------------------------------------------------------------------------------------------------


class ReadingWork(DecomposedWork):
    """A work that prepares by an entry of the state that it names itself, and that no other reads there."""

    prepare_reads = ("task", "local")

    def prepare(self, state, foreign, context, examples):
        prepared = super().prepare(state, foreign, context, examples)
        scale = 1.0 + tf.cast(state["task"], tf.float32) + tf.reduce_mean(state["local"])
        return {**prepared, "features": prepared["features"] * scale}


def build_reading(small, **options):
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
    with mock.patch.object(client_works, "DecomposedWork", ReadingWork):
        return build_decomposed(KerasNetwork(model, num_foreign=FOREIGN), **options)


ALGORITHMS = {
    "fedseit": lambda s, **o: build_fedseit(s.config(0.3), num_foreign=FOREIGN, **o),
    "fed_curv": lambda s, **o: build_fed_curv(TextCNN(narrow(s), 0), weight=2.0, **o),
    "local": lambda s, **o: build_local(narrow(s), **o),
    # With FedProx's term beside its own, and FedAvg's round: in the first task nothing is to be held on to.
    "ewc": lambda s, **o: build_ewc(TextCNN(narrow(s), 0), weight=20.0, proximal=0.1, **o),
    "keras": build_reading,
}


class Counted:
    """A process, its data, and how often its work's training was traced."""

    def __init__(self, build, small):
        self.traces = 0

        def counting(method):
            def train(*args):
                self.traces += 1
                return method(*args)

            return train

        patches = [mock.patch.object(kind, "train", counting(kind.train)) for kind in (DecomposedWork, PlainWork)]
        with patches[0], patches[1]:
            self.process = build(small, training=training(small), seed=11)
        self.work, self.data = self.process.work, data_of(self.process, small)

    def play(self):
        return played_through(self.process, self.data)


def played_through(process, data):
    """What came out of a history that does not depend on how the server keeps it."""
    history = testing.History(process, data)
    history.play()
    return {**history.values(), "server": history.server["shared"]}


@pytest.fixture(
    name="built",
    scope="module",
    params=[pytest.param(name, marks=[] if name in FAST_BY_HAND else [pytest.mark.slow]) for name in ALGORITHMS],
)
def _built(request, small):
    return Counted(ALGORITHMS[request.param], small)


class ByHand:
    """The client work of a process called directly, with the server in numpy."""

    def __init__(self, work, small):
        self.work, self._tensors, self._numpy, self._train = work, small.tensors, small.numpy, small.compiled(work)

    def process(self, process):
        """The process with functions in the place of its computations."""
        functions = {
            name: mock.Mock(side_effect=getattr(self, name), type_signature=getattr(process, name).type_signature)
            for name in ("initialize", "initialize_clients", "begin_task", "prepare", "next", "end_task", "evaluate")
        }
        return dataclasses.replace(process, **functions)

    def initialize(self):
        return {"shared": self.work.initialize_shared().numpy(), "round_num": 0}

    def initialize_clients(self, server, keys):
        plan = self.work.initialize_plan()
        return [
            self._numpy(self.work.initialize_client(tf.constant(server["shared"]), plan, tf.constant(key)))
            for key in keys
        ]

    def _rows(self, incoming, client):
        count = incoming["count"][client]
        return tf.constant(incoming["rows"][incoming["keys"][client][:count]])

    def begin_task(self, server, states, incoming):
        shared = tf.constant(server["shared"])
        return [
            self._numpy(self.work.begin_task(self._tensors(state), shared, self._rows(incoming, client)))
            for client, state in enumerate(states)
        ]

    def prepare(self, server, states, incoming, raw):
        return [
            self._numpy(
                self.work.prepare(
                    self._tensors(state),
                    self._rows(incoming, client),
                    self._tensors(one["context"]),
                    self._tensors(one["examples"]),
                )
            )
            for client, (state, one) in enumerate(zip(states, raw))
        ]

    def next(self, server, states, data):
        changes, updates, weights, reported = [], [], [], []
        for state, one in zip(states, data):
            parts = {name: self._tensors(part) for name, part in one.items()}
            shared, number = tf.constant(server["shared"]), tf.constant(server["round_num"])
            changed, update, weight, metrics = self._train(self._tensors(state), shared, parts, number)
            changes.append(self._numpy(changed))
            updates.append(self._numpy(update))
            weights.append(float(weight))
            reported.append({**self._numpy(metrics), "refused": b""})
        sent = np.array([update["sent"] for update in updates], float)
        plain = isinstance(self.work, PlainWork)
        if plain:
            sent *= np.array(weights)[:, None]
        total = sum(weight * update["delta"] for weight, update in zip(sent, updates)) / np.maximum(sent.sum(0), 1)
        # What stands after the kernels are a penalty's sums over clients (FedCurv).
        size = self.work.network.kernels.size
        if plain:
            total[size:] = sum(update["delta"][size:] for update in updates)
        new = {"shared": (server["shared"] + total).astype("f"), "round_num": server["round_num"] + 1}
        return new, changes, reported, {}

    def end_task(self, server, states, data):
        ended = [
            self.work.end_task(
                self._tensors(state),
                tf.constant(server["shared"]),
                {name: self._tensors(part) for name, part in one.items()},
            )
            for state, one in zip(states, data)
        ]
        return [self._numpy(state) for state, _ in ended], [
            {**self._numpy(upload), "refused": b""} for _, upload in ended
        ]

    def evaluate(self, server, views, data):
        shared = tf.constant(server["shared"])
        return [
            self._numpy(
                self.work.evaluate(
                    self._tensors(view), shared, self._tensors(one["context"]), self._tensors(one["examples"])
                )
            )
            for view, one in zip(views, data)
        ]


@pytest.fixture(scope="module")
def two_workers():
    """Not entered: each test says which context is its own."""
    with contextlib.closing(runtime.local(num_threads=1, num_workers=2)) as made:
        yield made


@pytest.fixture(name="played", scope="module")
def _played(built, tff_context):
    pipeline = tff_context.context._async_context._compiler_pipeline
    with mock.patch.object(pipeline, "_compiler_fn", mock.Mock(wraps=pipeline._compiler_fn)) as compiler:
        return built.play(), compiler.call_count


def assert_close(found, expected):
    """Equal in names and dtypes, and in values up to rounding."""
    found, expected = dict(testing.leaves(found)), dict(testing.leaves(expected))
    assert list(found) == list(expected)
    for path, value in found.items():
        assert value.dtype == expected[path].dtype, path
        if value.dtype.kind in "SU":
            assert value == expected[path], path
        else:
            np.testing.assert_allclose(value, expected[path], rtol=ROUNDING, atol=ROUNDING, err_msg=path)


def test_types(built):
    process = built.process
    state = entries(process.client_state_type)
    for name in ("begin_task", "end_task"):
        assert entries(getattr(process, name).type_signature.parameter[1]) == state
    assert set(entries(process.next.type_signature.result[1])) == set(built.work.train_writes)
    assert {"count", "loss", "correct"} == set(entries(process.evaluate.type_signature.result))
    reported = set(entries(process.next.type_signature.result[2]))
    assert {"loss", "validation_loss", "epochs", "examples", "sent", "non_finite", "learning_rate"} <= reported


def test_nothing_is_traced_or_compiled_again(built, played):
    assert built.traces == 1
    assert 0 < played[1] <= 7  # one for each computation; fewer where an earlier process had the same


@pytest.mark.slow
def test_it_is_what_the_client_work_does_without_tff(built, small, played):
    expected = played_through(ByHand(built.work, small).process(built.process), built.data)
    assert_close(_sorted(played[0]), _sorted(expected))


def _sorted(values):
    """Mappings in the order of their names, which says nothing."""
    if isinstance(values, dict):
        return {name: _sorted(values[name]) for name in sorted(values)}
    return [_sorted(value) for value in values] if isinstance(values, (list, tuple)) else values


def test_local_leaves_the_shared_value_alone_and_the_others_do_not(built, played):
    alone = isinstance(built.work, DecomposedWork) and not built.work.options.exchange
    assert np.array_equal(played[0]["server"], built.process.initialize()["shared"]) == alone
    assert [len(state["past_local"]) for state in played[0]["client"]] == [TASKS] * CLIENTS


@pytest.mark.slow
@pytest.mark.parametrize("built", OTHER_RUNTIMES, indirect=True)
def test_it_is_the_same_in_other_runtimes(built, played, two_workers):
    """Up to rounding; in this process the number of threads changes nothing at all."""
    results = []
    for clients_at_once in (1, 3):
        with runtime.in_process(clients_at_once=clients_at_once):
            results.append(built.play())
    for (path, one), (_, three) in zip(*map(testing.leaves, results)):
        np.testing.assert_array_equal(one, three, err_msg=path)
    with tff.framework.get_context_stack().install(two_workers.context):
        results.append(built.play())
    for found in results[1:]:
        assert_close(found, played[0])
    assert built.traces == 1
