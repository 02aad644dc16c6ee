"""ForeignAlignment: FedSeIT's eq. 3 as a Keras layer."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tffcl import errors


@tf.keras.utils.register_keras_serializable("tffcl")
class ForeignAlignment(tf.keras.layers.Layer):
    """z = W_c {z_c + W_f {z_1 + ... + z_K}} (FedSeIT eq. 3; + is concatenation).

    Inputs: the client's own dense vector, float32 `[N, F]`, and the foreign ones, float32 `[N, K, F]`.
    Output: float32 `[N, F]`. Variables: `foreign_projection` W_f `[K * F, F]` and `augment_projection` W_c
    `[2 * F, F]`, both without bias, as printed.

    Raises:
      InputError: when it is built for inputs of other shapes.
    """

    def build(self, input_shape: Sequence) -> None:
        size, places = _sizes(input_shape)
        self.foreign_projection = self.add_weight("foreign_projection", [places * size, size])
        self.augment_projection = self.add_weight("augment_projection", [2 * size, size])

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """Aligns the foreign vectors and augments the client's own with them."""
        own, foreign = inputs
        rows = tf.shape(foreign)[0]  # not -1, which K = 0 would leave open
        joined = tf.reshape(foreign, [rows, foreign.shape[1] * foreign.shape[2]])
        aligned = tf.matmul(joined, self.foreign_projection)
        return tf.matmul(tf.concat([own, aligned], 1), self.augment_projection)


def _sizes(input_shape: Sequence) -> tuple[int, int]:
    """F and K of the shapes `[N, F]` and `[N, K, F]`."""
    if isinstance(input_shape, (list, tuple)) and len(input_shape) == 2:
        own, foreign = (tf.TensorShape(shape) for shape in input_shape)
        if own.rank == 2 and foreign.rank == 3 and None not in foreign[1:] and own[1] == foreign[2]:
            return own[1], foreign[1]
    raise errors.InputError(f"ForeignAlignment: expected inputs [N, F] and [N, K, F], found {input_shape}")
