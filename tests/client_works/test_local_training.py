"""The training loop: which examples are seen when, and how the schedule goes."""

import functools
import math

import numpy as np
import pytest
import rehearsing
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works import DecomposedWork, Decomposition, LocalTraining, PlainWork
from tffcl.client_works.evaluation import in_batches
from tffcl.client_works.local_training import TrainingLoop, fresh_schedule
from tffcl.models import MADEConfig, MADENetwork

NAN = float("nan")
WEIGHT_RATE = 0.5


class Recorder:
    """A loop over numbered examples that writes down each step: which examples, and the step's key."""

    def __init__(self, config, most_steps=64, width=16, validation=None):
        self.config = config
        self.seen = tf.Variable(tf.fill([most_steps, width], -1))
        self.keys = tf.Variable(tf.zeros([most_steps, 2], tf.int32))
        self.steps = tf.Variable(0)
        self.weight = tf.Variable(1.0)
        self.script = tf.Variable([NAN] if validation is None else validation, shape=[None], dtype=tf.float32)
        self.asked = tf.Variable(0)
        loop = TrainingLoop(config, [(1.0, [self.weight])])

        @tf.function(
            autograph=False,
            input_signature=[tf.TensorSpec([None], tf.int32), tf.TensorSpec([4]), tf.TensorSpec([2], tf.int32)],
        )
        def run(numbers, schedule, key):
            return loop.run(self._loss, self._validation, tf.size(numbers), schedule, key)

        self._run = run

    def _loss(self, numbers, where):
        row = tf.pad(numbers, [[0, self.seen.shape[1] - tf.size(numbers)]], constant_values=-1)
        step = self.steps.read_value()
        self.seen.scatter_nd_update([[step]], row[None])
        self.keys.scatter_nd_update([[step]], where.key[None])
        self.steps.assign_add(1)
        loss = tf.reduce_mean(tf.cast(numbers, tf.float32))
        return self.weight * loss, loss

    def _validation(self):
        script = self.script.read_value()
        value = script[tf.minimum(self.asked.read_value(), tf.size(script) - 1)]
        self.asked.assign_add(1)
        return value

    def run(self, count, schedule=None, key=(3, 4)):
        self.seen.assign(tf.fill(self.seen.shape, -1))
        self.steps.assign(0)
        schedule = fresh_schedule(self.config) if schedule is None else schedule
        schedule, metrics = self._run(tf.range(count), schedule, tf.constant(key))
        batches = [[int(n) for n in row if n >= 0] for row in self.seen.numpy()[: int(self.steps)]]
        return schedule.numpy(), {k: v.numpy() for k, v in metrics.items()}, batches


def epochs_of(batches, count):
    flat = [n for batch in batches for n in batch]
    return [flat[i : i + count] for i in range(0, len(flat), count)]


recorder_of = functools.lru_cache(maxsize=None)(Recorder)  # traced once for every test that takes the settings


@pytest.mark.parametrize(("count", "sizes"), [(7, [3, 3, 1]), (6, [3, 3]), (2, [2]), (1, [1])])
def test_every_example_once_an_epoch_and_a_ragged_last_batch(count, sizes):
    recorder = recorder_of(LocalTraining(num_epochs=4, batch_size=3))
    _, metrics, batches = recorder.run(count)
    assert [len(batch) for batch in batches] == sizes * 4
    for epoch in epochs_of(batches, count):
        assert sorted(epoch) == list(range(count))
    assert metrics["epochs"] == 4
    assert metrics["examples"] == count
    np.testing.assert_allclose(metrics["loss"], (count - 1) / 2, rtol=1e-6)  # weighted by batch


def test_order_depends_on_epoch_and_key_and_on_nothing_else():
    recorder = Recorder(LocalTraining(num_epochs=3, batch_size=5))
    first, again, other = (recorder.run(12, key=key)[2] for key in ((3, 4), (3, 4), (3, 5)))
    assert first == again
    orders = [tuple(e) for e in epochs_of(first, 12)]
    assert len(set(orders)) == 3
    assert all(a != b for a, b in zip(orders, map(tuple, epochs_of(other, 12))))


def test_every_step_has_a_key_of_its_own():
    recorder = Recorder(LocalTraining(num_epochs=3, batch_size=2))
    recorder.run(5)
    assert len({tuple(key) for key in recorder.keys.numpy()[:9]}) == 9


