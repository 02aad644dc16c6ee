"""Client works that send Gram sums once for each task: of frozen features (AFCL), of what the layers see (FOT).

Tang et al.: AFCL: Analytic Federated Continual Learning, 2025. With phi(x) the features of an example and a 1 beside
them, and y its class as a row of zeros and a one, a client sends G_c = sum phi phi' and Q_c = sum phi y', once for each
task. Sums over clients and tasks are those over all data together, whoever had which example when; so is whatever the
server computes of them (`tffcl.finalizers.ridge`, `discriminant`, `nearest_mean`). All of it is float64.

Bakman, Yaldiz, Ezzeldin, Avestimehr: Federated Orthogonal Training: Mitigating Global Catastrophic Forgetting in
Continual Federated Learning, ICLR 2024 (FOT). There a client sends sketches X R of the inputs X of each layer, with R
random, whose sums over clients have the directions of X at all clients together. Here it sends what these estimate, the
Gram sums X X', which add up over clients exactly.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works import randomness
from tffcl.client_works.evaluation import classified, in_batches, num_examples
from tffcl.client_works.local_training import Result, Round, all_finite
from tffcl.client_works.options import LocalTraining
from tffcl.client_works.penalties import Penalties
from tffcl.client_works.plain import PlainWork
from tffcl.models.encoders import FrozenEncoder
from tffcl.models.network import Layered, Network, Tensors, Whole, competing, label_mask_type
from tffcl.templates import ClientWork, messages


def upper(size: int) -> tf.Tensor:
    """Which entries of a square matrix are on the diagonal or above: bool `[size, size]`."""
    return tf.linalg.band_part(tf.ones([size, size], tf.bool), 0, -1)


def symmetric(triangle: tf.Tensor, size: int) -> tf.Tensor:
    """The matrix `[size, size]` whose entries of `upper`, row after row, are given: `[size (size + 1) / 2]`.

    >>> symmetric(tf.constant([1.0, 2.0, 3.0]), 2).numpy().tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    half = tf.scatter_nd(tf.where(upper(size)), triangle, [size, size])
    return half + tf.linalg.set_diag(tf.transpose(half), tf.zeros([size], triangle.dtype))


