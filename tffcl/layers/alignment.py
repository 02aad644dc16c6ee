"""ForeignAlignment: FedSeIT's eq. 3 as a Keras layer."""

from __future__ import annotations

import tensorflow as tf

from tffcl import errors


@tf.keras.utils.register_keras_serializable("tffcl")
class ForeignAlignment(tf.keras.layers.Layer):
    """z = W_c {z_c + W_f {z_1 + ... + z_K}} (FedSeIT eq. 3; + is concatenation).

    Inputs: the client's own dense vector, float32 `[N, F]`, and the foreign ones, float32 `[N, K, F]`.
    Output: float32 `[N, F]`. Variables: `foreign_projection` W_f `[K * F, F]` and `augment_projection` W_c
    `[2 * F, F]`, both without bias, as printed.
    """

    def build(self, input_shape):
        own, foreign = (tuple(shape) for shape in input_shape)
        if len(foreign) != 3 or own[-1] != foreign[-1] or foreign[1] is None:
            raise errors.InputError(
                f"ForeignAlignment: expected inputs [N, F] and [N, K, F], found {own} and {foreign}"
            )
        size = own[-1]
        self.foreign_projection = self.add_weight("foreign_projection", [foreign[1] * size, size])
        self.augment_projection = self.add_weight("augment_projection", [2 * size, size])

    def call(self, inputs):
        """Aligns the foreign vectors and augments the client's own with them."""
        own, foreign = inputs
        joined = tf.reshape(foreign, [-1, foreign.shape[1] * foreign.shape[2]])
        aligned = tf.matmul(joined, self.foreign_projection)
        return tf.matmul(tf.concat([own, aligned], 1), self.augment_projection)
