"""Pre-training on scikit-learn's digits, central and federated; encoders in files."""

from __future__ import annotations

import dataclasses
import functools
import os

import numpy as np
import pytest

from tffcl.algorithms import build_fed_avg
from tffcl.client_works import LocalTraining
from tffcl.datasets import load_images
from tffcl.errors import InputError, RunError
from tffcl.models import MLP, EmbeddingClassifier, FrozenEncoder, ImageEncoder, VectorEncoder
from tffcl.models.encoders import mean_of
from tffcl.program import ClientTask, load_encoder, pretrain, pretraining, run_program, save_encoder
from tffcl.transfers import NoTransfer

DIGITS = load_images("digits")
QUICK = LocalTraining(num_epochs=1, batch_size=64, learning_rate=2e-3, patience=0)


@dataclasses.dataclass
class Digits:
    """Every C-th image belongs to client c, but to the clients named `without` none at all."""

    num_clients: int
    without: tuple = ()
    num_tasks: int = 2

    def task(self, client, task):
        assert task == 0, "only the first task is learned"
        rows = np.arange(0 if client in self.without else len(DIGITS.train_labels))[client :: self.num_clients]
        train = {"x": DIGITS.train_images[rows], "label": DIGITS.train_labels[rows]}
        test = {"x": DIGITS.test_images, "label": DIGITS.test_labels}
        return ClientTask({}, train, {name: part[:0] for name, part in train.items()}, {}, test, 10)


class Repeated(Digits):
    """The same again in every task."""

    def task(self, client, task):
        return super().task(client, 0)


@functools.cache
def built(net, *, training, seed):
    """A process that several tests use: it keeps nothing from run to run."""
    return build_fed_avg(net, training=training, seed=seed)


@pytest.fixture(autouse=True)
def _built_once(monkeypatch):
    monkeypatch.setattr(pretraining, "build_fed_avg", built)


class Told:
    def __init__(self):
        self.events = []

    def start(self, num_tasks, num_rounds, past):
        self.events.append((num_tasks, num_rounds, list(past)))

    def report(self, event):
        self.events.append(event)

    def close(self):
        self.events.append("closed")


@functools.cache
def network(variational=True):
    return EmbeddingClassifier(ImageEncoder((8, 8), variational, 16, (8,), (), 16), MLP(16, 10, ()))


@functools.cache
def small(shape=(8, 8)):
    """The same with as few layers as there may be, where nothing has to be learned."""
    return EmbeddingClassifier(ImageEncoder(shape, True, 4, (), ()), MLP(4, 10, ()))


def run(data, net=None, **changes):
    options = {"training": QUICK, "num_rounds": 1, "seed": 1, "reporters": [], **changes}
    return pretrain(net or small(), data, **options)


def accuracy(net, frozen, classifier):
    embeddings = mean_of(net.encoder, frozen.encode({}, {"x": DIGITS.test_images}))
    found = net.mlp.logits(classifier, embeddings).numpy().argmax(axis=1)
    return (found == DIGITS.test_labels).mean()


@pytest.mark.slow
@pytest.mark.parametrize("variational", [True, False])
def test_central_pretraining_learns_its_task(tff_context, variational):
    net = network(variational)
    frozen, classifier = run(Digits(1), net, training=dataclasses.replace(QUICK, num_epochs=25))
    assert frozen.encoder == net.encoder
    assert (classifier.dtype, classifier.shape) == (np.float32, (net.mlp.weights.size,))
    assert accuracy(net, frozen, classifier) > 0.9


@pytest.mark.slow
def test_federated_pretraining_learns_and_tells_of_its_rounds(tff_context):
    net, told = network(), Told()
    training = dataclasses.replace(QUICK, num_epochs=4, learning_rate=5e-3)
    frozen, classifier = run(Digits(3), net, training=training, num_rounds=6, reporters=[told])
    assert accuracy(net, frozen, classifier) > 0.85
    assert told.events[0] == (1, 6, [])
    assert told.events[-1] == "closed"
    assert [(event["task"], event["round"]) for event in told.events[1:-1]] == [(0, r) for r in range(6)]
    assert told.events[1]["loss"]["2"] > told.events[6]["loss"]["2"]


class Reversed(Digits):
    """The same, every mapping in another order."""

    def task(self, client, task):
        one = super().task(client, task)
        parts = {name: dict(reversed(getattr(one, name).items())) for name in ("train", "validation", "test")}
        return dataclasses.replace(one, **parts)


@pytest.mark.slow
def test_entries_in_another_order_give_the_same_weights(tff_context):
    np.testing.assert_array_equal(run(Reversed(2))[0].values, run(Digits(2))[0].values)