class AnalyticWork(ClientWork):
    """Sends sums over frozen features in the first round of a task in which it takes part, and nothing after that.

    Features are those of an encoder, or random ones of its output z: relu(z R + b) of `width` numbers, where
    R ~ N(0, 2 / d) and b ~ N(0, 1) follow from the server's plan, the same for all clients. The server shares W,
    float64 `[width + 1, classes]`, with which an example is scored as (phi, 1) W.

    Args:
      encoder: of examples, whose weights never change; its embedding without noise is z.
      classes: L, of the data set; a class that nobody has had yet does not compete.
      width: random features; 0 for z itself.
      with_gram: sends G beside Q.
      seed: of the server's plan.

    Shown in docs/methods.md.

    Raises:
      InputError: a width below 0, or fewer than 1 class.
    """

    @errors.checked_arguments
    def __init__(
        self, encoder: FrozenEncoder, classes: int, *, width: int = 1000, with_gram: bool = True, seed: int = 0
    ):
        errors.check_whole("width", width, 0)
        errors.check_whole("classes", classes, 1)
        self.encoder, self.classes, self.width, self.with_gram = encoder, classes, width, with_gram
        self._seed, own = seed, encoder.encoder
        self.num_features = (width or own.embedding_size) + 1
        self.plan_size, self.knowledge_size, self.num_foreign, self.max_classes = 2, 0, 0, classes
        number = tff.TensorType(np.int32)
        self.state_type = OrderedDict(
            key=tff.TensorType(np.int32, [2]), plan=tff.TensorType(np.int32, [2]), task=number, sent_task=number
        )
        self.train_reads, self.train_writes, self.prepare_reads = ("task", "sent_task"), ("sent_task",), ("plan",)
        self.evaluate_type = OrderedDict(task=number)
        self.context_type = OrderedDict(own.context_type, **label_mask_type(classes, growing=True))
        label = tff.TensorType(np.int32, [None])
        self.example_type = OrderedDict(own.example_type, label=label)
        self.prepared_type = OrderedDict(features=tff.TensorType(np.float32, [None, self.num_features]), label=label)
        self.shared_type = tff.TensorType(np.float64, [self.num_features, classes])
        self.largest_value = messages.LARGEST**2  # sums of squares

    def initialize_shared(self) -> tf.Tensor:
        return tf.zeros(self.shared_type.shape, tf.float64)

    def initialize_plan(self) -> tf.Tensor:
        return randomness.fold(randomness.root_key(self._seed), randomness.PLAN)

    def initialize_client(self, shared: tf.Tensor, plan: tf.Tensor, key: tf.Tensor) -> Tensors:
        return OrderedDict(key=key, plan=plan, task=tf.constant(-1), sent_task=tf.constant(-1))

    def begin_task(self, state: Tensors, shared: tf.Tensor, foreign: tf.Tensor) -> Tensors:
        return dict(state, task=state["task"] + 1)

    def features(self, plan: tf.Tensor, context: Tensors, examples: Tensors) -> tf.Tensor:
        """(phi, 1) of each example, float32 `[N, num_features]`."""
        z = self.encoder.encode(context, examples)[:, : self.encoder.encoder.embedding_size]
        if self.width:
            size = self.encoder.encoder.embedding_size
            weights = tf.random.stateless_normal([size, self.width], plan, stddev=math.sqrt(2.0 / size))
            z = tf.nn.relu(z @ weights + tf.random.stateless_normal([self.width], randomness.fold(plan, 1)))
        return tf.concat([z, tf.ones([tf.shape(z)[0], 1])], 1)

    def prepare(self, state: Tensors, foreign: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        return {"features": self.features(state["plan"], context, examples), "label": examples["label"]}

    def train(
        self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any], round_num: tf.Tensor
    ) -> tuple[Tensors, Tensors, tf.Tensor, Tensors]:
        features, labels = data["train"]["features"], data["train"]["label"]
        finite = tf.reduce_all(tf.math.is_finite(features))
        count = num_examples(data["train"])
        sends = tf.logical_and(tf.logical_and(finite, count > 0), state["sent_task"] < state["task"])
        update = tf.cond(sends, lambda: self._sums(features, labels), self._nothing)
        sent = tf.where(sends, tf.size(update["moments"]), 0)
        extra = tf.where(sends, 8 * tf.size(update["gram"]) + 4 * sent, 0) if self.with_gram else 4 * sent
        metrics = OrderedDict(
            examples=count, epochs=tf.cast(sends, tf.int32), sent=sent,
            extra_bytes=extra,  # beside 4 bytes for each number of Q
            non_finite=tf.cast(tf.logical_not(finite), tf.int32),
        )  # fmt: skip
        weight = tf.where(sends, tf.cast(count, tf.float32), 0.0)
        return {"sent_task": tf.where(sends, state["task"], state["sent_task"])}, update, weight, metrics

    def _sums(self, features: tf.Tensor, labels: tf.Tensor) -> OrderedDict:
        """Q, float64 `[num_features, classes]`, and G as a vector of its upper triangle, row after row."""
        phi = tf.cast(features, tf.float64)
        moments = tf.matmul(phi, tf.one_hot(labels, self.classes, dtype=tf.float64), transpose_a=True)
        if not self.with_gram:
            return OrderedDict(moments=moments)
        gram = tf.matmul(phi, phi, transpose_a=True)
        return OrderedDict(
            moments=moments, gram=tf.ensure_shape(tf.boolean_mask(gram, upper(self.num_features)), [self.gram_size])
        )

    def _nothing(self) -> OrderedDict:
        nothing = OrderedDict(moments=tf.zeros(self.shared_type.shape, tf.float64))
        if self.with_gram:
            nothing["gram"] = tf.zeros([self.gram_size], tf.float64)
        return nothing

    @property
    def gram_size(self) -> int:
        """Numbers of G that are sent."""
        return self.num_features * (self.num_features + 1) // 2

    def end_task(self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any]) -> tuple[Tensors, Tensors]:
        return dict(state), OrderedDict(knowledge=tf.zeros([0]))

    def task_view(self, state: Mapping[str, Any], task: Any) -> OrderedDict:
        return OrderedDict(task=task if tf.is_tensor(task) else np.asarray(task, np.int32))

    def evaluate(self, view: Tensors, shared: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        """The server's classifier on examples: sums `count`, `loss` (of the scores as they are) and `correct`."""

        def scores(batch: Tensors) -> tf.Tensor:
            exact = tf.cast(batch["features"], tf.float64) @ shared
            # An offset common to all classes moves neither the winner nor the loss, and would cost digits of float32.
            return competing(tf.cast(exact - tf.reduce_max(exact, axis=1, keepdims=True), tf.float32), context)

        return classified(scores, examples)


BATCH = 32  # examples at a time: an image has a patch for each of its pixels


class SharedLayer(NamedTuple):
    """A layer whose weights the server shares.

    Attributes:
      name: of its kernel, in letters, digits and _.
      kernel: where its kernel stands in the shared vector.
      bias: where its bias stands there; None for one without, or whose bias is a client's own.
      size: numbers of an input row, d, and with a bias the 1 that it is multiplied by.
    """

    name: str
    kernel: slice
    bias: Optional[slice]
    size: int

    @property
    def gram_size(self) -> int:
        """Numbers of X X' that are sent, its entries on the diagonal and above."""
        return self.size * (self.size + 1) // 2


class OrthogonalWork(PlainWork):
    """FedAvg's client, which sends Gram sums of its layers' inputs, X X' over a task's training examples, once.

    They are taken at the end of the task, under the server's model of then, and go with the update of the next round in
    which the client takes part: the first of the next task, as a rule. A bias that is shared sees a 1, which stands
    beside the inputs. Updates are `<weights=<delta, sent>, gram=float32[gram_size]>`, zeros where there is nothing to
    send.

    Shown in docs/methods.md.

    Args:
      network: a classifier that shows its layers' inputs (`Layered`), or `Whole` of one.
      training: epochs, batches, learning rate.
      seed: of the server's first kernels.
      penalty: `Proximal`, `EWC`, any `Penalty` for which the server keeps nothing, or several.

    Raises:
      InputError: a network that does not show its layers' inputs, or shares none of their kernels; a penalty with sums
        at the server.
    """

    @errors.checked_arguments
    def __init__(self, network: Network, training: LocalTraining, seed: int = 0, penalty: Penalties = None):
        super().__init__(network, training, seed, penalty)
        self.penalties.without_server(type(self).__name__)
        inner = network.inner if isinstance(network, Whole) else network
        if not isinstance(inner, Layered):
            raise errors.InputError(
                f"network: {type(inner).__name__} does not show what its layers multiply; take a KerasNetwork or a "
                "TextCNN, or make it a tffcl.models.Layered"
            )
        self._inner = inner
        shapes = dict(network.kernels.parts)
        found = [(number, *layer) for number, layer in enumerate(inner.layers) if layer.kernel in shapes]
        if not found:
            raise errors.InputError("network: no layer of it is shared whose inputs it shows")
        self._numbers = tuple(number for number, *_ in found)
        self.layers = tuple(self._shared_layer(kernel, bias, shapes) for _, kernel, bias in found)
        self.gram_size = sum(layer.gram_size for layer in self.layers)
        self.state_type["gram"] = tff.TensorType(np.float32, [None, self.gram_size])
        self.train_reads, self.train_writes = (*self.train_reads, "gram"), (*self.train_writes, "gram")
        self.largest_value = messages.LARGEST**2  # sums of squares

    def _shared_layer(self, kernel: str, bias: Optional[str], shapes: Mapping[str, tuple[int, ...]]) -> SharedLayer:
        layout = self.network.kernels
        own = layout.slice_of(bias) if bias is not None and bias in shapes else None
        name = "".join(letter if letter.isalnum() else "_" for letter in kernel.partition(":")[0])
        size = int(np.prod(shapes[kernel][:-1])) + (own is not None)
        return SharedLayer(name, layout.slice_of(kernel), own, size)

    def gram(self, shared: tf.Tensor, local: tf.Tensor, context: Tensors, examples: Tensors) -> tf.Tensor:
        """X X' of each layer over the examples, their upper triangles one after the other: float32 `[gram_size]`."""
        kernels = self.penalties.kernels(shared)
        if isinstance(self.network, Whole):
            kernels, local = self.network.parts(kernels)
        attention = tf.zeros(self.network.attention_shape)

        def of_batch(batch: Tensors) -> list[tf.Tensor]:
            inputs = self._inner.layer_inputs(kernels, local, attention, context, batch)
            sums = []
            for number, layer in zip(self._numbers, self.layers):
                rows = inputs[number]
                if layer.bias is not None:
                    rows = tf.concat([rows, tf.ones([tf.shape(rows)[0], 1])], 1)
                sums.append(tf.ensure_shape(tf.matmul(rows, rows, transpose_a=True), [layer.size, layer.size]))
            return sums

        grams = in_batches(of_batch, examples, BATCH, [[layer.size, layer.size] for layer in self.layers])
        triangles = [tf.boolean_mask(gram, upper(layer.size)) for gram, layer in zip(grams, self.layers)]
        return tf.ensure_shape(tf.concat(triangles, 0), [self.gram_size])

    def end_task(self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any]) -> tuple[Tensors, Tensors]:
        ended, upload = super().end_task(state, shared, data)
        gram = self.gram(shared, state["local"], data["context"], data["train"])
        gram = tf.where(all_finite([gram]), gram, 0.0)
        waiting = tf.reduce_sum(tf.concat([state["gram"], gram[None]], 0), 0, keepdims=True)
        return dict(ended, gram=waiting), upload

    def end_round(self, changed: dict[str, tf.Tensor], here: Round, metrics: OrderedDict) -> Result:
        kept, update, weight, reported = super().end_round(changed, here, metrics)
        waiting, present = here.state["gram"], weight > 0
        sends = tf.logical_and(present, tf.shape(waiting)[0] > 0)
        gram = tf.where(sends, tf.reduce_sum(waiting, 0), 0.0)
        kept = dict(kept, gram=waiting[: tf.where(present, 0, tf.shape(waiting)[0])])
        metrics = OrderedDict(reported, extra_bytes=tf.where(sends, 4 * self.gram_size, 0))
        return kept, OrderedDict(weights=update, gram=gram), weight, metrics

    def faults(self, update: Tensors, limits: Tensors) -> Sequence[messages.Fault]:
        """Kernels are held to the usual bound also beside sums of squares, which may be larger."""
        return [messages.value_fault("delta", update["weights"]["delta"])]
