"""The classifier of embeddings, and an encoder trained with it before the encoder is frozen (FIL-VER eq. 7 and 9)."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.layers.keras_layers import divergence
from tffcl.layers.kernels import KernelLayout, VectorLayout
from tffcl.models.encoders import Encoder, draw, mean_of
from tffcl.models.network import Classifier, Tensors, cross_entropy, glorot_uniform


@dataclasses.dataclass(frozen=True)
class MLP:
    """The classifier of embeddings, f_CLS(z; w): hidden layers with ReLU, then one linear layer of logits.

    Shown with `EmbeddingClassifier`.

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
        return glorot_uniform(self.weights, key)

    def logits(self, flat: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
        """Class scores, float32 `[N, classes]`, of embeddings `z`, float32 `[N, inputs]`.

        `flat` are the weights, float32 `[weights.size]`, or a tuple of vectors of whole parts that make it end to end.
        """
        parts = self.weights.split(flat)
        for layer in range(len(self.hidden) + 1):
            z = z if layer == 0 else tf.nn.relu(z)
            z = tf.nn.bias_add(tf.matmul(z, parts[f"linear_{layer}"]), parts[f"bias_{layer}"])
        return z


class EmbeddingClassifier(Classifier):
    """f_CLS(f_ENC(x; theta); w) with all weights shared: theta, then w; nothing belongs to a client or a task.

    In training a variational encoder's embeddings are sampled, and beta KL(N(mu, sigma) || N(0, I)) is added; what
    is scored stands at mu, without either. A deterministic encoder has neither (eq. 7).

    Shown in docs/contract.md.

    Args:
      encoder: theta.
      mlp: w, on embeddings of the encoder's size.
      beta: weight of the divergence, in nats per nat. More makes embeddings less informative, to an attacker and to
        the classifier.

    Raises:
      InputError: the parts do not fit, or beta is negative or not finite.
    """

    def __init__(self, encoder: Encoder, mlp: MLP, beta: float = 1e-4):
        if mlp.inputs != encoder.embedding_size:
            raise errors.InputError(
                f"mlp: takes embeddings of {mlp.inputs} dimensions, {encoder!r} gives {encoder.embedding_size}"
            )
        if not (math.isfinite(beta) and beta >= 0):
            raise errors.InputError(f"beta: expected a finite number that is not negative, found {beta}")
        self.encoder, self.mlp, self.beta = encoder, mlp, beta
        named = (("encoder", encoder.weights), ("classifier", mlp.weights))
        self.kernels = KernelLayout(
            tuple((f"{owner}/{name}", shape) for owner, layout in named for name, shape in layout.parts)
        )
        self.local = VectorLayout(())
        self.context_type = encoder.context_type
        self.example_type = OrderedDict(encoder.example_type, label=tff.TensorType(np.int32, [None]))
        self.prepared_type = self.example_type
        self.max_classes = mlp.classes

    def initial_kernels(self, key: tf.Tensor) -> tf.Tensor:
        fold = tf.random.experimental.stateless_fold_in
        return tf.concat([self.encoder.initial(fold(key, 0)), self.mlp.initial(fold(key, 1))], 0)

    def split(self, kernels: tf.Tensor | np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
        """The encoder's weights, float32 `[encoder.weights.size]`, and the classifier's, `[mlp.weights.size]`."""
        return kernels[: self.encoder.weights.size], kernels[self.encoder.weights.size :]

    def logits(
        self, kernels: tf.Tensor, local: tf.Tensor, attention: tf.Tensor, context: Tensors, examples: Tensors,
        dropout_key: tf.Tensor | None,
    ) -> tf.Tensor:  # fmt: skip
        """Class scores at mu, or with a key at a sample of the posterior; see `Classifier.logits`."""
        return self._forward(kernels, context, examples, dropout_key)[0]

    def losses(
        self, kernels: tf.Tensor, local: tf.Tensor, attention: tf.Tensor, context: Tensors, examples: Tensors,
        dropout_key: tf.Tensor | None,
    ) -> tf.Tensor:  # fmt: skip
        """Eq. 9 with a key, cross-entropy at mu without one; for a deterministic encoder eq. 7: nats, `[N]`."""
        logits, stats = self._forward(kernels, context, examples, dropout_key)
        losses = cross_entropy(logits, context, examples)
        if dropout_key is None or not self.encoder.variational or not self.beta:
            return losses
        size = self.encoder.embedding_size
        return losses + self.beta * divergence(stats[:, :size], stats[:, size:])

    def _forward(
        self, kernels: tf.Tensor, context: Tensors, examples: Tensors, key: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Logits `[N, classes]` and statistics `[N, stats_size]`."""
        # Each part as a vector, in one cut with one gradient.
        flat = VectorLayout(tuple((name, (size,)) for (name, _), size in zip(self.kernels.parts, self.kernels.sizes)))
        parts, count = tuple(flat.split(kernels).values()), len(self.encoder.weights.parts)
        encoder, classifier = parts[:count], parts[count:]
        stats = self.encoder.encode(encoder, context, examples)
        if key is None:
            embeddings = mean_of(self.encoder, stats)
        else:
            embeddings = draw(stats, key, self.encoder.embedding_size, self.encoder.variational)
        return self.mlp.logits(classifier, embeddings), stats
