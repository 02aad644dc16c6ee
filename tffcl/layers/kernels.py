"""Decomposed kernels as pure functions on flat vectors: base, mask and adaptive (FedSeIT eq. 1, FedWeIT eq. 4).

A network's shared kernels cross the border of a federated computation as one flat float32 vector; a
`KernelLayout` says which slice is which kernel. A mask has one logit for each output unit (the last axis of a
kernel).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Union

import tensorflow as tf

from tffcl import errors

Vector = Union[tf.Tensor, "tuple[tf.Tensor, ...]"]  # one, or the pieces that make it end to end


@dataclasses.dataclass(frozen=True)
class VectorLayout:
    """Named tensors laid end to end in one flat float32 vector.

    >>> layout = VectorLayout((("weight", (2, 3)), ("bias", (3,))))
    >>> layout.size
    9
    """

    parts: tuple[tuple[str, tuple[int, ...]], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.parts]
        if len(set(names)) != len(names):
            raise errors.InputError(f"layout: every part needs a name of its own, found {names}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Entries in each part."""
        return tuple(math.prod(shape) for _, shape in self.parts)

    @property
    def size(self) -> int:
        """Entries of all parts together."""
        return sum(self.sizes)

    def slice_of(self, name: str) -> slice:
        """Where the part called `name` stands in the vector.

        Raises:
          InputError: there is no such part.
        """
        start = 0
        for (part, _), size in zip(self.parts, self.sizes):
            if part == name:
                return slice(start, start + size)
            start += size
        raise errors.InputError(f"layout: no part named {name!r}; there are {[p for p, _ in self.parts]}")

    def of_kernels(self) -> tf.Tensor:
        """1 for the entries of parts with two axes or more, which weight decay acts on, 0 for biases: `[size]`."""
        return self.join({name: tf.fill(shape, float(len(shape) > 1)) for name, shape in self.parts})

    def split(self, flat: Vector) -> dict[str, tf.Tensor]:
        """The named tensors of a `[size]` vector, or of vectors of whole parts that make it end to end."""
        if isinstance(flat, tuple):
            runs = _runs(self.sizes, [vector.shape[0] for vector in flat])
            pieces = [piece for vector, sizes in zip(flat, runs) for piece in _cut(vector, sizes)]
        else:
            pieces = _cut(flat, self.sizes)
        return {name: tf.reshape(piece, shape) for (name, shape), piece in zip(self.parts, pieces)}

    def join(self, tensors: dict[str, tf.Tensor]) -> tf.Tensor:
        """The `[size]` vector of the named tensors; the inverse of `split`."""
        if not self.parts:
            return tf.zeros([0])
        return tf.concat([tf.reshape(tensors[name], [-1]) for name, _ in self.parts], 0)


def _runs(sizes: Sequence[int], totals: Sequence[int]) -> list[list[int]]:
    """Consecutive runs of `sizes`, one for each of `totals`, which they sum to."""
    runs, rest = [], list(sizes)
    for total in totals:
        count = sum(end <= total for end in itertools.accumulate(rest))
        runs.append(rest[:count])
        rest = rest[count:]
    if rest or [sum(run) for run in runs] != list(totals):
        raise errors.InputError(f"split: expected pieces of whole parts {list(sizes)}, found {list(totals)}")
    return runs


def _cut(flat: tf.Tensor, sizes: Sequence[int]) -> list[tf.Tensor]:
    """`tf.split` of a vector without its copies: a slice at an aligned place shares the memory of the whole.

    The gradient of a slice fills the whole vector with zeros, once for each slice; that of all together is one
    concatenation.
    """
    if not sizes:
        return []
    starts = itertools.accumulate(sizes[:-1], initial=0)
    spans = [([start], [size]) for start, size in zip(starts, sizes)]

    @tf.custom_gradient
    def cut(flat: tf.Tensor) -> tuple[list[tf.Tensor], Callable]:
        return [tf.slice(flat, *span) for span in spans], lambda *upstream: tf.concat(upstream, 0)

    return cut(tf.ensure_shape(flat, [sum(sizes)]))


