"""The decomposed client work: base, mask and adaptive (FedSeIT algorithm 1, eq. 1-5; ConFedMADE eq. 5, 6).

A client keeps one base B. For each task it has a mask m, an adaptive A, attention alpha over foreign adaptives and
local parameters (biases, projections, head). One round: B takes the entries that the server has, all parameters of
the current task train together, and the entries of B that the mask lets through go back.

Retention (FedSeIT eq. 5, third term). The base B serves all tasks, so training it on a new task moves the kernels
theta_i = B * sigmoid(m_i) + A_i of past ones. The paper prints dB*m - dA; ConFedMADE eq. 2 and FedWeIT have plus, and
plus is right, for A must make up for what B does. Both differences together are the drift of the kernel, which is the
form coded here:

    lambda_2 sum_i || B * sigmoid(m_i) + A_i - kernel_i* ||^2,

where kernel_i* is task i's kernel as it stood when the current task began, before the server's base came in.
In closed form it is the kernel as it stood when task i itself ended: the pull of lambda_1 then does not add up from
task to task.

`retention_form="gradient"` takes that term, and lambda_1 |A_i|, into the objective and moves B and every past A_i by
gradient steps, as the papers write it; the cost of a step grows with the number of tasks. "closed_form" uses that for a
fixed B the best A_i is known,

    A_i = soft_threshold(kernel_i* - B * sigmoid(m_i), lambda_1 / (2 lambda_2)),

so no past task takes part in a step at all, and no entry of a kernel ever drifts by more than lambda_1 / (2 lambda_2).
But that threshold also cuts what the task itself has learned: at lambda_1 = 1e-3 and lambda_2 = 0.1 it is 5e-3, as
large as the entries of a kernel, and the task is worse the moment it ends. So "drift", the default, puts lambda_1
on the change of A_i: with A_i* as the task left it, pruned as it was sent,

    A_i = A_i* + soft_threshold(kernel_i* - B * sigmoid(m_i) - A_i*, lambda_1 / (2 lambda_2)).

The same bound on the drift holds, and a kernel is exact until B moves it by more. "stored" is that with a threshold of
0: the kernel of every task kept whole.

Shared local parts (`Decomposition.share_dense`). Under "start" a task begins from the server's projections and head,
and trains them for itself; under "round" they come anew in every round. Both have one head column for each label of the
data set, and a column is averaged over the clients whose examples have its label; where nothing is exchanged, a task
begins from the client's own last ones. "position" is DLS as published: a column is a place in the task, whatever its
label.
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
from tffcl.client_works.evaluation import Model, connected, num_examples, of_task
from tffcl.client_works.local_training import Phase, Result, Round, StepLoss, Trained, Values, all_finite
from tffcl.client_works.options import Decomposition, LocalTraining
from tffcl.client_works.penalties import Measure, Penalties, PenaltySet
from tffcl.client_works.plain import NetworkWork
from tffcl.client_works.randomness import Step
from tffcl.layers.kernels import KernelLayout, absolute_sum, decomposed_kernel, foreign_sums, prune, soft_threshold
from tffcl.models.network import Network, Tensors, occurring

# The parameters of a task; a row of each is kept of every past task.
CURRENT = ("mask_logits", "adaptive", "attention", "local")
_GATES = ("mask_logits", "attention")


def solved_adaptives(
    options: Decomposition,
    layout: KernelLayout,
    base: tf.Tensor,
    mask_logits: tf.Tensor,
    adaptive: tf.Tensor,
    reference: tf.Tensor,
) -> tf.Tensor:
    """A_i of past tasks, float32 `[T, size]`, under the base as it is now; by gradient as training left them.

    With lambda_2 = 0 nothing holds on to a task: in closed form the pull of lambda_1 leaves nothing of A_i, under
    "drift" A_i stays as it was. With both 0 it stays in either form.

    Args:
      options: lambda_1, lambda_2 and the form.
      layout: the kernels.
      base: B, float32 `[size]`.
      mask_logits: m_i, float32 `[T, mask_size]`.
      adaptive: A_i as stored, float32 `[T, size]`.
      reference: kernel_i*, float32 `[T, size]`.
    """
    form = options.retention_form
    if form == "stored":
        return reference - decomposed_kernel(layout, base, mask_logits, 0.0)
    if form == "gradient" or not (options.sparsity or options.retention):
        return adaptive
    threshold = options.sparsity / (2.0 * options.retention) if options.retention else float("inf")
    start = adaptive if form == "drift" else 0.0  # what lambda_1 holds A_i near
    return start + soft_threshold(reference - decomposed_kernel(layout, base, mask_logits, start), threshold)


def drift(
    layout: KernelLayout, base: tf.Tensor, mask_logits: tf.Tensor, adaptive: tf.Tensor, reference: tf.Tensor
) -> tf.Tensor:
    """sum_i ||B * sigmoid(m_i) + A_i - kernel_i*||^2, a scalar; shapes as in `solved_adaptives`."""
    return tf.reduce_sum(tf.square(decomposed_kernel(layout, base, mask_logits, adaptive) - reference))


class DecomposedWork(NetworkWork):
    """Client work for any `Network`, with or without foreign adaptives.

    The server's vector is the base B, then the shared local parts one after the other.

    Shown in docs/contract.md.

    Args:
      network: trained by the client.
      training: epochs, batches, learning rate.
      decomposition: lambda_1, lambda_2 and the other choices of the method.
      seed: of the server's first base.
      penalty: `Proximal`, `EWC` or any `Penalty` on B, or several.
      phases: parts of a round, over the variables "base", "mask_logits", "adaptive", "attention" and "local"; none for
        one in which all train.

    Raises:
      InputError: the penalty is no `Penalty`, or one that needs the server to keep something.
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
        penalties = PenaltySet(penalty, network.kernels.size).without_server("DecomposedWork")
        self._set_up(network, training, seed, penalties, phases)
        self.options, self._trains_past = decomposition, decomposition.retention_form == "gradient"
        self._adds_foreign = network.adds_foreign and network.num_foreign > 0
        dense = () if decomposition.share_dense == "no" else network.shareable
        if decomposition.share_dense != "no" and not dense:
            raise errors.InputError(f"share_dense: {type(network).__name__} has no local parts that could be shared")
        # Where nothing is exchanged, a task begins from the client's own last ones.
        self._kept = {name: network.local.slice_of(name) for name in dense if decomposition.by_label}
        self._dense = {name: network.local.slice_of(name) for name in dense if decomposition.exchange}
        self._set_types()

    def _set_types(self) -> None:
        network = self.network
        size, masks, local = network.kernels.size, network.kernels.mask_size, network.local.size

        def floats(*shape: int | None) -> tff.TensorType:
            return tff.TensorType(np.float32, shape)

        self.state_type = OrderedDict(
            key=tff.TensorType(np.int32, [2]),
            task=tff.TensorType(np.int32),
            base=floats(size),
            schedule=floats(4),
            plan=tff.TensorType(np.int32, [self.plan_size]),
            trained=tff.TensorType(np.int32),  # rounds of this task that counted
            mask_logits=floats(masks),
            adaptive=floats(size),
            attention=floats(*network.attention_shape),
            local=floats(local),
        )
        if self._adds_foreign:
            self.state_type["foreign"] = floats(None, size)
        for name in ("past_mask_logits", "past_adaptive", "past_reference"):  # rows are tasks
            self.state_type[name] = floats(None, masks if name == "past_mask_logits" else size)
        if self._adds_foreign:
            self.state_type["past_foreign"] = floats(None, size)
        self.state_type.update(past_attention=floats(None, *network.attention_shape), past_local=floats(None, local))
        self.state_type.update(self.penalties.state_type)
        past = ("past_mask_logits", "past_adaptive", "past_reference") if self._trains_past else ()
        foreign, kept = ("foreign",) if self._adds_foreign else (), tuple(self.penalties.state_type)
        self.train_reads = ("key", "task", "base", "schedule", "plan", "trained", *CURRENT, *foreign, *past, *kept)
        self.train_writes = ("base", "schedule", "trained", *CURRENT, *past[1:2], *self.penalties.changes_in_round)
        self.evaluate_type = OrderedDict((name, self.state_type[name]) for name in ("base", "plan", *CURRENT))
        self.evaluate_type["reference"] = self.state_type["past_reference"]
        if self._adds_foreign:
            self.evaluate_type["foreign_sum"] = self.state_type["base"]
        self.shared_type = floats(size + sum(part.stop - part.start for part in self._dense.values()))
        self.knowledge_size = size

    def model(self, values: Values, state: Tensors) -> Model:
        layout = self.network.kernels
        kernels = decomposed_kernel(layout, values["base"], values["mask_logits"], values["adaptive"])
        if self._adds_foreign:
            others = values["attention"], state["foreign"]
            if isinstance(kernels, tuple):
                kernels = tuple(map(tf.add, kernels, self._foreign_sums(*others)))
            else:
                kernels += self._foreign_sum(*others)
        return Model(self.network, kernels, values["local"], values["attention"], state["plan"])

    def _foreign_sum(self, attention: tf.Tensor, foreign: tf.Tensor | Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.concat(self._foreign_sums(attention, foreign), 0)

    def _foreign_sums(self, attention: tf.Tensor, foreign: tf.Tensor | Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Each kernel by itself, of the entries that there are."""
        rows = foreign if isinstance(foreign, tf.Tensor) else foreign[0]
        return foreign_sums(self.network.kernels, attention[: tf.shape(rows)[0]], foreign)

    # -- what passes between server and client ---------------------------------------------------------------

    def initialize_shared(self) -> tf.Tensor:
        """B drawn once from the seed, and the first values of the shared local parts."""
        key = randomness.root_key(self._seed)
        base = self.network.initial_kernels(randomness.fold(key, randomness.BASE))
        return self.joined(base, self.network.initial_local(randomness.fold(key, randomness.LOCAL)))

    def initialize_client(self, shared: tf.Tensor, plan: tf.Tensor, key: tf.Tensor) -> Tensors:
        return {**super().initialize_client(shared, plan, key), "base": shared[: self.network.kernels.size]}

    def joined(self, base: tf.Tensor, local: tf.Tensor) -> tf.Tensor:
        """The server's vector of a base and local parameters."""
        return tf.concat([base, *[local[part] for part in self._dense.values()]], 0)

    def base_in(self, base: tf.Tensor, shared: tf.Tensor) -> tf.Tensor:
        """B takes the non-zero entries of the server's base and keeps its own elsewhere (section 2.2)."""
        theirs = shared[: self.network.kernels.size]
        return tf.where(tf.not_equal(theirs, 0.0), theirs, base) if self.options.exchange else base

    def local_in(self, local: tf.Tensor, shared: tf.Tensor) -> tf.Tensor:
        """Local parameters with the server's values of the shared ones."""
        if not self._dense:
            return local
        parts, start = self.network.local.split(local), self.network.kernels.size
        for name, part in self._dense.items():
            parts[name] = shared[start : start + part.stop - part.start]
            start += part.stop - part.start
        return self.network.local.join(parts)

    def _first_local(self, state: Tensors, task: tf.Tensor, key: tf.Tensor, shared: tf.Tensor) -> tf.Tensor:
        """Local parameters at a task's start: drawn, the client's own last ones, or the server's."""
        first = self.network.initial_local(key)
        if self._kept:
            own = {name: state["local"][part] for name, part in self._kept.items()}
            own = self.network.local.join({**self.network.local.split(first), **own})
            first = tf.where(task > 0, own, first)
        return self.local_in(first, shared)

    def _sent_locals(self, labels: tf.Tensor | None) -> tf.Tensor:
        """Which entries of the shared local parts a client sends: bool, one after the other.

        `labels`, int32 `[N]`, are those of its examples; None for all columns.
        """
        sent = []
        for name, part in self._dense.items():
            shape = dict(self.network.local.parts)[name]
            column = name in self.network.of_labels and labels is not None
            here = occurring(labels, shape[-1]) if column else tf.ones([shape[-1]], tf.bool)
            sent.append(tf.reshape(tf.broadcast_to(here, shape), [part.stop - part.start]))
        return tf.concat(sent, 0) if sent else tf.ones([0], tf.bool)

    def gate(self, mask_logits: tf.Tensor) -> tf.Tensor:
        """Which units the mask lets through, bool `[mask_size]`."""
        return tf.sigmoid(mask_logits) > self.options.gate_cutoff

    def outgoing(
        self,
        values: Mapping[str, tf.Tensor],
        shared: tf.Tensor,
        support: tf.Tensor | None = None,
        labels: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The server's vector as a client sends it, and which of its entries it sends: float32 and bool.

        `values` are the client's `base`, `mask_logits` and `local`. Entries of the base outside `support`, float32
        `[kernels.size]` of zeros and ones, are not sent, nor head columns of labels outside `labels`, int32 `[N]`.
        """
        layout, base, mask_logits = self.network.kernels, values["base"], values["mask_logits"]
        if not self.options.exchange:
            return shared, tf.zeros(self.shared_type.shape, tf.bool)
        if self.options.base_upload == "scaled":
            base = base * layout.spread(tf.sigmoid(mask_logits))
            sent = tf.ones([layout.size], tf.bool)
        else:
            sent = layout.spread(tf.cast(self.gate(mask_logits), tf.float32)) > 0.5
        if support is not None:
            sent = tf.logical_and(sent, support > 0.5)
        return self.joined(base, values["local"]), tf.concat([sent, self._sent_locals(labels)], 0)

    def _support(self, state: Tensors) -> tf.Tensor | None:
        """The entries that are sent and kept, float32 `[size]`; None for all."""
        return self.masks.support(state["plan"]) if self.options.connectivity_aware else None

    def _supported(self, values: tf.Tensor, state: Tensors) -> tf.Tensor:
        support = self._support(state)
        return values if support is None else values * support

    # -- task borders ----------------------------------------------------------------------------------------

    def begin_task(self, state: Tensors, shared: tf.Tensor, foreign: tf.Tensor) -> Tensors:
        options, network = self.options, self.network
        begun = self.next_task(state)
        key = randomness.fold(state["key"], begun["task"])
        logit = math.log(options.mask_start / (1.0 - options.mask_start))
        local = self._first_local(state, begun["task"], randomness.fold(key, randomness.LOCAL), shared)
        masks, past, reference = state["past_mask_logits"], state["past_adaptive"], state["past_reference"]
        if self._trains_past:
            reference = decomposed_kernel(network.kernels, state["base"], masks, past)
        new = dict(
            state,
            **begun,
            mask_logits=tf.fill([network.kernels.mask_size], tf.constant(logit, tf.float32)),
            adaptive=self._supported(self.base_in(state["base"], shared) / options.adaptive_factor, state),
            attention=network.initial_attention(randomness.fold(key, randomness.ATTENTION)),
            local=local,
            past_reference=reference,
            trained=tf.constant(0),
            **self.penalties.begin_task(self.base_in(state["base"], shared)),
        )
        if self._adds_foreign:
            new["foreign"] = foreign
        return new

    def end_task(self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any]) -> tuple[Tensors, Tensors]:
        """The task's parameters become rows of the past; a client that trained in no round uploads nothing.

        Such a client had no examples, was never drawn, or was left out each time. Its A is still the first one, a part
        of B, which would pass for knowledge.
        """
        ended = {f"past_{name}": state[name] for name in CURRENT}
        layout, base = self.network.kernels, state["base"]
        if self.options.retention_form in ("drift", "stored"):  # the kernel that the task was evaluated with
            ended["past_adaptive"] = prune(state["adaptive"], self.options.sparsity)
        ended["past_reference"] = decomposed_kernel(layout, base, state["mask_logits"], ended["past_adaptive"])
        if self._adds_foreign:
            ended["past_foreign"] = self._foreign_sum(state["attention"], state["foreign"])
        new = dict(state, **self.penalties.end_task(state, base, self._importance(state, state, data, tf.constant(0))))
        for name, row in ended.items():
            new[name] = tf.concat([state[name], row[None]], 0)
        sent = self._supported(prune(state["adaptive"], self.options.sparsity), state)
        return new, OrderedDict(knowledge=tf.where(state["trained"] > 0, sent, 0.0))

    # -- one round -------------------------------------------------------------------------------------------

    def trained(self) -> Mapping[str, Trained]:
        names = ["base", *CURRENT] + (["past_adaptive"] if self._trains_past else [])
        pieces = {"local": self.network.local_pieces}
        if not (self.penalties or self._trains_past):  # which see whole vectors in every step
            pieces.update(dict.fromkeys(("base", "adaptive"), self.network.kernel_pieces))
        return {
            name: Trained(
                tuple(self.state_type[name].shape),
                pieces.get(name, ()),
                self.training.gate_scale if name in _GATES else 1.0,
            )
            for name in names
        }

    def begin_round(self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any], number: tf.Tensor) -> Round:
        first = {name: state[name] for name in self.trained()}
        first["base"] = self.base_in(state["base"], shared)
        local = self.masks.start(state["local"], data["context"], data["train"])
        if local is not state["local"]:  # the first values of a task's first round depend on its data
            local = tf.where(tf.equal(state["trained"], 0), local, state["local"])
        first["local"] = local if self.options.share_dense == "start" else self.local_in(local, shared)
        if self._adds_foreign:  # once a round: every step reads them
            state = dict(state, foreign=self.network.kernels.columns(state["foreign"]))
        connectivity = self.connectivity(state["plan"], number)
        return Round(state, shared, data, number, first, num_examples(data["train"]), connectivity)

    def step_loss(self, values: Values, rows: tf.Tensor, step: Step, here: Round) -> StepLoss:
        """FedSeIT eq. 5 and ConFedMADE eq. 6 on one batch."""
        options, state = self.options, here.state
        connectivity, batch = here.extra(step), self.network.batch(here.data["train"], rows)
        model, context = self.model(values, state), here.data["context"]
        losses, logits = model.losses_and_logits(context, batch, connectivity, step.key)
        objective = task_loss = tf.reduce_mean(losses)
        if options.sparsity:
            # With a single mask, the entries of A outside it are zero from the start and stay so.
            several = self.masks.num_patterns > 1 and options.connectivity_aware
            adaptive = connected(self.network.kernels, values["adaptive"], connectivity if several else None)
            pieces = adaptive if isinstance(adaptive, tuple) else (adaptive,)
            l1 = tf.reduce_sum(tf.sigmoid(values["mask_logits"])) + tf.add_n([absolute_sum(each) for each in pieces])
            objective += options.sparsity * l1
        if self._trains_past:
            masks, past = state["past_mask_logits"], values["past_adaptive"]
            moved = drift(self.network.kernels, values["base"], masks, past, state["past_reference"])
            objective += options.retention * moved + options.sparsity * absolute_sum(past)
        return StepLoss(objective, task_loss, batch, logits)

    def end_round(self, changed: dict[str, tf.Tensor], here: Round, metrics: OrderedDict) -> Result:
        changed["trained"] = here.state["trained"] + 1
        importance = self._importance(changed, here.state, here.data, here.number)
        entries, _ = self.penalties.end_round(here.state, changed["base"], importance)
        changed.update(entries)
        finite = all_finite(value for name, value in changed.items() if name not in ("schedule", "trained"))
        labels = here.data["train"]["label"] if self.options.by_label and self.network.of_labels else None
        upload, sent = self.outgoing(changed, here.shared, self._support(here.state), labels)
        kept, update, weight, metrics = self.accept_round(changed, here, upload, sent, here.shared, finite, metrics)
        metrics["open_gates"] = tf.reduce_mean(tf.cast(self.gate(kept["mask_logits"]), tf.float32))
        return kept, update, weight, metrics

    def _importance(self, values: Tensors, state: Tensors, data: Mapping[str, Any], number: tf.Tensor) -> Measure:
        """Fisher information of B: that of the kernel, times sigmoid(m)^2 (d kernel / d B = sigmoid(m))."""

        def measure(most: int) -> tf.Tensor:
            gate = self.network.kernels.spread(tf.sigmoid(values["mask_logits"]))
            return tf.square(gate) * self.fisher(self.model(values, state), state, data, number)(most)

        return measure

    # -- evaluation ------------------------------------------------------------------------------------------

    def task_view(self, state: Mapping[str, Any], task: Any) -> OrderedDict:
        view = OrderedDict(base=state["base"], plan=state["plan"])
        for name in CURRENT:
            view[name] = of_task(task, state[f"past_{name}"], state[name])
        view["reference"] = state["past_reference"][task : task + 1]
        if self._adds_foreign:
            attention, foreign = (tf.convert_to_tensor(state[name]) for name in ("attention", "foreign"))
            view["foreign_sum"] = of_task(task, state["past_foreign"], lambda: self._foreign_sum(attention, foreign))
        return view

    def evaluate(self, view: Tensors, shared: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        """One task's own mask, adaptive, attention and local parameters on examples: see `Model.evaluate`."""
        return self._evaluated(view).evaluate(context, examples)

    def infer(self, view: Tensors, shared: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        """How certain of examples one task's own parameters are: see `Model.infer`."""
        return self._evaluated(view).infer(context, examples)

    def _evaluated(self, view: Tensors) -> Model:
        kernel = self.evaluated_kernel(view)
        return Model(self.network, kernel, view["local"], view["attention"], view["plan"])

    def evaluated_kernel(self, view: Tensors) -> tf.Tensor:
        """The kernel with A pruned, before connectivity, float32 `[size]`.

        `reference` has a row for a past task, none for the current.
        """
        layout, base, masks = self.network.kernels, view["base"], view["mask_logits"]
        adaptive = view["adaptive"][None]
        solved = solved_adaptives(self.options, layout, base, masks[None], adaptive, view["reference"])
        if self._trains_past:  # a solution is sparse as it is: pruning it would be drift
            solved = prune(solved, self.options.sparsity)
        # The first row is the past task's where there is one: no branch, whose untaken side would see no rows.
        current = prune(adaptive, self.options.sparsity)
        adaptive = tf.concat([solved[: tf.shape(view["reference"])[0]], current], 0)[0]
        kernel = decomposed_kernel(layout, base, masks, adaptive)
        return kernel + view["foreign_sum"] if self._adds_foreign else kernel
