"""EWC and FedCurv against sums over tasks and clients done by hand."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works import EWC, FedCurv, LwF, PlainWork, Proximal, RelationDistillation
from tffcl.client_works.penalties import Penalty, StepView
from tffcl.models import MADEConfig, MADENetwork

RATE = 0.05


def one_step(small, epochs=1):
    """Whole batches and SGD: a round is `epochs` gradient steps."""
    sgd = tff.learning.optimizers.build_sgdm(1.0)
    return small.training(num_epochs=epochs, batch_size=64, learning_rate=RATE, optimizer=sgd, patience=0)


def runner_of(small, penalty=None, epochs=1, **options):
    work = PlainWork(small.network(places=0), one_step(small, epochs), penalty=penalty, seed=3, **options)
    return small.Runner(work)


@pytest.fixture(name="plain", scope="module")
def _plain(small):
    """Without a penalty: what tests compare with, and leave as it is."""
    return runner_of(small)


def gradients(work, kernels, state, data):
    """Of every single training example, float64 `[N, size]`."""
    rows = []
    for row in range(len(data["train"]["label"])):
        example = {name: values[row : row + 1] for name, values in data["train"].items()}
        with tf.GradientTape() as tape:
            theta = tf.constant(kernels)
            tape.watch(theta)
            parts = (tf.constant(state["local"]), tf.zeros(work.network.attention_shape), data["context"])
            loss = work.network.losses(theta, *parts, example, None)[0]
        rows.append(tape.gradient(loss, theta).numpy().astype(float))
    return np.array(rows)


def fisher(work, kernels, state, data):
    return np.square(gradients(work, kernels, state, data)).mean(0)


# -- EWC ---------------------------------------------------------------------------------------------------------


@pytest.fixture(name="past", scope="module")
def _past(small):
    """A runner with EWC, a client after two tasks, and by hand F_i and theta_i of both."""
    runner = runner_of(small, EWC(weight=3.0))
    rng, start = np.random.default_rng(0), runner.shared
    state, terms = runner.start(), []
    for task in range(2):
        state, data = runner.begin(state), runner.data(4, seed=task)
        runner.shared = start + 0.2 * rng.normal(size=start.shape).astype("f")
        terms.append((fisher(runner.work, runner.shared, state, data), runner.shared.astype(float)))
        state, knowledge = runner.end(state, data)
        assert knowledge.shape == (0,)
    runner.shared = start
    return runner, runner.begin(state), terms


def test_the_state_does_not_grow_with_the_tasks(past):
    runner, state, _ = past
    size = runner.work.network.kernels.size
    assert [state[name].shape for name in ("ewc_fisher", "ewc_centre", "ewc_constant")] == [(size,), (size,), ()]
    assert runner.work.shared_type.shape == (size,)
    assert runner.work.train_writes == ("schedule", "local")


def test_value_and_gradient_away_from_two_past_tasks_by_hand(past):
    _, state, terms = past
    kernels = terms[0][1] + np.linspace(-0.5, 0.5, len(terms[0][1]))
    term = EWC(weight=3.0).term({name: tf.constant(value) for name, value in state.items()}, None, None)
    theta = tf.constant(kernels.astype("f"))
    with tf.GradientTape() as tape:
        tape.watch(theta)
        value = term(StepView(theta, {}, None))
    by_hand = 1.5 * sum((f * np.square(kernels - old)).sum() for f, old in terms)
    np.testing.assert_allclose(value, by_hand, rtol=1e-4)
    slope = 3.0 * sum(f * (kernels - old) for f, old in terms)
    np.testing.assert_allclose(tape.gradient(value, theta), slope, rtol=1e-3, atol=1e-6)


def test_nothing_pulls_at_the_centre(small):
    """Not even a rounding error, which Adam would blow up to a whole step."""
    runner = runner_of(small, EWC(weight=1e6))
    state = runner.begin(runner.start())
    state, _ = runner.end(state, runner.data(7))
    theta = tf.constant(runner.shared)
    with tf.GradientTape() as tape:
        tape.watch(theta)
        value = EWC(weight=1e6).term(small.tensors(state), None, None)(StepView(theta, {}, None))
    assert value == 0
    assert not tape.gradient(value, theta).numpy().any()


def test_two_steps_with_fedprox_by_hand(small, past):
    """B <- B - rate (mean gradient + mu (B - B_server) + lambda sum_i F_i (B - theta_i)): no reference moves along."""
    _, state, terms = past
    mu, weight = 2.0, 3.0
    runner = runner_of(small, [EWC(weight), Proximal(mu)], epochs=2)
    data = runner.data(5, seed=9, held_out=0)
    base, local = runner.shared.astype(float), state["local"]
    _, update, _, metrics = runner.train(state, data)
    for _ in range(2):
        theta, parts = tf.constant(base.astype("f")), tf.constant(local)
        with tf.GradientTape() as tape:
            tape.watch([theta, parts])
            attention = tf.zeros(runner.work.network.attention_shape)
            losses = runner.work.network.losses(theta, parts, attention, data["context"], data["train"], None)
            loss = tf.reduce_mean(losses)
        slope, local_slope = tape.gradient(loss, [theta, parts])
        slope = slope.numpy() + mu * (base - runner.shared)
        slope = slope + weight * sum(f * (base - old) for f, old in terms)
        base, local = base - RATE * slope, local - RATE * local_slope.numpy()
    np.testing.assert_allclose(update["delta"], base - runner.shared, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)  # the task's loss alone is reported


def test_lambda_changes_the_result_and_zero_is_fed_avg(small, past, plain):
    _, state, _ = past
    kept = {name: state[name] for name in plain.work.state_type}
    data = plain.data(5, seed=9)
    _, expected, _, _ = plain.train(kept, data)
    updates = [runner_of(small, EWC(weight)).train(state, data)[1]["delta"] for weight in (0.0, 1.0, 5.0)]
    np.testing.assert_array_equal(updates[0], expected["delta"])
    assert np.abs(updates[1] - updates[0]).max() > 1e-6
    np.testing.assert_allclose(updates[2] - updates[0], 5 * (updates[1] - updates[0]), rtol=1e-2, atol=1e-6)


def test_a_task_without_examples_or_with_nan_adds_nothing(small, past):
    runner, state, _ = past
    words = small.context()
    words["vectors"][3:5] = np.nan
    for data in (runner.data(0, held_out=0), runner.data(words=words)):
        ended, _ = runner.end(state, data)
        for name in ("ewc_fisher", "ewc_centre", "ewc_constant"):
            np.testing.assert_array_equal(ended[name], state[name])
        assert len(ended["past_local"]) == len(state["past_local"]) + 1


# -- FedCurv -----------------------------------------------------------------------------------------------------

WEIGHT = 4.0
ROUNDS = [{0: 4, 1: 2, 2: 3}, {0: 3, 2: 2}, {1: 3}, {0: 2, 1: 0}]  # who takes part, with how many examples


@pytest.fixture(name="federation", scope="module")
def _federation(small):
    """A runner with FedCurv, its clients after `ROUNDS`, and by hand F_c and theta_c of each one's latest upload."""
    runner = runner_of(small, FedCurv(WEIGHT))
    size = runner.work.network.kernels.size
    states = {client: runner.begin(runner.start((1, client))) for client in range(3)}
    latest = {}
    for number, sizes in enumerate(ROUNDS):
        updates = []
        for client, count in sizes.items():
            data = runner.data(count, seed=10 * number + client)
            states[client], update, weight, metrics = runner.train(states[client], data, round_num=number)
            assert metrics["sent"] == (3 * size if count else 0)
            updates.append((weight, update["delta"].astype(float)))
            if count:
                theta = runner.shared[:size] + update["delta"][:size]
                latest[client] = (fisher(runner.work, theta, states[client], data), theta.astype(float))
        mean = sum(weight * delta for weight, delta in updates) / sum(weight for weight, _ in updates)
        added = np.concatenate([mean[:size], sum(delta for _, delta in updates)[size:]])
        runner.shared = (runner.shared + added).astype("f")
    return runner, states, latest


