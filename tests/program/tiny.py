"""A smallest client work, a linear softmax on `base + adaptive` with an adaptive matrix per task, and its data."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_works.evaluation import of_task
from tffcl.program import ClientTask, run_program
from tffcl.streams import Enrollment
from tffcl.templates import ClientWork, FinalizerProcess, compose_continual_process, messages
from tffcl.transfers import PreviousTask

D, CLASSES, TASKS, FOREIGN = 3, 2, 4, 2
SIZE = D * CLASSES


def floats(*shape):
    return tff.TensorType(np.float32, shape)


class TinyWork(ClientWork):
    state_type = OrderedDict(
        key=tff.TensorType(np.int32, (2,)),
        base=floats(SIZE),
        adaptive=floats(SIZE),
        past=floats(None, SIZE),
        count=tff.TensorType(np.int32),
    )
    train_reads = ("key", "adaptive")
    train_writes = ("base", "adaptive")
    prepare_reads = ("key",)
    evaluate_type = OrderedDict(base=floats(SIZE), adaptive=floats(SIZE))
    context_type = OrderedDict(scale=floats(D))
    example_type = OrderedDict(x=floats(None, D), label=tff.TensorType(np.int32, (None,)))
    prepared_type = OrderedDict(example_type, foreign=floats(None, None, CLASSES))
    shared_type = floats(SIZE)
    knowledge_size = SIZE
    num_foreign = FOREIGN
    max_classes = CLASSES

    def initialize_shared(self):
        return tf.zeros([SIZE])

    def initialize_client(self, shared, plan, key):
        return {
            "key": key,
            "base": shared,
            "adaptive": tf.zeros([SIZE]),
            "past": tf.zeros([0, SIZE]),
            "count": tf.constant(0),
        }

    def begin_task(self, state, shared, foreign):
        fresh = tf.random.stateless_normal([SIZE], state["key"]) * 0.1 + 0.01 * tf.reduce_sum(foreign, axis=0)
        return dict(state, adaptive=fresh, base=shared)

    def prepare(self, state, foreign, context, examples):
        kernels = tf.reshape(foreign, [-1, D, CLASSES])
        return dict(examples, foreign=tf.einsum("nd,kdc->nkc", examples["x"] * context["scale"], kernels))

    def _loss(self, kernel, context, examples):
        logits = tf.matmul(examples["x"] * context["scale"], tf.reshape(kernel, [D, CLASSES]))
        logits += 0.1 * tf.reduce_sum(examples["foreign"], axis=1)
        return logits, tf.nn.sparse_softmax_cross_entropy_with_logits(examples["label"], logits)

    def train(self, state, shared, data, round_num):
        seed = state["key"] + round_num
        kernel = shared + state["adaptive"] + 0.01 * tf.random.stateless_normal([SIZE], seed)
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            loss = tf.reduce_mean(self._loss(kernel, data["context"], data["train"])[1])
        gradient = tape.gradient(loss, kernel)
        validation = tf.reduce_mean(self._loss(kernel, data["context"], data["validation"])[1])
        base, adaptive = shared - 0.5 * gradient, state["adaptive"] - 0.5 * gradient
        metrics = {
            "loss": loss,
            "validation_loss": validation,
            "epochs": tf.constant(1),
            "sent": tf.constant(SIZE - 1),
            "non_finite": tf.constant(0),
            "examples": tf.shape(data["train"]["label"])[0],
            "extra": tf.reduce_max(base),
        }
        return {"base": base, "adaptive": adaptive}, {"base": base}, tf.constant(1.0), metrics

    def end_task(self, state, shared, data):
        past = tf.concat([state["past"], state["adaptive"][None]], axis=0)
        return dict(state, past=past, count=state["count"] + 1), {"knowledge": state["adaptive"]}

    def evaluate(self, view, shared, context, examples):
        logits, loss = self._loss(view["base"] + view["adaptive"], context, examples)
        correct = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), examples["label"])
        return {
            "count": tf.size(loss),
            "loss": tf.reduce_sum(loss),
            "correct": tf.reduce_sum(tf.cast(correct, tf.int32)),
        }

    def task_view(self, state, task):
        return OrderedDict(base=state["base"], adaptive=of_task(task, state["past"], state["adaptive"]))


def build_finalizer(kind, update):
    """The aggregate becomes the shared value; its largest entry is measured."""

    @tff.federated_computation
    def initialize():
        return tff.federated_value((), tff.SERVER)

    @tff.tensorflow.computation(update)
    def take(aggregate):
        base = aggregate["base"]
        return base, OrderedDict(update=OrderedDict(largest=tf.reduce_max(base), rejected=0))

    @tff.federated_computation(messages.at_server(()), messages.at_server(kind), messages.at_server(update))
    def next_fn(state, shared, aggregate):
        del shared
        taken = tff.federated_map(take, aggregate)
        return tff.templates.MeasuredProcessOutput(state, taken[0], taken[1])

    return FinalizerProcess(initialize, next_fn)


def build_process(work=None):
    work = work or TinyWork()
    update = tff.to_type(OrderedDict(base=floats(SIZE)))
    return compose_continual_process(work, tff.aggregators.MeanFactory(), build_finalizer(floats(SIZE), update))


class TinyData:
    """Points in the plane of three dimensions, divided by the sign of one coordinate, another in each task."""

    def __init__(self, num_clients=3, num_tasks=3, **changes):
        self.num_clients, self.num_tasks, self.changes = num_clients, num_tasks, changes

    def task(self, client, task):
        rng = np.random.default_rng((client, task))

        def examples(count):
            x = rng.normal(size=(count, D)).astype(np.float32)
            return OrderedDict(x=x, label=(x[:, (client + task) % D] > 0).astype(np.int32))

        context = OrderedDict(scale=np.ones(D, np.float32))
        parts = {"train": examples(12), "validation": examples(4), "test": examples(5 + client)}
        made = ClientTask(context, test_context=context, num_classes=CLASSES, **parts)
        return dataclasses.replace(made, **self.changes.get(f"client_{client}_task_{task}", {}))


class EnrolledData(TinyData):
    """The same, empty where a client is not active; `client_C_task_T` among the changes keeps the examples there."""

    def __init__(self, enrollment, **changes):
        super().__init__(enrollment.num_clients, enrollment.num_tasks, **changes)
        self.enrollment = enrollment

    def task(self, client, task):
        one = super().task(client, task)
        if client in self.enrollment.active(task) or f"client_{client}_task_{task}" in self.changes:
            return one
        none = OrderedDict(x=np.zeros((0, D), np.float32), label=np.zeros(0, np.int32))
        return dataclasses.replace(one, train=none, validation=none, test=none)


def run_enrolled(process, table, output_dir=None, **options):
    """A run of clients that come and go."""
    enrollment = Enrollment.from_table(table)
    return run(process, output_dir, EnrolledData(enrollment), enrollment=enrollment, **options)


def run(process, output_dir=None, data=None, transfer=None, **options):
    """A run of 3 tasks and 2 rounds; told to nobody."""
    options = {"num_rounds": 2, "seed": 7, "reporters": (), "summarise": lambda one: one.train["x"], **options}
    return run_program(process, data or TinyData(), transfer or PreviousTask(), output_dir=output_dir, **options)
