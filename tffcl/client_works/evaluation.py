"""Evaluation of networks in bounded memory: sums for classifiers, densities for each example; masks and task views."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import numpy as np
import tensorflow as tf

from tffcl.client_works import randomness
from tffcl.client_works.randomness import Step
from tffcl.models.network import Classifier, Network, Tensors, competing, masks_of

BATCH = 256  # examples at a time: what is not trained needs no gradients, and large batches little more time

Scorer = Callable[[tf.Tensor, Tensors], tf.Tensor]


def evaluated(
    network: Network,
    kernels: tf.Tensor,
    local: tf.Tensor,
    attention: tf.Tensor,
    plan: tf.Tensor,
    data: Mapping[str, Tensors],
) -> OrderedDict:
    """What `ClientWork.evaluate` reports of a model.

    Args:
      network: whose parameters these are.
      kernels: float32 `[kernels.size]`, before connectivity.
      local: float32 `[local.size]`.
      attention: float32 `attention_shape`.
      plan: int32 `[plan_size]`.
      data: `context` and `examples`.

    Returns:
      For a classifier the sums `count`, `loss` (nats) and `correct`; for a density `losses`, float32 `[N]`:
      -log p(x) of each example in nats, p the mean over the network's patterns of connectivity.
    """
    if isinstance(network, Classifier):
        context = data["context"]
        return classified(
            lambda batch: competing(network.logits(kernels, local, attention, context, batch, None), context),
            data["examples"],
        )
    return OrderedDict(losses=_mixed(network, kernels, local, attention, plan, data))


def mean_loss(
    network: Network,
    kernels: tf.Tensor,
    local: tf.Tensor,
    attention: tf.Tensor,
    plan: tf.Tensor,
    data: Mapping[str, Tensors],
) -> tf.Tensor:
    """Mean loss of examples in nats, NaN without any; arguments as for `evaluated`."""
    found = evaluated(network, kernels, local, attention, plan, data)
    if "losses" in found:
        return tf.reduce_mean(found["losses"])
    return found["loss"] / found["count"]


def masked(network: Network, kernels: tf.Tensor, plan: tf.Tensor, pattern: tf.Tensor | int) -> tf.Tensor:
    """The kernels times the connectivity of one pattern, where the network has any (ConFedMADE eq. 5)."""
    return connected(kernels, masks_of(network).connectivity(plan, pattern))


def connected(kernels: tf.Tensor, connectivity: tf.Tensor | None) -> tf.Tensor:
    """The kernels under a mask, float32 `[kernels.size]`; None masks nothing."""
    return kernels if connectivity is None else kernels * connectivity


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

    return OrderedDict(zip(("count", "loss", "correct"), in_batches(one_batch, examples, BATCH, outputs=3)))


def _mixed(
    network: Network,
    kernels: tf.Tensor,
    local: tf.Tensor,
    attention: tf.Tensor,
    plan: tf.Tensor,
    data: Mapping[str, Tensors],
) -> tf.Tensor:
    """Losses of the uniform mixture over patterns: -log (1/J) sum_j exp(-loss_j), float32 `[N]`."""

    def under(pattern: tf.Tensor | int) -> tf.Tensor:
        weights = masked(network, kernels, plan, pattern)
        return _in_batches(
            lambda batch: network.losses(weights, local, attention, data["context"], batch, None), data["examples"]
        )

    patterns = masks_of(network).num_patterns
    if patterns == 1:
        return under(0)
    losses = tf.map_fn(under, tf.range(patterns), fn_output_signature=tf.TensorSpec([None]))
    return math.log(patterns) - tf.reduce_logsumexp(-losses, axis=0)


def _in_batches(function: Callable[[Tensors], tf.Tensor], examples: Tensors) -> tf.Tensor:
    """A function's value for each example, float32 `[N]`, over consecutive batches."""
    count = num_examples(examples)

    def one_batch(start: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        batch = {name: rows[start : start + BATCH] for name, rows in examples.items()}
        return start + BATCH, tf.concat([values, function(batch)], 0)

    shapes = (tf.TensorShape([]), tf.TensorShape([None]))
    start = (tf.constant(0), tf.zeros([0]))
    return tf.while_loop(lambda start, _: start < count, one_batch, start, shape_invariants=shapes)[1]


def num_examples(examples: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """N, int32, of a mapping of tensors `[N, ...]`."""
    return tf.shape(next(iter(examples.values())))[0]


def in_batches(
    function: Callable[[Mapping[str, tf.Tensor]], Sequence[tf.Tensor]],
    examples: Mapping[str, tf.Tensor],
    batch_size: int,
    outputs: int,
) -> tuple[tf.Tensor, ...]:
    """Sums a function's scalar float32 `outputs` over consecutive batches, in bounded memory."""
    count = num_examples(examples)

    def one_batch(start: tf.Tensor, *totals: tf.Tensor) -> tuple[tf.Tensor, ...]:
        batch = {name: values[start : start + batch_size] for name, values in examples.items()}
        return (start + batch_size, *[t + v for t, v in zip(totals, function(batch))])

    start = (tf.constant(0), *[tf.constant(0.0)] * outputs)
    return tf.while_loop(lambda start, *_: start < count, one_batch, start)[1:]


def of_task(task: Any, past: Any, current: Union[Any, Callable[[], tf.Tensor]]) -> Any:
    """Row number `task` of the past tasks', or what belongs to the current task, which stands in none.

    Args:
      task: number of the task, an int; int32 [] for tensors.
      past: `[T, ...]`, a row of each past task.
      current: `[...]`, or what makes it out of tensors.

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


class Connectivity:
    """M for each step of a round; built once a round, so that a mask that never changes is made once.

    The pattern of a step hangs from the plan's key, the round, the epoch and the step alone, so that clients with
    the same plan train the same submodel at the same time.

    Args:
      network: whose masks these are.
      plan: int32 `[plan_size]`, of the client.
      round_num: int32, the server's count of rounds.
    """

    def __init__(self, network: Network, plan: tf.Tensor, round_num: tf.Tensor):
        self._masks, self._plan, self._round_num = masks_of(network), plan, round_num
        self._fixed = self._masks.connectivity(plan, 0) if self._masks.num_patterns == 1 else None

    def __call__(self, step: Step) -> tf.Tensor | None:
        """float32 `[kernels.size]` of zeros and ones; None where the network has no mask."""
        if self._masks.num_patterns == 1:
            return self._fixed
        key, count = self._plan[:2], self._masks.num_patterns
        return self._masks.connectivity(self._plan, randomness.pattern(key, self._round_num, step, count))
