"""What the server does with an aggregate: a step of an optimizer, and server-side training (SST) after it.

SST rehearses on what clients have sent of all tasks so far: Park, Kumatani, Dimitriadis: Tackling Dynamics in Federated
Incremental Learning with Variational Embedding Rehearsal, 2021 (FIL-VER), section 3.3 and algorithm 1. Read literally,
its line 10 (eq. 10) rehearses only what arrived in this round, which is nothing old; section 3.3 speaks of "newly
arrived and saved" representations, which the memory here holds. Its loop `[0, S_max]` would make one step too many:
here there are S_max.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works import randomness
from tffcl.client_works import sharing as rehearsal_rows
from tffcl.client_works.optimizers import as_local_optimizer, empty_variable
from tffcl.client_works.sharing import Sharing
from tffcl.models.embedding_classifier import MLP
from tffcl.models.encoders import draw
from tffcl.models.network import CLASSES, cross_entropy, occurring
from tffcl.templates import FinalizerProcess
from tffcl.templates.messages import at_server, ordered

Tensors = Mapping[str, tf.Tensor]


@errors.checked_arguments
def build_server_update(
    shared_type: tff.TensorType,
    optimizer: tff.learning.optimizers.Optimizer | None = None,
    optimized: int | None = None,
) -> FinalizerProcess:
    """The server applies `optimizer` to the gradient -aggregate.

    The computation is `(<F@SERVER, W@SERVER, W@SERVER> -> <F@SERVER, W@SERVER, M@SERVER>)`, F the optimizer's state.
    Measurements: `update_norm`, the Euclidean norm of the optimizer's change, and `rejected`, 1 where the aggregate
    held a value that is not finite (a mean over no weight, say): then the server's value and state stay as they are.

    Shown in docs/contract.md.

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
        # Nothing moves if the aggregate is not finite; the optimizer moves the entries before `cut`, or all.
        if cut is None:
            new_state, new_shared = step.next(state, shared, -aggregate)
        else:
            new_state, moved = step.next(state, shared[:cut], -aggregate[:cut])
            new_shared = tf.concat([moved, shared[cut:] + aggregate[cut:]], 0)
        finite = tf.reduce_all(tf.math.is_finite(aggregate))
        kept_shared = tf.where(finite, new_shared, shared)
        kept_state = tf.nest.map_structure(lambda new, old: tf.where(finite, new, old), new_state, state)
        change = (kept_shared - shared) if cut is None else (kept_shared - shared)[:cut]
        measured = OrderedDict(update_norm=tf.norm(change), rejected=1 - tf.cast(finite, tf.int32))
        return kept_state, kept_shared, measured

    @tff.federated_computation
    def initialize() -> tff.Value:
        return tff.federated_eval(first_state, tff.SERVER)

    @tff.federated_computation(at_server(state_type), at_server(shared_type), at_server(shared_type))
    def next_step(state: tff.Value, shared: tff.Value, aggregate: tff.Value) -> Any:
        applied = tff.federated_map(apply, (state, shared, aggregate))
        return tff.templates.MeasuredProcessOutput(applied[0], applied[1], applied[2])

    return FinalizerProcess(initialize, next_step)


@dataclasses.dataclass(frozen=True)
class ServerSideTraining:
    """How the server rehearses.

    Shown in examples/fil_ver_emnist.py.

    Attributes:
      steps: S_max, steps after each round's aggregation.
      learning_rate: eta_s.
      batch_size: rows in a step; each pass over the memory takes them in a new order.
      memory: rows that the server keeps, whatever the number of tasks and clients.
      optimizer: None for Adam, or any `tff.learning.optimizers.Optimizer`; algorithm 1 prints plain gradient descent,
        which is `tff.learning.optimizers.build_sgdm()`. It starts anew in every round.

    Raises:
      InputError: a number that is not positive.
    """

    steps: int = 100
    learning_rate: float = 1e-3
    batch_size: int = 64
    memory: int = 6000
    optimizer: Any = None

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "memory"):
            errors.check_whole(name, getattr(self, name), 1)
        errors.check_above_zero("learning_rate", self.learning_rate)


