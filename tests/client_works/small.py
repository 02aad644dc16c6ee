"""A small world for client works: documents of few words, tiny networks, and the same in numpy."""

from __future__ import annotations

import functools
from collections import OrderedDict

import numpy as np
import tensorflow as tf

from tffcl.client_works import DecomposedWork, Decomposition, LocalTraining
from tffcl.models import AlignedTextCNN, TextCNN, TextCNNConfig

D, F, V, CLASSES, PLACES, SIZES = 4, 3, 11, 3, 3, (2, 3)
# The words that documents are cut from, wherever they stand.
TOKENS = np.random.default_rng(5).integers(1, V, 997).astype(np.int32)


def config(dropout=0.0):
    return TextCNNConfig(embedding_size=D, max_classes=CLASSES, kernel_sizes=SIZES, num_filters=F, dropout=dropout)


def network(aligned=False, places=PLACES, dropout=0.0):
    return (AlignedTextCNN if aligned else TextCNN)(config(dropout), places)


def training(**options):
    options = {"num_epochs": 2, "batch_size": 4, "learning_rate": 0.01, **options}
    return LocalTraining(**options)


def context(seed=0):
    vectors = np.random.default_rng(seed).normal(size=(V, D)).astype("f")
    vectors[0] = 0
    return OrderedDict(vectors=vectors, tokens=TOKENS)


def examples(count, seed=0, length=6):
    """Documents of 0 to `length` words; the label follows from the words."""
    rng = np.random.default_rng((seed, 1))
    lengths = rng.integers(0, length + 1, count).astype(np.int32)
    start = rng.integers(0, len(TOKENS) - length, count).astype(np.int32)
    drawn = OrderedDict(start=start, length=lengths)
    return OrderedDict(drawn, label=(documents(drawn).sum(1) % CLASSES).astype(np.int32))


def documents(batch):
    """The words of some examples, int32 `[N, L]`, 0 where there is none."""
    start, lengths = np.asarray(batch["start"]), np.asarray(batch["length"])
    rows = np.zeros((len(start), lengths.max(initial=max(SIZES))), np.int32)
    for row, first, count in zip(rows, start, lengths):
        row[:count] = TOKENS[first : first + count]
    return rows


def adaptives(work, count, seed=0):
    rng = np.random.default_rng((seed, 2))
    return (0.3 * rng.normal(size=(count, work.knowledge_size))).astype("f")


class Runner:
    """One client work called directly, without TFF; a round runs operation by operation.

    Its few steps take less than its tracing would; tests/algorithms holds compiled rounds against these.
    """

    def __init__(self, work=None, **options):
        aligned, places = options.pop("aligned", False), options.pop("places", PLACES)
        dropout, local = options.pop("dropout", 0.0), options.pop("training", None) or training()
        penalty = options.pop("penalty", None)
        self.work = work or DecomposedWork(
            network(aligned, places, dropout), local, Decomposition(**options), seed=3, penalty=penalty
        )
        self.shared = self.work.initialize_shared().numpy()

    @functools.cached_property
    def _train(self):
        return self.work.trainer().python_function

    def start(self, key=(1, 2)):
        plan = self.work.initialize_plan()
        return numpy(self.work.initialize_client(tf.constant(self.shared), plan, tf.constant(key)))

    def begin(self, state, shared=None, foreign=None):
        foreign = np.zeros((0, self.work.knowledge_size), "f") if foreign is None else foreign
        shared = self.shared if shared is None else shared
        return numpy(self.work.begin_task(tensors(state), tf.constant(shared), tf.constant(foreign)))

    def data(self, count=8, seed=0, foreign=None, held_out=4, words=None):
        foreign = np.zeros((0, self.work.knowledge_size), "f") if foreign is None else foreign
        words = context() if words is None else words
        first = self.start()
        reads = tensors({name: first[name] for name in self.work.prepare_reads})
        train, validation = (
            dict(self.work.prepare(reads, tf.constant(foreign), tensors(words), tensors(part)))
            for part in (examples(count, seed), examples(held_out, seed + 100))
        )
        return {"context": tensors(words), "train": train, "validation": validation}

    def train(self, state, data, shared=None, round_num=0):
        """(the whole state after the round, update, weight, metrics)."""
        reads = {name: tf.constant(state[name]) for name in self.work.train_reads}
        shared = tf.constant(self.shared if shared is None else shared)
        changed, update, weight, metrics = self._train(reads, shared, data, tf.constant(round_num))
        assert set(changed) == set(self.work.train_writes)
        return {**state, **numpy(changed)}, numpy(update), float(weight), numpy(metrics)

    def end(self, state, data):
        ended, upload = self.work.end_task(tensors(state), tf.constant(self.shared), data)
        return numpy(ended), upload["knowledge"].numpy()

    def evaluate(self, state, task, data, part="validation", shared=None):
        shared = tf.constant(self.shared if shared is None else shared)
        view = tensors(self.work.task_view(state, task))
        return numpy(self.work.evaluate(view, shared, data["context"], data[part]))

    def parts(self, state):
        """Every named parameter of the current task."""
        named = {"mask_logits": state["mask_logits"], "attention": state["attention"]}
        for name in ("base", "adaptive"):
            split = self.work.network.kernels.split(state[name])
            named.update({f"{name}/{k}": v.numpy() for k, v in split.items()})
        named.update({k: v.numpy() for k, v in self.work.network.local.split(state["local"]).items()})
        return named