def test_no_examples_is_no_step_and_no_change():
    recorder = Recorder(LocalTraining(num_epochs=3), validation=[1.0])
    schedule, metrics, batches = recorder.run(0)
    assert batches == []
    assert metrics["epochs"] == 0
    assert metrics["examples"] == 0
    assert math.isnan(metrics["loss"])
    np.testing.assert_array_equal(schedule, fresh_schedule(LocalTraining()))
    assert float(recorder.weight) == 1.0


def test_without_validation_neither_decay_nor_early_stop():
    recorder = Recorder(LocalTraining(num_epochs=20, batch_size=8, patience=1, max_decays=0), validation=[NAN])
    schedule, metrics, _ = recorder.run(4)
    assert metrics["epochs"] == 20
    np.testing.assert_array_equal(schedule, fresh_schedule(LocalTraining()))


def simulate(config, script, schedule, asked):
    """The paper's rule in plain Python: (schedule, epochs)."""
    rate, best, waited, decays = schedule
    for epoch in range(config.num_epochs):
        loss = script[min(asked + epoch, len(script) - 1)]
        if math.isnan(loss) or loss < best:
            waited, best = 0, best if math.isnan(loss) else loss
            continue
        waited += 1
        if waited < config.patience:
            continue
        waited = 0
        if decays == config.max_decays:
            return (rate, best, waited, decays), epoch + 1
        rate, decays = rate / config.decay, decays + 1
    return (rate, best, waited, decays), config.num_epochs


def scripts():
    rng = np.random.default_rng(0)
    yield [1.0] * 40
    yield list(np.linspace(2, 1, 40))
    yield [1.0, 0.9, 0.95, 0.94, 0.8, NAN, 0.9, 0.9, 0.9, NAN, 0.9, 0.85, 0.7] + [0.75] * 27
    for _ in range(3):
        yield list(rng.normal(size=40).round(2))


@pytest.mark.parametrize("script", list(scripts()))
@pytest.mark.parametrize(("patience", "max_decays"), [(1, 2), (3, 1), (2, 0)])
def test_schedule_over_three_rounds_is_that_of_a_simulation(script, patience, max_decays):
    config = LocalTraining(num_epochs=10, batch_size=4, learning_rate=0.9, patience=patience, max_decays=max_decays)
    recorder = recorder_of(config)
    recorder.script.assign(script)
    recorder.asked.assign(0)
    found, expected = fresh_schedule(config), (0.9, math.inf, 0, 0)
    for _ in range(3):
        asked = int(recorder.asked)
        found, metrics, _ = recorder.run(3, found)
        expected, epochs = simulate(config, script, expected, asked)
        assert metrics["epochs"] == epochs
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_patience_zero_turns_both_off():
    recorder = Recorder(LocalTraining(num_epochs=9, patience=0, max_decays=0), validation=[1.0])
    schedule, metrics, _ = recorder.run(3)
    assert metrics["epochs"] == 9
    assert schedule[0] == np.float32(1e-4)


def test_the_decayed_rate_is_the_one_that_steps_use():
    config = LocalTraining(
        num_epochs=3,
        batch_size=8,
        learning_rate=0.9,
        patience=1,
        decay=3.0,
        optimizer=tff.learning.optimizers.build_sgdm(123.0),
    )
    recorder = Recorder(config, validation=[1.0, 1.0, 1.0])
    recorder.run(3)  # the objective's gradient is the mean of 0, 1, 2
    np.testing.assert_allclose(float(recorder.weight), 1.0 - 0.9 - 0.9 - 0.3, rtol=1e-5)


def test_a_groups_scale_multiplies_its_rate():
    one, ten = tf.Variable(0.0), tf.Variable(0.0)
    config = LocalTraining(num_epochs=1, learning_rate=0.1, optimizer=tff.learning.optimizers.build_sgdm(1.0))
    loop = TrainingLoop(config, [(1.0, [one]), (10.0, [ten])])

    @tf.function(autograph=False)
    def run():
        return loop.run(
            lambda rows, step: (one + ten, tf.constant(0.0)),
            lambda: tf.constant(NAN),
            tf.constant(2),
            fresh_schedule(config),
            tf.constant([0, 0]),
        )

    run()
    np.testing.assert_allclose([float(one), float(ten)], [-0.1, -1.0], rtol=1e-6)


def one_step(**options):
    sgd = tff.learning.optimizers.build_sgdm(1.0)
    return LocalTraining(num_epochs=1, batch_size=64, learning_rate=0.1, patience=0, optimizer=sgd, **options)


