"""The encoders of embedding rehearsal (FIL-VER, section 5, and beyond images): images, vectors, texts, raw pixels."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.layers import windows
from tffcl.layers.kernels import VectorLayout
from tffcl.models.encoder_base import INITIAL_LOG_SCALE, Encoder, LayeredEncoder, draw, mean_of
from tffcl.models.encoder_frozen import FrozenEncoder
from tffcl.models.network import Tensors, document_types

__all__ = [
    "Encoder",
    "FrozenEncoder",
    "IdentityEncoder",
    "ImageEncoder",
    "TextEncoder",
    "VectorEncoder",
    "draw",
    "mean_of",
]

KERNEL_SIZE = 5  # of the convolutions (section 5)
_ROOMY = 16  # the smallest side of an image that goes without padding


@dataclasses.dataclass(frozen=True)
class ImageEncoder(LayeredEncoder):
    """The encoder of section 5: 5 x 5 convolutions with ReLU and 2 x 2 max-pooling, then linear layers with ReLU.

    The paper does not say what happens at the borders. Without padding ("valid") an image of 28 x 28 gives 4 x 4 x 64
    features; with it ("same") 7 x 7 x 64, at about four times the cost, and images of 8 x 8 are not used up. The
    examples are `x`, uint8 `[N, h, w]`.

    Attributes:
      shape: (h, w) of an image.
      variational: as for `Encoder`.
      embedding_size: d.
      filters: of each convolution.
      hidden: units of each linear layer before the last.
      max_value: the value of full intensity, which becomes 1.
      initial_log_scale: the first bias of log sigma.
      padding: of the convolutions: "same", "valid", or "auto" for "valid" where a side of 16 or more allows it.
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
        if self.padding not in ("auto", "same", "valid"):
            raise errors.InputError(f"padding must be one of auto, same, valid; got {self.padding!r}")
        if self.padding == "auto":
            roomy = min(self.shape) >= _ROOMY and min(self._sides("valid")) > 0
            object.__setattr__(self, "padding", "valid" if roomy else "same")
        if min(self._sides(self.padding)) < 1:
            raise errors.InputError(
                f"shape: {self.shape[0]} x {self.shape[1]} is used up by {len(self.filters)} convolutions without "
                "padding; take padding='same'"
            )

    @property
    def context_type(self) -> OrderedDict:
        """There is none."""
        return OrderedDict()

    @property
    def example_type(self) -> OrderedDict:
        """`x`, uint8 `[N, h, w]`."""
        return OrderedDict(x=tff.TensorType(np.uint8, [None, *self.shape]))

    @property
    def num_features(self) -> int:
        """Units after the last pooling."""
        return math.prod(self._sides(self.padding)) * (1, *self.filters)[-1]

    def _sides(self, padding: str) -> list[int]:
        """Height and width after the last pooling, which halves each side, rounded up; 0 or less for none left."""
        sides = list(self.shape)
        for _ in self.filters:
            lost = KERNEL_SIZE - 1 if padding == "valid" else 0
            sides = [math.ceil((side - lost) / 2) for side in sides]
        return sides

    def _feature_kernels(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        channels = (1, *self.filters)
        return tuple(
            (f"conv_{layer}", (KERNEL_SIZE, KERNEL_SIZE, *pair))
            for layer, pair in enumerate(zip(channels, channels[1:]))
        )

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

    Attributes:
      size: dimensions of a vector.
      variational: as for `Encoder`.
      embedding_size: d.
      hidden: units of each linear layer before the last.
      initial_log_scale: the first bias of log sigma.
    """

    size: int
    variational: bool = True
    embedding_size: int = 256
    hidden: tuple[int, ...] = (1000, 1000)
    initial_log_scale: float = INITIAL_LOG_SCALE
    name = "vector"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise errors.InputError(f"size: expected at least 1, found {self.size}")
        self._check_sizes()

    @property
    def context_type(self) -> OrderedDict:
        """There is none."""
        return OrderedDict()

    @property
    def example_type(self) -> OrderedDict:
        """`x`, float32 `[N, size]`."""
        return OrderedDict(x=tff.TensorType(np.float32, [None, self.size]))

    @property
    def num_features(self) -> int:
        """The vector's own dimensions."""
        return self.size

    def _features(self, parts: Tensors, context: Tensors, examples: Tensors) -> tf.Tensor:
        return examples["x"]


@dataclasses.dataclass(frozen=True)
class TextEncoder(LayeredEncoder):
    """Linear layers with ReLU on the mean of a document's word vectors.

    The context and the examples are documents one after the other, as `tffcl.program.TextClientData` has them. Row 0 of
    the vectors (padding) and row 1 (the unknown word) do not count; a document without any other word is the zero
    vector.

    Attributes:
      dimension: of the word vectors.
      variational: as for `Encoder`.
      embedding_size: d.
      hidden: units of each linear layer before the last.
      initial_log_scale: the first bias of log sigma.
    """

    dimension: int
    variational: bool = True
    embedding_size: int = 256
    hidden: tuple[int, ...] = (1000, 1000)
    initial_log_scale: float = INITIAL_LOG_SCALE
    name = "text"

    def __post_init__(self) -> None:
        if self.dimension < 1:
            raise errors.InputError(f"dimension: expected at least 1, found {self.dimension}")
        self._check_sizes()

    @property
    def context_type(self) -> OrderedDict:
        """`vectors`, float32 `[V, dimension]`, and `tokens`, int32 `[W]`."""
        return document_types(self.dimension)[0]

    @property
    def example_type(self) -> OrderedDict:
        """`start` and `length`, int32 `[N]`."""
        return document_types(self.dimension)[1]

    @property
    def num_features(self) -> int:
        """The dimension of the word vectors."""
        return self.dimension

    def _features(self, parts: Tensors, context: Tensors, examples: Tensors) -> tf.Tensor:
        tokens = windows.padded(context["tokens"], examples["start"], examples["length"])
        counting = tf.range(tf.shape(context["vectors"])[0]) > 1
        vectors = tf.where(counting[:, None], context["vectors"], 0.0)
        words = windows.gather_windows(windows.pad_tokens(tokens, 1), vectors, 1, 1)
        known = tf.math.count_nonzero(tokens > 1, axis=1, keepdims=True, dtype=tf.float32)
        return tf.math.segment_sum(words.vectors, words.document) / tf.maximum(known, 1.0)


@dataclasses.dataclass(frozen=True)
class IdentityEncoder(Encoder):
    """No encoder: the embedding of an image is its pixels in [0, 1], as naive rehearsal keeps them.

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
        """Pixels of an image."""
        return math.prod(self.shape)

    @property
    def weights(self) -> VectorLayout:
        """None at all."""
        return VectorLayout(())

    @property
    def context_type(self) -> OrderedDict:
        """There is none."""
        return OrderedDict()

    @property
    def example_type(self) -> OrderedDict:
        """`x`, uint8 `[N, h, w]`."""
        return OrderedDict(x=tff.TensorType(np.uint8, [None, *self.shape]))

    def initial(self, key: tf.Tensor) -> tf.Tensor:
        del key
        return tf.zeros([0])

    def encode(self, weights: tf.Tensor, context: Tensors, examples: Tensors) -> tf.Tensor:
        del weights, context
        return tf.reshape(_intensities(examples["x"], self.max_value), [-1, self.embedding_size])


def _check_image(shape: tuple[int, int], max_value: int) -> None:
    if len(shape) != 2 or min(shape) < 1:
        raise errors.InputError(f"shape: expected the height and width of an image, found {shape}")
    if not max_value > 0:
        raise errors.InputError(f"max_value: expected a positive number, found {max_value}")


def _intensities(images: tf.Tensor, max_value: int) -> tf.Tensor:
    """uint8 `[N, h, w]` as float32 in [0, 1]."""
    return tf.cast(images, tf.float32) / max_value
