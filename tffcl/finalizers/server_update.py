"""The server update: one step of an optimizer along the clients' aggregate."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.templates import FinalizerProcess
from tffcl.templates.tff_types import at_server


@errors.checked_arguments
def build_server_update(
    shared_type: tff.TensorType,
    optimizer: tff.learning.optimizers.Optimizer | None = None,
    optimized: int | None = None,
) -> FinalizerProcess:
    """The server applies `optimizer` to the gradient -aggregate.

    The computation is `(<F@SERVER, W@SERVER, W@SERVER> -> <F@SERVER, W@SERVER, M@SERVER>)` with F the
    optimizer's state. Measurements: `update_norm`, the Euclidean norm of what the optimizer changed, and `rejected`, 1
    where the aggregate held a value that is not finite (a mean over no weight at all, say): then the
    server's value and state stay as they are.

    Args:
      shared_type: W, a float32 tensor of known shape.
      optimizer: SGD with learning rate 1 unless given, which makes the server's new value exactly old +
        aggregate (an entry whose aggregate is 0 keeps every bit); `tff.learning.optimizers.build_adam(...)`
        gives FedAdam, and so on. An optimizer with momentum may also move entries that nobody sent.
      optimized: so many of the first entries of a vector are the optimizer's; to those after them the aggregate is
        added (sums over clients, which are no gradient). None for all.

    Raises:
      ContractError: `shared_type` is not a float32 tensor of known shape, or not a vector of so many entries.
    """
    tensor = isinstance(shared_type, tff.TensorType) and shared_type.dtype == np.float32
    if not tensor or shared_type.shape is None or None in shared_type.shape:
        raise errors.ContractError(
            f"server update: shared_type should be a float32 tensor of known shape, found {shared_type}"
        )
    if optimized is not None and not (len(shared_type.shape) == 1 and 0 < optimized <= shared_type.shape[0]):
        raise errors.ContractError(
            f"server update: shared_type should be a vector of {optimized} entries or more, found {shared_type}"
        )
    step = optimizer or tff.learning.optimizers.build_sgdm(learning_rate=1.0)
    cut = optimized if optimized is not None and optimized < shared_type.shape[0] else None
    spec = tf.TensorSpec(shared_type.shape if cut is None else [cut], shared_type.dtype)
    first_state = tff.tensorflow.computation(lambda: step.initialize(spec))
    state_type = first_state.type_signature.result

    @tff.tensorflow.computation(state_type, shared_type, shared_type)
    def apply(state: Any, shared: tf.Tensor, aggregate: tf.Tensor) -> tuple:
        return _apply(step, state, shared, aggregate, cut)

    @tff.federated_computation
    def initialize() -> tff.Value:
        return tff.federated_eval(first_state, tff.SERVER)

    @tff.federated_computation(at_server(state_type), at_server(shared_type), at_server(shared_type))
    def next_step(state: tff.Value, shared: tff.Value, aggregate: tff.Value) -> Any:
        applied = tff.federated_map(apply, (state, shared, aggregate))
        return tff.templates.MeasuredProcessOutput(applied[0], applied[1], applied[2])

    return FinalizerProcess(initialize, next_step)


def _apply(
    optimizer: tff.learning.optimizers.Optimizer, state: Any, shared: tf.Tensor, aggregate: tf.Tensor, cut: int | None
) -> tuple:
    """The new state, the new shared value, measurements; nothing moves if the aggregate is not finite.

    The optimizer moves the entries before `cut`, or all.
    """
    if cut is None:
        new_state, new_shared = optimizer.next(state, shared, -aggregate)
    else:
        new_state, moved = optimizer.next(state, shared[:cut], -aggregate[:cut])
        new_shared = tf.concat([moved, shared[cut:] + aggregate[cut:]], 0)
    finite = tf.reduce_all(tf.math.is_finite(aggregate))
    kept_shared = tf.where(finite, new_shared, shared)
    kept_state = tf.nest.map_structure(lambda new, old: tf.where(finite, new, old), new_state, state)
    rejected = 1 - tf.cast(finite, tf.int32)
    change = (kept_shared - shared) if cut is None else (kept_shared - shared)[:cut]
    return kept_state, kept_shared, OrderedDict(update_norm=tf.norm(change), rejected=rejected)