def of_network(make):
    """Variables before and after one step of a `NetworkWork`, and the layouts of those with kernels."""

    def values(small, training):
        work = make(small, training)
        shared = work.initialize_shared()
        state = dict(work.initialize_client(shared, work.initialize_plan(), tf.constant([1, 2])))
        state = dict(work.begin_task(state, shared, tf.zeros([0, work.knowledge_size])))
        if isinstance(work.network, MADENetwork):
            rows = {"x": tf.constant(np.random.default_rng(0).integers(0, 2, [9, 5]), tf.uint8)}
            data = {"context": {"observed": tf.ones([5])}, "train": rows, "validation": rows}
        else:
            data = small.Runner(work).data(9)
        reads = {name: state[name] for name in work.train_reads}
        changed, update, *_ = work.trainer().python_function(reads, shared, data, tf.constant(0))
        before = {"base": shared, **{name: state[name] for name in work.trained() if name != "base"}}
        if "base" in changed:
            return before, changed, work.network, tf.ones_like(changed["base"])
        after = {"base": shared + update["delta"], **changed}
        return before, after, work.network, tf.cast(update["sent"], tf.float32)  # what masks leave out is not sent

    return values


def of_rehearsal(small, training):
    runner = rehearsing.Runner(rehearsing.work(False, training=training, hidden=(6,)))
    runner.begin()
    update, *_ = runner.train(runner.prepare(rehearsing.examples(9)))
    after = {"weights": runner.shared + update["delta"]}
    return {"weights": runner.shared}, after, runner.work.model.classifier, 1.0


DECAYING = {
    "plain-text": of_network(lambda small, training: PlainWork(small.network(places=0), training)),
    "plain-made": of_network(
        lambda small, training: PlainWork(MADENetwork(MADEConfig(5, (4,), share_biases=True)), training)
    ),
    "decomposed-text": of_network(
        lambda small, training: DecomposedWork(small.network(aligned=True), training, Decomposition())
    ),
    "decomposed-made": of_network(
        lambda small, training: DecomposedWork(MADENetwork(MADEConfig(5, (4,)), 2), training, Decomposition())
    ),
    "rehearsal": of_rehearsal,
}


@pytest.mark.parametrize("work", DECAYING)
def test_a_step_takes_its_share_off_kernels_and_off_nothing_else(work, small):
    """With gradient descent the decay of a step is what its result lacks of that without decay."""
    before, plain, network, known = DECAYING[work](small, one_step())
    _, decayed, *_ = DECAYING[work](small, one_step(weight_decay=2.0))
    layouts = {"weights": network.weights} if work == "rehearsal" else {"base": network.kernels, "local": network.local}
    for name, start in before.items():
        lost = plain[name] - decayed[name]
        expected = np.zeros(lost.shape)
        if name in layouts:
            parts = layouts[name].split(0.1 * 2.0 * start)
            own = {part: value * ("bias" not in part) for part, value in parts.items()}
            expected = layouts[name].join(own) * (1.0 if name == "local" else known)
        np.testing.assert_allclose(lost, expected, atol=1e-6, err_msg=name)
        if name in ("base", "weights"):
            assert np.abs(expected).max() > 1e-3


def test_a_work_that_names_no_kernels_takes_no_weight_decay(small):
    work = PlainWork(small.network(places=0), one_step(weight_decay=1.0))
    work.decayed = {}
    with pytest.raises(errors.InputError, match="weight_decay: PlainWork names no kernels"):
        work.trainer()


def test_sums_over_batches():
    def sums(batch):
        return tf.reduce_sum(batch["x"]), tf.cast(tf.size(batch["x"]), tf.float32)

    for count in (0, 1, 5, 6):
        total, seen = in_batches(sums, {"x": tf.range(float(count))}, 3, [[], []])
        assert float(total) == sum(range(count))
        assert float(seen) == count


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_epochs": 0},
        {"batch_size": 0},
        {"patience": -1},
        {"max_decays": -1},
        {"learning_rate": 0.0},
        {"learning_rate": NAN},
        {"gate_learning_rate": -1.0},
        {"decay": 1.0},
        {"weight_decay": -1e-4},
    ],
)
def test_impossible_settings_are_named(wrong):
    with pytest.raises(errors.InputError, match=next(iter(wrong))):
        LocalTraining(**wrong)
