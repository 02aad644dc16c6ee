"""Client works that rehearse: on embeddings of old tasks (FIL-VER), on synthetic examples of the server's (TARGET).

Park, Kumatani, Dimitriadis: Tackling Dynamics in Federated Incremental Learning with Variational Embedding Rehearsal,
2021 (FIL-VER), section 3.2 and algorithm 1. Its line 7 leaves out the client's own rehearsal, which section 3.2
describes and which is done here.
Zhang, Chen, Zhuang, Lyu: TARGET: Federated Class-Continual Learning via Exemplar-Free Distillation, ICCV 2023.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works import randomness
from tffcl.client_works.evaluation import classified, num_examples
from tffcl.client_works.local_training import LocalWork, Result, Round, StepLoss, Trained, Values, all_finite
from tffcl.client_works.options import LocalTraining
from tffcl.client_works.penalties import Measure, Penalties, PenaltySet, divergence, mean_of_squares
from tffcl.client_works.plain import PlainWork
from tffcl.client_works.randomness import Step
from tffcl.client_works.sharing import Sharing, no_rows, remember, row_faults, rows_type, task_rows
from tffcl.models.embedding_classifier import MLP
from tffcl.models.encoders import FrozenEncoder, draw, mean_of
from tffcl.models.generator import InputForm
from tffcl.models.network import (
    CLASSES,
    KNOWN,
    Classifier,
    Tensors,
    competing,
    cross_entropy,
    label_mask_type,
    occurring,
)
from tffcl.templates.messages import Fault


@dataclasses.dataclass(frozen=True)
class RehearsalModel:
    """A frozen encoder, and the classifier that is trained on its embeddings.

    Shown with `RehearsalWork`.

    Attributes:
      encoder: gives the inputs of the classifier, and never changes.
      classifier: of embeddings; its weights are all that clients and server train.
      initial: its first weights, float32 `[classifier.weights.size]`, those of pre-training for example; None to
        draw them.
      memory_encoder: encodes the client's memories in the place of `encoder`: an ablation ("noise").
      growing: one head grows, see `tffcl.models.network.label_mask_type`.
      label_mask: contexts say which labels may occur in a task, and only these compete, in training with those that
        are remembered (see `tffcl.models.network.competing`): for tasks that differ in their labels.

    Raises:
      InputError: parts of different sizes.
    """

    encoder: FrozenEncoder
    classifier: MLP
    initial: np.ndarray | None = None
    memory_encoder: FrozenEncoder | None = None
    label_mask: bool = False
    growing: bool = False

    def __post_init__(self) -> None:
        size = self.encoder.encoder.embedding_size
        if self.classifier.inputs != size:
            takes = f"takes {self.classifier.inputs} inputs"
            raise errors.InputError(f"classifier: {takes}, the encoder gives embeddings of {size}")
        if self.initial is not None:
            size, initial = self.classifier.weights.size, np.asarray(self.initial)
            if initial.dtype != np.float32 or initial.shape != (size,) or not np.isfinite(initial).all():
                shape = f"{initial.dtype}{list(initial.shape)}"
                raise errors.InputError(f"initial: expected float32[{size}], all finite, found {shape}")
        if self.memory_encoder is not None:
            own, other = self.encoder.encoder, self.memory_encoder.encoder
            if (own.stats_size, own.variational) != (other.stats_size, other.variational):
                gives = f"gives {other.stats_size} numbers an example"
                raise errors.InputError(f"memory_encoder: {gives}, the encoder {own.stats_size}")


class RehearsalWork(LocalWork):
    """Trains a classifier on embeddings of the task mixed with samples of remembered ones (FIL-VER, section 3.2).

    The encoder sees every example once, in `prepare`: training, evaluation and memory use its statistics. All labels
    belong to one head: tasks are domains of the same labels, or with a label mask differ in their labels.

    Shown in docs/contract.md.

    Args:
      model: encoder and classifier.
      training: epochs, batches, learning rate. An epoch goes over the task's examples and all memories.
      sharing: of embeddings, for rehearsal at the server.
      client_memory: rows that a client remembers of its past tasks, fairly shared; 0 for none.
      task_memory: rows of one task that it remembers at most, even while there is room for more; None for no limit.
      penalty: `Proximal` or any `Penalty` on the classifier's weights, or several.
      seed: of the classifier's first weights, where they are drawn.

    Raises:
      InputError: a negative memory, a sharing of another encoder, or a penalty that needs the server to keep something.
    """

    @errors.checked_arguments
    def __init__(
        self,
        model: RehearsalModel,
        training: LocalTraining,
        sharing: Sharing,
        *,
        client_memory: int = 0,
        task_memory: int | None = None,
        penalty: Penalties = None,
        seed: int = 0,
    ):
        for name, value in (("client_memory", client_memory), ("task_memory", task_memory)):
            if value is not None and value < 0:
                raise errors.InputError(f"{name}: expected a number that is not negative, found {value}")
        if sharing.encoder != model.encoder.encoder:
            raise errors.InputError(f"sharing: is of {sharing.encoder}, the model's is {model.encoder.encoder}")
        self.model, self.training, self.sharing = model, training, sharing
        self._capacity, self._task_capacity = client_memory, task_memory
        self._seed = seed
        self._encoder, self._classifier = model.encoder.encoder, model.classifier
        self.penalties = PenaltySet(penalty, model.classifier.weights.size).without_server("RehearsalWork")
        self.decayed = {"weights": model.classifier.weights}
        self._set_types()

    def _set_types(self) -> None:
        width = self._encoder.stats_size
        self.state_type = OrderedDict(
            key=tff.TensorType(np.int32, [2]),
            task=tff.TensorType(np.int32),
            run_task=tff.TensorType(np.int32),
            schedule=tff.TensorType(np.float32, [4]),
            offered=tff.TensorType(np.int32),
            **_to_state(rows_type(width)),
        )
        if self._needs_secret:
            self.state_type["secret"] = tff.TensorType(np.int32, [2])
        self.state_type.update(self.penalties.state_type)
        self.train_reads = tuple(self.state_type)
        self.train_writes = ("schedule", "offered", *self.penalties.changes_in_round)
        self.evaluate_type = OrderedDict(task=self.state_type["task"])
        mask = label_mask_type(self._classifier.classes, self.model.growing) if self.model.label_mask else {}
        self.context_type = OrderedDict(self._encoder.context_type, **mask)
        label = tff.TensorType(np.int32, [None])
        self.example_type = OrderedDict(self._encoder.example_type, label=label)
        stats = tff.TensorType(np.float32, [None, width])
        self.prepared_type = OrderedDict(stats=stats, label=label)
        if self.model.memory_encoder is not None:
            self.prepared_type["remembered"] = stats
        self.shared_type = tff.TensorType(np.float32, [self._classifier.weights.size])
        self.knowledge_size, self.num_foreign, self.max_classes = 0, 0, self._classifier.classes

    def initialize_shared(self) -> tf.Tensor:
        if self.model.initial is not None:
            return tf.constant(self.model.initial)
        return self._classifier.initial(randomness.fold(randomness.root_key(self._seed), randomness.BASE))

    def initialize_client(self, shared: tf.Tensor, plan: tf.Tensor, key: tf.Tensor) -> Tensors:
        return {**self.initial_state(key), "run_task": tf.constant(-1)}

    def begin_task(self, state: Tensors, shared: tf.Tensor, foreign: tf.Tensor) -> Tensors:
        return dict(state, **self.next_task(state), offered=tf.constant(0), **self.penalties.begin_task(shared))

    def prepare(self, state: Tensors, foreign: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        prepared = {"stats": self.model.encoder.encode(context, examples), "label": examples["label"]}
        if self.model.memory_encoder is not None:
            prepared["remembered"] = self.model.memory_encoder.encode(context, examples)
        return prepared

    def end_task(self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any]) -> tuple[Tensors, Tensors]:
        """The client remembers a random sample of the statistics of the task that has ended."""
        train, vectors = data["train"], data["train"].get("remembered", data["train"]["stats"])
        rows = task_rows(vectors, train["label"], state["run_task"], self._task_key(state))
        if self._task_capacity is not None:
            rows = remember(no_rows(self._encoder.stats_size), rows, self._task_capacity)
        kept = remember(_of_state(state), rows, self._capacity)
        changed = self.penalties.end_task(state, shared, self._importance(shared, state, data))
        return dict(state, **_to_state(kept), **changed), OrderedDict(knowledge=tf.zeros([0]))

    # -- one round -------------------------------------------------------------------------------------------

    penalised = "weights"

    def trained(self) -> Mapping[str, Trained]:
        return {"weights": Trained((self._classifier.weights.size,))}

    def begin_round(self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any], number: tf.Tensor) -> Round:
        """New examples and memories are one set, randomly mixed."""
        memory = _of_state(state)
        stats = tf.concat([data["train"]["stats"], memory["vectors"]], 0)
        labels = tf.concat([data["train"]["label"], memory["label"]], 0)
        count = tf.where(num_examples(data["train"]) > 0, tf.size(labels), 0)
        mask = {}
        if self.model.label_mask:
            mask = {CLASSES: data["context"][CLASSES] | occurring(memory["label"], self._classifier.classes)}
        return Round(state, shared, data, number, {"weights": shared}, count, ({"stats": stats, "label": labels}, mask))

    def step_loss(self, values: Values, rows: tf.Tensor, step: Step, here: Round) -> StepLoss:
        examples, mask = here.extra
        batch = {name: tf.gather(entries, rows) for name, entries in examples.items()}
        z = draw(batch["stats"], step.key, self._encoder.embedding_size, self._encoder.variational)
        loss = tf.reduce_mean(cross_entropy(self._classifier.logits(values["weights"], z), mask, batch))
        return StepLoss(loss, loss, batch)

    def logits(self, values: Values, batch: Tensors, here: Round) -> tf.Tensor:
        return self._mean_logits(values["weights"], batch)

    def held_out_loss(self, values: Values, here: Round) -> tf.Tensor:
        sums = self._sums(values["weights"], here.data["context"], here.data["validation"])
        return sums["loss"] / sums["count"]

    def _importance(self, weights: tf.Tensor, state: Tensors, data: Mapping[str, Tensors]) -> Measure:
        """Fisher information of the classifier's weights on a task's embeddings."""

        def losses(weights: tf.Tensor, batch: Tensors) -> tf.Tensor:
            return cross_entropy(self._mean_logits(weights, batch), data["context"], batch)

        key = randomness.fold(self._task_key(state), randomness.EXAMPLES)
        return lambda most: mean_of_squares(losses, weights, data["train"], key, most)

    def end_round(self, changed: dict[str, tf.Tensor], here: Round, metrics: OrderedDict) -> Result:
        state, train, weights = here.state, here.data["train"], changed.pop("weights")
        entries, _ = self.penalties.end_round(state, weights, self._importance(weights, state, here.data))
        finite = all_finite([weights, *entries.values()])
        metrics["examples"] = num_examples(train)
        metrics["remembered"] = tf.size(_of_state(state)["label"])
        kept, update, weight, reported = self.accept_round(
            {**changed, **entries}, here, weights, tf.ones_like(weights, tf.bool), here.shared, finite, metrics
        )
        if self.sharing.kind == "none":
            return dict(kept, offered=state["offered"]), update, weight, reported
        key, noise_key = self._task_key(state), self._noise_key(state)
        rows = self.sharing.sent(train["stats"], train["label"], state["run_task"], state["offered"], key, noise_key)
        count = tf.where(weight > 0.0, tf.size(rows["label"]), 0)  # a client that is left out sends nothing at all
        rows = OrderedDict((name, values[:count]) for name, values in rows.items())
        reported["extra_bytes"] = count * self.sharing.row_bytes
        kept, sent = dict(kept, offered=state["offered"] + count), OrderedDict(weights=update, rehearsal=rows)
        return kept, sent, weight, reported

    def limits(self, state: Tensors, data: Mapping[str, Any]) -> Tensors:
        most = tf.minimum(self.sharing.send_per_round, num_examples(data["train"]))
        return {**super().limits(state, data), "rows": most, "task": state["run_task"]}

    def faults(self, update: Tensors, limits: Tensors) -> Sequence[Fault]:
        if self.sharing.kind == "none":
            return ()
        return row_faults(update["rehearsal"], limits["rows"], limits["task"], self._classifier.classes)

    def _task_key(self, state: Tensors) -> tf.Tensor:
        return randomness.fold(state["key"], state["task"])

    @property
    def _needs_secret(self) -> bool:
        return self.sharing.privacy is not None and self.sharing.privacy.seed is None

    def _noise_key(self, state: Tensors) -> tf.Tensor | None:
        """The key of a task's noise; without a secret nothing leaves the client."""
        if self.sharing.privacy is None:
            return None
        if self.sharing.privacy.seed is not None:
            root = randomness.fold(state["key"], self.sharing.privacy.seed)
        else:
            root = state["secret"]
            tf.debugging.Assert(
                tf.reduce_any(tf.not_equal(root, 0)),
                ["client state: the secret is all zeros; whoever makes the state has to draw it"],
            )
        return randomness.fold(randomness.fold(root, state["task"]), randomness.PRIVACY)

    def task_view(self, state: Mapping[str, Any], task: Any) -> OrderedDict:
        return OrderedDict(task=task if tf.is_tensor(task) else np.asarray(task, np.int32))

    def evaluate(self, view: Tensors, shared: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        """The server's classifier on mu, the centre of each example's posterior: sums `count`, `loss`, `correct`."""
        return self._sums(shared, context, examples)

    def _sums(self, weights: tf.Tensor, context: Tensors, examples: Tensors) -> OrderedDict:
        examples = {name: examples[name] for name in ("stats", "label")}
        return classified(lambda batch: competing(self._mean_logits(weights, batch), context), examples)

    def _mean_logits(self, weights: tf.Tensor, batch: Tensors) -> tf.Tensor:
        return self._classifier.logits(weights, mean_of(self._encoder, batch["stats"]))


_MEMORY = "memory_"  # prefix of a memory's tensors among the entries of a client's state


def _to_state(rows: Mapping[str, Any]) -> OrderedDict:
    return OrderedDict((_MEMORY + name, value) for name, value in rows.items())


def _of_state(state: Tensors) -> OrderedDict:
    return OrderedDict((name[len(_MEMORY) :], value) for name, value in state.items() if name.startswith(_MEMORY))


class SyntheticWork(PlainWork):
    """A plain work that distills the last task's model on examples which the server made of it.

    To the loss of a step comes weight T^2 KL(softmax(z* / T) || softmax(z / T)), its mean over a batch of synthetic
    examples drawn for the step: z are the scores of the classes that came before the task, z* those of the server's
    model as the task began, which the client computes once. Nothing before the server has made any.

    Shown in docs/methods.md.

    Args:
      network: a classifier of one growing head, without places for foreign adaptives.
      training: epochs, batches, learning rate; a step has as many synthetic examples as its batch at most.
      form: of the synthetic examples.
      count: synthetic examples that the server hands out.
      weight: alpha, of the distillation.
      temperature: T.
      seed: of the server's first kernels.
      **options: see `PlainWork`.

    Raises:
      InputError: a number out of its range, or contexts that do not say which classes came before.
    """

    handed = ("synthetic",)

    @errors.checked_arguments
    def __init__(
        self,
        network: Classifier,
        training: LocalTraining,
        form: InputForm,
        *,
        count: int,
        weight: float,
        temperature: float = 2.0,
        seed: int = 0,
        **options: Any,
    ):
        super().__init__(network, training, seed, **options)
        errors.check_whole("count", count, 1)
        errors.check_above_zero("weight", weight)
        errors.check_above_zero("temperature", temperature)
        if KNOWN not in network.context_type:
            raise errors.InputError(
                "network: its contexts should say which classes came before; see with_label_mask(..., growing=True)"
            )
        self.form, self.count, self.weight, self.temperature = form, count, weight, temperature
        self.state_type = OrderedDict(
            self.state_type,
            synthetic=tff.TensorType(np.float32, [count, *form.shape]),
            synthetic_scores=tff.TensorType(np.float32, [count, network.max_classes]),
        )
        self.train_reads = (*self.train_reads, "synthetic", "synthetic_scores")

    def begin_task(self, state: Tensors, shared: tf.Tensor, foreign: tf.Tensor) -> Tensors:
        begun = super().begin_task(state, shared, foreign)
        values = {"base": self.penalties.kernels(shared), "local": begun["local"]}
        scores = self._scores(values, state["synthetic"], state, {})
        return dict(begun, synthetic_scores=tf.ensure_shape(scores, [self.count, self.network.max_classes]))

    def _scores(self, values: Values, x: tf.Tensor, state: Tensors, context: Tensors) -> tf.Tensor:
        """Class scores of synthetic examples, float32 `[n, *form.shape]`, without dropout."""
        more, examples = self.form.examples(x)
        return self.model(values, state).logits({**context, **more}, examples)

    def step_loss(self, values: Values, rows: tf.Tensor, step: Step, here: Round) -> StepLoss:
        own = super().step_loss(values, rows, step, here)
        order = tf.random.experimental.stateless_shuffle(
            tf.range(self.count), randomness.fold(step.key, randomness.SYNTHETIC)
        )
        drawn, context = order[: self.training.batch_size], here.data["context"]
        every = here.state["synthetic"]
        old = tf.gather(here.state["synthetic_scores"], drawn)
        new = self._scores(values, tf.gather(every, drawn), here.state, context)
        each = divergence(old, new, context[KNOWN], self.temperature)
        there = tf.cast(tf.reduce_any(tf.not_equal(every, 0.0)), tf.float32)  # the server begins with zeros
        distillation = there * self.weight * self.temperature**2 * tf.reduce_mean(each)
        return own._replace(objective=own.objective + distillation)