@pytest.mark.slow
def test_the_same_clients_and_seed_give_the_same_weights(tff_context):
    everybody = run(Digits(3, without=(1,)))  # who has no examples takes no part
    named = run(Digits(3), clients=[0, 2])
    np.testing.assert_array_equal(named[0].values, everybody[0].values)
    np.testing.assert_array_equal(named[1], everybody[1])
    other = run(Digits(3, without=(1,)), seed=2)
    assert (other[0].values != everybody[0].values).mean() > 0.5


def test_weights_that_are_not_finite(tff_context):
    told = Told()
    training = dataclasses.replace(QUICK, learning_rate=1e30)
    message = "pre-training, round 0: nobody's update counts .client 0: its training was not finite, client 1: its"
    with pytest.raises(RunError, match=message):
        run(Digits(2), training=training, reporters=[told])
    assert told.events[-1] == "closed"


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (Digits(3), {"clients": [0, 3]}, r"clients: there is no client 3; expected numbers in 0\.\.2"),
        (Digits(3), {"clients": [1, 1]}, "clients: expected each client once"),
        (Digits(2), {"clients": []}, "no client has training examples in task 0"),
        (Digits(2, without=(0, 1)), {}, "no client has training examples in task 0"),
        (Digits(2, without=(1,)), {"clients": [0, 1]}, "client 1, task 0: no training examples"),
        (Digits(2), {"num_rounds": 0}, "num_rounds: expected at least 1, found 0"),
        (
            Digits(2),
            {"net": small((9, 8))},
            r"client 0, task 0, train: x should be uint8\[\?,9,8\], found uint8\[721, 8, 8\]",
        ),
    ],
)
def test_wrong_data_and_settings(tff_context, data, options, message):
    with pytest.raises(InputError, match=message):
        run(data, **options)


def test_a_run_of_tasks_with_a_network_that_keeps_nothing_local(tff_context, tmp_path):
    """The empty vector of local parameters goes through training, evaluation, checkpoints and a resume."""
    net = small()
    data = Repeated(2)

    def all_rounds(folder, resume=False):
        process = built(net, training=QUICK, seed=1)
        options = {"num_rounds": 2, "seed": 1, "output_dir": folder, "reporters": [], "resume": resume}
        return run_program(process, data, NoTransfer(), **options).to_json()

    first = all_rounds(tmp_path / "run")
    assert np.shape(first["accuracy"])[0] == 2
    assert all_rounds(tmp_path / "run", resume=True) == first


# -- files -----------------------------------------------------------------------------------------------------


def frozen():
    encoder = VectorEncoder(3, embedding_size=2, hidden=(4,))
    return FrozenEncoder(encoder, np.random.default_rng(0).normal(size=encoder.weights.size).astype("f"))


def test_a_file_holds_the_encoder_to_the_bit(tmp_path):
    one, path = frozen(), tmp_path / "encoder.npz"
    save_encoder(path, one)
    again = load_encoder(path, VectorEncoder(3, embedding_size=2, hidden=(4,)))
    np.testing.assert_array_equal(again.values, one.values)
    assert os.listdir(tmp_path) == ["encoder.npz"]


def test_a_file_of_another_encoder(tmp_path):
    path = tmp_path / "encoder.npz"
    save_encoder(path, frozen())
    expected = r"encoder.npz holds VectorEncoder\(size=3, variational=True.*, expected VectorEncoder\(size=3, var"
    with pytest.raises(InputError, match=expected):
        load_encoder(path, VectorEncoder(3, False, embedding_size=4, hidden=(4,)))


def test_a_file_that_is_none(tmp_path):
    path, encoder = tmp_path / "encoder.npz", frozen().encoder
    with pytest.raises(RunError, match="encoder.npz: no such file"):
        load_encoder(path, encoder)
    save_encoder(path, frozen())
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(RunError, match="encoder.npz is damaged"):
        load_encoder(path, encoder)
    np.savez(path, values=frozen().values)
    with pytest.raises(RunError, match=r"expected the arrays \['format', 'encoder', 'values'\], found \['values'\]"):
        load_encoder(path, encoder)
    for other in (2, [1, 1], "1"):
        np.savez(path, format=other, encoder=repr(encoder), values=frozen().values)
        with pytest.raises(RunError, match="holds no encoder of this version"):
            load_encoder(path, encoder)


def test_a_folder_that_is_missing(tmp_path):
    with pytest.raises(RunError, match="cannot write .*: No such file"):
        save_encoder(tmp_path / "nowhere" / "encoder.npz", frozen())
