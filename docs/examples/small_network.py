"""A Keras model as the network: the kernels below the last layer are shared, the rest is a client's and a task's."""

import tensorflow as tf


def build(input_shape, num_classes, units: int = 32, rate: float = 0.1):
    """Two layers with dropout.

    Args:
      units: Of each layer.
      rate: Share of units dropped.
    """
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input(input_shape),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(units, activation="relu"),
            tf.keras.layers.Dense(units, activation="relu"),
            tf.keras.layers.Dropout(rate),
            tf.keras.layers.Dense(num_classes),
        ]
    )
