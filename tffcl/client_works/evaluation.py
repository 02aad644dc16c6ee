"""A network with its parameters, and its evaluation in bounded memory: sums for classifiers, densities per example."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tffcl.layers.kernels import KernelLayout, Vector
from tffcl.models.network import CLASSES, Classifier, Network, Tensors, competing, cross_entropy, masks_of

BATCH = 256  # examples at a time: evaluation needs no gradients, and larger batches save little time


@dataclasses.dataclass(frozen=True)
class Model:
    """A network and the parameters of one client and task.

    Attributes:
      network: whose parameters these are.
      kernels: float32 `[kernels.size]`, before connectivity, or its `kernel_pieces`.
      local: float32 `[local.size]`, or its `local_pieces`.
      attention: float32 `attention_shape`.
      plan: int32 `[plan_size]`.
    """

    network: Network
    kernels: Vector
    local: Vector
    attention: tf.Tensor
    plan: tf.Tensor

    def losses(
        self, context: Tensors, batch: Tensors, connectivity: tf.Tensor | None, key: tf.Tensor | None = None
    ) -> tf.Tensor:
        """`Network.losses` of a batch under M, float32 `[kernels.size]`; None masks nothing."""
        kernels = connected(self.network.kernels, self.kernels, connectivity)
        return self.network.losses(kernels, self.local, self.attention, context, batch, key)

    def losses_and_logits(
        self, context: Tensors, batch: Tensors, connectivity: tf.Tensor | None, key: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """`losses`, and the class scores that they come of; None for a network with losses of its own."""
        network: Any = self.network
        if not isinstance(network, Classifier) or type(network).losses is not Classifier.losses:
            return self.losses(context, batch, connectivity, key), None
        kernels = connected(self.network.kernels, self.kernels, connectivity)
        logits = network.logits(kernels, self.local, self.attention, context, batch, key)
        return cross_entropy(logits, context, batch), logits

    def logits(self, context: Tensors, batch: Tensors) -> tf.Tensor:
        """Class scores of a batch without dropout, float32 `[n, classes]`; the network is a `Classifier`."""
        network: Any = self.network
        return network.logits(self.kernels, self.local, self.attention, context, batch, None)

    def scores(self, context: Tensors, examples: Tensors) -> tf.Tensor:
        """`logits` of all examples in bounded memory, float32 `[N, max_classes]`."""
        return _each(lambda batch: self.logits(context, batch), examples, (self.network.max_classes,))

    def evaluate(self, context: Tensors, examples: Tensors) -> OrderedDict:
        """What `ClientWork.evaluate` reports.

        Returns:
          For a classifier the sums `count`, `loss` (nats) and `correct`; for a density `losses`, float32 `[N]`:
          -log p(x) of each example in nats, p the mean over the network's patterns of connectivity,
          -log (1/J) sum_j exp(-loss_j).
        """
        if isinstance(self.network, Classifier):
            return classified(lambda batch: competing(self.logits(context, batch), context), examples)
        masks = masks_of(self.network)

        def under(pattern: tf.Tensor | int) -> tf.Tensor:
            mask = masks.connectivity(self.plan, pattern)
            return _each(lambda batch: self.losses(context, batch, mask), examples)

        if masks.num_patterns == 1:
            return OrderedDict(losses=under(0))
        patterns = tf.range(masks.num_patterns)
        losses = tf.map_fn(under, patterns, fn_output_signature=tf.TensorSpec([None]))
        return OrderedDict(losses=math.log(masks.num_patterns) - tf.reduce_logsumexp(-losses, axis=0))

    def infer(self, context: Tensors, examples: Tensors) -> OrderedDict:
        """What `ClientWork.infer` reports; the network is a `Classifier`.

        Returns:
          `entropy`, float32 `[N]`: of the softmax over the L classes that compete, H / log L, in [0, 1], so that tasks
          that differ in L compare; 0 with L = 1, which is certain of anything. `correct`, bool `[N]`: whether the most
          probable class is the example's label.
        """

        def one_batch(batch: Tensors) -> tf.Tensor:
            logits = competing(self.logits(context, batch), context)
            sizes = context.get(CLASSES, tf.ones([tf.shape(logits)[1]], tf.bool))
            log_p = tf.nn.log_softmax(logits)
            entropy = -tf.reduce_sum(tf.exp(log_p) * log_p, axis=1)
            most = tf.math.log(tf.reduce_sum(tf.cast(sizes, tf.float32)))
            right = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), batch["label"])
            return tf.stack([tf.math.divide_no_nan(entropy, most), tf.cast(right, tf.float32)], axis=1)

        found = _each(one_batch, examples, (2,))
        return OrderedDict(entropy=found[:, 0], correct=found[:, 1] > 0.5)

    def mean_loss(self, context: Tensors, examples: Tensors) -> tf.Tensor:
        """Mean loss of examples in nats, NaN without any."""
        scores = self.evaluate(context, examples)
        return tf.reduce_mean(scores["losses"]) if "losses" in scores else scores["loss"] / scores["count"]


def connected(layout: KernelLayout, kernels: Vector, connectivity: tf.Tensor | None) -> Vector:
    """The kernels under a mask (ConFedMADE eq. 5), float32 `[kernels.size]`; None masks nothing."""
    if connectivity is None:
        return kernels
    if isinstance(kernels, tuple):
        return tuple(kernel * mask for kernel, mask in zip(kernels, layout.by_kernel(connectivity)))
    return kernels * connectivity


def classified(logits_fn: Callable[[Tensors], tf.Tensor], examples: Tensors) -> OrderedDict:
    """The sums `count`, `loss` (nats) and `correct` over examples with an int32 `label`, float32 scalars.

    Args:
      logits_fn: from a batch of the examples to float32 `[n, classes]`.
      examples: every tensor `[N, ...]`.
    """

    def one_batch(batch: Tensors) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        logits, labels = logits_fn(batch), batch["label"]
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        right = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels)
        count = tf.cast(tf.size(labels), tf.float32)
        return count, tf.reduce_sum(loss), tf.reduce_sum(tf.cast(right, tf.float32))

    return OrderedDict(zip(("count", "loss", "correct"), in_batches(one_batch, examples, BATCH, [[]] * 3)))


def num_examples(examples: Tensors) -> tf.Tensor:
    """N, int32, of a mapping of tensors `[N, ...]`."""
    return tf.shape(next(iter(examples.values())))[0]


def in_batches(
    function: Callable[[Tensors], Sequence[tf.Tensor]],
    examples: Tensors,
    batch_size: int,
    shapes: Sequence[Sequence[int]],
) -> tuple[tf.Tensor, ...]:
    """Sums a function's outputs, float32 of these shapes, over consecutive batches, in bounded memory."""
    count = num_examples(examples)

    def one_batch(start: tf.Tensor, *totals: tf.Tensor) -> tuple[tf.Tensor, ...]:
        batch = {name: values[start : start + batch_size] for name, values in examples.items()}
        return (start + batch_size, *[t + v for t, v in zip(totals, function(batch))])

    start = (tf.constant(0), *map(tf.zeros, shapes))
    return tf.while_loop(lambda start, *_: start < count, one_batch, start)[1:]


