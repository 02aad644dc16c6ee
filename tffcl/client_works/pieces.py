"""A flat vector that is trained as several variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Union

import tensorflow as tf

from tffcl.client_works.optimizers import empty_variable


class PiecewiseVariable:
    """A float32 vector in pieces, each with a gradient and optimizer slots of its own.

    A million entries of FedSeIT's W_f among a client's local parameters need not be put together with the rest in
    every step, only where a round begins and ends.

    Args:
      sizes: entries of each piece.
    """

    def __init__(self, sizes: Sequence[int]):
        self._sizes = list(sizes)
        self.pieces = [empty_variable([size]) for size in sizes]

    def assign(self, flat: tf.Tensor) -> None:
        """Takes over a `[sum of sizes]` vector."""
        for piece, value in zip(self.pieces, tf.split(flat, self._sizes)):
            piece.assign(value)

    def read_value(self) -> tf.Tensor:
        """The `[sum of sizes]` vector."""
        return tf.concat(self.read_pieces(), 0)

    def read_pieces(self) -> tuple[tf.Tensor, ...]:
        """The vector in pieces, as `VectorLayout.split` also takes it."""
        return tuple(piece.read_value() for piece in self.pieces)


Variables = Mapping[str, Union[tf.Variable, PiecewiseVariable]]


def variables_of(variable: tf.Variable | PiecewiseVariable) -> list[tf.Variable]:
    """What an optimizer is to change."""
    return variable.pieces if isinstance(variable, PiecewiseVariable) else [variable]


def read(variable: tf.Variable | PiecewiseVariable) -> tf.Tensor | tuple[tf.Tensor, ...]:
    """The value as a network takes it: in pieces where it is held in pieces."""
    return variable.read_pieces() if isinstance(variable, PiecewiseVariable) else variable.read_value()
