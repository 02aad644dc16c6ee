"""Encoders of embedding rehearsal (FIL-VER, 2.3, 3.1, section 5): from images, vectors or texts to embeddings.

A variational encoder (VEE) gives mu and log sigma for each example, a deterministic one (EBR) the embedding. Both
are pure functions of one flat float32 vector of weights, so that they can be trained with a classifier
(`EmbeddingClassifier`) and then frozen (`FrozenEncoder`).
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.layers import text
from tffcl.layers.keras_layers import HIGHEST, LOWEST, safe_log_scale, sample_posterior
from tffcl.layers.kernels import VectorLayout
from tffcl.models.network import Tensors, document_types, glorot_uniform

# The first sigma is 0.018. It grows as it is trained, yet embeddings that start with less noise tell more of later
# tasks (and of their examples, against which the divergence, with beta, stands).
INITIAL_LOG_SCALE = -4.0
KERNEL_SIZE = 5  # of the convolutions (section 5)
BATCH = 256  # images at a time: two convolutions of 28 x 28 take 40 MiB for so many, and no more
_ROOMY = 16  # the smallest side of an image that goes without padding


class Encoder(abc.ABC):
    """From an example to its embedding, or to mu and log sigma.

    Shown with `EmbeddingClassifier`.

    Attributes:
      name: of its architecture; all of its settings stand in its `repr`.
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
    def context_type(self) -> OrderedDict:
        """Types of the data that all examples share; none by default."""
        return OrderedDict()

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
    """The embedding without noise, mu or the embedding itself: float32 `[N, d]`, from the statistics of `encode`."""
    return stats[:, : encoder.embedding_size]


def draw(stats: tf.Tensor, key: tf.Tensor, embedding_size: int, variational: bool) -> tf.Tensor:
    """An embedding for each example, float32 `[N, d]`: a sample of its posterior (eq. 4), or the embedding itself.

    Args:
      stats: float32 `[N, stats_size]`, as from `Encoder.encode`.
      key: int32 `[2]`.
      embedding_size: d.
      variational: whether `stats` are mu and log sigma.
    """
    if not variational:
        return stats
    return sample_posterior(stats[:, :embedding_size], stats[:, embedding_size:], key)


class LayeredEncoder(Encoder):
    """Features, linear layers with ReLU, and one linear layer for the embedding or two for mu and log sigma.

    Attributes:
      variational: as for `Encoder`.
      embedding_size: d.
      hidden: units of each linear layer before the last.
      initial_log_scale: the first bias of log sigma.
    """

    hidden: tuple[int, ...]
    initial_log_scale: float

    def _check_sizes(self, *names: str) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))  # lists would make another `repr`
        for name in (*names, "embedding_size"):
            if getattr(self, name) < 1:
                raise errors.InputError(f"{name}: expected at least 1, found {getattr(self, name)}")
        if any(width < 1 for width in self.hidden):
            raise errors.InputError(f"hidden: expected layers of at least 1 unit, found {self.hidden}")
        if not LOWEST <= self.initial_log_scale <= HIGHEST:
            wanted = f"{LOWEST} to {HIGHEST}"
            raise errors.InputError(f"initial_log_scale: expected {wanted}, found {self.initial_log_scale}")

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
        heads = ("mean", "log_scale") if self.variational else ("embedding",)
        kernels = (*self._feature_kernels(), *linear, *((head, (widths[-1], self.embedding_size)) for head in heads))
        return VectorLayout((*kernels, *((f"bias_{name}", shape[-1:]) for name, shape in kernels)))

    def initial(self, key: tf.Tensor) -> tf.Tensor:
        """Glorot-uniform kernels and zero biases, but those of log sigma at `initial_log_scale`."""
        drawn = self.weights.split(glorot_uniform(self.weights, key))
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


