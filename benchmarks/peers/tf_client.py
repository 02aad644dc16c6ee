"""The client work in plain TensorFlow, as one compiled function: what stands below any framework."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import work


class Client:
    """A client's documents as tensors, and its training."""

    def __init__(self, number: int) -> None:
        self.words, self.labels = map(tf.constant, work.documents(number))
        self.vectors = tf.constant(work.vectors())
        self.variables: list[tf.Variable] = []

    def train(self, weights: list[np.ndarray], seed: int) -> tuple[list[np.ndarray], float]:
        """The weights after one epoch, and the mean loss in it."""
        order = np.random.default_rng(seed).permutation(work.DOCUMENTS).astype(np.int32)
        *found, loss = _epoch(weights, self.words, self.labels, self.vectors, tf.constant(order))
        return [each.numpy() for each in found], float(loss)


@tf.function
def _epoch(weights, words, labels, vectors, order):  # type: ignore[no-untyped-def]
    weights, total = [tf.convert_to_tensor(each) for each in weights], 0.0
    for start in tf.range(0, work.DOCUMENTS, work.BATCH):
        rows = order[start : start + work.BATCH]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = _loss(weights, tf.gather(words, rows), tf.gather(labels, rows), vectors)
        weights = [value - work.RATE * slope for value, slope in zip(weights, tape.gradient(loss, weights))]
        total += loss
    return [*weights, total / (work.DOCUMENTS // work.BATCH)]


def _loss(weights, words, labels, vectors):  # type: ignore[no-untyped-def]
    inputs, features = tf.gather(vectors, words), []
    for index in range(len(work.WIDTHS)):
        kernel, bias = weights[2 * index : 2 * index + 2]
        features.append(tf.reduce_max(tf.nn.relu(tf.nn.conv1d(inputs, kernel, 1, "VALID") + bias), axis=1))
    logits = tf.concat(features, axis=1) @ weights[-2] + weights[-1]
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
