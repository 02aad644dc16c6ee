"""What an encoder of embedding rehearsal is (FIL-VER, 2.3, 3.1): from examples to embeddings or their statistics.

A variational encoder (VEE) gives mu and log sigma for each example, a deterministic one (EBR) the embedding. Both
are pure functions of one flat float32 vector of weights, so that they can be trained with a classifier
(`EmbeddingClassifier`) and then frozen (`FrozenEncoder`).
"""

from __future__ import annotations

import abc
from collections import OrderedDict

import tensorflow as tf

from tffcl import errors
from tffcl.layers.kernels import VectorLayout
from tffcl.layers.variational import HIGHEST, LOWEST, safe_log_scale, sample_posterior
from tffcl.models.network import Tensors, glorot_uniform

# The first sigma is 0.018. It grows as it is trained, yet embeddings that start with less noise tell more of later
# tasks (and of their examples: the divergence, with beta, is what stands against that).
INITIAL_LOG_SCALE = -4.0


class Encoder(abc.ABC):
    """From an example to its embedding, or to mu and log sigma.

    Attributes:
      name: what kind of encoder it is; all of its settings stand in its `repr`.
      weights: layout of the weights.
      context_type / example_type: types of the data without labels, see `tffcl.templates.ClientWork`.
      embedding_size: d.
      variational: it gives mu and log sigma.
    """

    name: str
    embedding_size: int
    variational: bool

    @property
    def stats_size(self) -> int:
        """Numbers for an example: 2 d for mu and log sigma, d for an embedding."""
        return self.embedding_size * (2 if self.variational else 1)

    @property
    @abc.abstractmethod
    def weights(self) -> VectorLayout:
        """The layout of the weights."""

    @property
    @abc.abstractmethod
    def context_type(self) -> OrderedDict:
        """Types of what belongs to all examples together."""

    @property
    @abc.abstractmethod
    def example_type(self) -> OrderedDict:
        """Types of the tensors `[N, ...]` of examples."""

    @abc.abstractmethod
    def initial(self, key: tf.Tensor) -> tf.Tensor:
        """The first weights, float32 `[weights.size]`; `key` is int32 `[2]`."""

    @abc.abstractmethod
    def encode(self, weights: tf.Tensor, context: Tensors, examples: Tensors) -> tf.Tensor:
        """The statistics mu and log sigma side by side, or the embedding alone: float32 `[N, stats_size]`.

        Args:
          weights: float32 `[weights.size]`, or a tuple of vectors of whole parts that make it end to end.
          context: of `context_type`.
          examples: of `example_type`; more tensors, a label among them, do not matter.
        """


def mean_of(encoder: Encoder, stats: tf.Tensor) -> tf.Tensor:
    """What stands for an example without noise, mu or the embedding: float32 `[N, d]`, out of what `encode` gives."""
    return stats[:, : encoder.embedding_size]


def draw(stats: tf.Tensor, key: tf.Tensor, embedding_size: int, variational: bool) -> tf.Tensor:
    """An embedding for each example: a sample of its posterior (eq. 4), or the embedding that it has.

    Args:
      stats: float32 `[N, stats_size]`, as from `Encoder.encode`.
      key: int32 `[2]`.
      embedding_size: d.
      variational: whether `stats` are mu and log sigma.

    Returns:
      float32 `[N, d]`.
    """
    if not variational:
        return stats
    return sample_posterior(stats[:, :embedding_size], stats[:, embedding_size:], key)


class LayeredEncoder(Encoder):
    """Features, linear layers with ReLU, and one linear layer for the embedding or two for mu and log sigma."""

    hidden: tuple[int, ...]
    initial_log_scale: float

    def _check_sizes(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))  # lists would make another `repr`
        if self.embedding_size < 1:
            raise errors.InputError(f"embedding_size: expected at least 1, found {self.embedding_size}")
        if any(width < 1 for width in self.hidden):
            raise errors.InputError(f"hidden: expected layers of at least 1 unit, found {self.hidden}")
        if not LOWEST <= self.initial_log_scale <= HIGHEST:
            raise errors.InputError(
                f"initial_log_scale: expected {LOWEST} to {HIGHEST}, found {self.initial_log_scale}"
            )

    @property
    @abc.abstractmethod
    def num_features(self) -> int:
        """Inputs of the first linear layer."""

    @abc.abstractmethod
    def _features(self, parts: Tensors, context: Tensors, examples: Tensors) -> tf.Tensor:
        """float32 `[N, num_features]`."""

    def _feature_kernels(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Name and shape of the kernels below the linear layers."""
        return ()

    @property
    def weights(self) -> VectorLayout:
        """All kernels, then all biases: kernels of the usual sizes then begin where a slice costs no copy."""
        widths = (self.num_features, *self.hidden)
        linear = [(f"linear_{i}", shape) for i, shape in enumerate(zip(widths, widths[1:]))]
        heads = [(head, (widths[-1], self.embedding_size)) for head in self._heads]
        kernels = (*self._feature_kernels(), *linear, *heads)
        return VectorLayout((*kernels, *((f"bias_{name}", shape[-1:]) for name, shape in kernels)))

    @property
    def _heads(self) -> tuple[str, ...]:
        return ("mean", "log_scale") if self.variational else ("embedding",)

    def initial(self, key: tf.Tensor) -> tf.Tensor:
        """Glorot-uniform kernels and zero biases, but those of log sigma at `initial_log_scale`."""
        names = [name for name, _ in self.weights.parts]
        drawn = dict(zip(names, glorot_uniform([shape for _, shape in self.weights.parts], key)))
        if self.variational:
            drawn["bias_log_scale"] += self.initial_log_scale
        return self.weights.join(drawn)

    def encode(self, weights: tf.Tensor, context: Tensors, examples: Tensors) -> tf.Tensor:
        parts = self.weights.split(weights)
        units = self._features(parts, context, examples)
        for layer in range(len(self.hidden)):
            units = tf.nn.relu(_linear(parts, f"linear_{layer}", units))
        if not self.variational:
            return _linear(parts, "embedding", units)
        log_scale = safe_log_scale(_linear(parts, "log_scale", units))
        return tf.concat([_linear(parts, "mean", units), log_scale], axis=1)


def _linear(parts: Tensors, name: str, inputs: tf.Tensor) -> tf.Tensor:
    return tf.nn.bias_add(tf.matmul(inputs, parts[name]), parts[f"bias_{name}"])