@errors.checked_arguments
def build_server_side_training(
    inner: FinalizerProcess,
    classifier: MLP,
    sharing: Sharing,
    options: ServerSideTraining | None = None,
    seed: int = 0,
    label_mask: bool = False,
) -> FinalizerProcess:
    """What `inner` makes of the clients' updates (eq. 1), then S_max steps on the rehearsal memory.

    It takes aggregates `<weights=..., rehearsal=...>`: `inner`'s aggregate, and rows from all clients, of
    `tffcl.client_works.sharing.rows_type(sharing.width)`, which enter the memory first. Its state is that of
    `inner`, the memory, and a count of rounds, on which with `seed` all that it draws depends. An empty memory, or
    weights that would no longer be finite, leave what `inner` made. Measurements: `update`, those of `inner`; and
    `rehearsal`: `loss` (mean cross-entropy over the steps in nats; 0 without rows), `rows` in the memory, and
    `rejected`, 1 where the weights would no longer have been finite.

    Shown in docs/contract.md.

    Args:
      inner: a finalizer of the classifier's weights, such as `build_server_update` gives.
      classifier: whose weights the server shares.
      sharing: what the rows are.
      options: steps, learning rate, memory.
      seed: of the order of the rows, and of samples of statistics.
      label_mask: only the labels in memory compete (see `tffcl.models.network.competing`).

    Raises:
      ContractError: `inner` is of other weights than the classifier's.
      InputError: a sharing of nothing.
    """
    if sharing.kind == "none":
        raise errors.InputError("server-side training: needs a sharing; with 'none' nothing comes to train on")
    options = options or ServerSideTraining()
    _, shared_type, update_type = inner.next.type_signature.parameter
    wanted = tff.TensorType(np.float32, [classifier.weights.size])
    if shared_type.member != wanted:
        raise errors.ContractError(
            f"server-side training: inner finalizer is of {shared_type}, the classifier of {wanted}"
        )
    types = rehearsal_rows.rows_type(sharing.width)
    rows_type = tff.to_type(types)
    count_type = tff.TensorType(np.int32)

    @tff.tensorflow.computation
    def no_rows() -> OrderedDict:
        return ordered("memory", rehearsal_rows.no_rows(sharing.width), types)

    @tff.tensorflow.computation(rows_type, rows_type)
    def remember(memory: OrderedDict, arrived: OrderedDict) -> OrderedDict:
        return ordered("memory", rehearsal_rows.remember(memory, arrived, options.memory), types)

    @tff.tensorflow.computation(wanted, rows_type, count_type)
    def rehearse(shared: tf.Tensor, memory: OrderedDict, round_num: tf.Tensor) -> tuple:
        return _trainer(classifier, sharing, options, seed, label_mask)(shared, dict(memory), round_num)

    one_more = tff.tensorflow.computation(lambda count: count + 1, count_type)

    @tff.federated_computation
    def initialize() -> tff.Value:
        return tff.federated_zip(
            OrderedDict(
                inner=inner.initialize(),
                memory=tff.federated_eval(no_rows, tff.SERVER),
                round_num=tff.federated_value(0, tff.SERVER),
            )
        )

    aggregate_type = OrderedDict(weights=update_type.member, rehearsal=rows_type)

    @tff.federated_computation(initialize.type_signature.result, shared_type, at_server(aggregate_type))
    def next_step(state: tff.Value, shared: tff.Value, aggregate: tff.Value) -> Any:
        updated = inner.next(state.inner, shared, aggregate.weights)
        memory = tff.federated_map(remember, (state.memory, aggregate.rehearsal))
        trained = tff.federated_map(rehearse, (updated.result, memory, state.round_num))
        new_state = OrderedDict(
            inner=updated.state, memory=memory, round_num=tff.federated_map(one_more, state.round_num)
        )
        measured = OrderedDict(update=updated.measurements, rehearsal=trained[1])
        return tff.templates.MeasuredProcessOutput(
            tff.federated_zip(new_state), trained[0], tff.federated_zip(measured)
        )

    return FinalizerProcess(initialize, next_step)


def _trainer(
    classifier: MLP, sharing: Sharing, options: ServerSideTraining, seed: int, label_mask: bool
) -> Callable[[tf.Tensor, Tensors, tf.Tensor], tuple[tf.Tensor, OrderedDict]]:
    """Allocates the variables and returns the compiled steps."""
    weights = empty_variable([classifier.weights.size])
    optimizer = as_local_optimizer(options.optimizer)
    slots = optimizer.allocate([weights])
    rate = tf.constant(options.learning_rate)
    size = sharing.encoder.embedding_size

    @tf.function(autograph=False, reduce_retracing=True)
    def run(shared: tf.Tensor, memory: Tensors, round_num: tf.Tensor) -> tuple[tf.Tensor, OrderedDict]:
        weights.assign(shared)
        count = tf.size(memory["label"])
        mask = {CLASSES: occurring(memory["label"], classifier.classes)} if label_mask else {}
        key = randomness.fold(randomness.root_key(seed), randomness.SERVER)
        key = randomness.fold(key, randomness.ROUNDS + round_num)

        def one_step(step: tf.Tensor, state: Any, total: tf.Tensor) -> tuple[tf.Tensor, Any, tf.Tensor]:
            rows = _batch(step, count, options.batch_size, key)
            step_key = randomness.fold(randomness.fold(key, randomness.SAMPLES), step)
            z = draw(tf.gather(memory["vectors"], rows), step_key, size, sharing.as_stats)
            labels = {"label": tf.gather(memory["label"], rows)}
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(weights)
                loss = tf.reduce_mean(cross_entropy(classifier.logits(weights.read_value(), z), mask, labels))
            state = optimizer.step(slots, state, [weights], [tape.gradient(loss, weights)], rate)
            return step + 1, state, total + loss

        steps = tf.where(count > 0, options.steps, 0)
        start = (tf.constant(0), optimizer.begin(slots, [weights]), tf.constant(0.0))
        _, _, total = tf.while_loop(lambda step, *_: step < steps, one_step, start, parallel_iterations=1)
        trained = weights.read_value()
        finite = tf.reduce_all(tf.math.is_finite(trained))
        measured = OrderedDict(loss=total / options.steps, rows=count, rejected=1 - tf.cast(finite, tf.int32))
        return tf.where(finite, trained, shared), measured

    return run


def _batch(step: tf.Tensor, count: tf.Tensor, batch_size: int, key: tf.Tensor) -> tf.Tensor:
    """Numbers of the rows of a step: consecutive parts of a permutation, a new one for each pass."""
    batches = -(-count // batch_size)
    order = tf.random.experimental.stateless_shuffle(tf.range(count), randomness.fold(key, step // batches))
    first = step % batches * batch_size
    return order[first : first + batch_size]
