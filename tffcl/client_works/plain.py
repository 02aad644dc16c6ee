"""The plain client work: the server's kernels trained as they are, a head for each task.

FedAvg, and with penalties FedProx, EWC and FedCurv; with two phases FedRep.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works import randomness
from tffcl.client_works.evaluation import Connectivity, connected, evaluated, mean_loss, num_examples, of_task
from tffcl.client_works.fisher import fisher_of_client
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
from tffcl.client_works.options import LocalTraining
from tffcl.client_works.penalties import Penalties, PenaltySet
from tffcl.client_works.randomness import Step
from tffcl.models.network import Classifier, Network, masks_of
from tffcl.templates import admission


class PlainWork(LocalWork):
    """FedAvg's client (McMahan et al., 2017), with whatever penalties are added to its objective.

    All of a network's kernels are the server's; a past task is evaluated with the server's newest kernels and the
    local parameters that it was trained with.

    Args:
      network: a network without places for foreign adaptives.
      training: epochs, batches, learning rate.
      seed: of the server's first kernels.
      penalty: `Proximal`, `EWC`, `FedCurv`, any `Penalty`, or several.
      phases: parts of a round, over the variables "base" and "local"; none for one in which both train.
      keep_local: a client's local parameters, its head among them, go on from task to task, and serve all of its tasks;
        else every task has its own. For clients that train on their past tasks, too.

    Raises:
      InputError: the network has places for foreign adaptives, or the penalty is no `Penalty`.
    """

    @errors.checked_arguments
    def __init__(
        self,
        network: Network,
        training: LocalTraining,
        seed: int = 0,
        penalty: Penalties = None,
        phases: Sequence[Phase] = (),
        keep_local: bool = False,
    ):
        if network.num_foreign:
            raise errors.InputError(f"network: expected no places for foreign adaptives, found {network.num_foreign}")
        self.network, self.training, self._seed = network, training, seed
        self.penalties = PenaltySet(penalty, network.kernels.size)
        self.phases, self.masks = tuple(phases) or (Phase(),), masks_of(network)
        self.keep_local = keep_local
        self._set_types()

    def _set_types(self) -> None:
        network, penalties = self.network, self.penalties
        local = network.local.size
        self.state_type = OrderedDict(
            key=tff.TensorType(np.int32, [2]),
            task=tff.TensorType(np.int32),
            schedule=tff.TensorType(np.float32, [4]),
            plan=tff.TensorType(np.int32, [self.masks.plan_size]),
            local=tff.TensorType(np.float32, [local]),
            past_local=tff.TensorType(np.float32, [None, local]),
            **penalties.state_type,
        )
        self.train_reads = ("key", "task", "schedule", "plan", "local", *penalties.state_type)
        self.train_writes = ("schedule", "local", *penalties.changes_in_round)
        self.evaluate_type = OrderedDict(plan=self.state_type["plan"], local=self.state_type["local"])
        self.context_type, self.example_type = network.context_type, network.example_type
        self.prepared_type = network.prepared_type
        self.shared_type = tff.TensorType(np.float32, [network.kernels.size + penalties.shared_size])
        self.knowledge_size, self.num_foreign, self.max_classes = 0, 0, network.max_classes
        self.plan_size = self.masks.plan_size
        if penalties.shared_size:
            self.largest_value = admission.LARGEST**3  # squares of gradients, times kernels

    def initialize_shared(self) -> tf.Tensor:
        key = randomness.fold(randomness.root_key(self._seed), randomness.BASE)
        return self.penalties.extended(self.network.initial_kernels(key))

    def initialize_plan(self) -> tf.Tensor:
        return self.masks.initial_plan(randomness.fold(randomness.root_key(self._seed), randomness.PLAN))

    def initialize_client(self, shared: tf.Tensor, plan: tf.Tensor, key: tf.Tensor) -> Tensors:
        size = self.network.local.size
        return {
            "key": key,
            "task": tf.constant(-1),
            "schedule": fresh_schedule(self.training),
            "plan": self.masks.client_plan(plan, randomness.fold(key, randomness.PLAN)),
            "local": tf.zeros([size]),
            "past_local": tf.zeros([0, size]),
            **self.penalties.initialize(),
        }

    def begin_task(self, state: Tensors, shared: tf.Tensor, foreign: tf.Tensor) -> Tensors:
        task = state["task"] + 1
        key = randomness.fold(randomness.fold(state["key"], task), randomness.LOCAL)
        local = self.network.initial_local(key)
        if self.keep_local:
            local = tf.where(task == 0, local, state["local"])
        return dict(state, task=task, schedule=fresh_schedule(self.training), local=local)

    def end_task(self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any]) -> tuple[Tensors, Tensors]:
        past = tf.concat([state["past_local"], state["local"][None]], 0)
        kernels = self.penalties.kernels(shared)
        fisher = fisher_of_client(self.network, kernels, state["local"], state, data)
        changed = self.penalties.end_task(state, kernels, fisher)
        return dict(state, past_local=past, **changed), OrderedDict(knowledge=tf.zeros([0]))

    def prepare(self, state: Tensors, foreign: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        return self.network.prepare(foreign, context, examples)

    # -- one round -------------------------------------------------------------------------------------------

    def trained(self) -> Mapping[str, Trained]:
        return {"base": Trained((self.network.kernels.size,)), "local": Trained((self.network.local.size,))}

    def begin_round(self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any], number: tf.Tensor) -> Round:
        first = {"base": self.penalties.kernels(shared), "local": state["local"]}
        connectivity = Connectivity(self.network, state["plan"], number)
        return Round(state, shared, data, number, first, num_examples(data["train"]), connectivity)

    def step_loss(
        self, values: Mapping[str, Value], rows: tf.Tensor, step: Step, here: Round
    ) -> tuple[tf.Tensor, tf.Tensor, Tensors]:
        batch = self.network.batch(here.data["train"], rows)
        weights = connected(values["base"], here.extra(step))
        losses = self.network.losses(weights, values["local"], self._attention(), here.data["context"], batch, step.key)
        loss = tf.reduce_mean(losses)
        return loss, loss, batch

    def logits(self, values: Mapping[str, Value], batch: Tensors, here: Round) -> tf.Tensor:
        if not isinstance(self.network, Classifier):
            return super().logits(values, batch, here)
        parts = (values["base"], values["local"], self._attention(), here.data["context"])
        return self.network.logits(*parts, batch, None)

    def held_out_loss(self, values: Mapping[str, Value], here: Round) -> tf.Tensor:
        held_out = {"context": here.data["context"], "examples": here.data["validation"]}
        parts = (values["base"], values["local"], self._attention(), here.state["plan"])
        return mean_loss(self.network, *parts, held_out)

    def _attention(self) -> tf.Tensor:
        return tf.zeros(self.network.attention_shape)

    def end_round(
        self, changed: dict[str, tf.Tensor], here: Round, metrics: OrderedDict
    ) -> tuple[Tensors, Tensors, tf.Tensor, Tensors]:
        base, local = changed.pop("base"), changed["local"]
        fisher = fisher_of_client(self.network, base, local, here.state, here.data, here.number)
        entries, extra = self.penalties.end_round(here.state, base, fisher)
        finite = all_finite([base, local, *entries.values(), extra])
        # What penalties upload are changes already: they are set against zeros.
        upload, before = self.penalties.extended(base, extra), self.penalties.extended(here.first["base"])
        sent = self.penalties.repeated(self._support(here.state, base))
        return accept_round({**changed, **entries}, here, upload, sent, before, finite, metrics)

    def faults(self, update: Tensors, limits: Tensors) -> Sequence[admission.Fault]:
        """Kernels are held to the usual bound also beside the sums of penalties, which may be larger."""
        if not self.penalties.shared_size:
            return ()
        return [admission.value_fault("delta of kernels", self.penalties.kernels(update["delta"]))]

    def _support(self, state: Tensors, base: tf.Tensor) -> tf.Tensor:
        """Which kernels the client sends, bool `[size]`: not those that no pattern of its masks uses."""
        support = self.masks.support(state["plan"])
        return tf.ones_like(base, tf.bool) if support is None else support > 0.5

    # -- evaluation ------------------------------------------------------------------------------------------

    def task_view(self, state: Mapping[str, Any], task: Any) -> OrderedDict:
        local = state["local"] if self.keep_local else of_task(task, state["past_local"], state["local"])
        return OrderedDict(plan=state["plan"], local=local)

    def evaluate(self, view: Tensors, shared: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        """The server's newest kernels with one task's own local parameters on examples: see `evaluated`."""
        data = {"context": context, "examples": examples}
        kernels = self.penalties.kernels(shared)
        return evaluated(self.network, kernels, view["local"], self._attention(), view["plan"], data)
