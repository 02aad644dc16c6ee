"""The classifier of embeddings (FIL-VER, section 5): a multilayer perceptron with ReLU."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tffcl import errors
from tffcl.layers.kernels import KernelLayout
from tffcl.models.network import glorot_uniform


@dataclasses.dataclass(frozen=True)
class MLP:
    """f_CLS(z; w): hidden layers with ReLU, then one linear layer of logits.

    Attributes:
      inputs: dimensions of an embedding.
      classes: labels lie in [0, classes).
      hidden: units of each hidden layer.
    """

    inputs: int
    classes: int
    hidden: tuple[int, ...] = (1000, 1000)

    def __post_init__(self) -> None:
        for name in ("inputs", "classes"):
            if getattr(self, name) < 1:
                raise errors.InputError(f"{name}: expected at least 1, found {getattr(self, name)}")
        if any(width < 1 for width in self.hidden):
            raise errors.InputError(f"hidden: expected layers of at least 1 unit, found {self.hidden}")

    @property
    def weights(self) -> KernelLayout:
        """`linear_0`, `linear_1`, ... from below to the logits, then `bias_0`, `bias_1`, ..."""
        widths = (self.inputs, *self.hidden, self.classes)
        kernels = [(f"linear_{layer}", shape) for layer, shape in enumerate(zip(widths, widths[1:]))]
        biases = [(f"bias_{layer}", (width,)) for layer, width in enumerate(widths[1:])]
        return KernelLayout((*kernels, *biases))

    def initial(self, key: tf.Tensor) -> tf.Tensor:
        """Glorot-uniform kernels and zero biases, float32 `[weights.size]`; `key` is int32 `[2]`."""
        drawn = glorot_uniform([shape for _, shape in self.weights.parts], key)
        return tf.concat([tf.reshape(part, [-1]) for part in drawn], 0)

    def logits(self, flat: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
        """Class scores of embeddings.

        Args:
          flat: the weights, float32 `[weights.size]`, or a tuple of vectors of whole parts that make it end to end.
          z: float32 `[N, inputs]`.

        Returns:
          float32 `[N, classes]`.
        """
        parts = self.weights.split(flat)
        for layer in range(len(self.hidden) + 1):
            z = z if layer == 0 else tf.nn.relu(z)
            z = tf.nn.bias_add(tf.matmul(z, parts[f"linear_{layer}"]), parts[f"bias_{layer}"])
        return z
