"""What a client work needs of a model: pure functions of flat vectors.

The kernels are what federated continual learning decomposes and shares; the local parts (biases, projections,
head) belong to one client and one task. Both travel as one flat float32 vector each and are split inside.
"""

from __future__ import annotations

import abc
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from tffcl.layers.kernels import KernelLayout, VectorLayout, glorot_limit

Tensors = Mapping[str, tf.Tensor]


class Network(abc.ABC):
    """A model with `num_foreign` places for what other clients have learned.

    Attributes:
      kernels: layout of the kernels that are shared (and decomposed, where the method does so).
      local: layout of the parameters that belong to a task.
      shareable: names of the local parts that dense-layer sharing (DLS) may share.
      num_foreign: K, places for foreign adaptives.
      adds_foreign: foreign adaptives are added into the kernels (FedSeIT eq. 4) instead of standing apart (eq. 2).
      context_type / example_type / prepared_type: types of the data, see `tffcl.templates.ClientWork`.
      max_classes: width of the head.
    """

    kernels: KernelLayout
    local: VectorLayout
    shareable: tuple[str, ...] = ()
    num_foreign: int = 0
    adds_foreign: bool = True
    context_type: OrderedDict
    example_type: OrderedDict
    prepared_type: OrderedDict
    max_classes: int

    @property
    def attention_shape(self) -> tuple[int, int]:
        """One scalar alpha for each foreign entry and kernel: `(K, kernels)`."""
        return (self.num_foreign, len(self.kernels.parts))

    @abc.abstractmethod
    def initial_kernels(self, key: tf.Tensor) -> tf.Tensor:
        """The first base, float32 `[kernels.size]`."""

    @abc.abstractmethod
    def initial_local(self, key: tf.Tensor) -> tf.Tensor:
        """The first local parameters of a task, float32 `[local.size]`."""

    @abc.abstractmethod
    def initial_attention(self, key: tf.Tensor) -> tf.Tensor:
        """The first attention of a task, float32 `attention_shape`."""

    def prepare(self, foreign: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        """Adds to examples what foreign adaptives (float32 `[k, kernels.size]`), being frozen, make of them."""
        del foreign, context
        return examples

    @abc.abstractmethod
    def logits(
        self,
        kernels: tf.Tensor,
        local: tf.Tensor,
        attention: tf.Tensor,
        context: Tensors,
        examples: Tensors,
        dropout_key: tf.Tensor | None,
    ) -> tf.Tensor:
        """Class scores, float32 `[N, max_classes]`; without `dropout_key` nothing is dropped."""


def dropout(values: tf.Tensor, rate: float, key: tf.Tensor | None) -> tf.Tensor:
    """Inverted dropout that depends on `key` (int32 `[2]`) alone; the identity without one."""
    if key is None or rate == 0.0:
        return values
    keep = tf.random.stateless_uniform(tf.shape(values), key) >= rate
    return tf.where(keep, values / (1.0 - rate), 0.0)


def glorot_uniform(shapes: Iterable[Sequence[int]], key: tf.Tensor, scale: float = 1.0) -> list[tf.Tensor]:
    """One Glorot-uniform tensor for each shape, each from its own fold of `key`; vectors (biases) are zero."""
    drawn = []
    for index, shape in enumerate(shapes):
        if len(shape) < 2:
            drawn.append(tf.zeros(shape))
            continue
        limit = scale * glorot_limit(shape)
        folded = tf.random.experimental.stateless_fold_in(key, index)
        drawn.append(tf.random.stateless_uniform(shape, folded, -limit, limit))
    return drawn
