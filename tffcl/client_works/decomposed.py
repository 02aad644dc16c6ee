"""The decomposed client work: base, mask and adaptive (FedSeIT algorithm 1, eq. 1-5; ConFedMADE eq. 5, 6).

A client keeps one base B. For each task it has a mask m, an adaptive A, attention alpha over foreign adaptives and
local parameters (biases, projections, head). One round: B takes the entries that the server has, all parameters of
the current task train together, and the entries of B that the mask lets through go back.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works import randomness
from tffcl.client_works.evaluation import Connectivity, connected, evaluated, mean_loss, num_examples, of_task
from tffcl.client_works.exchange import Exchange
from tffcl.client_works.fisher import Measure, fisher_of_client
from tffcl.client_works.local_training import (
    LocalWork,
    Phase,
    Round,
    Tensors,
    Trained,
    Value,
    accept_round,
    all_finite,
    fresh_schedule,
)
from tffcl.client_works.options import Decomposition, LocalTraining
from tffcl.client_works.penalties import Penalties, PenaltySet
from tffcl.client_works.randomness import Step
from tffcl.client_works.retention import build_retention, penalty
from tffcl.layers.kernels import absolute_sum, decomposed_kernel, foreign_sum, prune
from tffcl.models.network import Classifier, Network, masks_of

# What each task has of its own; a row of it is kept of every past task.
CURRENT = ("mask_logits", "adaptive", "attention", "local")
_GATES = ("mask_logits", "attention")


class DecomposedWork(LocalWork):
    """Client work for any `Network`, with or without foreign adaptives.

    Args:
      network: what the client trains.
      training: epochs, batches, learning rate.
      decomposition: lambda_1, lambda_2 and the other choices of the method.
      seed: of the server's first base.
      penalty: `Proximal`, `EWC` or any `Penalty` on B, or several.
      phases: parts of a round, over the variables "base", "mask_logits", "adaptive", "attention" and "local"; none for
        one in which all train.

    Raises:
      InputError: the penalty is no `Penalty`, or one whose server part this work has no place for.
    """

    @errors.checked_arguments
    def __init__(
        self,
        network: Network,
        training: LocalTraining,
        decomposition: Decomposition,
        seed: int = 0,
        penalty: Penalties = None,
        phases: Sequence[Phase] = (),
    ):
        self.network, self.training, self.options, self._seed = network, training, decomposition, seed
        self.penalties = PenaltySet(penalty, network.kernels.size).without_server("DecomposedWork")
        self.phases, self.masks = tuple(phases) or (Phase(),), masks_of(network)
        self._retention = build_retention(decomposition.retention_form, decomposition.sparsity, decomposition.retention)
        self._exchange = Exchange(network, decomposition)
        self._adds_foreign = network.adds_foreign and network.num_foreign > 0
        self._set_types()

    def _set_types(self) -> None:
        network = self.network
        self.state_type = OrderedDict(_state_type(network, self._adds_foreign), **self.penalties.state_type)
        past = ("past_mask_logits", "past_adaptive", "past_reference") if self._retention.in_objective else ()
        foreign = ("foreign",) if self._adds_foreign else ()
        kept = tuple(self.penalties.state_type)
        self.train_reads = ("key", "task", "base", "schedule", "plan", "trained", *CURRENT, *foreign, *past, *kept)
        self.train_writes = ("base", "schedule", "trained", *CURRENT, *past[1:2], *self.penalties.changes_in_round)
        self.evaluate_type = OrderedDict((name, self.state_type[name]) for name in ("base", "plan", *CURRENT))
        self.evaluate_type["reference"] = self.state_type["past_reference"]
        if self._adds_foreign:
            self.evaluate_type["foreign_sum"] = self.state_type["base"]
        self.context_type, self.example_type = network.context_type, network.example_type
        self.prepared_type = network.prepared_type
        self.shared_type = tff.TensorType(np.float32, [self._exchange.size])
        self.plan_size = self.masks.plan_size
        self.knowledge_size, self.num_foreign = network.kernels.size, network.num_foreign
        self.max_classes = network.max_classes

    # -- the server's value, and a client's first state ------------------------------------------------------

    def initialize_shared(self) -> tf.Tensor:
        """B drawn once from the seed; with DLS also the first dense parameters."""
        key = randomness.root_key(self._seed)
        base = self.network.initial_kernels(randomness.fold(key, randomness.BASE))
        dense = self.network.initial_local(randomness.fold(key, randomness.LOCAL))
        return self._exchange.join(base, dense)

    def initialize_plan(self) -> tf.Tensor:
        return self.masks.initial_plan(randomness.fold(randomness.root_key(self._seed), randomness.PLAN))

    def initialize_client(self, shared: tf.Tensor, plan: tf.Tensor, key: tf.Tensor) -> Tensors:
        state = {
            name: tf.zeros([axis or 0 for axis in kind.shape], kind.dtype) for name, kind in self.state_type.items()
        }
        base = shared[: self.network.kernels.size]
        own_plan = self.masks.client_plan(plan, randomness.fold(key, randomness.PLAN))
        schedule = fresh_schedule(self.training)
        return {
            **state,
            **self.penalties.initialize(),
            "key": key,
            "task": tf.constant(-1),
            "base": base,
            "schedule": schedule,
            "plan": own_plan,
        }

    def _support(self, state: Tensors) -> tf.Tensor | None:
        """The entries that the exchange is limited to, float32 `[size]`; None for all."""
        return self.masks.support(state["plan"]) if self.options.connectivity_aware else None

    # -- task borders ----------------------------------------------------------------------------------------

    def begin_task(self, state: Tensors, shared: tf.Tensor, foreign: tf.Tensor) -> Tensors:
        options, network = self.options, self.network
        task = state["task"] + 1
        key = randomness.fold(state["key"], task)
        base = self._exchange.base_in(state["base"], shared)
        logit = math.log(options.mask_start / (1.0 - options.mask_start))
        local = network.initial_local(randomness.fold(key, randomness.LOCAL))
        past = self._past_adaptives(state)
        new = dict(
            state,
            task=task,
            schedule=fresh_schedule(self.training),
            mask_logits=tf.fill([network.kernels.mask_size], tf.constant(logit, tf.float32)),
            adaptive=self._supported(base / options.adaptive_factor, state),
            attention=network.initial_attention(randomness.fold(key, randomness.ATTENTION)),
            local=self._exchange.local_in(local, shared),
            past_adaptive=past,
            past_reference=self._past_references(state, past),
            trained=tf.constant(0),
        )
        if self._adds_foreign:
            new["foreign"] = foreign
        return new

    def _supported(self, values: tf.Tensor, state: Tensors) -> tf.Tensor:
        support = self._support(state)
        return values if support is None else values * support

    def _past_references(self, state: Tensors, past: tf.Tensor) -> tf.Tensor:
        """kernel_i* for the task that begins (`tffcl.client_works.retention`)."""
        if not self._retention.in_objective:
            return state["past_reference"]
        return decomposed_kernel(self.network.kernels, state["base"], state["past_mask_logits"], past)

    def _past_adaptives(self, state: Tensors) -> tf.Tensor:
        names = ("base", "past_mask_logits", "past_adaptive", "past_reference")
        return self._retention.past_adaptives(self.network.kernels, *[state[name] for name in names])

    def end_task(self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any]) -> tuple[Tensors, Tensors]:
        """The task's parameters become rows of the past; who trained in none of its rounds has nothing to send.

        Such a client had no examples, was never drawn, or was left out each time. Its A still is what the task began
        with, a part of B, which would pass for knowledge.
        """
        layout = self.network.kernels
        ended = {f"past_{name}": state[name] for name in CURRENT}
        ended["past_reference"] = decomposed_kernel(layout, state["base"], state["mask_logits"], state["adaptive"])
        if self._adds_foreign:
            ended["past_foreign"] = self._foreign_sum(state["attention"], state["foreign"])
        here = Round(state, shared, data, tf.constant(0), {}, tf.constant(0))
        new = dict(state, **self.penalties.end_task(state, state["base"], self._importance(state, here)))
        for name, row in ended.items():
            new[name] = tf.concat([state[name], row[None]], 0)
        sent = self._supported(prune(state["adaptive"], self.options.sparsity), state)
        learned = tf.where(state["trained"] > 0, sent, 0.0)
        return new, OrderedDict(knowledge=learned)

    def prepare(self, state: Tensors, foreign: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        return self.network.prepare(foreign, context, examples)

    # -- one round -------------------------------------------------------------------------------------------

    def trained(self) -> Mapping[str, Trained]:
        names = ["base", *CURRENT] + (["past_adaptive"] if self._retention.in_objective else [])
        return {
            name: Trained(
                tuple(self.state_type[name].shape),
                self.network.local_pieces if name == "local" else (),
                self.training.gate_scale if name in _GATES else 1.0,
            )
            for name in names
        }

    def begin_round(self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any], number: tf.Tensor) -> Round:
        first = {name: state[name] for name in self.trained()}
        first["base"] = self._exchange.base_in(state["base"], shared)
        first["local"] = self._exchange.local_in(self._first_local(state, data), shared)
        if self._adds_foreign:  # once a round: every step reads them
            state = dict(state, foreign=self.network.kernels.columns(state["foreign"]))
        connectivity = Connectivity(self.network, state["plan"], number)
        return Round(state, shared, data, number, first, num_examples(data["train"]), connectivity)

    def _first_local(self, state: Tensors, data: Mapping[str, Any]) -> tf.Tensor:
        """The local parameters that a round begins with; those of a task's first round may hang from its data."""
        local = state["local"]
        start = getattr(self.network, "start", None)
        if start is None:
            return local
        first = start(local, data["context"], data["train"])
        return tf.where(tf.equal(state["trained"], 0), first, local)

    def step_loss(
        self, values: Mapping[str, Value], rows: tf.Tensor, step: Step, here: Round
    ) -> tuple[tf.Tensor, tf.Tensor, Tensors]:
        """FedSeIT eq. 5 and ConFedMADE eq. 6 on one batch."""
        options, network, state = self.options, self.network, here.state
        connectivity, batch = here.extra(step), network.batch(here.data["train"], rows)
        kernel = connected(self._kernel(values, state), connectivity)
        losses = network.losses(kernel, values["local"], values["attention"], here.data["context"], batch, step.key)
        task_loss = tf.reduce_mean(losses)
        objective = task_loss
        if options.sparsity:
            adaptive = values["adaptive"]
            if self.masks.num_patterns > 1 and connectivity is not None and options.connectivity_aware:
                # With a single mask, what it leaves out of A is zero from the start and stays so.
                adaptive *= connectivity
            l1 = tf.reduce_sum(tf.sigmoid(values["mask_logits"])) + absolute_sum(adaptive)
            objective += options.sparsity * l1
        if self._retention.in_objective:
            past = values["past_adaptive"]
            drift = penalty(network.kernels, values["base"], state["past_mask_logits"], past, state["past_reference"])
            objective += options.retention * drift + options.sparsity * absolute_sum(past)
        return objective, task_loss, batch

    def logits(self, values: Mapping[str, Value], batch: Tensors, here: Round) -> tf.Tensor:
        if not isinstance(self.network, Classifier):
            return super().logits(values, batch, here)
        kernel, context = self._kernel(values, here.state), here.data["context"]
        return self.network.logits(kernel, values["local"], values["attention"], context, batch, None)

    def _kernel(self, values: Tensors, state: Tensors) -> tf.Tensor:
        layout = self.network.kernels
        kernel = decomposed_kernel(layout, values["base"], values["mask_logits"], values["adaptive"])
        if self._adds_foreign:
            kernel += self._foreign_sum(values["attention"], state["foreign"])
        return kernel

    def _foreign_sum(self, attention: tf.Tensor, foreign: tf.Tensor | Sequence[tf.Tensor]) -> tf.Tensor:
        rows = foreign if isinstance(foreign, tf.Tensor) else foreign[0]
        return foreign_sum(self.network.kernels, attention[: tf.shape(rows)[0]], foreign)

    def held_out_loss(self, values: Mapping[str, Value], here: Round) -> tf.Tensor:
        held_out = {"context": here.data["context"], "examples": here.data["validation"]}
        kernel, local, attention = self._kernel(values, here.state), values["local"], values["attention"]
        return mean_loss(self.network, kernel, local, attention, here.state["plan"], held_out)

    def end_round(
        self, changed: dict[str, tf.Tensor], here: Round, metrics: OrderedDict
    ) -> tuple[Tensors, Tensors, tf.Tensor, Tensors]:
        changed["trained"] = here.state["trained"] + 1
        entries, _ = self.penalties.end_round(here.state, changed["base"], self._importance(changed, here))
        changed.update(entries)
        finite = all_finite(value for name, value in changed.items() if name not in ("schedule", "trained"))
        upload, sent = self._exchange.outgoing(
            changed["base"], changed["mask_logits"], changed["local"], here.shared, self._support(here.state)
        )
        kept, update, weight, metrics = accept_round(changed, here, upload, sent, here.shared, finite, metrics)
        metrics["open_gates"] = tf.reduce_mean(tf.cast(self._exchange.gate(kept["mask_logits"]), tf.float32))
        return kept, update, weight, metrics

    def _importance(self, values: Tensors, here: Round) -> Measure:
        """Fisher information of B: that of the kernel, times sigmoid(m)^2 (d kernel / d B = sigmoid(m))."""

        def measure(most: int) -> tf.Tensor:
            gate = self.network.kernels.spread(tf.sigmoid(values["mask_logits"]))
            kernel, attention = self._kernel(values, here.state), values["attention"]
            parts = (self.network, kernel, values["local"], here.state, here.data, here.number, attention)
            return tf.square(gate) * fisher_of_client(*parts)(most)

        return measure

    # -- evaluation ------------------------------------------------------------------------------------------

    def task_view(self, state: Mapping[str, Any], task: Any) -> OrderedDict:
        view = OrderedDict(base=state["base"], plan=state["plan"])
        for name in CURRENT:
            view[name] = of_task(task, state[f"past_{name}"], state[name])
        view["reference"] = state["past_reference"][task : task + 1]
        if self._adds_foreign:
            view["foreign_sum"] = self._viewed_foreign_sum(task, state)
        return view

    def _viewed_foreign_sum(self, task: Any, state: Mapping[str, Any]) -> Any:
        attention, foreign = (tf.convert_to_tensor(state[name]) for name in ("attention", "foreign"))
        return of_task(task, state["past_foreign"], lambda: self._foreign_sum(attention, foreign))

    def evaluate(self, view: Tensors, shared: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        """One task's own mask, adaptive, attention and local parameters on examples: see `evaluated`."""
        data = {"context": context, "examples": examples}
        kernel = self.evaluated_kernel(view)
        return evaluated(self.network, kernel, view["local"], view["attention"], view["plan"], data)

    def evaluated_kernel(self, view: Tensors) -> tf.Tensor:
        """The kernel with A pruned, before connectivity, float32 `[size]`.

        `reference` has a row for a past task, none for the current.
        """
        layout, base, masks = self.network.kernels, view["base"], view["mask_logits"]
        adaptive = view["adaptive"][None]
        solved = self._retention.past_adaptives(layout, base, masks[None], adaptive, view["reference"])
        if self._retention.in_objective:  # the closed form is sparse as it is: pruning it would be drift
            solved = prune(solved, self.options.sparsity)
        # The first row is the past task's where there is one: no branch, whose untaken side would see no rows.
        current = prune(adaptive, self.options.sparsity)
        adaptive = tf.concat([solved[: tf.shape(view["reference"])[0]], current], 0)[0]
        kernel = decomposed_kernel(layout, base, masks, adaptive)
        return kernel + view["foreign_sum"] if self._adds_foreign else kernel


def _state_type(network: Network, adds_foreign: bool) -> OrderedDict:
    """Everything that a client keeps, by name; rows of `past_...` are tasks."""

    def floats(*shape: int | None) -> tff.TensorType:
        return tff.TensorType(np.float32, shape)

    size, masks, local = network.kernels.size, network.kernels.mask_size, network.local.size
    state = OrderedDict(
        key=tff.TensorType(np.int32, [2]),
        task=tff.TensorType(np.int32),
        base=floats(size),
        schedule=floats(4),
        plan=tff.TensorType(np.int32, [masks_of(network).plan_size]),
        trained=tff.TensorType(np.int32),  # rounds of this task that counted
        mask_logits=floats(masks),
        adaptive=floats(size),
        attention=floats(*network.attention_shape),
        local=floats(local),
    )
    if adds_foreign:
        state["foreign"] = floats(None, size)
    state.update(
        past_mask_logits=floats(None, masks), past_adaptive=floats(None, size), past_reference=floats(None, size)
    )
    if adds_foreign:
        state["past_foreign"] = floats(None, size)
    state.update(past_attention=floats(None, *network.attention_shape), past_local=floats(None, local))
    return state
