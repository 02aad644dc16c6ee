"""A network of two layers, its data, and the same in numpy: for tests of orthogonal training."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import tensorflow as tf

from tffcl.models import KerasNetwork, Whole, with_label_mask

INPUTS, HIDDEN, CLASSES = 6, 5, 3


def network(whole=True, normalised=False):
    tf.keras.utils.set_random_seed(3)
    layers = [tf.keras.Input([INPUTS]), tf.keras.layers.Dense(HIDDEN, "relu", name="below")]
    layers += [tf.keras.layers.LayerNormalization()] if normalised else []
    made = KerasNetwork(tf.keras.Sequential([*layers, tf.keras.layers.Dense(CLASSES, name="head")]))
    return with_label_mask(Whole(made), growing=True) if whole else made


def examples(count, seed=0, rank=INPUTS):
    """Inputs in a subspace of so many dimensions; the label follows from them."""
    rng = np.random.default_rng((seed, rank))
    features = (rng.normal(size=(count, rank)) @ rng.normal(size=(rank, INPUTS))).astype(np.float32)
    return OrderedDict(features=features, label=(np.abs(features[:, 0]) * 7 % CLASSES).astype(np.int32))


def context(known=()):
    return OrderedDict(classes=np.ones(CLASSES, bool), known=np.isin(np.arange(CLASSES), known))


def forward(shared, features):
    """(inputs of the head, scores) with weights in the order kernel, head's bias below, ... of `Whole`."""
    kernel, bias, head, head_bias = split(shared)
    hidden = np.maximum(features.astype(float) @ kernel + bias, 0)
    return hidden, hidden @ head + head_bias


def split(shared):
    """Kernel, bias, head and head's bias of the shared vector: the kernel is first, the local parts follow."""
    sizes = [INPUTS * HIDDEN, HIDDEN, HIDDEN * CLASSES, CLASSES]
    shapes = [(INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)]
    pieces = np.split(np.asarray(shared, float), np.cumsum(sizes)[:-1])
    return [piece.reshape(shape) for piece, shape in zip(pieces, shapes)]


def with_one(rows):
    return np.concatenate([rows, np.ones([len(rows), 1])], 1)


def triangle(rows):
    """The upper triangle of X X', row after row."""
    gram = rows.T @ rows
    return gram[np.triu_indices(len(gram))]
