"""MADE (Germain et al., 2015) as the client network of ConFedMADE (eq. 3-5): a density of binary vectors."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.layers.autoregressive import AutoregressiveMask, as_order, random_order
from tffcl.layers.kernels import KernelLayout, VectorLayout
from tffcl.models.network import MaskedNetwork, Tensors, glorot_uniform
from tffcl.models.registry import MADEConfig

# Folded into the mask key, so that orders and numbers of hidden units are drawn apart.
_ORDER, _NUMBERS = 1, 2
ABSENT = 2

_fold = tf.random.experimental.stateless_fold_in


class MADENetwork(MaskedNetwork):
    """A masked autoencoder; its loss is -log p(x) in nats, summed over the observed dimensions.

    Kernels are `hidden_0` `[D, H1]`, `hidden_1` `[H1, H2]`, ..., `output` `[H, D]` and `direct` `[D, D]`; biases
    `bias_hidden_0`, ..., `bias_output` are local, or the last of the kernels with `share_biases`.

    The plan is the mask key, int32 `[2]`, then the order, int32 `[D]`. An example is `x`, uint8 `[N, D]` of zeros
    and ones, and of `ABSENT` at dimensions that only pad this example; `observed`, float32 `[D]` in the context, is 0
    at dimensions that pad all of them. What pads is neither seen nor scored.

    Shown in docs/contract.md.

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
        self._layers = [*(f"hidden_{layer}" for layer in range(len(config.hidden))), "output"]
        biases = tuple((f"bias_{name}", (width,)) for name, width in zip(self._layers, (*config.hidden, size)))
        self.masks = AutoregressiveMask(size, config.hidden, config.direct)
        self.kernels = KernelLayout(self.masks.parts + (biases if config.share_biases else ()))
        self.local = VectorLayout(() if config.share_biases else biases)
        # Output biases start from a task's own examples (`start`).
        self.shareable = tuple(name for name, _ in self.local.parts if name != "bias_output")
        self.plan_size = 2 + size
        self.num_patterns = config.num_masks or 1
        self.context_type = OrderedDict(observed=tff.TensorType(np.float32, [size]))
        self.example_type = OrderedDict(x=tff.TensorType(np.uint8, [None, size]))
        self.prepared_type = self.example_type

    @property
    def kernel_pieces(self) -> tuple[int, ...]:
        return self.kernels.sizes

    def initial_kernels(self, key: tf.Tensor) -> tf.Tensor:
        return glorot_uniform(self.kernels, key, self.config.base_scale)

    def initial_attention(self, key: tf.Tensor) -> tf.Tensor:
        del key
        return tf.fill(self.attention_shape, self.config.attention_start)

    def start(self, local: tf.Tensor, context: Tensors, examples: Tensors) -> tf.Tensor:
        """Output biases at the log-odds of each dimension among the examples, each counted once more as 0 and as 1.

        Most pixels of a digit are nearly always black; without this the first hundred steps go into learning that.
        """
        if self.config.share_biases:
            return local
        ones = tf.reduce_sum(_ones(examples), axis=0)
        zeros = tf.reduce_sum(tf.cast(tf.equal(examples["x"], 0), tf.float32), axis=0)
        return self.local.join({**self.local.split(local), "bias_output": tf.math.log((ones + 1.0) / (zeros + 1.0))})

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

        It is that of the layer's inputs h_i and of delta_i, the gradient with respect to the sums that enter the
        layer's units; so the sum of its squares is (h^2)^T (delta^2).
        """
        parts, inputs = self.parts(kernels, local), _ones(examples) * context["observed"]
        shifts = [tf.zeros(tf.stack([tf.shape(inputs)[0], width])) for width in (*self.config.hidden, inputs.shape[1])]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(shifts)
            layer_inputs, logits = self._forward(parts, inputs, shifts)
            losses = _negative_log(logits, inputs, context, examples)
        deltas = [tf.square(delta) for delta in tape.gradient(losses, shifts)]
        squares = {
            name: tf.matmul(tf.square(entering), delta, transpose_a=True)
            for name, entering, delta in zip(self._layers, layer_inputs, deltas)
        }
        if self.config.direct:
            squares["direct"] = tf.matmul(tf.square(inputs), deltas[-1], transpose_a=True)
        squares.update((f"bias_{name}", tf.reduce_sum(delta, axis=0)) for name, delta in zip(self._layers, deltas))
        return self.kernels.join({name: squares[name] for name, _ in self.kernels.parts})

    def logits(self, kernels: tf.Tensor, local: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
        """Log-odds of each dimension given those before it, of which eq. 3 takes the sigmoid: float32 `[N, D]`.

        Args:
          kernels: float32 `[kernels.size]`, times the connectivity.
          local: float32 `[local.size]`.
          inputs: float32 `[N, D]`.
        """
        return self._forward(self.parts(kernels, local), inputs)[1]

    def _forward(
        self, parts: dict[str, tf.Tensor], inputs: tf.Tensor, shifts: list[tf.Tensor] | None = None
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """The inputs of each layer, and the logits; `shifts` are added to the sums that enter units."""
        entering = [inputs]
        logits = parts["bias_output"] if shifts is None else parts["bias_output"] + shifts[-1]
        if self.config.hidden:
            sums = tf.matmul(inputs, parts["hidden_0"]) + parts["bias_hidden_0"]
            entering += self.units(parts, sums, shifts)
            logits += tf.matmul(entering[-1], parts["output"])
        if self.config.direct:
            logits += tf.matmul(inputs, parts["direct"])
        return entering, logits

    def parts(self, kernels: tf.Tensor, local: tf.Tensor) -> dict[str, tf.Tensor]:
        """Kernels and biases by name."""
        return {**self.kernels.split(kernels), **self.local.split(local)}

    def units(
        self, parts: dict[str, tf.Tensor], sums: tf.Tensor, shifts: list[tf.Tensor] | None = None
    ) -> list[tf.Tensor]:
        """Units of each hidden layer, float32 `[N, H]`, from the sums that enter the first."""
        activation = getattr(tf.nn, self.config.activation)
        units: list[tf.Tensor] = []
        for layer in range(len(self.config.hidden)):
            if layer:
                sums = tf.matmul(units[-1], parts[f"hidden_{layer}"]) + parts[f"bias_hidden_{layer}"]
            units.append(activation(sums if shifts is None else sums + shifts[layer]))
        return units

    # -- connectivity --------------------------------------------------------------------------------------------

    def initial_plan(self, key: tf.Tensor) -> tf.Tensor:
        """Mask key and order, drawn from `key` (int32 `[2]`): int32 `[2 + D]`."""
        size, order = self.config.input_size, self.config.order
        if order == "random":
            places = random_order(key, size)
        else:
            places = as_order(np.arange(1, size + 1) if order == "natural" else order, size)
        return tf.concat([key, places], 0)

    def client_plan(self, plan: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        return self.initial_plan(key) if self.config.distinct_masks else plan

    def order(self, plan: tf.Tensor, pattern: tf.Tensor | int) -> tf.Tensor:
        """Places of the inputs in pattern number `pattern`, int32 `[D]`."""
        if not self.config.order_agnostic:
            return plan[2:]
        return random_order(_fold(_fold(plan[:2], _ORDER), pattern), self.config.input_size)

    def connectivity(self, plan: tf.Tensor, pattern: tf.Tensor | int) -> tf.Tensor:
        """M of eq. 5: all masks of one pattern, float32 `[kernels.size]`; ones for shared biases.

        Args:
          plan: int32 `[2 + D]`.
          pattern: its number, int32 in [0, J).
        """
        key = _fold(_fold(plan[:2], _NUMBERS), pattern if self.config.connectivity_agnostic else 0)
        masks = self.masks(key, self.order(plan, pattern))
        unmasked = {name: tf.ones(shape) for name, shape in self.kernels.parts if name not in masks}
        return self.kernels.join({**unmasked, **masks})


def _negative_log(logits: tf.Tensor, inputs: tf.Tensor, context: Tensors, examples: Tensors) -> tf.Tensor:
    """-log p of each example in nats over the dimensions that it has, float32 `[N]`."""
    present = tf.cast(examples["x"] < ABSENT, tf.float32) * context["observed"]
    # -log p(x_d | x_<d) is softplus of the logit, its sign turned where x_d is 1: from logits, so that nothing
    # is clipped, and in one operation where a cross-entropy takes seven.
    return tf.reduce_sum(tf.nn.softplus(logits * (1.0 - 2.0 * inputs)) * present, axis=1)


def _ones(examples: Tensors) -> tf.Tensor:
    """Where an example is 1, float32 `[N, D]`."""
    return tf.cast(tf.equal(examples["x"], 1), tf.float32)


# -- samples ------------------------------------------------------------------------------------------------------


def draw(
    network: MADENetwork,
    kernels: tf.Tensor,
    local: tf.Tensor,
    plan: tf.Tensor,
    observed: tf.Tensor,
    count: tf.Tensor,
    key: tf.Tensor,
) -> tf.Tensor:
    """Samples of the uniform mixture over the network's patterns, float32 `[N, D]` of zeros and ones.

    Args:
      network: whose parameters these are.
      kernels: float32 `[kernels.size]`, before connectivity.
      local: float32 `[local.size]`.
      plan: int32 `[plan_size]`.
      observed: float32 `[D]`, 0 at dimensions that only pad: those are 0 in every sample.
      count: N, int32.
      key: int32 `[2]`; equal keys give equal samples.
    """
    # A sample comes from one pattern as a whole; all samples of a pattern are drawn together.
    patterns = network.num_patterns
    of_sample = tf.random.stateless_uniform([count], _fold(key, patterns), 0, patterns, tf.int32)

    def one_pattern(pattern: tf.Tensor, drawn: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.where(tf.equal(of_sample, pattern))
        parts = network.parts(kernels * network.connectivity(plan, pattern), local)
        order = network.order(plan, pattern)
        new = _in_order(network, parts, order, observed, tf.shape(rows)[0], _fold(key, pattern))
        return pattern + 1, tf.tensor_scatter_nd_update(drawn, rows, new)

    start = (tf.constant(0), tf.zeros([count, network.config.input_size]))
    return tf.while_loop(lambda pattern, _: pattern < patterns, one_pattern, start)[1]


def _in_order(
    network: MADENetwork,
    parts: dict[str, tf.Tensor],
    order: tf.Tensor,
    observed: tf.Tensor,
    count: tf.Tensor,
    key: tf.Tensor,
) -> tf.Tensor:
    """Samples of one pattern, float32 `[count, D]`, one dimension after another.

    The sums that enter the first hidden layer and those that enter the outputs directly are carried along and grow by
    one row of a kernel with each dimension, so that a step costs no product with those kernels.
    """
    config, size = network.config, network.config.input_size
    by_place = tf.argsort(order)
    uniforms = tf.random.stateless_uniform([size, count], key)
    columns = tf.transpose(parts["output"]) if config.hidden else None

    def one_dimension(place: tf.Tensor, sums: tf.Tensor, logits: tf.Tensor, drawn: tf.TensorArray) -> tuple:
        here = by_place[place]
        logit = logits[:, here]
        if config.hidden:
            logit += tf.linalg.matvec(network.units(parts, sums)[-1], columns[here])
        bit = tf.cast(uniforms[place] < tf.sigmoid(logit), tf.float32) * observed[here]
        if config.hidden:
            sums += bit[:, None] * parts["hidden_0"][here]
        if config.direct:
            logits += bit[:, None] * parts["direct"][here]
        return place + 1, sums, logits, drawn.write(here, bit)

    first = parts["bias_hidden_0"] if config.hidden else tf.zeros([0])
    sums, logits = (tf.tile(bias[None], tf.stack([count, 1])) for bias in (first, parts["bias_output"]))
    start = (tf.constant(0), sums, logits, tf.TensorArray(tf.float32, size, element_shape=[None]))
    drawn = tf.while_loop(lambda place, *_: place < size, one_dimension, start)[3]
    return tf.transpose(drawn.stack())


# -- whether a MADE is a density at all: no output may depend on its own input or on a later one -------------------


def largest_leak(network: MADENetwork, kernels: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
    """The largest forbidden entry of the Jacobian of a network's outputs, float32; 0 where it is autoregressive.

    max |d logit_e / d x_d| over all d, e with order[d] >= order[e], of the network with the absolute values of its
    weights and softplus for its activation: there no path from an input to an output is cancelled by another, nor
    hidden by a unit that happens to be off. `kernels`, `[kernels.size]`, are times the connectivity; `order` is `[D]`.
    """
    open_network = MADENetwork(dataclasses.replace(network.config, activation="softplus"))
    local = tf.zeros([network.local.size])
    copies = tf.zeros([network.config.input_size] * 2)
    with tf.GradientTape() as tape:
        tape.watch(copies)
        # Output e of copy e: one gradient gives all rows of the Jacobian.
        total = tf.linalg.trace(open_network.logits(tf.abs(kernels), local, copies))
    slopes = tape.gradient(total, copies, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return tf.reduce_max(tf.where(order[None, :] >= order[:, None], slopes, 0.0))


def largest_leak_of_patterns(network: MADENetwork, kernels: tf.Tensor, plan: tf.Tensor) -> tf.Tensor:
    """The largest of `largest_leak` over all patterns; `kernels` are those before connectivity."""

    def of_pattern(pattern: tf.Tensor) -> tf.Tensor:
        return largest_leak(network, kernels * network.connectivity(plan, pattern), network.order(plan, pattern))

    return tf.reduce_max(tf.map_fn(of_pattern, tf.range(network.num_patterns), fn_output_signature=tf.float32))
