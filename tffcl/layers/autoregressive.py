"""Autoregressive masks (ConFedMADE eq. 4): which weights of an autoencoder may be other than zero.

Every input d has a place order[d] in 1..D and every hidden unit k a number m(k). A unit may see inputs up to its
number, an output only units and inputs before its own place. All masks of a network are made from one order and
one set of numbers together: a mask of another order lets an output see its own input, and the result is no density.

Sources: ConFedMADE (Paul et al., 2023) and MADE (Germain et al., ICML 2015).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tffcl import errors


@dataclasses.dataclass(frozen=True)
class AutoregressiveMask:
    """Makes the masks of a network of given sizes from a key and an order, eagerly or while it is traced.

    >>> network = AutoregressiveMask(input_size=3, hidden=(2,), direct=True)
    >>> masks = network(tf.constant([1, 2]), order=[1, 2, 3])
    >>> {name: tuple(mask.shape) for name, mask in masks.items()}
    {'hidden_0': (3, 2), 'output': (2, 3), 'direct': (3, 3)}
    >>> print(masks["direct"].numpy())
    [[0. 1. 1.] [0. 0. 1.] [0. 0. 0.]]

    Attributes:
      input_size: D, inputs and outputs.
      hidden: units of each hidden layer; none at all where the direct connection does everything.
      direct: whether inputs are also connected to outputs directly.
    """

    input_size: int
    hidden: tuple[int, ...] = ()
    direct: bool = True

    def __post_init__(self) -> None:
        if self.input_size < 1:
            raise errors.InputError(f"input_size: expected at least 1, found {self.input_size}")
        if any(width < 1 for width in self.hidden):
            raise errors.InputError(f"hidden: expected layers of at least 1 unit, found {self.hidden}")
        if not self.hidden and not self.direct:
            raise errors.InputError("hidden: expected at least one layer, or direct=True, found neither")

    @property
    def parts(self) -> tuple[tuple[str, tuple[int, int]], ...]:
        """Name and shape (from, to) of each kernel: `hidden_0`, ..., `output`, `direct`."""
        widths = (self.input_size, *self.hidden)
        parts = [(f"hidden_{i}", shape) for i, shape in enumerate(zip(widths, widths[1:]))]
        if self.hidden:
            parts.append(("output", (widths[-1], self.input_size)))
        if self.direct:
            parts.append(("direct", (self.input_size, self.input_size)))
        return tuple(parts)

    def numbers(self, key: tf.Tensor) -> list[tf.Tensor]:
        """m(k) of the units of each hidden layer, uniform on [least number in the layer below, D - 1].

        Args:
          key: int32 `[2]`.

        Returns:
          int32 `[units]` for each layer. With D = 1 all are 0: those units see nothing, and the output sees them.
        """
        least: tf.Tensor | int = min(1, self.input_size - 1)
        drawn: list[tf.Tensor] = []
        for layer, width in enumerate(self.hidden):
            folded = tf.random.experimental.stateless_fold_in(key, layer)
            drawn.append(tf.random.stateless_uniform([width], folded, least, self.input_size, tf.int32))
            least = tf.reduce_min(drawn[-1])
        return drawn

    def __call__(self, key: tf.Tensor, order: Any) -> dict[str, tf.Tensor]:
        """The masks of all kernels under one order and one draw of numbers.

        Args:
          key: int32 `[2]`, of the numbers of the hidden units.
          order: int32 `[D]`, the place of each input, a permutation of 1..D.

        Returns:
          float32 of zeros and ones for each of `parts`, in their shapes.

        Raises:
          InputError: `order` is no permutation of 1..D, where its value is known.
        """
        return self.of_numbers(self.numbers(key), order)

    def of_numbers(self, numbers: Sequence[Any], order: Any) -> dict[str, tf.Tensor]:
        """The masks for given numbers m(k), int32 `[units]` for each hidden layer; else as `__call__`.

        Raises:
          InputError: as `__call__`, or there are numbers for another depth.
        """
        if len(numbers) != len(self.hidden):
            raise errors.InputError(f"numbers: expected {len(self.hidden)} layers, found {len(numbers)}")
        order = as_order(order, self.input_size)
        layers = [order, *(tf.convert_to_tensor(n, tf.int32) for n in numbers)]
        # M^W: a unit's number is at least that of what it sees. M^V: an output's place comes after it.
        masks = {f"hidden_{i}": to >= below[:, None] for i, (below, to) in enumerate(zip(layers, layers[1:]))}
        if numbers:
            masks["output"] = order > layers[-1][:, None]
        if self.direct:
            masks["direct"] = order > order[:, None]
        return {name: tf.cast(mask, tf.float32) for name, mask in masks.items()}


def random_order(key: tf.Tensor, input_size: int) -> tf.Tensor:
    """A permutation of 1..D that depends on `key` (int32 `[2]`) alone: int32 `[D]`."""
    return tf.random.experimental.stateless_shuffle(tf.range(1, input_size + 1), key)


def as_order(order: Any, input_size: int) -> tf.Tensor:
    """An order as int32 `[D]`.

    Args:
      order: integers; a tensor whose value is known only at run time is not checked.
      input_size: D.

    Raises:
      InputError: it is no permutation of 1..D.
    """
    known = tf.get_static_value(order) if tf.is_tensor(order) else np.asarray(order)
    if known is not None and not np.array_equal(np.sort(known), np.arange(1, input_size + 1)):
        raise errors.InputError(
            f"order: expected a permutation of 1..{input_size}, found {np.array2string(known, threshold=8)}"
        )
    return tf.ensure_shape(tf.cast(order, tf.int32), [input_size])
