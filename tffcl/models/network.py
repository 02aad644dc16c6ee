"""Networks as client works use them: pure functions of flat vectors.

The kernels are what federated continual learning decomposes and shares; the local parts (biases, projections,
head) belong to one client and one task. Both travel as one flat float32 vector each and are split inside.
"""

from __future__ import annotations

import abc
import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple, Optional, TypeVar

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.layers.kernels import KernelLayout, VectorLayout, glorot_limit

Tensors = Mapping[str, tf.Tensor]
logger = logging.getLogger(__name__)


class Network(abc.ABC):
    """A model with `num_foreign` places for the adaptives of other clients.

    Shown in docs/contract.md.

    Attributes:
      kernels: layout of the kernels that are shared (and decomposed, where the method does so).
      local: layout of the parameters that belong to a task.
      shareable: names of the local parts that clients may share besides the kernels (`Decomposition.share_dense`).
      of_labels: names of the local parts whose last axis is the classes.
      num_foreign: K, places for foreign adaptives.
      adds_foreign: foreign adaptives are added into the kernels (FedSeIT eq. 4) instead of standing apart (eq. 2).
      context_type / example_type / prepared_type: types of the data, see `tffcl.templates.ClientWork`.
      max_classes: labels lie in [0, max_classes); None for a density, which has no labels.
    """

    kernels: KernelLayout
    local: VectorLayout
    shareable: tuple[str, ...] = ()
    of_labels: tuple[str, ...] = ()
    num_foreign: int = 0
    adds_foreign: bool = True
    context_type: OrderedDict
    example_type: OrderedDict
    prepared_type: OrderedDict
    max_classes: int | None = None

    @property
    def local_pieces(self) -> tuple[int, ...]:
        """Entries of each piece that `local` is best trained in; `losses` must take it in these, as a tuple."""
        return (self.local.size,)

    @property
    def kernel_pieces(self) -> tuple[int, ...]:
        """As `local_pieces`, of `kernels`: one, or those of `kernels.by_kernel`."""
        return (self.kernels.size,)

    @property
    def attention_shape(self) -> tuple[int, int]:
        """One scalar alpha for each foreign entry and kernel: `(K, kernels)`."""
        return (self.num_foreign, len(self.kernels.parts))

    @abc.abstractmethod
    def initial_kernels(self, key: tf.Tensor) -> tf.Tensor:
        """The first base, float32 `[kernels.size]`."""

    def initial_local(self, key: tf.Tensor) -> tf.Tensor:
        """The first local parameters of a task, float32 `[local.size]`; zeros by default."""
        del key
        return tf.zeros([self.local.size])

    def initial_attention(self, key: tf.Tensor) -> tf.Tensor:
        """The first attention of a task, float32 `attention_shape`; zeros by default."""
        del key
        return tf.zeros(self.attention_shape)

    def prepare(self, foreign: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        """Adds to examples what foreign adaptives (float32 `[k, kernels.size]`), being frozen, make of them."""
        del foreign, context
        return examples

    def batch(self, examples: Tensors, rows: tf.Tensor) -> Tensors:
        """Prepared examples number `rows`, int32 `[n]`, in whatever form this network's `losses` takes them."""
        return {name: tf.gather(values, rows) for name, values in examples.items()}

    @abc.abstractmethod
    def losses(
        self, kernels: tf.Tensor, local: tf.Tensor, attention: tf.Tensor, context: Tensors, examples: Tensors,
        dropout_key: tf.Tensor | None,
    ) -> tf.Tensor:  # fmt: skip
        """What training minimises for each example, in nats: float32 `[N]`.

        Args:
          kernels: float32 `[kernels.size]`, times the connectivity where there is one, or a tuple of its
            `kernel_pieces` where there are several.
          local: float32 `[local.size]`, or a tuple of its `local_pieces` where there are several.
          attention: float32 `attention_shape`.
          context: of `context_type`.
          examples: of `prepared_type`, or what `batch` makes of them.
          dropout_key: int32 `[2]`; without it nothing is dropped.
        """


AnyNetwork = TypeVar("AnyNetwork", bound=Network)
CLASSES = "classes"  # entry of a context: bool `[L]`, the labels that may occur
KNOWN = "known"  # entry of a context of one growing head: bool `[L]`, those that came before this task
NEVER = -1e9  # exp(NEVER - any score) is 0 in float32, and its cross-entropy is still finite


def competing(logits: tf.Tensor, context: Tensors) -> tf.Tensor:
    """Class scores `[N, L]` in which only the labels that may occur compete: others have no probability, no gradient.

    With one head over all labels of a data set, softmax would otherwise push down the labels that a client does not
    have, and a label that no test example can have would win.

    Args:
      logits: float32 `[N, L]`.
      context: with `classes`, bool `[L]`; without, all labels compete.
    """
    return tf.where(context[CLASSES], logits, NEVER) if CLASSES in context else logits


def cross_entropy(logits: tf.Tensor, context: Tensors, examples: Tensors) -> tf.Tensor:
    """Of class scores, float32 `[n, classes]`, among the labels that compete, in nats: `[n]`."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(examples["label"], competing(logits, context))


def with_label_mask(network: AnyNetwork, growing: bool = False) -> AnyNetwork:
    """The classifier, whose contexts from now on say which labels compete (see `competing`).

    Shown with `Network`.
    """
    network.context_type = OrderedDict(network.context_type, **label_mask_type(network.max_classes, growing))
    return network


def label_mask_type(size: int | None, growing: bool = False) -> OrderedDict:
    """Entries of a context: which of `size` labels compete; with a `growing` head also which came before the task."""
    return OrderedDict((name, tff.TensorType(np.bool_, [size])) for name in (CLASSES, KNOWN)[: 1 + growing])


def occurring(labels: tf.Tensor, size: int) -> tf.Tensor:
    """Which of `size` labels occur among int32 `[N]`: bool `[size]`."""
    return tf.math.bincount(labels, minlength=size, maxlength=size) > 0


class Classifier(Network):
    """A network that scores classes; examples have an int32 `label`.

    Shown with `Network`.
    """

    max_classes: int

    @abc.abstractmethod
    def logits(
        self, kernels: tf.Tensor, local: tf.Tensor, attention: tf.Tensor, context: Tensors, examples: Tensors,
        dropout_key: tf.Tensor | None,
    ) -> tf.Tensor:  # fmt: skip
        """Class scores, float32 `[N, max_classes]`; arguments as for `losses`."""

    def losses(
        self, kernels: tf.Tensor, local: tf.Tensor, attention: tf.Tensor, context: Tensors, examples: Tensors,
        dropout_key: tf.Tensor | None,
    ) -> tf.Tensor:  # fmt: skip
        """Cross-entropy of each example in nats."""
        return cross_entropy(self.logits(kernels, local, attention, context, examples, dropout_key), context, examples)


class LinearLayer(NamedTuple):
    """A layer that multiplies rows of its inputs, `[rows, d]`, by a kernel `[..., units]` of d rows, end to end.

    Shown with `Network`.

    Attributes:
      kernel: name of the kernel's part in a layout.
      bias: name of the bias's part, or None.
    """

    kernel: str
    bias: Optional[str]


class Layered(Classifier):
    """A classifier that shows what its layers multiply.

    Shown with `Network`.

    Attributes (and those of `Network`):
      layers: the linear layers, convolutions of windows (patches) among them.
    """

    layers: tuple[LinearLayer, ...]

    @abc.abstractmethod
    def layer_inputs(
        self, kernels: tf.Tensor, local: tf.Tensor, attention: tf.Tensor, context: Tensors, examples: Tensors
    ) -> tuple[tf.Tensor, ...]:
        """Rows that each layer multiplies, nothing being dropped: float32 `[rows, d]` each; arguments of `losses`."""


class Whole(Classifier):
    """A classifier of which everything that is trained is shared: biases and the head stand among the kernels.

    Shown in docs/methods.md.

    Attributes (and those of `Network`):
      inner: the classifier as it was.
    """

    def __init__(self, inner: Classifier):
        self.inner, self.max_classes, self.num_foreign = inner, inner.max_classes, inner.num_foreign
        self.kernels = KernelLayout((*inner.kernels.parts, *inner.local.parts))
        self.local = VectorLayout(())
        self.context_type, self.example_type = inner.context_type, inner.example_type
        self.prepared_type = inner.prepared_type
        logger.info(
            "but one head serves all tasks here: all %s trained weights are shared, biases and the head too",
            f"{self.kernels.size:,}",
        )

    def parts(self, kernels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Kernels and local parameters of `inner`, of float32 `[kernels.size]`; numpy for numpy."""
        return kernels[: self.inner.kernels.size], kernels[self.inner.kernels.size :]

    def initial_kernels(self, key: tf.Tensor) -> tf.Tensor:
        local = self.inner.initial_local(tf.random.experimental.stateless_fold_in(key, 1))
        return tf.concat([self.inner.initial_kernels(key), local], 0)

    def prepare(self, foreign: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        return self.inner.prepare(foreign, context, examples)

    def batch(self, examples: Tensors, rows: tf.Tensor) -> Tensors:
        return self.inner.batch(examples, rows)

    def logits(
        self, kernels: tf.Tensor, local: tf.Tensor, attention: tf.Tensor, context: Tensors, examples: Tensors,
        dropout_key: tf.Tensor | None,
    ) -> tf.Tensor:  # fmt: skip
        return self.inner.logits(*self.parts(kernels), attention, context, examples, dropout_key)


class Masks:
    """What a masked autoencoder (MADE) needs beyond a `Network`; here the defaults, for networks without masks.

    Attributes:
      plan_size: entries of the plan, the key and order of the masks that the server draws once for all clients.
      num_patterns: J, patterns of connectivity that training goes through and evaluation averages over.
    """

    plan_size: int = 0
    num_patterns: int = 1

    def initial_plan(self, key: tf.Tensor) -> tf.Tensor:
        """The server's plan, int32 `[plan_size]`."""
        del key
        return tf.zeros([0], tf.int32)

    def client_plan(self, plan: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """The plan that a client goes by: the server's, unless clients draw their own from their own key."""
        del key
        return plan

    def connectivity(self, plan: tf.Tensor, pattern: tf.Tensor | int) -> tf.Tensor | None:
        """M of pattern number `pattern` of J: float32 `[kernels.size]` of zeros and ones; None where all is one."""
        del plan, pattern
        return None

    def support(self, plan: tf.Tensor) -> tf.Tensor | None:
        """Which entries of the kernels any pattern uses, float32 `[kernels.size]`; None where all are used."""
        del plan
        return None

    def start(self, local: tf.Tensor, context: Tensors, examples: Tensors) -> tf.Tensor:
        """A task's first local parameters, float32 `[local.size]`, given its training examples; `local` by default."""
        del context, examples
        return local

    def squared_gradients(
        self, kernels: tf.Tensor, local: tf.Tensor, context: Tensors, examples: Tensors
    ) -> tf.Tensor | None:
        """sum_i (d loss_i / d kernels)^2, float32 `[kernels.size]`; None where it takes one gradient an example."""
        del kernels, local, context, examples
        return None


class MaskedNetwork(Masks, Network):
    """A network whose kernels stand under a mask that is not learned (MADE)."""

    def support(self, plan: tf.Tensor) -> tf.Tensor | None:
        def one_more(pattern: tf.Tensor, used: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return pattern + 1, tf.maximum(used, self.connectivity(plan, pattern))

        start = (0, tf.zeros([self.kernels.size]))
        return tf.while_loop(lambda pattern, _: pattern < self.num_patterns, one_more, start)[1]


def masks_of(network: Network) -> Masks:
    """The masks of any network."""
    return network if isinstance(network, MaskedNetwork) else Masks()


def document_types(embedding_size: int) -> tuple[OrderedDict, OrderedDict]:
    """Types of the context and the examples of text, without labels: documents one after the other.

    The context has `vectors`, float32 `[V, D]`, and `tokens`, int32 `[W]`, rows of them; row 0 is the zero vector.
    Document n is `tokens[start[n] : start[n] + length[n]]`.
    """
    context = OrderedDict(
        vectors=tff.TensorType(np.float32, [None, embedding_size]), tokens=tff.TensorType(np.int32, [None])
    )
    number = tff.TensorType(np.int32, [None])
    return context, OrderedDict(start=number, length=number)


def dropout(values: tf.Tensor, rate: float, key: tf.Tensor | None) -> tf.Tensor:
    """Inverted dropout that depends on `key` (int32 `[2]`) alone; the identity without one."""
    if key is None or rate == 0.0:
        return values
    keep = tf.random.stateless_uniform(tf.shape(values), key) >= rate
    return tf.where(keep, values / (1.0 - rate), 0.0)


def glorot_uniform(layout: VectorLayout, key: tf.Tensor, scale: float = 1.0) -> tf.Tensor:
    """Glorot-uniform tensors, each from its own fold of `key`, and vectors (biases) of zeros: `[layout.size]`."""
    drawn = {}
    for index, (name, shape) in enumerate(layout.parts):
        limit = scale * glorot_limit(shape) if len(shape) > 1 else 0.0
        folded = tf.random.experimental.stateless_fold_in(key, index)
        drawn[name] = tf.random.stateless_uniform(shape, folded, -limit, limit) if limit else tf.zeros(shape)
    return layout.join(drawn)
