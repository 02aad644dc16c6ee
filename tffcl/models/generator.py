"""A generator of examples for any classifier whose inputs are dense numbers: pixels, columns, or word vectors.

TARGET (Zhang et al., ICCV 2023) draws z ~ N(0, I) and a class, and makes an example of both. The published generator
does not know the class, and z are trained beside it; here the class is an input, so that any number of examples can be
made of any class.
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict

import tensorflow as tf

from tffcl import errors
from tffcl.layers.kernels import VectorLayout
from tffcl.models.network import Classifier, Tensors, glorot_uniform

_MADE = {"features", "label"}  # entries of examples of networks that take one array
_DOCUMENT = {"start", "length", "label"}  # see `document_types`


@dataclasses.dataclass(frozen=True)
class InputForm:
    """What a classifier takes as one dense array: `features`, or the word vectors of documents of one length.

    Shown with `Generator`.

    Attributes:
      shape: of an example.
      words: words of a document; 0 where examples are no documents.
    """

    shape: tuple[int, ...]
    words: int = 0

    @property
    def is_image(self) -> bool:
        """Whether examples are pixels, `[height, width, channels]`, in [0, 1]."""
        return len(self.shape) == 3

    def examples(self, x: tf.Tensor) -> tuple[OrderedDict, OrderedDict]:
        """Of float32 `[n, *shape]` the entries of a context that go with them, and examples without labels."""
        if not self.words:
            return OrderedDict(), OrderedDict(features=x)
        count, (words, size) = tf.shape(x)[0], self.shape
        vectors = tf.concat([tf.zeros([1, size]), tf.reshape(x, [-1, size])], 0)
        tokens = 1 + tf.range(count * words)  # every word of every document is one of its own
        return (
            OrderedDict(vectors=vectors, tokens=tokens),
            OrderedDict(start=words * tf.range(count), length=tf.fill([count], words)),
        )


def input_form(network: Classifier, words: int = 10) -> InputForm:
    """The form of a network's inputs.

    Shown with `Generator`.

    Args:
      network: whose examples are to be made.
      words: of each document, where it takes documents.

    Raises:
      InputError: its inputs are no dense numbers, or of a size that is not known before the data are.
    """
    kinds = network.prepared_type
    if set(kinds) == _DOCUMENT and "vectors" in network.context_type:
        errors.check_whole("words", words, 1)
        return InputForm((words, network.context_type["vectors"].shape[1]), words)
    shape = kinds["features"].shape[1:] if set(kinds) == _MADE else None
    if shape is None or None in shape or kinds["features"].dtype != "float32":
        found = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
        raise errors.InputError(
            f"network: examples can be made of float32 features of known size, or of documents; it takes {found}"
        )
    return InputForm(tuple(shape))


class Generator:
    """Makes examples of (z, class); its weights are one flat vector, given anew at each call.

    Images go through one linear layer to a quarter of their height and width and three 3 x 3 convolutions, enlarged
    twice in between, and a sigmoid; anything else through two hidden layers to plain numbers. Hidden values are
    standardised over the batch.

    Shown in docs/methods.md.

    Args:
      form: of the examples.
      classes: L, of the data set.
      width: channels of the last hidden layer of an image, which those before have twice; a 4th of the units of others.
      noise: entries of z.

    Raises:
      InputError: a number below 1.
    """

    def __init__(self, form: InputForm, classes: int, width: int = 32, noise: int = 32):
        for name, value in (("classes", classes), ("width", width), ("noise", noise)):
            errors.check_whole(name, value, 1)
        self.form, self.classes, self.width, self.noise = form, classes, width, noise
        first, out = noise + classes, math.prod(form.shape)
        if form.is_image:
            height, breadth, channels = form.shape
            self._small = (-(-height // 4), -(-breadth // 4), 2 * width)
            parts: tuple[tuple[str, tuple[int, ...]], ...] = (
                ("linear", (first, math.prod(self._small))),
                ("conv_1", (3, 3, 2 * width, 2 * width)),
                ("conv_2", (3, 3, 2 * width, width)),
                ("conv_3", (3, 3, width, channels)),
                ("bias", (channels,)),
            )
        else:
            units = 4 * width
            parts = (("linear", (first, units)), ("hidden", (units, units)), ("out", (units, out)), ("bias", (out,)))
        self.weights = VectorLayout(parts)

    def initial(self, key: tf.Tensor) -> tf.Tensor:
        """First weights, float32 `[weights.size]`."""
        return glorot_uniform(self.weights, key)

    def draw(self, labels: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """The input of examples of these labels, int32 `[n]`: z and the class, float32 `[n, noise + classes]`."""
        z = tf.random.stateless_normal([tf.size(labels), self.noise], key)
        return tf.concat([z, tf.one_hot(labels, self.classes)], 1)

    def examples(self, weights: tf.Tensor, drawn: tf.Tensor) -> tf.Tensor:
        """Examples of what `draw` gave, float32 `[n, *form.shape]`."""
        own = self.weights.split(weights)
        hidden = drawn @ own["linear"]
        if not self.form.is_image:
            hidden = _active(_active(hidden) @ own["hidden"])
            return tf.reshape(hidden @ own["out"] + own["bias"], [-1, *self.form.shape])
        hidden = _standardised(tf.reshape(hidden, [-1, *self._small]))
        for name in ("conv_1", "conv_2"):
            hidden = _active(tf.nn.conv2d(_enlarged(hidden), own[name], 1, "SAME"))
        image = tf.nn.conv2d(hidden, own["conv_3"], 1, "SAME") + own["bias"]
        height, breadth, _ = self.form.shape
        return tf.sigmoid(image[:, :height, :breadth])

    def __call__(self, weights: tf.Tensor, labels: tf.Tensor, key: tf.Tensor) -> tuple[tf.Tensor, Tensors, Tensors]:
        """Examples of labels, float32 `[n, *form.shape]`, and the same as a network takes them, see `InputForm`."""
        x = self.examples(weights, self.draw(labels, key))
        return (x, *self.form.examples(x))


def _standardised(values: tf.Tensor) -> tf.Tensor:
    """Mean 0 and variance 1 of each channel over all other axes."""
    mean, variance = tf.nn.moments(values, list(range(values.shape.rank - 1)))
    return (values - mean) * tf.math.rsqrt(variance + 1e-5)


def _active(values: tf.Tensor) -> tf.Tensor:
    return tf.nn.leaky_relu(_standardised(values), 0.2)


def _enlarged(values: tf.Tensor) -> tf.Tensor:
    """Twice the height and width; each pixel becomes four."""
    return tf.repeat(tf.repeat(values, 2, axis=1), 2, axis=2)
