"""A small world for embedding rehearsal: vectors of a few dimensions, and softmax regression in numpy."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import tensorflow as tf

from tffcl.client_works import LocalTraining, RehearsalModel, RehearsalWork, Sharing
from tffcl.models import MLP, FrozenEncoder, VectorEncoder

INPUTS, SIZE, CLASSES = 5, 3, 4


def encoder(variational=True, seed=1):
    """A frozen encoder of vectors with random weights, sigma about 0.14."""
    plain = VectorEncoder(INPUTS, variational, embedding_size=SIZE, hidden=(6,))
    return FrozenEncoder(plain, plain.initial(tf.constant([seed, 0])).numpy())


def model(variational=True, hidden=(), **options):
    return RehearsalModel(encoder(variational), MLP(SIZE, CLASSES, hidden), **options)


def work(variational=True, sharing="none", send_per_round=4, training=None, hidden=(), privacy=None, **options):
    parts = {name: options.pop(name) for name in ("initial", "memory_encoder", "label_mask") if name in options}
    made = model(variational, hidden, **parts)
    told = Sharing(made.encoder.encoder, sharing, send_per_round, privacy)
    local = training or LocalTraining(num_epochs=2, batch_size=4, learning_rate=0.1, patience=0)
    return RehearsalWork(made, local, told, **options)


def examples(count, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, INPUTS)).astype(np.float32)
    return OrderedDict(x=x, label=rng.integers(0, CLASSES, count).astype(np.int32))


class Runner:
    """One client of one work, called directly, without TFF; a round of few steps runs operation by operation."""

    def __init__(self, made):
        self.work, self._train = made, made.trainer().python_function
        self.shared = made.initialize_shared()
        self.state = made.initialize_client(self.shared, tf.zeros([0], tf.int32), tf.constant([7, 8]))
        self.round, self.tasks, self.context = 0, 0, {}

    def begin(self):
        self.state["run_task"] = tf.constant(self.tasks)  # which the program does
        self.tasks += 1
        self.state = self.work.begin_task(self.state, self.shared, tf.zeros([0, 0]))

    def prepare(self, raw):
        tensors = {name: tf.constant(value) for name, value in raw.items()}
        reads = {name: self.state[name] for name in self.work.prepare_reads}
        return dict(self.work.prepare(reads, tf.zeros([0, 0]), {}, tensors))

    def data(self, train, validation=None):
        empty = {name: values[:0] for name, values in train.items()}
        return {"context": self.context, "train": train, "validation": validation or empty}

    def train(self, train, validation=None):
        """One round; the client's state goes on. Returns update, weight, metrics."""
        data = self.data(train, validation)
        changed, *rest = self._train(dict(self.state), self.shared, data, tf.constant(self.round))
        self.state = {**self.state, **changed}
        self.round += 1
        return rest

    def end(self, train):
        self.state, uploads = self.work.end_task(self.state, self.shared, self.data(train))
        return uploads


def softmax_gradient(weights, z, labels, possible=slice(None)):
    """d mean cross-entropy / d weights of a linear classifier: kernel row by row, then bias.

    Softmax is over the labels that are `possible`, all by default.
    """
    kernel, bias = weights[: SIZE * CLASSES].reshape(SIZE, CLASSES), weights[SIZE * CLASSES :]
    logits = z.astype(np.float64) @ kernel + bias
    chances = np.zeros_like(logits)
    chances[:, possible] = np.exp(logits - logits.max(1, keepdims=True))[:, possible]
    chances /= chances.sum(1, keepdims=True)
    chances[np.arange(len(labels)), labels] -= 1
    chances /= len(labels)
    return np.concatenate([(z.T @ chances).ravel(), chances.sum(0)])