def _each(function: Callable[[Tensors], tf.Tensor], examples: Tensors, shape: Sequence[int | None] = ()) -> tf.Tensor:
    """A function's value for each example, float32 `[N, *shape]`, over consecutive batches."""
    count = num_examples(examples)

    def one_batch(start: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        batch = {name: rows[start : start + BATCH] for name, rows in examples.items()}
        return start + BATCH, tf.concat([values, function(batch)], 0)

    shapes = (tf.TensorShape([]), tf.TensorShape([None, *shape]))
    start = (tf.constant(0), tf.zeros([0, *shape]))
    return tf.while_loop(lambda start, _: start < count, one_batch, start, shape_invariants=shapes)[1]


def of_task(task: Any, past: Any, current: Any) -> Any:
    """Row number `task` of the past tasks', or the value of the current task, which is not among them.

    Args:
      task: number of the task, an int; int32 [] for tensors.
      past: `[T, ...]`, a row of each past task.
      current: `[...]`, or a function that computes it out of tensors.

    Returns:
      `[...]`; numpy for numpy.

    >>> of_task(1, np.array([[1.0], [2.0]]), np.array([3.0]))
    array([2.])
    >>> of_task(2, np.array([[1.0], [2.0]]), np.array([3.0]))
    array([3.])
    """
    if tf.is_tensor(past):
        make = current if callable(current) else lambda: tf.identity(current)
        return tf.cond(task < tf.shape(past)[0], lambda: past[task], make)
    if task < len(past):
        return past[task]
    return np.asarray(current()) if callable(current) else current
