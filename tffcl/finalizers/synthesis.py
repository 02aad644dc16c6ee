"""What the server of TARGET makes at the end of a task: examples for which the model says what it has learned.

Zhang, Chen, Zhuang, Lyu: TARGET: Federated Class-Continual Learning via Exemplar-Free Distillation, ICCV 2023.
A generator is trained against the server's model, the teacher, with no data at all, and against a student that is
trained on what the generator makes. Where this differs from the paper: docs/methods.md.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works import randomness
from tffcl.client_works.optimizers import FusedAdam, empty_variable
from tffcl.client_works.penalties import divergence
from tffcl.models.generator import Generator
from tffcl.models.network import CLASSES, Classifier, Tensors, competing
from tffcl.templates import FinalizerProcess
from tffcl.templates.messages import at_server

_RATE, _BETA_1 = 2e-3, 0.5  # of the generator's Adam, as in the published code
_STUDENT_RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Synthesis:
    """How the server makes examples.

    Shown in docs/methods.md.

    Attributes:
      count: examples, the same number after every task; all classes so far have as many, or one more.
      steps: of the generator, and of its student.
      adversarial: lambda_1, weight of the term by which generator and student compete.
      temperature: T of the student's distillation.
      batch_size: examples in a step.

    Raises:
      InputError: a number out of its range.
    """

    count: int = 200
    steps: int = 200
    adversarial: float = 1.0
    temperature: float = 2.0
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name in ("count", "steps", "batch_size"):
            errors.check_whole(name, getattr(self, name), 1)
        errors.check_above_zero("temperature", self.temperature)
        if not self.adversarial >= 0:
            raise errors.InputError(f"adversarial: expected a number that is not negative, found {self.adversarial}")


def generator_loss(teacher: tf.Tensor, student: tf.Tensor, labels: tf.Tensor, adversarial: float) -> tf.Tensor:
    """mean_i CE(teacher_i, y_i) - lambda_1 mean_i [argmax teacher_i != argmax student_i] KL(teacher_i || student_i).

    The second term is the support of the decision boundary: it draws examples to where the student still errs.

    >>> scores = tf.constant([[0.0, 1.0], [1.0, 0.0]])
    >>> round(float(generator_loss(scores, scores, tf.constant([1, 0]), 1.0)), 4)
    0.3133

    Args:
      teacher: class scores, float32 `[n, L]`.
      student: the same.
      labels: int32 `[n]`, the classes that were asked for.
      adversarial: lambda_1.
    """
    fits = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, teacher)
    differ = tf.not_equal(tf.argmax(teacher, axis=1), tf.argmax(student, axis=1))
    apart = divergence(teacher, student, tf.fill(tf.shape(teacher)[1:], True))
    return tf.reduce_mean(fits) - adversarial * tf.reduce_mean(tf.where(differ, apart, 0.0))


@errors.checked_arguments
def build_synthesis(
    inner: FinalizerProcess, network: Classifier, generator: Generator, options: Synthesis, seed: int = 0
) -> FinalizerProcess:
    """What `inner` makes of the clients' updates; and when a task has ended, examples of all classes so far.

    Its state is that of `inner`, `synthetic`, float32 `[count, *generator.form.shape]`, zeros at first, and a count of
    tasks, on which with `seed` all that is drawn depends. Examples that would not be finite are not taken. Measurements
    of a task's end: `loss` of the generator and `student_loss`, of the last step, in nats; `agreement`, the share of
    the examples for which the model says the class that was asked for; and `rejected`.

    Shown in docs/methods.md.

    Args:
      inner: a finalizer of the network's kernels, such as `build_server_update` gives.
      network: the teacher and the student, of which everything that is trained is shared (`tffcl.models.Whole`).
      generator: of the network's inputs.
      options: how many, and how.
      seed: of generator and student, and of all that is drawn.

    Raises:
      ContractError: `inner` is of fewer weights than the network's.
      InputError: a network with parameters of a task's own.
    """
    size, classes = network.kernels.size, network.max_classes
    if network.local.size:
        raise errors.InputError("network: all that it trains should be shared; take tffcl.models.Whole of it")
    initial, shared_type, update_type = inner.next.type_signature.parameter
    if shared_type.member.dtype != np.float32 or shared_type.member.shape[0] < size:
        raise errors.ContractError(f"synthesis: inner finalizer is of {shared_type}, the network of {size} weights")
    made_type = tff.TensorType(np.float32, [options.count, *generator.form.shape])
    state_type = tff.to_type(OrderedDict(inner=initial.member, synthetic=made_type, tasks=np.int32))
    seen_type = tff.TensorType(np.bool_, [classes])

    @tff.tensorflow.computation
    def nothing() -> tf.Tensor:
        return tf.zeros(made_type.shape)

    @tff.tensorflow.computation(made_type, tff.TensorType(np.int32), shared_type.member, seen_type)
    def make(before: tf.Tensor, tasks: tf.Tensor, shared: tf.Tensor, seen: tf.Tensor) -> tuple:
        made, measured = _synthesizer(network, generator, options, seed)(shared[:size], seen, tasks)
        finite = tf.reduce_all(tf.math.is_finite(made))
        measured["rejected"] = 1 - tf.cast(finite, tf.int32)
        return tf.where(finite, tf.ensure_shape(made, made_type.shape), before), tasks + 1, measured

    @tff.federated_computation
    def initialize() -> tff.Value:
        return tff.federated_zip(
            OrderedDict(
                inner=inner.initialize(),
                synthetic=tff.federated_eval(nothing, tff.SERVER),
                tasks=tff.federated_value(0, tff.SERVER),
            )
        )

    @tff.federated_computation(at_server(state_type), shared_type, update_type)
    def next_step(state: tff.Value, shared: tff.Value, aggregate: tff.Value) -> Any:
        updated = inner.next(state.inner, shared, aggregate)
        kept = OrderedDict(inner=updated.state, synthetic=state.synthetic, tasks=state.tasks)
        return tff.templates.MeasuredProcessOutput(tff.federated_zip(kept), updated.result, updated.measurements)

    @tff.federated_computation(at_server(state_type), shared_type, at_server(seen_type))
    def end_task(state: tff.Value, shared: tff.Value, seen: tff.Value) -> Any:
        made = tff.federated_map(make, (state.synthetic, state.tasks, shared, seen))
        kept = OrderedDict(inner=state.inner, synthetic=made[0], tasks=made[1])
        return tff.federated_zip(kept), made[2]

    return FinalizerProcess(initialize, next_step, end_task)


def _synthesizer(
    network: Classifier, generator: Generator, options: Synthesis, seed: int
) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, OrderedDict]]:
    """Allocates the variables and returns the compiled synthesis."""
    making, learning = empty_variable([generator.weights.size]), empty_variable([network.kernels.size])
    optimizers = [(FusedAdam(beta_1=_BETA_1), making, _RATE), (FusedAdam(), learning, _STUDENT_RATE)]
    slots = [each.allocate([variable]) for each, variable, _ in optimizers]

    @tf.function(autograph=False, reduce_retracing=True)
    def run(kernels: tf.Tensor, seen: tf.Tensor, tasks: tf.Tensor) -> tuple[tf.Tensor, OrderedDict]:
        key = randomness.fold(randomness.fold(randomness.root_key(seed), randomness.SERVER), tasks)
        key = randomness.fold(key, randomness.SYNTHETIC)
        there = tf.cast(tf.where(seen)[:, 0], tf.int32)
        there = tf.cond(tf.size(there) > 0, lambda: there, lambda: tf.constant([0]))

        def scores(weights: tf.Tensor, context: Tensors, examples: Tensors) -> tf.Tensor:
            # Nothing else is in a context: a growing head needs no more than which classes compete.
            context = {**context, CLASSES: seen}
            logits = network.logits(weights, tf.zeros([0]), tf.zeros(network.attention_shape), context, examples, None)
            return competing(logits, context)

        making.assign(generator.initial(randomness.fold(key, randomness.BASE)))
        learning.assign(network.initial_kernels(randomness.fold(key, randomness.LOCAL)))

        def one_step(step: tf.Tensor, states: Any, *_: tf.Tensor) -> tuple:
            own = randomness.fold(randomness.fold(key, randomness.ROUNDS), step)
            drawn = tf.random.stateless_uniform([options.batch_size], own, maxval=tf.size(there), dtype=tf.int32)
            labels = tf.gather(there, drawn)
            student = learning.read_value()
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(making)
                _, *given = generator(making.read_value(), labels, randomness.fold(own, randomness.SAMPLES))
                told = scores(kernels, *given)
                loss = generator_loss(told, scores(student, *given), labels, options.adversarial)
            gradients = [tape.gradient(loss, making)]
            given, told = tf.nest.map_structure(tf.stop_gradient, (given, told))
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(learning)
                answers = scores(learning.read_value(), *given)
                behind = tf.reduce_mean(divergence(told, answers, seen, options.temperature))
            gradients.append(tape.gradient(behind, learning))
            states = tuple(
                optimizer.step(slot, state, [variable], [gradient], tf.constant(rate))
                for (optimizer, variable, rate), slot, state, gradient in zip(optimizers, slots, states, gradients)
            )
            return step + 1, states, loss, behind

        begun = tuple(optimizer.begin(slot, [variable]) for (optimizer, variable, _), slot in zip(optimizers, slots))
        start = (tf.constant(0), begun, tf.constant(0.0), tf.constant(0.0))
        _, _, loss, behind = tf.while_loop(
            lambda step, *_: step < options.steps, one_step, start, parallel_iterations=1
        )
        labels = tf.gather(there, tf.range(options.count) % tf.size(there))
        made, *given = generator(making.read_value(), labels, randomness.fold(key, randomness.EXAMPLES))
        right = tf.equal(tf.argmax(scores(kernels, *given), axis=1, output_type=tf.int32), labels)
        agreement = tf.reduce_mean(tf.cast(right, tf.float32))
        return made, OrderedDict(loss=loss, student_loss=behind, agreement=agreement)

    return run
