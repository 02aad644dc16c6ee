"""The diagonal of the empirical Fisher information, what EWC and FedCurv weigh their penalties with.

F_j = (1/n) sum_i (d loss_i / d theta_j)^2 over n examples i: the mean of squared gradients of single examples. The
square of a batch's mean gradient is something else, near zero where training has converged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tffcl.client_works import randomness
from tffcl.client_works.evaluation import masked, num_examples
from tffcl.models.network import Network, Tensors, masks_of

# From the most examples that are to be drawn to F, float32 `[kernels.size]`.
Measure = Callable[[int], tf.Tensor]


def fisher_of_client(
    network: Network,
    kernels: tf.Tensor,
    local: tf.Tensor,
    state: Tensors,
    data: Mapping[str, Any],
    round_num: tf.Tensor | None = None,
    attention: tf.Tensor | None = None,
) -> Measure:
    """F of a client's training examples at given parameters: a function of how many may be drawn, at most.

    Args:
      network: whose parameters they are.
      kernels: float32 `[kernels.size]`, before connectivity.
      local: float32 `[local.size]`.
      state: of the client: `key`, `task` and `plan`.
      data: `context` and `train`.
      round_num: int32; the draw hangs from it, too, where it is given.
      attention: float32 `attention_shape`; zeros unless given.
    """
    key = randomness.fold(randomness.fold(state["key"], state["task"]), randomness.EXAMPLES)
    if round_num is not None:
        key = randomness.fold(key, round_num)
    drawn_from = {"context": data["context"], "examples": data["train"]}
    return lambda most: diagonal_fisher(network, kernels, local, state["plan"], drawn_from, key, most, attention)


def diagonal_fisher(
    network: Network,
    kernels: tf.Tensor,
    local: tf.Tensor,
    plan: tf.Tensor,
    data: Mapping[str, Tensors],
    key: tf.Tensor,
    most_examples: int,
    attention: tf.Tensor | None = None,
) -> tf.Tensor:
    """F of the kernels, in the memory of one gradient; nothing is dropped out.

    One example after the other: where kernels are large, passing through them is what costs, and a batch of
    gradients would not pass through fewer entries. With J patterns of connectivity every J-th example stands under
    the same one, so that F is that of the loss which training sees.

    Args:
      network: whose `losses` these are.
      kernels: float32 `[kernels.size]`, before connectivity: what is masked out has F = 0.
      local: float32 `[local.size]`.
      plan: int32 `[plan_size]`.
      data: `context` and `examples`.
      key: int32 `[2]`, decides which examples are drawn.
      most_examples: so many are drawn without replacement, or all where there are fewer.
      attention: float32 `attention_shape`; zeros unless given.

    Returns:
      float32 `[kernels.size]`, zeros without any examples.
    """
    drawn = tf.random.experimental.stateless_shuffle(tf.range(num_examples(data["examples"])), key)
    drawn = drawn[:most_examples]
    patterns = masks_of(network).num_patterns

    def under(pattern: tf.Tensor | int, rows: tf.Tensor) -> tf.Tensor:
        weights = masked(network, kernels, plan, pattern)
        squares = _sum_of_squares(network, weights, local, data, rows, attention)
        return masked(network, squares, plan, pattern)  # d/d kernels = M d/d weights, and M^2 = M

    if patterns == 1:
        total = under(0, drawn)
    else:
        start = (tf.constant(0), tf.zeros_like(kernels))
        total = tf.while_loop(
            lambda pattern, _: pattern < patterns,
            lambda pattern, total: (pattern + 1, total + under(pattern, drawn[pattern::patterns])),
            start,
            parallel_iterations=1,
        )[1]
    return total / tf.cast(tf.maximum(tf.size(drawn), 1), tf.float32)


def _sum_of_squares(
    network: Network,
    weights: tf.Tensor,
    local: tf.Tensor,
    data: Mapping[str, Tensors],
    rows: tf.Tensor,
    attention: tf.Tensor | None,
) -> tf.Tensor:
    """sum_i (d loss_i / d weights)^2 over the examples in `rows`, int32 `[n]`: float32 `[kernels.size]`."""
    attention = tf.zeros(network.attention_shape) if attention is None else attention
    examples = {name: tf.gather(values, rows) for name, values in data["examples"].items()}
    if hasattr(network, "squared_gradients"):
        return network.squared_gradients(weights, local, data["context"], examples)

    def losses(weights: tf.Tensor, batch: Tensors) -> tf.Tensor:
        return network.losses(weights, local, attention, data["context"], batch, None)

    return sum_of_squares(losses, weights, data["examples"], rows)


def sum_of_squares(
    losses: Callable[[tf.Tensor, Tensors], tf.Tensor], weights: tf.Tensor, examples: Tensors, rows: tf.Tensor
) -> tf.Tensor:
    """sum_i (d loss_i / d weights)^2 over the examples in `rows`, float32 of the weights' size.

    Args:
      losses: from weights and a batch to float32 `[n]`.
      weights: float32 `[size]`.
      examples: every tensor `[N, ...]`.
      rows: int32 `[n]`.
    """

    def one_example(place: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        row = rows[place : place + 1]
        example = {name: tf.gather(values, row) for name, values in examples.items()}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            loss = losses(weights, example)
        gradient = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return place + 1, total + tf.square(gradient)

    # One iteration at a time, or the gradients of several would be held at once.
    start = (tf.constant(0), tf.zeros_like(weights))
    return tf.while_loop(lambda place, _: place < tf.size(rows), one_example, start, parallel_iterations=1)[1]


def mean_of_squares(
    losses: Callable[[tf.Tensor, Tensors], tf.Tensor],
    weights: tf.Tensor,
    examples: Tensors,
    key: tf.Tensor,
    most_examples: int,
) -> tf.Tensor:
    """F of any weights; arguments as for `sum_of_squares` and `diagonal_fisher`."""
    drawn = tf.random.experimental.stateless_shuffle(tf.range(num_examples(examples)), key)[:most_examples]
    total = sum_of_squares(losses, weights, examples, drawn)
    return total / tf.cast(tf.maximum(tf.size(drawn), 1), tf.float32)
