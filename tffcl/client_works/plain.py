"""The plain client work: the server's kernels trained as they are, a head for each task.

FedAvg, FedProx, and with penalties EWC and FedCurv.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works import randomness
from tffcl.client_works.connectivity import Connectivity
from tffcl.client_works.evaluation import connected, evaluated, mean_loss
from tffcl.client_works.fisher import fisher_of_client
from tffcl.client_works.optimizers import empty_variable
from tffcl.client_works.options import LocalTraining
from tffcl.client_works.outcome import all_finite, settle
from tffcl.client_works.penalised import Penalised, Penalties
from tffcl.client_works.task_views import of_task
from tffcl.client_works.training import ParameterGroup, Step, TrainingLoop, fresh_schedule, num_examples
from tffcl.models.network import Network
from tffcl.templates import ClientWork, admission

Tensors = Mapping[str, tf.Tensor]


class PlainWork(ClientWork):
    """FedAvg's client (McMahan et al., 2017), with FedProx's proximal term (Li et al., 2020) if `proximal` > 0.

    All of a network's kernels are the server's; a past task is evaluated with the server's newest kernels and the
    local parameters that it was trained with.

    Args:
      network: a network without places for foreign adaptives.
      training: epochs, batches, learning rate.
      proximal: mu, in front of ||B - B_server||^2 / 2.
      seed: of the server's first kernels.
      penalty: what else is added to the objective: `EWC`, `FedCurv`, any `Penalty`, or several.

    Raises:
      InputError: the network has places for foreign adaptives, mu is negative, or the penalty is no `Penalty`.
    """

    @errors.checked_arguments
    def __init__(
        self,
        network: Network,
        training: LocalTraining,
        proximal: float = 0.0,
        seed: int = 0,
        penalty: Penalties = None,
    ):
        if network.num_foreign:
            raise errors.InputError(
                f"network: expected no places for foreign adaptives, found {network.num_foreign}"
            )
        if proximal < 0:
            raise errors.InputError(f"proximal: expected a number that is not negative, found {proximal}")
        self.network, self.training, self._proximal, self._seed = network, training, proximal, seed
        self._penalties = Penalised(penalty, network.kernels.size)
        self._set_types()

    def _set_types(self) -> None:
        network, penalties = self.network, self._penalties
        local = network.local.size
        self.state_type = OrderedDict(
            key=tff.TensorType(np.int32, [2]),
            task=tff.TensorType(np.int32),
            schedule=tff.TensorType(np.float32, [4]),
            plan=tff.TensorType(np.int32, [network.plan_size]),
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
        self.plan_size = network.plan_size
        if penalties.shared_size:
            self.largest_value = admission.LARGEST**3  # squares of gradients, times kernels

    def initialize_shared(self) -> tf.Tensor:
        key = randomness.fold(randomness.root_key(self._seed), randomness.BASE)
        return self._penalties.extended(self.network.initial_kernels(key))

    def initialize_plan(self) -> tf.Tensor:
        return self.network.initial_plan(randomness.fold(randomness.root_key(self._seed), randomness.PLAN))

    def initialize_client(self, shared: tf.Tensor, plan: tf.Tensor, key: tf.Tensor) -> Tensors:
        size = self.network.local.size
        return {
            "key": key,
            "task": tf.constant(-1),
            "schedule": fresh_schedule(self.training),
            "plan": self.network.client_plan(plan, randomness.fold(key, randomness.PLAN)),
            "local": tf.zeros([size]),
            "past_local": tf.zeros([0, size]),
            **self._penalties.initialize(),
        }

    def begin_task(self, state: Tensors, shared: tf.Tensor, foreign: tf.Tensor) -> Tensors:
        task = state["task"] + 1
        key = randomness.fold(randomness.fold(state["key"], task), randomness.LOCAL)
        local = self.network.initial_local(key)
        return dict(state, task=task, schedule=fresh_schedule(self.training), local=local)

    def end_task(self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any]) -> tuple[Tensors, Tensors]:
        past = tf.concat([state["past_local"], state["local"][None]], 0)
        kernels = self._penalties.kernels(shared)
        fisher = fisher_of_client(self.network, kernels, state["local"], state, data)
        changed = self._penalties.end_task(state, kernels, fisher)
        return dict(state, past_local=past, **changed), OrderedDict(knowledge=tf.zeros([0]))

    def prepare(self, state: Tensors, foreign: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        return self.network.prepare(foreign, context, examples)

    def train(
        self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any], round_num: tf.Tensor
    ) -> tuple[Tensors, Tensors, tf.Tensor, Tensors]:
        return self.trainer()(dict(state), shared, {name: dict(data[name]) for name in data}, round_num)

    def trainer(self) -> Callable[..., tuple[Tensors, Tensors, tf.Tensor, Tensors]]:
        """Allocates the variables of local training and returns the compiled round, `train` without its types."""
        base, local = empty_variable([self.network.kernels.size]), empty_variable([self.network.local.size])
        loop = TrainingLoop(self.training, [ParameterGroup([base, local])])

        @tf.function(autograph=False, reduce_retracing=True)
        def run(
            state: Tensors, shared: tf.Tensor, data: Mapping[str, Any], round_num: tf.Tensor
        ) -> tuple[Tensors, Tensors, tf.Tensor, Tensors]:
            incoming = self._penalties.kernels(shared)
            penalty = self._penalties.term(state, shared)
            base.assign(incoming)
            local.assign(state["local"])
            key = randomness.round_key(state["key"], state["task"], round_num)
            connectivity = Connectivity(self.network, state["plan"], round_num)

            def loss_fn(rows: tf.Tensor, step: Step) -> tuple[tf.Tensor, tf.Tensor]:
                kernels, batch = base.read_value(), self.network.batch(data["train"], rows)
                weights = connected(kernels, connectivity(step))
                parts = (local.read_value(), self._attention(), data["context"])
                loss = tf.reduce_mean(self.network.losses(weights, *parts, batch, step.key))
                drift = tf.reduce_sum(tf.square(kernels - incoming)) if self._proximal else 0.0
                objective = loss + 0.5 * self._proximal * drift
                return (objective + penalty(kernels) if penalty else objective), loss

            def validation_fn() -> tf.Tensor:
                held_out = {"context": data["context"], "examples": data["validation"]}
                parts = (base.read_value(), local.read_value(), self._attention(), state["plan"])
                return mean_loss(self.network, *parts, held_out)

            count = num_examples(data["train"])
            schedule, metrics = loop.run(loss_fn, validation_fn, count, state["schedule"], key)
            trained = {"local": local.read_value(), "schedule": schedule}
            return self._outcome(base.read_value(), trained, state, incoming, data, round_num, metrics)

        return run

    def _attention(self) -> tf.Tensor:
        return tf.zeros(self.network.attention_shape)

    def _outcome(
        self,
        base: tf.Tensor,
        trained: Tensors,
        state: Tensors,
        incoming: tf.Tensor,
        data: Mapping[str, Any],
        round_num: tf.Tensor,
        metrics: OrderedDict,
    ) -> tuple[Tensors, Tensors, tf.Tensor, Tensors]:
        fisher = fisher_of_client(self.network, base, trained["local"], state, data, round_num)
        changed, extra = self._penalties.end_round(state, base, fisher)
        finite = all_finite([base, trained["local"], *changed.values(), extra])
        # What penalties upload are changes already: they are set against zeros.
        upload, before = self._penalties.extended(base, extra), self._penalties.extended(incoming)
        sent = self._penalties.repeated(self._support(state, base))
        return settle({**trained, **changed}, state, upload, sent, before, data["train"], finite, metrics)

    def _support(self, state: Tensors, base: tf.Tensor) -> tf.Tensor:
        """Which kernels the client sends, bool `[size]`: not those that no pattern of its masks uses."""
        support = self.network.support(state["plan"])
        return tf.ones_like(base, tf.bool) if support is None else support > 0.5

    def faults(self, update: Tensors, limits: Tensors) -> Sequence[admission.Fault]:
        """Kernels are held to the usual bound also beside the sums of penalties, which may be larger."""
        if not self._penalties.shared_size:
            return ()
        return [admission.value_fault("delta of kernels", self._penalties.kernels(update["delta"]))]

    def task_view(self, state: Mapping[str, Any], task: Any) -> OrderedDict:
        return OrderedDict(plan=state["plan"], local=of_task(task, state["past_local"], state["local"]))

    def evaluate(self, view: Tensors, shared: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        """The server's newest kernels with one task's own local parameters on examples: see `evaluated`."""
        data = {"context": context, "examples": examples}
        kernels = self._penalties.kernels(shared)
        return evaluated(self.network, kernels, view["local"], self._attention(), view["plan"], data)