def test_the_server_holds_the_latest_of_every_client(federation):
    runner, states, latest = federation
    size = runner.work.network.kernels.size
    assert runner.work.shared_type.shape == (3 * size,)
    parts = runner.shared.reshape(3, size)
    np.testing.assert_allclose(parts[1], sum(f for f, _ in latest.values()), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(parts[2], sum(f * old for f, old in latest.values()), rtol=1e-3, atol=1e-6)
    for client, (importance, old) in latest.items():
        np.testing.assert_allclose(states[client]["curv_fisher"], importance, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(states[client]["curv_pull"], importance * old, rtol=1e-3, atol=1e-6)


def test_a_step_is_pulled_by_the_others_and_not_by_oneself(plain, federation):
    runner, states, latest = federation
    size = runner.work.network.kernels.size
    for client, state in states.items():
        data = runner.data(5, seed=50 + client)
        theta = runner.shared[:size]
        _, pulled, _, _ = runner.train(state, data, round_num=9)
        _, free, _, _ = plain.train({n: state[n] for n in plain.work.state_type}, data, theta, round_num=9)
        others = [latest[other] for other in latest if other != client]
        slope = 2 * WEIGHT * sum(f * (theta - old) for f, old in others)
        assert np.abs(slope).max() > 1e-3
        difference = pulled["delta"][:size] - free["delta"]
        np.testing.assert_allclose(difference, -RATE * slope, rtol=1e-2, atol=1e-6)


def test_a_client_with_nothing_or_nan_keeps_what_it_sent(small, federation):
    runner, states, _ = federation
    words = small.context()
    words["vectors"][3:5] = np.nan
    for data, spoiled in ((runner.data(0, held_out=0), 0), (runner.data(words=words), 1)):
        after, update, weight, metrics = runner.train(states[0], data)
        assert (weight, metrics["sent"], metrics["non_finite"]) == (0, 0, spoiled)
        assert not update["sent"].any()
        assert not update["delta"].any()
        for name, value in states[0].items():
            np.testing.assert_array_equal(after[name], value)


def test_information_that_is_not_finite_counts_as_non_finite(plain, federation):
    """A head of 1e20: what was trained is finite, the squares of its gradients are not."""
    runner, states, _ = federation
    head = runner.work.network.local.slice_of("head_kernel")
    local = states[0]["local"].copy()
    local[head] *= np.float32(1e20)
    data = runner.data(6, seed=1)
    kept = {name: states[0][name] for name in plain.work.state_type}
    assert plain.train({**kept, "local": local}, data)[3]["non_finite"] == 0
    _, update, weight, metrics = runner.train({**states[0], "local": local}, data)
    assert (weight, metrics["sent"], metrics["non_finite"]) == (0, 0, 1)
    assert not update["delta"].any()


def test_a_client_alone_is_pulled_by_nobody(small):
    curved, plain = runner_of(small, FedCurv(WEIGHT)), runner_of(small)
    state, other, size = curved.begin(curved.start()), plain.begin(plain.start()), plain.shared.size
    for number in range(3):
        data = curved.data(3, seed=number)
        state, update, _, _ = curved.train(state, data, round_num=number)
        curved.shared = curved.shared + update["delta"]
        other, update, _, _ = plain.train(other, data, round_num=number)
        plain.shared = plain.shared + update["delta"]
    np.testing.assert_allclose(curved.shared[:size], plain.shared, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(curved.shared[size : 2 * size], state["curv_fisher"], rtol=1e-5, atol=1e-7)


def test_past_tasks_and_what_is_kept_are_evaluated_as_without(plain, federation):
    runner, states, _ = federation
    data = runner.data()
    size = runner.work.network.kernels.size
    state, _ = runner.end(states[0], data)
    found = runner.evaluate(state, 0, data)
    kept = {name: state[name] for name in plain.work.state_type}
    expected = plain.evaluate(kept, 0, data, shared=runner.shared[:size])
    assert found == expected


# -- any network, any penalty ------------------------------------------------------------------------------------


def test_what_no_mask_uses_is_neither_sent_nor_weighed(small):
    network = MADENetwork(MADEConfig(6, (4,), order_agnostic=True, num_masks=2))
    work = PlainWork(network, one_step(small), penalty=[EWC(1.0), FedCurv(1.0)])
    shared, plan = work.initialize_shared(), work.initialize_plan()
    state = work.initialize_client(shared, plan, tf.constant([1, 2]))
    state = work.begin_task(state, shared, tf.zeros([0, 0]))
    x = np.random.default_rng(0).integers(0, 2, (5, 6)).astype(np.uint8)
    data = {"context": {"observed": tf.ones([6])}, "train": {"x": x}, "validation": {"x": x[:3]}}
    data = tf.nest.map_structure(tf.constant, data)
    reads = {name: state[name] for name in work.train_reads}
    changed, update, _, metrics = work.trainer().python_function(reads, shared, data, tf.constant(0))
    used = network.support(plan).numpy() > 0
    assert 0 < used.sum() < used.size
    np.testing.assert_array_equal(update["sent"].numpy(), np.tile(used, 3))
    assert metrics["sent"] == 3 * used.sum()
    assert not changed["curv_fisher"].numpy()[~used].any()
    ended, _ = work.end_task({**state, **changed}, shared, data)
    assert not ended["ewc_fisher"].numpy()[~used].any()
    assert ended["ewc_fisher"].numpy()[used].any()


class _Leash(Penalty):
    """||theta||^2, and a count of rounds: what somebody else might write."""

    changes_in_round = ("rounds",)

    def state_type(self, size):
        return {"rounds": tff.TensorType(np.float32)}

    def term(self, state, shared, incoming):
        return lambda step: tf.reduce_sum(tf.square(step.kernels))

    def end_round(self, state, kernels, fisher):
        return {"rounds": state["rounds"] + 1.0}, tf.zeros([0, tf.size(kernels)])


def test_several_penalties_add_up(small, plain):
    both = runner_of(small, [FedCurv(1.0), _Leash()])
    state, size = both.begin(both.start()), plain.shared.size
    importance, data = np.float32(0.5), both.data(5)
    shared = np.concatenate([plain.shared, np.full(size, importance), np.zeros(size, "f")])
    after, update, _, _ = both.train(state, data, shared)
    _, free, _, _ = plain.train({name: state[name] for name in plain.work.state_type}, data)
    slope = 2 * importance * plain.shared + 2 * plain.shared
    np.testing.assert_allclose(update["delta"][:size] - free["delta"], -RATE * slope, rtol=1e-3, atol=1e-6)
    assert after["rounds"] == 1


def test_wrong_penalties_are_one_clear_error(small):
    for kind in (EWC, FedCurv):
        for weight in (-1.0, float("nan"), float("inf")):
            with pytest.raises(errors.InputError, match="weight: expected a number that is not negative"):
                kind(weight)
        with pytest.raises(errors.InputError, match="fisher_examples: expected at least 1, found 0"):
            kind(1.0, fisher_examples=0)
    with pytest.raises(errors.InputError, match="penalty: expected each kind once, found EWC again"):
        runner_of(small, [EWC(1.0), EWC(2.0)])
    with pytest.raises(errors.InputError, match="penalty: expected Penalty or Sequence or None, found float"):
        runner_of(small, 0.5)
    with pytest.raises(errors.InputError, match="penalty: expected a Penalty, found float"):
        runner_of(small, [0.5])


# -- every work ----------------------------------------------------------------------------------------------------


def test_ewc_of_a_decomposed_work_holds_the_base_by_hand(small):
    """B <- B - rate (gradient + lambda F (B - B*)), with F that of the kernel times sigmoid(m)^2."""
    options = {"training": one_step(small), "sparsity": 0.0, "retention": 0.0}
    free, held = small.Runner(**options), small.Runner(penalty=EWC(3.0), **options)
    first, second = held.data(7, seed=1), held.data(7, seed=2)
    states = []
    for runner in (free, held):
        state, *_ = runner.train(runner.begin(runner.start()), first)
        state, _ = runner.end(state, first)
        states.append(runner.begin(state))
    rng = np.random.default_rng(3)
    moved = (held.shared + 0.1 * rng.normal(size=held.shared.size)).astype("f")
    (free_after, *_), (held_after, *_) = (
        runner.train({name: state[name] for name in runner.work.state_type}, second, moved)
        for runner, state in zip((free, held), states)
    )
    centre, importance = states[1]["ewc_centre"], states[1]["ewc_fisher"]
    assert importance.max() > 0
    pull = -RATE * 3.0 * importance * (np.where(moved != 0, moved, centre) - centre)
    np.testing.assert_allclose(held_after["base"] - free_after["base"], pull, rtol=1e-2, atol=1e-6)


class _Distilled(Penalty):
    """A penalty that sees the batch: the squared distance to the class scores of the model of before."""

    def term(self, state, shared, incoming):
        def distance(step):
            difference = step.logits() - tf.stop_gradient(step.logits(base=incoming))
            return tf.reduce_mean(tf.reduce_sum(tf.square(difference), axis=1))

        return distance


def test_a_penalty_may_see_the_batch_and_the_model_of_before(small, plain):
    runner = runner_of(small, _Distilled(), epochs=2)
    state, data = runner.begin(runner.start()), runner.data(6)
    _, update, *_ = runner.train(state, data)
    weights, local, rate = plain.shared.astype(float), state["local"], RATE
    network, attention = plain.work.network, tf.zeros(plain.work.network.attention_shape)
    local = tf.constant(local)
    before = None
    for _ in range(2):
        with tf.GradientTape() as tape:
            theta = tf.constant(weights.astype("f"))
            tape.watch([theta, local])
            parts = (attention, data["context"], data["train"], None)
            scores = network.logits(theta, local, *parts)
            old = network.logits(tf.constant(plain.shared), local, *parts)
            losses = network.losses(theta, local, *parts)
            distance = tf.reduce_sum(tf.square(scores - tf.stop_gradient(old)), axis=1)
            value = tf.reduce_mean(losses) + tf.reduce_mean(distance)
        slopes = tape.gradient(value, [theta, local])
        weights, local = weights - rate * slopes[0].numpy(), local - rate * slopes[1]
        before = distance if before is None else before
    assert not before.numpy().any()
    np.testing.assert_allclose(update["delta"], weights - plain.shared, rtol=1e-3, atol=1e-6)


def test_a_penalty_with_a_part_at_the_server_is_for_plain_works(small):
    with pytest.raises(errors.InputError, match="FedCurv has the server keep sums over clients"):
        small.Runner(penalty=FedCurv(1.0))


# -- LwF ------------------------------------------------------------------------------------------------------------


def softmax(z):
    z = np.exp(z - z.max(axis=1, keepdims=True))
    return z / z.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("weight", "temperature"), [(1.0, 2.0), (3.0, 1.0), (0.5, 4.0)])
def test_lwf_is_the_divergence_of_softened_scores_of_the_classes_before_by_hand(weight, temperature):
    rng = np.random.default_rng(0)
    x, old, new = (rng.normal(size=shape).astype("f") for shape in ((7, 3), (3, 5), (3, 5)))
    known = np.array([True, False, True, True, False])
    penalty = LwF(weight, temperature)
    state = {name: tf.constant(value) for name, value in penalty.begin_task(old.ravel()).items()}
    theta = tf.constant(new.ravel())

    def value(theta):
        teacher = {penalty.teacher: x @ tf.reshape(state[penalty.teacher], [3, 5])}
        view = StepView(theta, {}, lambda: x @ tf.reshape(theta, [3, 5]), {"known": tf.constant(known)}, teacher)
        return penalty.term(state, None, None)(view)

    p, q = (softmax((x @ w)[:, known].astype(float) / temperature) for w in (old, new))
    by_hand = weight * temperature**2 * (p * np.log(p / q)).sum(axis=1).mean()
    np.testing.assert_allclose(value(theta), by_hand, rtol=1e-4)
    with tf.GradientTape() as tape:
        tape.watch(theta)
        at_new = value(theta)
    slope = np.zeros([3, 5])
    slope[:, known] = weight * temperature * x.T @ (q - p) / len(x)
    np.testing.assert_allclose(tape.gradient(at_new, theta), slope.ravel(), atol=1e-5)
    assert abs(value(tf.constant(old.ravel()))) < 1e-6


def test_lwf_asks_nothing_while_no_class_was_before_and_keeps_nothing_without_a_weight():
    state = {"lwf_teacher": tf.ones([2])}
    theta = tf.constant([5.0, -5.0])
    with tf.GradientTape() as tape:
        tape.watch(theta)
        known, teacher = {"known": tf.constant([False, False])}, {"lwf_teacher": tf.ones([1, 2])}
        view = StepView(theta, {}, lambda: theta[None], known, teacher)
        value = LwF(1.0).term(state, None, None)(view)
    assert value == 0
    assert not tape.gradient(value, theta).numpy().any()
    assert not LwF(0.0).state_type(4)
    assert not LwF(0.0).begin_task(theta)
    assert not LwF(0.0).teacher


@pytest.mark.parametrize("competing", [[True] * 4 + [False], [False, True, False, True, False]])
def test_relations_are_the_label_beside_what_the_last_model_said_of_the_classes_before_by_hand(competing):
    """One example after the other; a class that neither competes nor came before counts for nothing."""
    rng = np.random.default_rng(0)
    x, old, new = (rng.normal(size=shape).astype("f") for shape in ((6, 3), (3, 5), (3, 5)))
    known, labels = np.array([True, False, True, False, False]), np.array([0, 1, 2, 3, 3, 0], np.int32)
    penalty, theta = RelationDistillation(2.0), tf.constant(new.ravel())
    state = {name: tf.constant(value) for name, value in penalty.begin_task(old.ravel()).items()}
    context = {"known": tf.constant(known), "classes": tf.constant(competing)}

    def value(known=context):
        teacher = {"lwf_teacher": x @ tf.reshape(state["lwf_teacher"], [3, 5])}
        view = StepView(theta, {"label": tf.constant(labels)}, lambda: x @ tf.reshape(theta, [3, 5]), known, teacher)
        return penalty.term(state, None, None)(view)

    among = np.flatnonzero(known | np.array(competing))
    total = 0.0
    for row, label in zip(x.astype(float), labels):
        target = np.eye(5)[label]
        target[known] = softmax((row @ old)[None, known])[0]
        assert target.sum() == pytest.approx(1 if known[label] else 2)
        p = target[among] / target.sum()
        q = softmax((row @ new)[None, among])[0]
        total += sum(a * np.log(a / b) for a, b in zip(p, q) if a > 0)
    np.testing.assert_allclose(value(), 2.0 * total / len(x), rtol=1e-5)
    assert value({**context, "known": tf.zeros([5], tf.bool)}) == 0


@pytest.mark.parametrize("arguments", [(-1.0, 2.0), (float("nan"), 2.0), (1.0, 0.0), (1.0, float("inf"))])
def test_lwf_takes_numbers_that_make_sense(arguments):
    with pytest.raises(errors.InputError):
        LwF(*arguments)


class Recalled(Penalty):
    """Keeps the kernels of the task's start, and compares their scores in every step with the step's own examples."""

    teacher = "kept"

    def __init__(self, network):
        self.network, self.local, self.differences = network, None, []

    def state_type(self, size):
        return {"kept": tff.TensorType(np.float32, [size])}

    def begin_task(self, kernels):
        return {"kept": kernels}

    def term(self, state, shared, incoming):
        def of_step(step):
            parts = (self.local, tf.zeros(self.network.attention_shape), step.context)
            kept = self.network.logits(state["kept"], *parts, step.batch, None)
            np.testing.assert_allclose(step.teacher["kept"], kept, atol=1e-5)
            self.differences.append(np.abs(kept - step.logits()).max())
            return tf.reduce_sum(step.kernels)

        return of_step


def test_the_teacher_scores_the_examples_of_each_step_however_they_are_drawn(small):
    """Ten steps of at most three of 14 examples, with other kernels than the task began with."""
    training = small.training(num_epochs=2, batch_size=3, learning_rate=RATE, patience=0)
    penalty = Recalled(small.network(places=0))
    runner = small.Runner(PlainWork(penalty.network, training, penalty=penalty, seed=3))
    state = runner.begin(runner.start())
    penalty.local = tf.constant(state["local"])
    runner.shared = runner.shared + 0.1
    runner.train(state, runner.data(14))
    assert len(penalty.differences) == 10
    assert min(penalty.differences) > 1e-3
