"""The choices of a MADE."""

from __future__ import annotations

import dataclasses
import math
from typing import Union

import tensorflow as tf

from tffcl import errors
from tffcl.layers.autoregressive import AutoregressiveMask, as_order

ACTIVATIONS = {
    "elu": tf.nn.elu,
    "gelu": tf.nn.gelu,
    "leaky_relu": tf.nn.leaky_relu,
    "relu": tf.nn.relu,
    "selu": tf.nn.selu,
    "sigmoid": tf.nn.sigmoid,
    "softplus": tf.nn.softplus,
    "swish": tf.nn.swish,
    "tanh": tf.nn.tanh,
}


@dataclasses.dataclass(frozen=True)
class MADEConfig:
    """Sizes and masks of a MADE.

    Attributes:
      input_size: D, binary inputs.
      hidden: units of each hidden layer; may be empty with `direct`.
      direct: whether inputs are connected to outputs directly, too (DC in the paper's tables).
      order: places of the inputs: 'natural', 'random' (drawn once, with the plan), or a permutation of 1..D.
      order_agnostic: every pattern has an order of its own, drawn at random (OA).
      connectivity_agnostic: every pattern has numbers of the hidden units of its own (CA).
      num_masks: J, patterns that training goes through and evaluation averages over.
      activation: of the hidden units, one of `ACTIVATIONS`.
      share_biases: biases are the server's, like the kernels; else they belong to the task.
      synchronised: all clients go by the server's masks; else each draws its own (table 1).
      attention_start: the first attention.
      base_scale: width of the base's first values, in units of Glorot's.
    """

    input_size: int
    hidden: tuple[int, ...] = (500,)
    direct: bool = True
    order: Union[str, tuple[int, ...]] = "natural"
    order_agnostic: bool = False
    connectivity_agnostic: bool = False
    num_masks: int = 1
    activation: str = "relu"
    share_biases: bool = False
    synchronised: bool = True
    attention_start: float = 0.0
    base_scale: float = 1.0

    def __post_init__(self) -> None:
        _ = self.masks  # checks the sizes
        self._check_order()
        self._check_patterns()
        if self.activation not in ACTIVATIONS:
            raise errors.InputError(
                f"activation: expected one of {sorted(ACTIVATIONS)}, found {self.activation!r}"
            )
        if not self.base_scale > 0:
            raise errors.InputError(f"base_scale: expected a positive number, found {self.base_scale}")
        if not math.isfinite(self.attention_start):
            raise errors.InputError(
                f"attention_start: expected a finite number, found {self.attention_start}"
            )

    @property
    def masks(self) -> AutoregressiveMask:
        """What makes the masks of this network."""
        return AutoregressiveMask(self.input_size, self.hidden, self.direct)

    def _check_order(self) -> None:
        if isinstance(self.order, str):
            if self.order not in ("natural", "random"):
                raise errors.InputError(
                    f"order: expected 'natural', 'random' or a permutation, found {self.order!r}"
                )
            return
        as_order(self.order, self.input_size)
        if self.order_agnostic:
            raise errors.InputError("order: a permutation and order_agnostic=True contradict each other")

    def _check_patterns(self) -> None:
        if self.num_masks < 1:
            raise errors.InputError(f"num_masks: expected at least 1, found {self.num_masks}")
        if self.connectivity_agnostic and not self.hidden:
            raise errors.InputError("connectivity_agnostic: expected hidden layers, found none")
        if self.num_masks > 1 and not (self.order_agnostic or self.connectivity_agnostic):
            raise errors.InputError(
                f"num_masks: {self.num_masks} masks would all be one; "
                "more than 1 needs order_agnostic or connectivity_agnostic"
            )
