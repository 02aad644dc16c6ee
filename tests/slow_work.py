"""A computation that takes its time, for what may happen to a worker in the midst of it."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

ONE = tff.TensorType(np.float32, [1])


@tff.tensorflow.computation(ONE)
def slow_square(x):
    """Some work for each element of x, which cannot be told from any other work."""

    def step(n, total):
        a = tf.fill([300, 300], 1e-3) + tf.cast(n, tf.float32) * 1e-9
        for _ in range(8):
            a = a @ a
        return n + 1, total + tf.reduce_sum(a)

    return x * x + 0.0 * tf.while_loop(lambda n, _: n < 60 * tf.size(x), step, (0, 0.0))[1]
