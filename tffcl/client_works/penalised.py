"""All penalties of a client work together: their entries of the state and their part of the server's vector."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Union

import tensorflow as tf

from tffcl import errors
from tffcl.client_works.fisher import Measure
from tffcl.client_works.outcome import all_finite, chosen
from tffcl.client_works.penalties import Penalty, Tensors, Term

# None, one penalty, or several.
Penalties = Union[Penalty, Sequence[Penalty], None]


class Penalised:
    """Zero or more penalties on kernels of `size` entries.

    Args:
      penalties: which.
      size: entries of the kernels.

    Attributes:
      state_type: types of what a client keeps for them.
      changes_in_round: names of the entries that a round changes.
      shared_size: entries that they add to the server's vector, after the kernels.

    Raises:
      InputError: something else than penalties, or two that would keep entries of the same name.
    """

    def __init__(self, penalties: Penalties, size: int):
        self._size, self._penalties = size, _as_tuple(penalties)
        self.state_type: OrderedDict = OrderedDict()
        for penalty in self._penalties:
            kept = penalty.state_type(size)
            if set(kept) & set(self.state_type):
                raise errors.InputError(
                    f"penalty: expected each kind once, found {type(penalty).__name__} again"
                )
            self.state_type.update(kept)
        self.changes_in_round = tuple(name for p in self._penalties for name in p.changes_in_round)
        self.shared_size = size * sum(penalty.shared_vectors for penalty in self._penalties)

    def initialize(self) -> Tensors:
        """A client's first entries: zeros."""
        return {name: tf.zeros(kind.shape, kind.dtype) for name, kind in self.state_type.items()}

    def kernels(self, shared: tf.Tensor) -> tf.Tensor:
        """The kernels in the server's vector, float32 `[size]`."""
        return shared[: self._size] if self.shared_size else shared

    def extended(self, values: tf.Tensor, extra: tf.Tensor | None = None) -> tf.Tensor:
        """`values`, `[size]`, and `extra`, `[shared_size]`, zeros unless given: `[size + shared_size]`."""
        if not self.shared_size:
            return values
        return tf.concat([values, tf.zeros([self.shared_size]) if extra is None else extra], 0)

    def repeated(self, values: tf.Tensor) -> tf.Tensor:
        """What holds for entries of the kernels, `[size]`, for all entries that stand for them."""
        return tf.tile(values, [1 + self.shared_size // self._size]) if self.shared_size else values

    def term(self, state: Tensors, shared: tf.Tensor) -> Term | None:
        """The sum of all penalties as a function of the kernels; None without any. See `Penalty.term`."""
        if not self._penalties:
            return None
        parts = tf.reshape(shared[self._size :], [-1, self._size])
        terms, start = [], 0
        for penalty in self._penalties:
            stop = start + penalty.shared_vectors
            terms.append(penalty.term(state, parts[start:stop]))
            start = stop
        return lambda kernels: tf.add_n([term(kernels) for term in terms])

    def end_round(self, state: Tensors, kernels: tf.Tensor, fisher: Measure) -> tuple[Tensors, tf.Tensor]:
        """Entries `changes_in_round`, and all uploads, float32 `[shared_size]`."""
        changed: dict[str, tf.Tensor] = {}
        uploads = [tf.zeros([0])]
        for penalty in self._penalties:
            entries, upload = penalty.end_round(state, kernels, fisher)
            changed.update(entries)
            uploads.append(tf.reshape(upload, [-1]))
        return changed, tf.concat(uploads, 0)

    def end_task(self, state: Tensors, kernels: tf.Tensor, fisher: Measure) -> Tensors:
        """Entries that the task's end changes; those of a penalty that are not all finite stay as they are."""
        changed: dict[str, tf.Tensor] = {}
        for penalty in self._penalties:
            new = penalty.end_task(state, kernels, fisher)
            if new:
                changed.update(chosen(all_finite(new.values()), new, state))
        return changed


def _as_tuple(penalties: Any) -> tuple[Penalty, ...]:
    if penalties is None:
        return ()
    found = (penalties,) if not isinstance(penalties, (list, tuple)) else tuple(penalties)
    for one in found:
        if not isinstance(one, Penalty):
            raise errors.InputError(f"penalty: expected a Penalty, found {type(one).__name__}")
    return found