def compiled(work):
    """The round, traced once for all numbers of examples and past tasks."""

    def specs(types):
        return {name: tf.TensorSpec(kind.shape, kind.dtype, name) for name, kind in types.items()}

    run = work.trainer()
    state = {name: work.state_type[name] for name in work.train_reads}
    prepared = specs(work.prepared_type)
    data = {"context": specs(work.context_type), "train": prepared, "validation": prepared}
    shared = tf.TensorSpec(work.shared_type.shape, tf.float32)
    run.get_concrete_function(specs(state), shared, data, tf.TensorSpec([], tf.int32))
    return run


def tensors(values):
    return {name: tf.constant(value) for name, value in values.items()}


def numpy(values):
    return {name: np.array(value) for name, value in values.items()}


# -- in numpy, from the paper ----------------------------------------------------------------------------------


def sigmoid(values):
    return 1 / (1 + np.exp(-np.asarray(values, float)))


def spread(masks):
    """Mask of each output unit over the entries of its kernel; units are the last axis."""
    pieces, start = [], 0
    for width in SIZES:
        pieces.append(np.broadcast_to(masks[..., start : start + F], (width * D, F)).reshape(-1))
        start += F
    return np.concatenate(pieces)


def theta(base, masks, adaptive):
    return base * spread(sigmoid(masks)) + adaptive


def split_kernel(flat):
    kernels, start = [], 0
    for width in SIZES:
        kernels.append(flat[start : start + width * D * F].reshape(width, D, F))
        start += width * D * F
    return kernels


def pooled(kernel, bias, tokens, vectors):
    rows = []
    for document in tokens:
        words = vectors[document[: max(max(SIZES), np.count_nonzero(document))]].astype(float)
        windows = [words[i : i + len(kernel)] for i in range(len(words) - len(kernel) + 1)]
        rows.append(np.max([np.einsum("wd,wdf->f", w, kernel) for w in windows], 0) + bias)
    return np.maximum(rows, 0)


def logits(kernel, local, attention, foreign, tokens, vectors, aligned):
    """Of a TextCNN (its kernel whole) or, `aligned`, of FedSeIT's with foreign adaptives (eq. 2 and 3)."""
    own = [pooled(k, local[f"bias_{len(k)}"], tokens, vectors) for k in split_kernel(kernel)]
    features = np.concatenate(own, 1)
    if aligned:
        extracted = []
        for index, width in enumerate(SIZES):
            z = [
                pooled(attention[i, index] * split_kernel(a)[index], 0, tokens, vectors) for i, a in enumerate(foreign)
            ]
            z += [np.zeros((len(tokens), F))] * (len(attention) - len(foreign))
            extracted.append(np.concatenate(z, 1) @ local[f"foreign_projection_{width}"])
        features = np.concatenate([features, *extracted], 1)
        features = np.maximum(features @ local["augment_projection"] + local["augment_bias"], 0)
    return features @ local["head_kernel"] + local["head_bias"]


def cross_entropies(scores, labels):
    scores = scores - scores.max(1, keepdims=True)
    return np.log(np.exp(scores).sum(1)) - scores[np.arange(len(labels)), labels]
