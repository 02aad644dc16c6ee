"""Whether a MADE is a density at all: no output may be under the influence of its own input or of a later one."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tffcl.models.made import MADENetwork


def largest_leak(network: MADENetwork, kernels: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
    """The largest forbidden entry of the Jacobian of a network's outputs; 0 where it is autoregressive.

    The Jacobian is that of the network with the absolute values of its weights and softplus for its activation:
    there no path from an input to an output is cancelled by another, nor hidden by a unit that happens to be off.

    Args:
      network: what the kernels are of.
      kernels: float32 `[kernels.size]`, times the connectivity.
      order: int32 `[D]`, the place of each input.

    Returns:
      float32, max |d logit_e / d x_d| over all d, e with order[d] >= order[e].
    """
    open_network = MADENetwork(dataclasses.replace(network.config, activation="softplus"))
    local = tf.zeros([network.local.size])
    copies = tf.zeros([network.config.input_size] * 2)
    with tf.GradientTape() as tape:
        tape.watch(copies)
        # Output e of copy e: one gradient gives all rows of the Jacobian.
        total = tf.linalg.trace(open_network.logits(tf.abs(kernels), local, copies))
    slopes = tape.gradient(total, copies, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return tf.reduce_max(tf.where(order[None, :] >= order[:, None], slopes, 0.0))


def largest_leak_of_patterns(network: MADENetwork, kernels: tf.Tensor, plan: tf.Tensor) -> tf.Tensor:
    """The largest of `largest_leak` over all patterns that evaluation averages over; float32.

    Args:
      network: what the kernels are of.
      kernels: float32 `[kernels.size]`, before connectivity.
      plan: int32 `[plan_size]`.
    """

    def of_pattern(pattern: tf.Tensor) -> tf.Tensor:
        masked = kernels * network.connectivity(plan, pattern)
        return largest_leak(network, masked, network.order(plan, pattern))

    patterns = tf.range(network.num_patterns)
    return tf.reduce_max(tf.map_fn(of_pattern, patterns, fn_output_signature=tf.float32))
