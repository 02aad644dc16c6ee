"""Server-side training (SST): after aggregation the server rehearses on what clients have sent of all tasks so far.

Source: Park, Kumatani, Dimitriadis: Tackling Dynamics in Federated Incremental Learning with Variational Embedding
Rehearsal, 2021 (FIL-VER), section 3.3 and algorithm 1.
Read literally, its line 10 (eq. 10) rehearses only what arrived in this round, which is nothing old;
section 3.3 speaks of "newly arrived and saved" representations, and that is what the memory here holds. Its loop
`[0, S_max]` would make one step too many: here there are S_max.
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
from tffcl.client_works import randomness, rehearsal_memory
from tffcl.client_works.optimizers import as_local_optimizer, empty_variable
from tffcl.client_works.sharing import Sharing
from tffcl.models.encoders import draw
from tffcl.models.mlp import MLP
from tffcl.models.network import CLASSES, competing, occurring
from tffcl.templates import FinalizerProcess
from tffcl.templates.tff_types import at_server, ordered

Tensors = Mapping[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class ServerSideTraining:
    """How the server rehearses.

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
            if getattr(self, name) < 1:
                raise errors.InputError(f"{name}: expected at least 1, found {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise errors.InputError(f"learning_rate: expected a positive number, found {self.learning_rate}")


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

    It takes aggregates `<weights=..., rehearsal=...>`: `inner`'s aggregate, and rows of
    `rehearsal_memory.rows_type(sharing.width)` from all clients, which enter the memory first. Its state is that of
    `inner`, the memory, and a count of rounds, on which with `seed` all that it draws depends. An empty memory, or
    weights that would no longer be finite, leave what `inner` made. Measurements: `update`, those of `inner`; and
    `rehearsal`: `loss` (mean cross-entropy over the steps in nats; 0 without rows), `rows` in the memory, and
    `rejected`, 1 where the weights would no longer have been finite.

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
    types = rehearsal_memory.rows_type(sharing.width)
    rows_type = tff.to_type(types)
    count_type = tff.TensorType(np.int32)

    @tff.tensorflow.computation
    def no_rows() -> OrderedDict:
        return ordered("memory", rehearsal_memory.no_rows(sharing.width), types)

    @tff.tensorflow.computation(rows_type, rows_type)
    def remember(memory: OrderedDict, arrived: OrderedDict) -> OrderedDict:
        return ordered("memory", rehearsal_memory.remember(memory, arrived, options.memory), types)

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
            labels = tf.gather(memory["label"], rows)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(weights)
                logits = competing(classifier.logits(weights.read_value(), z), mask)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
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
    place = step % batches
    return order[place * batch_size : (place + 1) * batch_size]
