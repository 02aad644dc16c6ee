"""Client works of a network, and the plain one: the server's kernels trained as they are, a head for each task.

FedAvg, and with penalties FedProx, EWC and FedCurv; with two phases FedRep; with weights for old and new classes GLFC
(Dong, Wang, Fang, Sun, Xu, Wang, Zhu: Federated Class-Incremental Learning, CVPR 2022).
"""

from __future__ import annotations

import abc
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works import randomness
from tffcl.client_works.evaluation import Model, num_examples, of_task
from tffcl.client_works.local_training import LocalWork, Phase, Result, Round, StepLoss, Trained, Values, all_finite
from tffcl.client_works.options import LocalTraining
from tffcl.client_works.penalties import Measure, Penalties, PenaltySet, diagonal_fisher
from tffcl.client_works.randomness import Step
from tffcl.models.network import KNOWN, Classifier, Network, Tensors, masks_of
from tffcl.templates import messages


class NetworkWork(LocalWork):
    """A local work that trains a `Network`, under its masks where it has any."""

    network: Network

    def _set_up(
        self, network: Network, training: LocalTraining, seed: int, penalties: PenaltySet, phases: Sequence[Phase]
    ) -> None:
        self.network, self.training, self._seed, self.penalties = network, training, seed, penalties
        self.phases, self.masks = tuple(phases) or (Phase(),), masks_of(network)
        self.context_type, self.example_type = network.context_type, network.example_type
        self.prepared_type = network.prepared_type
        self.num_foreign, self.max_classes = network.num_foreign, network.max_classes
        self.plan_size = self.masks.plan_size
        self.decayed = {"base": network.kernels, "local": network.local}

    @abc.abstractmethod
    def model(self, values: Values, state: Tensors) -> Model:
        """The network with the variables' values."""

    def initialize_plan(self) -> tf.Tensor:
        return self.masks.initial_plan(randomness.fold(randomness.root_key(self._seed), randomness.PLAN))

    def initialize_client(self, shared: tf.Tensor, plan: tf.Tensor, key: tf.Tensor) -> Tensors:
        plan = self.masks.client_plan(plan, randomness.fold(key, randomness.PLAN))
        return {**self.initial_state(key), "plan": plan}

    def prepare(self, state: Tensors, foreign: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        return self.network.prepare(foreign, context, examples)

    def connectivity(self, plan: tf.Tensor, round_num: tf.Tensor) -> Callable[[Step], tf.Tensor | None]:
        """M for each step of a round, float32 `[kernels.size]`; None where the network has no mask.

        The pattern of a step is drawn from the plan's key, the round, the epoch and the step alone, so that clients
        with the same plan train the same submodel at the same time. A mask that never changes is made once.
        """
        count = self.masks.num_patterns
        if count == 1:
            fixed = self.masks.connectivity(plan, 0)
            return lambda step: fixed

        def of_step(step: Step) -> tf.Tensor | None:
            key = plan[:2]
            for number in (randomness.ROUNDS + round_num, step.epoch, step.number):
                key = randomness.fold(key, number)
            return self.masks.connectivity(plan, tf.random.stateless_uniform([], key, 0, count, tf.int32))

        return of_step

    def logits(self, values: Values, batch: Tensors, here: Round) -> tf.Tensor:
        if not isinstance(self.network, Classifier):
            return super().logits(values, batch, here)
        return self.model(values, here.state).logits(here.data["context"], batch)

    def scores(self, values: Values, here: Round) -> tf.Tensor:
        if not isinstance(self.network, Classifier):
            return super().scores(values, here)
        return self.model(values, here.state).scores(here.data["context"], here.data["train"])

    def held_out_loss(self, values: Values, here: Round) -> tf.Tensor:
        return self.model(values, here.state).mean_loss(here.data["context"], here.data["validation"])

    def fisher(
        self, model: Model, state: Tensors, data: Mapping[str, Any], round_num: tf.Tensor | None = None
    ) -> Measure:
        """F of the kernels on a client's training examples, drawn by task, and by round if there is one."""
        key = randomness.fold(randomness.fold(state["key"], state["task"]), randomness.EXAMPLES)
        if round_num is not None:
            key = randomness.fold(key, round_num)
        return lambda most: diagonal_fisher(model, data, key, most)


class PlainWork(NetworkWork):
    """FedAvg's client (McMahan et al., 2017), with any penalties added to its objective.

    All of a network's kernels are the server's; a past task is evaluated with the server's newest kernels and the
    local parameters that it was trained with.

    Shown in docs/contract.md.

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
        penalties, local = PenaltySet(penalty, network.kernels.size), network.local.size
        self._set_up(network, training, seed, penalties, phases)
        self.keep_local = keep_local
        self.state_type = OrderedDict(
            key=tff.TensorType(np.int32, [2]),
            task=tff.TensorType(np.int32),
            schedule=tff.TensorType(np.float32, [4]),
            plan=tff.TensorType(np.int32, [self.plan_size]),
            local=tff.TensorType(np.float32, [local]),
            past_local=tff.TensorType(np.float32, [None, local]),
            **penalties.state_type,
        )
        self.train_reads = ("key", "task", "schedule", "plan", "local", *penalties.state_type)
        self.train_writes = ("schedule", "local", *penalties.changes_in_round)
        self.evaluate_type = OrderedDict(plan=self.state_type["plan"], local=self.state_type["local"])
        self.shared_type = tff.TensorType(np.float32, [network.kernels.size + penalties.shared_size])
        self.knowledge_size = 0
        if penalties.shared_size:
            self.largest_value = messages.LARGEST**3  # squares of gradients, times kernels

    def model(self, values: Values, state: Tensors) -> Model:
        attention = tf.zeros(self.network.attention_shape)
        return Model(self.network, values["base"], values["local"], attention, state["plan"])

    def initialize_shared(self) -> tf.Tensor:
        key = randomness.fold(randomness.root_key(self._seed), randomness.BASE)
        return self.penalties.extended(self.network.initial_kernels(key))

    def begin_task(self, state: Tensors, shared: tf.Tensor, foreign: tf.Tensor) -> Tensors:
        begun = self.next_task(state)
        key = randomness.fold(randomness.fold(state["key"], begun["task"]), randomness.LOCAL)
        local = self.network.initial_local(key)
        if self.keep_local:
            local = tf.where(tf.equal(begun["task"], 0), local, state["local"])
        return dict(state, **begun, local=local, **self.penalties.begin_task(self.penalties.kernels(shared)))

    def end_task(self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any]) -> tuple[Tensors, Tensors]:
        past = tf.concat([state["past_local"], state["local"][None]], 0)
        kernels = self.penalties.kernels(shared)
        model = self.model({"base": kernels, "local": state["local"]}, state)
        changed = self.penalties.end_task(state, kernels, self.fisher(model, state, data))
        return dict(state, past_local=past, **changed), OrderedDict(knowledge=tf.zeros([0]))

    def trained(self) -> Mapping[str, Trained]:
        return {"base": Trained((self.network.kernels.size,)), "local": Trained((self.network.local.size,))}

    def begin_round(self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any], number: tf.Tensor) -> Round:
        first = {"base": self.penalties.kernels(shared), "local": state["local"]}
        connectivity = self.connectivity(state["plan"], number)
        return Round(state, shared, data, number, first, num_examples(data["train"]), connectivity)

    def step_loss(self, values: Values, rows: tf.Tensor, step: Step, here: Round) -> StepLoss:
        batch, model = self.network.batch(here.data["train"], rows), self.model(values, here.state)
        losses, logits = model.losses_and_logits(here.data["context"], batch, here.extra(step), step.key)
        loss = tf.reduce_mean(losses)
        return StepLoss(loss, loss, batch, logits)

    def end_round(self, changed: dict[str, tf.Tensor], here: Round, metrics: OrderedDict) -> Result:
        fisher = self.fisher(self.model(changed, here.state), here.state, here.data, here.number)
        base, local = changed.pop("base"), changed["local"]
        entries, extra = self.penalties.end_round(here.state, base, fisher)
        finite = all_finite([base, local, *entries.values(), extra])
        # The uploads of penalties are differences already: the values before are zeros.
        upload, before = self.penalties.extended(base, extra), self.penalties.extended(here.first["base"])
        support = self.masks.support(here.state["plan"])  # entries that no pattern of the masks uses are not sent
        sent = self.penalties.repeated(tf.ones_like(base, tf.bool) if support is None else support > 0.5)
        return self.accept_round({**changed, **entries}, here, upload, sent, before, finite, metrics)

    def faults(self, update: Tensors, limits: Tensors) -> Sequence[messages.Fault]:
        """Kernels are held to the usual bound also beside the sums of penalties, which may be larger."""
        if not self.penalties.shared_size:
            return ()
        return [messages.value_fault("delta of kernels", self.penalties.kernels(update["delta"]))]

    def task_view(self, state: Mapping[str, Any], task: Any) -> OrderedDict:
        local = state["local"] if self.keep_local else of_task(task, state["past_local"], state["local"])
        return OrderedDict(plan=state["plan"], local=local)

    def evaluate(self, view: Tensors, shared: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        """The server's newest kernels with one task's own local parameters on examples: see `Model.evaluate`."""
        values = {"base": self.penalties.kernels(shared), "local": view["local"]}
        return self.model(values, view).evaluate(context, examples)


def compensated(losses: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    """The class-aware gradient compensation loss (eq. 2 to 4) of each example in nats, float32 `[n]`.

    The cross-entropy of an example, times |p - 1|, the gradient at the score of its class, p the probability of that
    class, over the mean of |p - 1| among the examples of old classes, or among those of new ones: both kinds weigh as
    much as they have examples, however much larger the gradients of one are. The weights have no gradient.

    >>> one, two = tf.math.log(2.0), tf.math.log(4.0)
    >>> found = compensated(tf.stack([one, two, one]), tf.constant([True, True, False]))
    >>> [round(float(each), 3) for each in found]
    [0.555, 1.664, 0.693]

    Args:
      losses: cross-entropies, float32 `[n]`.
      old: which examples are of a class that came before the task, bool `[n]`.
    """
    size = 1.0 - tf.exp(-tf.stop_gradient(losses))
    kinds = [tf.cast(kind, tf.float32) for kind in (old, tf.logical_not(old))]
    means = [tf.math.divide_no_nan(tf.reduce_sum(kind * size), tf.reduce_sum(kind)) for kind in kinds]
    return losses * tf.math.divide_no_nan(size, tf.add_n([kind * mean for kind, mean in zip(kinds, means)]))


class CompensatedWork(PlainWork):
    """A plain work that trains on the class-aware gradient compensation loss (`compensated`).

    Contexts say which classes came before (`tffcl.models.with_label_mask(network, growing=True)`). Losses that are
    reported are plain cross-entropies. Arguments are those of `PlainWork`.

    Shown in docs/methods.md.
    """

    def step_loss(self, values: Values, rows: tf.Tensor, step: Step, here: Round) -> StepLoss:
        batch, context = self.network.batch(here.data["train"], rows), here.data["context"]
        losses, logits = self.model(values, here.state).losses_and_logits(context, batch, here.extra(step), step.key)
        old = tf.gather(context[KNOWN], batch["label"])
        return StepLoss(tf.reduce_mean(compensated(losses, old)), tf.reduce_mean(losses), batch, logits)
