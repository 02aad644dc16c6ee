"""The client of Federated Orthogonal Training: FedAvg's, which also sends sums over what its layers see.

Bakman, Yaldiz, Ezzeldin, Avestimehr: Federated Orthogonal Training: Mitigating Global Catastrophic Forgetting in
Continual Federated Learning, ICLR 2024 (FOT). There a client sends sketches X R of the inputs X of each layer, with R
random, whose sums over clients have the directions of X at all clients together. Here it sends what these estimate, the
Gram sums X X', which add up over clients exactly.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works.analytic import upper
from tffcl.client_works.evaluation import in_batches
from tffcl.client_works.local_training import Result, Round, all_finite
from tffcl.client_works.options import LocalTraining
from tffcl.client_works.penalties import Penalties
from tffcl.client_works.plain import PlainWork
from tffcl.models.network import Layered, Network, Tensors, Whole
from tffcl.templates import messages

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
