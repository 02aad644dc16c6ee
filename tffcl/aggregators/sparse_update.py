"""The type of a sparse update: what changed, and which entries of it were sent."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.templates.tff_types import entries

WANTED = "<delta=float32[n],sent=bool[n]>"


def delta_type(update_type: tff.Type, aggregator: str) -> tff.TensorType:
    """The type of `delta` in an update `<delta=float32[n],sent=bool[n]>`.

    Raises:
      ContractError: the update is of another type.
    """
    parts = entries(update_type) if isinstance(update_type, tff.StructType) else {}
    if list(parts) == ["delta", "sent"] and all(isinstance(part, tff.TensorType) for part in parts.values()):
        delta, sent = parts["delta"], parts["sent"]
        known = delta.shape is not None and None not in delta.shape and delta.shape == sent.shape
        if known and delta.dtype == np.float32 and sent.dtype == np.bool_:
            return delta
    raise errors.ContractError(f"{aggregator}: takes updates of {WANTED}, found {update_type}")


def only_sent(update: dict[str, tf.Tensor]) -> tf.Tensor:
    """`delta` where it was sent, else 0: an entry that was not sent has no effect, not even as NaN."""
    return tf.where(update["sent"], update["delta"], tf.zeros_like(update["delta"]))