@dataclasses.dataclass(frozen=True)
class KernelLayout(VectorLayout):
    """The layout of kernels that are decomposed; the last axis of each kernel is its output units.

    Shown with `VectorLayout`.
    """

    @property
    def units(self) -> tuple[int, ...]:
        """Output units of each kernel: the number of mask logits that it has."""
        return tuple(shape[-1] for _, shape in self.parts)

    @property
    def mask_size(self) -> int:
        """Mask logits in all."""
        return sum(self.units)

    def spread(self, per_unit: tf.Tensor) -> tf.Tensor:
        """Repeats `[..., mask_size]` values over the entries of their units: `[..., size]`."""
        return tf.concat(self.spread_by_kernel(per_unit), axis=-1)

    def spread_by_kernel(self, per_unit: tf.Tensor) -> list[tf.Tensor]:
        """As `spread`, each kernel by itself: `[..., size of the kernel]`."""
        pieces = tf.split(per_unit, list(self.units), axis=-1)
        lead = [1] * (len(per_unit.shape) - 1)
        rows = [size // units for size, units in zip(self.sizes, self.units)]
        return [tf.tile(p, [*lead, r]) for p, r in zip(pieces, rows)]

    def by_kernel(self, flat: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """A `[size]` vector cut into its kernels, which share its memory where they are aligned."""
        return tuple(_cut(flat, self.sizes))

    def columns(self, rows: tf.Tensor) -> list[tf.Tensor]:
        """The kernels of each row of `[k, size]` by themselves: `[k, size of the kernel]` each, as copies."""
        return tf.split(rows, list(self.sizes), axis=1)


def decomposed_kernel(layout: KernelLayout, base: Vector, mask_logits: tf.Tensor, adaptive: Vector) -> Vector:
    """The kernel theta = B * sigmoid(m) + A (FedSeIT eq. 1).

    As tuples, base and adaptive are in the pieces of `layout.by_kernel`, and so is theta: vectors of a million entries
    need not be joined, and be cut again, in every step.

    Args:
      layout: the kernels that the vectors hold.
      base: B, float32 `[size]`.
      mask_logits: m, float32 `[..., mask_size]`.
      adaptive: A, float32 `[..., size]`.

    Returns:
      theta, float32 `[..., size]`.
    """
    if isinstance(base, tuple):
        gates = layout.spread_by_kernel(tf.sigmoid(mask_logits))
        return tuple(b * gate + a for b, gate, a in zip(base, gates, adaptive))
    return base * layout.spread(tf.sigmoid(mask_logits)) + adaptive


def foreign_sum(layout: KernelLayout, attention: tf.Tensor, foreign: tf.Tensor | Sequence[tf.Tensor]) -> tf.Tensor:
    """sum_k alpha_k A_k, what FedWeIT adds into a kernel (FedSeIT eq. 4).

    Args:
      layout: the kernels that the vectors hold.
      attention: alpha, float32 `[k, kernels]`, one scalar for each entry and kernel.
      foreign: the foreign adaptives A_k, float32 `[k, size]`, k may be 0; or, where they are used many times, what
        `layout.columns` makes of them.

    Returns:
      float32 `[size]`.
    """
    return tf.concat(foreign_sums(layout, attention, foreign), 0)


def foreign_sums(
    layout: KernelLayout, attention: tf.Tensor, foreign: tf.Tensor | Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """As `foreign_sum`, each kernel by itself."""
    pieces = layout.columns(foreign) if isinstance(foreign, tf.Tensor) else foreign
    columns = tf.unstack(attention, axis=1)
    return [tf.linalg.matvec(p, a, transpose_a=True) for p, a in zip(pieces, columns)]


def prune(values: tf.Tensor, threshold: float) -> tf.Tensor:
    """Sets entries with |value| <= threshold to zero."""
    return tf.where(tf.abs(values) > threshold, values, tf.zeros_like(values))


def soft_threshold(values: tf.Tensor, threshold: float) -> tf.Tensor:
    """argmin_a (a - v)^2 / 2 + threshold |a|: each entry moves towards zero by at most `threshold`."""
    return tf.sign(values) * tf.nn.relu(tf.abs(values) - threshold)


@tf.custom_gradient
def absolute_sum(values: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """The scalar sum |v|. Its gradient is one pass over the entries, where that of the two operations takes three."""
    return tf.reduce_sum(tf.abs(values)), lambda upstream: upstream * tf.sign(values)


def glorot_limit(shape: Sequence[int]) -> float:
    """Half the width of Glorot's uniform distribution for a kernel of this shape (last axes: in, out)."""
    receptive = math.prod(shape[:-2])
    fan_in = shape[-2] * receptive if len(shape) > 1 else shape[0]
    return math.sqrt(6.0 / (fan_in + shape[-1] * receptive))