@dataclasses.dataclass(frozen=True)
class ImageEncoder(LayeredEncoder):
    """The encoder of section 5: 5 x 5 convolutions with ReLU and 2 x 2 max-pooling, then linear layers with ReLU.

    The paper does not say what happens at the borders. Without padding ("valid") an image of 28 x 28 gives 4 x 4 x 64
    features; with it ("same") 7 x 7 x 64, at about four times the cost, and images of 8 x 8 are not used up. The
    examples are `x`, uint8 `[N, h, w]`.

    Attributes (and those of all layered encoders: variational, embedding_size, hidden, initial_log_scale):
      shape: (h, w) of an image.
      filters: of each convolution.
      max_value: the value of full intensity, which becomes 1.
      padding: of the convolutions: "same", "valid", or "auto" for "valid" where a side of 16 or more allows it.

    Shown with `EmbeddingClassifier`.
    """

    shape: tuple[int, int]
    variational: bool = True
    embedding_size: int = 256
    filters: tuple[int, ...] = (32, 64)
    hidden: tuple[int, ...] = (1000, 1000)
    max_value: int = 255
    initial_log_scale: float = INITIAL_LOG_SCALE
    padding: str = "auto"
    name = "image"

    def __post_init__(self) -> None:
        _check_image(self.shape, self.max_value)
        self._check_sizes()
        for name in ("shape", "filters"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if any(count < 1 for count in self.filters):
            raise errors.InputError(f"filters: expected at least 1 in each layer, found {self.filters}")
        errors.check_choice("padding", self.padding, ("auto", "same", "valid"))
        if self.padding == "auto":
            roomy = min(self.shape) >= _ROOMY and min(self._sides("valid")) > 0
            object.__setattr__(self, "padding", "valid" if roomy else "same")
        if min(self._sides(self.padding)) < 1:
            used = f"{self.shape[0]} x {self.shape[1]} is used up by {len(self.filters)} convolutions without padding"
            raise errors.InputError(f"shape: {used}; take padding='same'")

    @property
    def example_type(self) -> OrderedDict:
        return OrderedDict(x=tff.TensorType(np.uint8, [None, *self.shape]))

    @property
    def num_features(self) -> int:
        return math.prod(self._sides(self.padding)) * (1, *self.filters)[-1]

    def _sides(self, padding: str) -> list[int]:
        """Height and width after the last pooling, which halves each side, rounded up; 0 or less for none left."""
        sides = list(self.shape)
        for _ in self.filters:
            lost = KERNEL_SIZE - 1 if padding == "valid" else 0
            sides = [math.ceil((side - lost) / 2) for side in sides]
        return sides

    def _feature_kernels(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        pairs = enumerate(zip((1, *self.filters), self.filters))
        return tuple((f"conv_{layer}", (KERNEL_SIZE, KERNEL_SIZE, *pair)) for layer, pair in pairs)

    def _features(self, parts: Tensors, context: Tensors, examples: Tensors) -> tf.Tensor:
        units = _intensities(examples["x"], self.max_value)[..., None]
        for layer in range(len(self.filters)):
            units = tf.nn.conv2d(units, parts[f"conv_{layer}"], 1, self.padding.upper())
            # Bias and ReLU keep the order of numbers: after the pooling they give the same, on a quarter of the units.
            units = tf.nn.max_pool2d(units, 2, 2, "SAME")
            units = tf.nn.relu(tf.nn.bias_add(units, parts[f"bias_conv_{layer}"]))
        return tf.reshape(units, [-1, self.num_features])


@dataclasses.dataclass(frozen=True)
class VectorEncoder(LayeredEncoder):
    """Linear layers with ReLU on vectors: the examples are `x`, float32 `[N, size]`, taken as they are.

    Attributes (and those of all layered encoders: variational, embedding_size, hidden, initial_log_scale):
      size: dimensions of a vector.

    Shown with `EmbeddingClassifier`.
    """

    size: int
    variational: bool = True
    embedding_size: int = 256
    hidden: tuple[int, ...] = (1000, 1000)
    initial_log_scale: float = INITIAL_LOG_SCALE
    name = "vector"

    def __post_init__(self) -> None:
        self._check_sizes("size")

    @property
    def example_type(self) -> OrderedDict:
        return OrderedDict(x=tff.TensorType(np.float32, [None, self.size]))

    @property
    def num_features(self) -> int:
        return self.size

    def _features(self, parts: Tensors, context: Tensors, examples: Tensors) -> tf.Tensor:
        return examples["x"]


@dataclasses.dataclass(frozen=True)
class TextEncoder(LayeredEncoder):
    """Linear layers with ReLU on the mean of a document's word vectors.

    The context and the examples are documents one after the other, as `tffcl.program.TextClientData` has them. Row 0 of
    the vectors (padding) and row 1 (the unknown word) do not count; a document without any other word is the zero
    vector.

    Attributes (and those of all layered encoders: variational, embedding_size, hidden, initial_log_scale):
      dimension: of the word vectors.

    Shown with `EmbeddingClassifier`.
    """

    dimension: int
    variational: bool = True
    embedding_size: int = 256
    hidden: tuple[int, ...] = (1000, 1000)
    initial_log_scale: float = INITIAL_LOG_SCALE
    name = "text"

    def __post_init__(self) -> None:
        self._check_sizes("dimension")

    @property
    def context_type(self) -> OrderedDict:
        return document_types(self.dimension)[0]

    @property
    def example_type(self) -> OrderedDict:
        return document_types(self.dimension)[1]

    @property
    def num_features(self) -> int:
        return self.dimension

    def _features(self, parts: Tensors, context: Tensors, examples: Tensors) -> tf.Tensor:
        tokens = text.padded(context["tokens"], examples["start"], examples["length"])
        counting = tf.range(tf.shape(context["vectors"])[0]) > 1
        vectors = tf.where(counting[:, None], context["vectors"], 0.0)
        words = text.gather_windows(text.pad_tokens(tokens, 1), vectors, [1])[0]
        known = tf.math.count_nonzero(tokens > 1, axis=1, keepdims=True, dtype=tf.float32)
        return tf.math.segment_sum(words.vectors, words.document) / tf.maximum(known, 1.0)


@dataclasses.dataclass(frozen=True)
class IdentityEncoder(Encoder):
    """No encoder: the embedding of an image is its pixels in [0, 1], as naive rehearsal keeps them.

    Shown with `EmbeddingClassifier`.

    Attributes:
      shape: (h, w) of an image; the examples are `x`, uint8 `[N, h, w]`.
      max_value: the value of full intensity, which becomes 1.
    """

    shape: tuple[int, int]
    max_value: int = 255
    name = "identity"
    variational = False

    def __post_init__(self) -> None:
        _check_image(self.shape, self.max_value)

    @property
    def embedding_size(self) -> int:  # type: ignore[override]
        return math.prod(self.shape)

    @property
    def weights(self) -> VectorLayout:
        return VectorLayout(())

    @property
    def example_type(self) -> OrderedDict:
        return OrderedDict(x=tff.TensorType(np.uint8, [None, *self.shape]))

    def initial(self, key: tf.Tensor) -> tf.Tensor:
        del key
        return tf.zeros([0])

    def encode(self, weights: tf.Tensor, context: Tensors, examples: Tensors) -> tf.Tensor:
        del weights, context
        return tf.reshape(_intensities(examples["x"], self.max_value), [-1, self.embedding_size])


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenEncoder:
    """An encoder and its weights, which no longer change (3.1) and are constants wherever `encode` is traced.

    Shown with `EmbeddingClassifier`.

    Attributes:
      encoder: the architecture.
      values: float32 `[encoder.weights.size]`, read-only.

    Raises:
      InputError: another number of weights, another dtype, or a weight that is not finite.
    """

    encoder: Encoder
    values: np.ndarray

    def __post_init__(self) -> None:
        values, size = np.array(self.values), self.encoder.weights.size
        if values.dtype != np.float32 or values.shape != (size,):
            shape = f"{values.dtype}{list(values.shape)}"
            raise errors.InputError(f"values: {self.encoder!r} has weights float32[{size}], found {shape}")
        wrong = np.flatnonzero(~np.isfinite(values))
        if wrong.size:
            first = f"weight {wrong[0]} is {values[wrong[0]]}"
            raise errors.InputError(f"values: {first}; expected finite weights ({wrong.size} such)")
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights."""
        return self.values.nbytes

    def encode(self, context: Tensors, examples: Tensors) -> tf.Tensor:
        """As `Encoder.encode`, `BATCH` examples at a time: float32 `[N, stats_size]`, N may be 0.

        Called eagerly, it runs a compiled function that is kept with the encoder.
        """
        used = {name: tf.convert_to_tensor(examples[name]) for name in self.encoder.example_type}
        context = {name: tf.convert_to_tensor(context[name]) for name in self.encoder.context_type}
        return self._compiled(context, used) if tf.executing_eagerly() else self._encode(context, used)

    @functools.cached_property
    def _compiled(self) -> Callable[[Tensors, Tensors], tf.Tensor]:
        return tf.function(self._encode, autograph=False, reduce_retracing=True)

    def _encode(self, context: Tensors, examples: Tensors) -> tf.Tensor:
        weights, size = tf.constant(self.values), self.encoder.stats_size
        count = tf.shape(next(iter(examples.values())))[0]
        batches = -(-count // BATCH)
        rows = tf.TensorArray(tf.float32, batches, infer_shape=False, element_shape=[None, size])

        def one_batch(batch: tf.Tensor, rows: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            part = {name: values[batch * BATCH : (batch + 1) * BATCH] for name, values in examples.items()}
            return batch + 1, rows.write(batch, self.encoder.encode(weights, context, part))

        # One iteration at a time: batches do not wait for each other, and the memory of ten would be in use.
        loop = tf.while_loop(lambda batch, _: batch < batches, one_batch, (0, rows), parallel_iterations=1)
        return tf.ensure_shape(loop[1].concat(), [None, size])


def _check_image(shape: tuple[int, int], max_value: int) -> None:
    if len(shape) != 2 or min(shape) < 1:
        raise errors.InputError(f"shape: expected the height and width of an image, found {shape}")
    if not max_value > 0:
        raise errors.InputError(f"max_value: expected a positive number, found {max_value}")


def _intensities(images: tf.Tensor, max_value: int) -> tf.Tensor:
    """uint8 `[N, h, w]` as float32 in [0, 1]."""
    return tf.cast(images, tf.float32) / max_value
