"""Samples of a MADE: one dimension after another, in the order of its masks."""

from __future__ import annotations

import tensorflow as tf

from tffcl.models.made import MADENetwork


def draw(
    network: MADENetwork,
    kernels: tf.Tensor,
    local: tf.Tensor,
    plan: tf.Tensor,
    observed: tf.Tensor,
    count: tf.Tensor,
    key: tf.Tensor,
) -> tf.Tensor:
    """Samples of the uniform mixture over the network's patterns.

    Args:
      network: whose parameters these are.
      kernels: float32 `[kernels.size]`, before connectivity.
      local: float32 `[local.size]`.
      plan: int32 `[plan_size]`.
      observed: float32 `[D]`, 0 at dimensions that only pad: those are 0 in every sample.
      count: N, int32.
      key: int32 `[2]`; equal keys give equal samples.

    Returns:
      float32 `[N, D]` of zeros and ones.
    """
    fold = tf.random.experimental.stateless_fold_in
    # A sample comes from one pattern as a whole; all samples of a pattern are drawn together.
    of_sample = tf.random.stateless_uniform([count], fold(key, network.num_patterns), 0, network.num_patterns, tf.int32)

    def one_pattern(pattern: tf.Tensor, drawn: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.where(tf.equal(of_sample, pattern))
        parts = network.parts(kernels * network.connectivity(plan, pattern), local)
        order = network.order(plan, pattern)
        new = _in_order(network, parts, order, observed, tf.shape(rows)[0], fold(key, pattern))
        return pattern + 1, tf.tensor_scatter_nd_update(drawn, rows, new)

    start = (tf.constant(0), tf.zeros([count, network.config.input_size]))
    return tf.while_loop(lambda pattern, _: pattern < network.num_patterns, one_pattern, start)[1]


def _in_order(
    network: MADENetwork,
    parts: dict[str, tf.Tensor],
    order: tf.Tensor,
    observed: tf.Tensor,
    count: tf.Tensor,
    key: tf.Tensor,
) -> tf.Tensor:
    """Samples of one pattern, float32 `[count, D]`.

    What goes into the first hidden layer and what goes into the outputs directly are carried along and grow by
    one row of a kernel with each dimension, so that a step costs no product with those kernels.
    """
    config, size = network.config, network.config.input_size
    by_place = tf.argsort(order)
    uniforms = tf.random.stateless_uniform([size, count], key)
    columns = tf.transpose(parts["output"]) if config.hidden else None
    rows = count[None]

    def one_dimension(place: tf.Tensor, sums: tf.Tensor, logits: tf.Tensor, drawn: tf.TensorArray) -> tuple:
        here = by_place[place]
        logit = logits[:, here]
        if config.hidden:
            logit += tf.linalg.matvec(network.last_units(parts, sums), columns[here])
        bit = tf.cast(uniforms[place] < tf.sigmoid(logit), tf.float32) * observed[here]
        if config.hidden:
            sums += bit[:, None] * parts["hidden_0"][here]
        if config.direct:
            logits += bit[:, None] * parts["direct"][here]
        return place + 1, sums, logits, drawn.write(here, bit)

    first = parts["bias_hidden_0"] if config.hidden else tf.zeros([0])
    sums, logits = (tf.tile(bias[None], tf.concat([rows, [1]], 0)) for bias in (first, parts["bias_output"]))
    start = (tf.constant(0), sums, logits, tf.TensorArray(tf.float32, size, element_shape=[None]))
    drawn = tf.while_loop(lambda place, *_: place < size, one_dimension, start)[3]
    return tf.transpose(drawn.stack())
