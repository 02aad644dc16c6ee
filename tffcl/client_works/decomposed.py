"""The decomposed client work: base, mask and adaptive of FedWeIT and FedSeIT (FedSeIT algorithm 1, eq. 1-5).

A client keeps one base B. For each task it has a mask m, an adaptive A, attention alpha over foreign adaptives and
local parameters (biases, projections, head). One round: B takes the entries that the server has, all parameters of
the current task train together, and the entries of B that the mask lets through go back.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works import randomness
from tffcl.client_works.evaluation import classification_sums, mean_cross_entropy
from tffcl.client_works.optimizers import empty_variable
from tffcl.client_works.outcome import all_finite, base_metrics
from tffcl.client_works.retention import build_retention, penalty
from tffcl.client_works.training import LocalTraining, ParameterGroup, TrainingLoop, num_examples
from tffcl.layers.kernels import decomposed_kernel, foreign_sum, prune
from tffcl.models.network import Network
from tffcl.templates import ClientWork

_CURRENT = ("mask_logits", "adaptive", "attention", "local")
_GATES = ("mask_logits", "attention")


@dataclasses.dataclass(frozen=True)
class Decomposition:
    """What the decomposed client work may be told (names and values of FedSeIT table 4 where it has them).

    Attributes:
      sparsity: lambda_1, weight of the L1 norm of sigmoid(m) and A, and the size below which A is pruned when it
        is sent and evaluated.
      retention: lambda_2, weight of the retroactive penalty.
      retention_form: 'closed_form' or 'gradient' (`tffcl.client_works.retention`).
      adaptive_factor: a task's A starts at B / adaptive_factor.
      mask_start: sigmoid(m) at the start of a task.
      gate_cutoff: entries of B whose sigmoid(m) is at most this are not sent (ConFedMADE table 4).
      base_upload: 'gated' sends B where the gate is open, unscaled; 'scaled' sends B * sigmoid(m), as printed.
      proximal: FedProx's mu on B; 0 for FedAvg.
      share_dense: DLS, share the network's shareable local parts too.
      exchange: False keeps the client to itself: nothing of the server enters (the baseline `local`).
    """

    sparsity: float = 1e-3
    retention: float = 1.0
    retention_form: str = "closed_form"
    adaptive_factor: float = 5.0
    mask_start: float = 0.5
    gate_cutoff: float = 0.25
    base_upload: str = "gated"
    proximal: float = 0.0
    share_dense: bool = False
    exchange: bool = True

    def __post_init__(self) -> None:
        if not 0.0 < self.mask_start < 1.0:
            raise errors.InputError(f"mask_start: expected a number between 0 and 1, found {self.mask_start}")
        if self.base_upload not in ("gated", "scaled"):
            raise errors.InputError(f"base_upload: expected 'gated' or 'scaled', found {self.base_upload!r}")
        if self.adaptive_factor == 0:
            raise errors.InputError("adaptive_factor: expected a number other than 0")


class DecomposedWork(ClientWork):
    """Client work for any `Network`, with or without foreign adaptives."""

    def __init__(
        self, network: Network, training: LocalTraining, decomposition: Decomposition, seed: int = 0
    ):
        self.network = network
        self.training = training
        self.options = decomposition
        self._seed = seed
        self._retention = build_retention(
            decomposition.retention_form, decomposition.sparsity, decomposition.retention
        )
        self._dense = network.shareable if decomposition.share_dense else ()
        self._set_types()

    def _set_types(self) -> None:
        network, f32 = self.network, np.float32
        size, masks, local = network.kernels.size, network.kernels.mask_size, network.local.size
        kernel, rows = tff.TensorType(f32, [size]), tff.TensorType(f32, [None, size])
        attention = list(network.attention_shape)
        state = OrderedDict(
            key=tff.TensorType(np.int32, [2]),
            task=tff.TensorType(np.int32),
            base=kernel,
            schedule=tff.TensorType(f32, [4]),
            mask_logits=tff.TensorType(f32, [masks]),
            adaptive=kernel,
            attention=tff.TensorType(f32, attention),
            local=tff.TensorType(f32, [local]),
        )
        if network.adds_foreign and network.num_foreign:
            state["foreign"] = rows
        state.update(
            past_mask_logits=tff.TensorType(f32, [None, masks]),
            past_adaptive=rows,
            past_reference=rows,
            past_foreign=rows if "foreign" in state else None,
            past_attention=tff.TensorType(f32, [None, *attention]),
            past_local=tff.TensorType(f32, [None, local]),
        )
        if state["past_foreign"] is None:
            del state["past_foreign"]
        self.state_type = state
        past = ("past_mask_logits", "past_adaptive", "past_reference") if self._retention.in_objective else ()
        foreign = ("foreign",) if "foreign" in state else ()
        self.train_reads = ("key", "task", "base", "schedule", *_CURRENT, *foreign, *past)
        self.train_writes = ("base", "schedule", *_CURRENT, *past[1:2])
        self.prepare_reads = ("key",)
        view = ("base", *_CURRENT)
        self.evaluate_type = OrderedDict((name, state[name]) for name in view)
        self.evaluate_type["reference"] = rows
        if foreign:
            self.evaluate_type["foreign_sum"] = kernel
        self.context_type, self.example_type = network.context_type, network.example_type
        self.prepared_type = network.prepared_type
        self.shared_size = size + sum(_size_of(network.local, name) for name in self._dense)
        self.shared_type = tff.TensorType(f32, [self.shared_size])
        self.knowledge_size, self.num_foreign = size, network.num_foreign
        self.max_classes = network.max_classes

    # -- the server's value, and a client's first state ------------------------------------------------------

    def initialize_shared(self):
        """B drawn once from the seed; with DLS also the first dense parameters."""
        key = randomness.root_key(self._seed)
        base = self.network.initial_kernels(randomness.fold(key, randomness.BASE))
        dense = self.network.initial_local(randomness.fold(key, randomness.LOCAL))
        return self._join_shared(base, dense)

    def initialize_client(self, shared, key):
        size = self.network.kernels.size
        state = {name: tf.zeros(_zeros_shape(kind), kind.dtype) for name, kind in self.state_type.items()}
        state.update(
            key=key, task=tf.constant(-1), base=shared[:size], schedule=self.training.fresh_schedule()
        )
        return state

    def _join_shared(self, base, local):
        parts = self.network.local.split(local)
        return tf.concat([base, *[tf.reshape(parts[name], [-1]) for name in self._dense]], 0)

    def _with_shared_dense(self, local, shared):
        """Local parameters with the shared ones (DLS) in their place."""
        if not self._dense:
            return local
        parts, start = self.network.local.split(local), self.network.kernels.size
        for name in self._dense:
            size = _size_of(self.network.local, name)
            parts[name] = shared[start : start + size]
            start += size
        return self.network.local.join(parts)

    def _incoming_base(self, base, shared):
        """B takes the non-zero entries of the server's base and keeps its own elsewhere (section 2.2)."""
        if not self.options.exchange:
            return base
        theirs = shared[: self.network.kernels.size]
        return tf.where(tf.not_equal(theirs, 0.0), theirs, base)

    # -- task borders ----------------------------------------------------------------------------------------

    def begin_task(self, state, shared, foreign):
        options, network = self.options, self.network
        task = state["task"] + 1
        key = randomness.fold(state["key"], task)
        reference = self._past_kernels(state)
        base = self._incoming_base(state["base"], shared)
        logit = tf.math.log(options.mask_start / (1.0 - options.mask_start))
        local = network.initial_local(randomness.fold(key, randomness.LOCAL))
        new = dict(
            state,
            task=task,
            schedule=self.training.fresh_schedule(),
            mask_logits=tf.fill([network.kernels.mask_size], tf.cast(logit, tf.float32)),
            adaptive=base / options.adaptive_factor,
            attention=network.initial_attention(randomness.fold(key, randomness.ATTENTION)),
            local=self._with_shared_dense(local, shared),
            past_adaptive=self._past_adaptives(state),
            past_reference=reference,
        )
        if "foreign" in state:
            new["foreign"] = foreign
        return new

    def _past_adaptives(self, state):
        return self._retention.past_adaptives(
            self.network.kernels,
            state["base"],
            state["past_mask_logits"],
            state["past_adaptive"],
            state["past_reference"],
        )

    def _past_kernels(self, state):
        """kernel_i* for the task that begins: what the past kernels are now, before the server's base comes in."""
        adaptive = self._past_adaptives(state)
        return decomposed_kernel(self.network.kernels, state["base"], state["past_mask_logits"], adaptive)

    def end_task(self, state, data):
        del data
        layout = self.network.kernels
        new = dict(state)
        kernel = decomposed_kernel(layout, state["base"], state["mask_logits"], state["adaptive"])
        ended = {f"past_{name}": state[name] for name in _CURRENT}
        ended["past_reference"] = kernel
        if "foreign" in state:
            ended["past_foreign"] = self._foreign_sum(state["attention"], state["foreign"])
        for name, row in ended.items():
            new[name] = tf.concat([state[name], row[None]], 0)
        return new, OrderedDict(knowledge=prune(state["adaptive"], self.options.sparsity))

    def prepare(self, state, foreign, context, examples):
        return self.network.prepare(foreign, context, examples)

    # -- one round -------------------------------------------------------------------------------------------

    def train(self, state, shared, data, round_num):
        return self.trainer()(dict(state), shared, {name: dict(data[name]) for name in data}, round_num)

    def trainer(self):
        """Allocates the variables of local training and returns the compiled round, `train` without its types."""
        names = ["base", *_CURRENT] + (["past_adaptive"] if self._retention.in_objective else [])
        variables = {name: empty_variable(self.state_type[name].shape) for name in names}
        kernels = [variable for name, variable in variables.items() if name not in _GATES]
        gates = [variables[name] for name in _GATES]
        loop = TrainingLoop(
            self.training, [ParameterGroup(kernels), ParameterGroup(gates, self.training.gate_scale)]
        )

        @tf.function(autograph=False, reduce_retracing=True)
        def run(state, shared, data, round_num):
            return self._train(loop, variables, state, shared, data, round_num)

        return run

    def _train(self, loop, variables, state, shared, data, round_num):
        for name, variable in variables.items():
            variable.assign(state[name])
        incoming = self._incoming_base(state["base"], shared)
        variables["base"].assign(incoming)
        variables["local"].assign(self._with_shared_dense(state["local"], shared))
        key = randomness.fold(randomness.fold(state["key"], state["task"]), randomness.ROUNDS + round_num)

        def loss_fn(batch, step_key):
            return self._objective(variables, state, incoming, data["context"], batch, step_key)

        def validation_fn():
            return self._validation_loss(variables, state, data)

        schedule, metrics = loop.run(loss_fn, validation_fn, data["train"], state["schedule"], key)
        changed = {name: variable.read_value() for name, variable in variables.items()}
        changed["schedule"] = schedule
        return self._outcome(changed, state, shared, data, metrics)

    def _objective(self, variables, state, incoming, context, batch, key):
        """FedSeIT eq. 5 on one batch: (objective, cross-entropy)."""
        options, layout = self.options, self.network.kernels
        values = {name: variable.read_value() for name, variable in variables.items()}
        task_loss = mean_cross_entropy(self._logits(values, state, context, batch, key), batch["label"])
        objective = task_loss
        if options.sparsity:
            l1 = tf.reduce_sum(tf.sigmoid(values["mask_logits"])) + tf.reduce_sum(tf.abs(values["adaptive"]))
            objective += options.sparsity * l1
        if options.proximal:
            objective += 0.5 * options.proximal * tf.reduce_sum(tf.square(values["base"] - incoming))
        if self._retention.in_objective:
            past = values["past_adaptive"]
            drift = penalty(layout, values["base"], state["past_mask_logits"], past, state["past_reference"])
            objective += options.retention * drift + options.sparsity * tf.reduce_sum(tf.abs(past))
        return objective, task_loss

    def _kernel(self, values, state):
        layout = self.network.kernels
        kernel = decomposed_kernel(layout, values["base"], values["mask_logits"], values["adaptive"])
        if "foreign" in state:
            kernel += self._foreign_sum(values["attention"], state["foreign"])
        return kernel

    def _foreign_sum(self, attention, foreign):
        return foreign_sum(self.network.kernels, attention[: tf.shape(foreign)[0]], foreign)

    def _logits(self, values, state, context, examples, key):
        kernel = self._kernel(values, state)
        return self.network.logits(kernel, values["local"], values["attention"], context, examples, key)

    def _validation_loss(self, variables, state, data):
        values = {name: variable.read_value() for name, variable in variables.items()}
        kernel = self._kernel(values, state)

        def scores(batch):
            return self.network.logits(
                kernel, values["local"], values["attention"], data["context"], batch, None
            )

        count, loss, _ = classification_sums(scores, data["validation"])
        return loss / count

    def _outcome(self, changed, state, shared, data, metrics):
        """Leaves a client out that has no data or whose parameters are not finite."""
        finite = all_finite(value for name, value in changed.items() if name != "schedule")
        present = tf.logical_and(finite, num_examples(data["train"]) > 0)
        kept = {name: tf.where(present, value, state[name]) for name, value in changed.items()}
        upload, sent = self._upload(changed, shared)
        sent = tf.logical_and(sent, present)
        delta = tf.where(sent, upload - shared, 0.0)
        weight = tf.where(present, tf.cast(num_examples(data["train"]), tf.float32), 0.0)
        metrics = base_metrics(metrics, sent, finite, kept["schedule"])
        metrics["open_gates"] = tf.reduce_mean(tf.cast(self._gate(kept["mask_logits"]), tf.float32))
        return kept, OrderedDict(delta=delta, sent=sent), weight, metrics

    def _gate(self, mask_logits):
        return tf.sigmoid(mask_logits) > self.options.gate_cutoff

    def _upload(self, changed, shared):
        """The base as it is sent, and which entries are: bool `[shared_size]`."""
        layout = self.network.kernels
        if not self.options.exchange:
            return shared, tf.zeros([self.shared_size], tf.bool)
        base = changed["base"]
        if self.options.base_upload == "scaled":
            base = base * layout.spread(tf.sigmoid(changed["mask_logits"]))
            sent = tf.ones([layout.size], tf.bool)
        else:
            sent = layout.spread(tf.cast(self._gate(changed["mask_logits"]), tf.float32)) > 0.5
        dense = tf.ones([self.shared_size - layout.size], tf.bool)
        return self._join_shared(base, changed["local"]), tf.concat([sent, dense], 0)

    # -- evaluation ------------------------------------------------------------------------------------------

    def task_view(self, state, task):
        past = len(state["past_local"])
        view = OrderedDict(base=state["base"])
        for name in _CURRENT:
            view[name] = state[f"past_{name}"][task] if task < past else state[name]
        view["reference"] = state["past_reference"][task : task + 1]
        if "foreign_sum" in self.evaluate_type:
            view["foreign_sum"] = self._viewed_foreign_sum(state, task, past)
        return view

    def _viewed_foreign_sum(self, state, task, past):
        if task < past:
            return state["past_foreign"][task]
        attention = tf.convert_to_tensor(state["attention"])
        return self._foreign_sum(attention, tf.convert_to_tensor(state["foreign"])).numpy()

    def evaluate(self, view, shared, context, examples):
        """Cross-entropy and accuracy of one task with its own mask, adaptive, attention and local parameters."""
        del shared
        kernel = self.evaluated_kernel(view)

        def scores(batch):
            return self.network.logits(kernel, view["local"], view["attention"], context, batch, None)

        count, loss, correct = classification_sums(scores, examples)
        return OrderedDict(count=count, loss=loss, correct=correct)

    def evaluated_kernel(self, view):
        """The kernel with A pruned, float32 `[size]`; `reference` has a row for a past task and none for the current one."""
        layout, base, masks = self.network.kernels, view["base"], view["mask_logits"]

        adaptive = view["adaptive"][None]
        solved = self._retention.past_adaptives(layout, base, masks[None], adaptive, view["reference"])
        # The first row is the past task's where there is one: no branch, whose untaken side would see no rows.
        adaptive = tf.concat([solved[: tf.shape(view["reference"])[0]], adaptive], 0)[0]
        kernel = decomposed_kernel(layout, base, masks, prune(adaptive, self.options.sparsity))
        return kernel + view["foreign_sum"] if "foreign_sum" in view else kernel


def _size_of(layout, name: str) -> int:
    part = layout.slice_of(name)
    return part.stop - part.start


def _zeros_shape(kind: tff.TensorType) -> list[int]:
    return [axis or 0 for axis in kind.shape]
