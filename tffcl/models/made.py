"""MADE (Germain et al., 2015) as the client network of ConFedMADE (eq. 3-5): a density of binary vectors."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.layers.autoregressive import AutoregressiveMask, as_order, natural_order, random_order
from tffcl.layers.kernels import KernelLayout, VectorLayout
from tffcl.models.network import MaskedNetwork, Tensors, glorot_uniform
from tffcl.models.options import MADEConfig

# What a mask key is folded with, so that orders and numbers of hidden units are drawn apart.
_ORDER, _NUMBERS = 1, 2
ABSENT = 2


class MADENetwork(MaskedNetwork):
    """A masked autoencoder; its loss is -log p(x) in nats, summed over the observed dimensions.

    Kernels are `hidden_0` `[D, H1]`, `hidden_1` `[H1, H2]`, ..., `output` `[H, D]` and `direct` `[D, D]`; biases
    `bias_hidden_0`, ..., `bias_output` are local, or the last of the kernels with `share_biases`.

    The plan is the mask key, int32 `[2]`, then the order, int32 `[D]`. An example is `x`, uint8 `[N, D]` of zeros
    and ones, and of `ABSENT` at dimensions that only pad this example; `observed`, float32 `[D]` in the context, is 0
    at dimensions that pad all of them. What pads is neither seen nor scored.

    Args:
      config: sizes and masks.
      num_foreign: K, places for foreign adaptives, which are added into the kernels.

    Raises:
      InputError: num_foreign is negative.
    """

    adds_foreign = True

    def __init__(self, config: MADEConfig, num_foreign: int = 0):
        if num_foreign < 0:
            raise errors.InputError(f"num_foreign: expected at least 0, found {num_foreign}")
        self.config = config
        self.num_foreign = num_foreign
        size = config.input_size
        biases = tuple((f"bias_hidden_{i}", (width,)) for i, width in enumerate(config.hidden))
        biases += (("bias_output", (size,)),)
        self.masks = AutoregressiveMask(size, config.hidden, config.direct)
        kernels = self.masks.parts
        self.kernels = KernelLayout(kernels + biases if config.share_biases else kernels)
        self.local = VectorLayout(() if config.share_biases else biases)
        self.plan_size = 2 + size
        self.num_patterns = config.num_masks or 1
        self.context_type = OrderedDict(observed=tff.TensorType(np.float32, [size]))
        self.example_type = OrderedDict(x=tff.TensorType(np.uint8, [None, size]))
        self.prepared_type = self.example_type

    def initial_kernels(self, key: tf.Tensor) -> tf.Tensor:
        drawn = glorot_uniform([shape for _, shape in self.kernels.parts], key, self.config.base_scale)
        return tf.concat([tf.reshape(kernel, [-1]) for kernel in drawn], 0)

    def initial_local(self, key: tf.Tensor) -> tf.Tensor:
        del key
        return tf.zeros([self.local.size])

    def initial_attention(self, key: tf.Tensor) -> tf.Tensor:
        del key
        return tf.fill(self.attention_shape, self.config.attention_start)

    def start(self, local: tf.Tensor, context: Tensors, examples: Tensors) -> tf.Tensor:
        """Output biases at the log-odds of each dimension among the examples, each counted once more as 0 and as 1.

        Most pixels of a digit are nearly always black; without this the first hundred steps go into saying so.
        """
        ones = tf.reduce_sum(_ones(examples), axis=0)
        zeros = tf.reduce_sum(tf.cast(tf.equal(examples["x"], 0), tf.float32), axis=0)
        if self.config.share_biases:
            return local
        parts = self.local.split(local)
        parts["bias_output"] = tf.math.log((ones + 1.0) / (zeros + 1.0))
        return self.local.join(parts)

    def losses(
        self,
        kernels: tf.Tensor,
        local: tf.Tensor,
        attention: tf.Tensor | None,
        context: Tensors,
        examples: Tensors,
        dropout_key: tf.Tensor | None,
    ) -> tf.Tensor:
        """-log p(x) of each example in nats; `attention` and `dropout_key` play no part."""
        del attention, dropout_key
        inputs = _ones(examples) * context["observed"]
        return _negative_log(self.logits(kernels, local, inputs), inputs, context, examples)

    def squared_gradients(self, kernels: tf.Tensor, local: tf.Tensor, context: Tensors, examples: Tensors) -> tf.Tensor:
        """sum_i (d loss_i / d kernels)^2 from two products a kernel: d loss_i / d W is an outer product.

        It is that of the layer's inputs h_i and of delta_i, what the loss gains when a sum that enters the layer's
        units moves; so the sum of its squares is (h^2)^T (delta^2).
        """
        parts, inputs = self.parts(kernels, local), _ones(examples) * context["observed"]
        count = tf.shape(inputs)[0]
        widths = (*self.config.hidden, self.config.input_size)
        moves = [tf.zeros(tf.stack([count, width])) for width in widths]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(moves)
            layer_inputs, logits = self._forward(parts, inputs, moves)
            losses = _negative_log(logits, inputs, context, examples)
        deltas = [tf.square(delta) for delta in tape.gradient(losses, moves)]
        names = [f"hidden_{layer}" for layer in range(len(self.config.hidden))] + ["output"]
        squares = {
            name: tf.matmul(tf.square(entering), delta, transpose_a=True)
            for name, entering, delta in zip(names, layer_inputs, deltas)
        }
        if self.config.direct:
            squares["direct"] = tf.matmul(tf.square(inputs), deltas[-1], transpose_a=True)
        squares.update((f"bias_{name}", tf.reduce_sum(delta, axis=0)) for name, delta in zip(names, deltas))
        return self.kernels.join({name: squares[name] for name, _ in self.kernels.parts})

    def logits(self, kernels: tf.Tensor, local: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
        """What the sigmoid of eq. 3 is taken of: log-odds of each dimension given those before it.

        Args:
          kernels: float32 `[kernels.size]`, times the connectivity.
          local: float32 `[local.size]`.
          inputs: float32 `[N, D]`.

        Returns:
          float32 `[N, D]`.
        """
        return self._forward(self.parts(kernels, local), inputs)[1]

    def _forward(
        self, parts: dict[str, tf.Tensor], inputs: tf.Tensor, moves: list[tf.Tensor] | None = None
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """What enters each layer, and the logits; `moves` are added to the sums that enter units."""
        entering = [inputs]
        logits = parts["bias_output"] if moves is None else parts["bias_output"] + moves[-1]
        if self.config.hidden:
            sums = tf.matmul(inputs, parts["hidden_0"]) + parts["bias_hidden_0"]
            entering += self._units(parts, sums, moves)
            logits += tf.matmul(entering[-1], parts["output"])
        if self.config.direct:
            logits += tf.matmul(inputs, parts["direct"])
        return entering, logits

    def parts(self, kernels: tf.Tensor, local: tf.Tensor) -> dict[str, tf.Tensor]:
        """Kernels and biases by name."""
        return {**self.kernels.split(kernels), **self.local.split(local)}

    def last_units(self, parts: dict[str, tf.Tensor], sums: tf.Tensor) -> tf.Tensor:
        """Units of the last hidden layer, float32 `[N, H]`, from what goes into the first, `[N, H1]`."""
        return self._units(parts, sums)[-1]

    def _units(
        self, parts: dict[str, tf.Tensor], sums: tf.Tensor, moves: list[tf.Tensor] | None = None
    ) -> list[tf.Tensor]:
        """Units of each hidden layer from what goes into the first; `moves` as in `_forward`."""
        activation = getattr(tf.nn, self.config.activation)
        units: list[tf.Tensor] = []
        for layer in range(len(self.config.hidden)):
            if layer:
                sums = tf.matmul(units[-1], parts[f"hidden_{layer}"]) + parts[f"bias_hidden_{layer}"]
            units.append(activation(sums if moves is None else sums + moves[layer]))
        return units

    # -- connectivity --------------------------------------------------------------------------------------------

    def initial_plan(self, key: tf.Tensor) -> tf.Tensor:
        """Mask key and order that hang from `key` (int32 `[2]`): int32 `[2 + D]`."""
        size, order = self.config.input_size, self.config.order
        if order == "natural":
            places = natural_order(size)
        elif order == "random":
            places = random_order(key, size)
        else:
            places = as_order(order, size)
        return tf.concat([key, places], 0)

    def client_plan(self, plan: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        return self.initial_plan(key) if self.config.distinct_masks else plan

    def order(self, plan: tf.Tensor, pattern: tf.Tensor | int) -> tf.Tensor:
        """Places of the inputs in pattern number `pattern`, int32 `[D]`."""
        if not self.config.order_agnostic:
            return plan[2:]
        return random_order(_folded(plan, _ORDER, pattern), self.config.input_size)

    def connectivity(self, plan: tf.Tensor, pattern: tf.Tensor | int) -> tf.Tensor:
        """M of eq. 5: all masks of one pattern, float32 `[kernels.size]`; ones for shared biases.

        Args:
          plan: int32 `[2 + D]`.
          pattern: its number, int32 in [0, J).
        """
        key = _folded(plan, _NUMBERS, pattern if self.config.connectivity_agnostic else 0)
        masks = self.masks(key, self.order(plan, pattern))
        if self.config.share_biases:
            biases = [(name, shape) for name, shape in self.kernels.parts if name not in masks]
            masks.update((name, tf.ones(shape)) for name, shape in biases)
        return self.kernels.join(masks)


def _negative_log(logits: tf.Tensor, inputs: tf.Tensor, context: Tensors, examples: Tensors) -> tf.Tensor:
    """-log p of each example in nats over the dimensions that it has, float32 `[N]`."""
    present = tf.cast(examples["x"] < ABSENT, tf.float32) * context["observed"]
    # -log p(x_d | x_<d) is softplus of the logit, its sign turned where x_d is 1: from logits, so that nothing
    # is clipped, and in one operation where a cross-entropy takes seven.
    return tf.reduce_sum(tf.nn.softplus(logits * (1.0 - 2.0 * inputs)) * present, axis=1)


def _ones(examples: Tensors) -> tf.Tensor:
    """Where an example is 1, float32 `[N, D]`."""
    return tf.cast(tf.equal(examples["x"], 1), tf.float32)


def _folded(plan: tf.Tensor, purpose: int, pattern: tf.Tensor | int) -> tf.Tensor:
    fold = tf.random.experimental.stateless_fold_in
    return fold(fold(plan[:2], purpose), pattern)
