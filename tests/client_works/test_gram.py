"""Works that send Gram sums, against numpy on all data together: ridge regression and Gaussians; FOT and its rules."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from loading import module_at

from tffcl import errors, runtime, streams
from tffcl.algorithms import build_afcl, build_prototypes
from tffcl.client_works import AnalyticWork, FedCurv, OrthogonalWork, PlainWork
from tffcl.errors import InputError
from tffcl.models import AlignedTextCNN, FrozenEncoder, VectorEncoder
from tffcl.program import ArrayData, run_program
from tffcl.templates.messages import leaves
from tffcl.transfers import NoTransfer

D, CLASSES, LAMBDA = 6, 6, 0.7
_RNG = np.random.default_rng(4)
LABELS = np.repeat(np.arange(CLASSES), 12)
X = (_RNG.normal(size=(CLASSES, D))[LABELS] + 0.5 * _RNG.normal(size=(len(LABELS), D))).astype(np.float32)
TEST_LABELS = np.repeat(np.arange(CLASSES), 5)
TEST_X = (np.eye(CLASSES, D)[TEST_LABELS] + 0.5 * _RNG.normal(size=(len(TEST_LABELS), D))).astype(np.float32)


@pytest.fixture(autouse=True, scope="module")
def _in_process():
    with runtime.in_process():
        yield


def encoder():
    """Columns as they are."""
    made = VectorEncoder(D, variational=False, embedding_size=D, hidden=())
    parts = {name: tf.eye(D) if len(shape) > 1 else tf.zeros(shape) for name, shape in made.weights.parts}
    return FrozenEncoder(made, made.weights.join(parts).numpy())


AFCL = build_afcl(encoder(), CLASSES, width=0, regularisation=LAMBDA)


def learnt(process, num_clients=3, num_tasks=3, num_rounds=1, clients_per_round=None, stop_after=None, **options):
    """The server's state after all tasks, the results, and the stream."""
    stream = streams.class_incremental(
        LABELS, TEST_LABELS, num_clients=num_clients, num_tasks=num_tasks, labels_per_task=CLASSES // num_tasks,
        validation_share=0, **options,
    )  # fmt: skip
    stream = streams.TaskStream(stream.name, tuple(tasks[:stop_after] for tasks in stream.tasks))
    data = ArrayData(stream, X, LABELS, TEST_X, TEST_LABELS, CLASSES, "x", one_head=True, growing=True)
    found = {}

    def finish(process, state, folder, results):
        found.update(server=state.server)
        return {}

    results = run_program(
        process, data, NoTransfer(), num_rounds=num_rounds, seed=1, evaluate_every="task", reporters=(), finish=finish,
        clients_per_round=clients_per_round, enrollment=streams.participation(stream),
    )  # fmt: skip
    return found["server"], results, stream


def with_one(x):
    return np.concatenate([x.astype(np.float64), np.ones([len(x), 1])], 1)


def ridge(phi, labels):
    return np.linalg.solve(phi.T @ phi + LAMBDA * np.eye(phi.shape[1]), phi.T @ np.eye(CLASSES)[labels])


def assert_equal(found, wanted):
    assert np.linalg.norm(found - wanted) <= 1e-8 * np.linalg.norm(wanted)


@pytest.mark.parametrize(
    "options",
    [
        *({"partition": name, "alpha": 0.1} for name in streams.PARTITIONS),
        *({"order_seed": seed} for seed in (2, 3)),
        {"num_clients": 1}, {"num_clients": 7}, {"num_tasks": 6}, {"num_tasks": 1},
        {"num_rounds": 3}, {"num_rounds": 2, "clients_per_round": 2, "num_clients": 2},
    ],
    ids=str,
)  # fmt: skip
def test_it_is_ridge_regression_on_all_data_whoever_had_what_and_when(options):
    server, _, _ = learnt(AFCL, **options)
    assert_equal(server["shared"], ridge(with_one(X), LABELS))


def test_without_those_who_dropped_out_it_is_that_of_the_others():
    server, results, stream = learnt(AFCL, clients_per_round=2, seed=3)
    took_part = [event["participants"] for event in results.events if event["event"] == "round"]
    rows = np.concatenate([stream.task(client, task).train for task, some in enumerate(took_part) for client in some])
    assert 0 < len(rows) < len(X)
    assert_equal(server["shared"], ridge(with_one(X[rows]), LABELS[rows]))
    assert server["finalizer"]["moments"][-1].sum() == len(rows)


def test_a_label_that_comes_late_has_no_weight_before_and_all_of_it_then():
    early, late = [label for label in range(CLASSES) if label != 4], 4
    seed = next(seed for seed in range(50) if late in learnt_order(seed)[-1])
    before, _, _ = learnt(AFCL, order_seed=seed, stop_after=2)
    kept = np.isin(LABELS, [label for labels in learnt_order(seed)[:-1] for label in labels])
    assert_equal(before["shared"], ridge(with_one(X[kept]), LABELS[kept]))
    assert not before["shared"][:, late].any()
    assert before["shared"][:, early].any()
    assert_equal(learnt(AFCL, order_seed=seed)[0]["shared"], ridge(with_one(X), LABELS))


def learnt_order(seed):
    stream = streams.class_incremental(LABELS, TEST_LABELS, num_tasks=3, validation_share=0, order_seed=seed)
    return [task.labels for task in stream.tasks[0]]


def test_past_tasks_are_scored_among_all_classes_seen():
    """A_t by numpy: the winner among the classes so far, for the test sets of all tasks so far."""
    _, results, stream = learnt(AFCL)
    seen = streams.seen_classes(stream)
    phi = with_one(TEST_X)
    for after in range(3):
        rows = np.isin(LABELS, seen[after])
        scores = phi @ ridge(with_one(X[rows]), LABELS[rows])
        scores[:, [label for label in range(CLASSES) if label not in seen[after]]] = -np.inf
        right = scores.argmax(axis=1) == TEST_LABELS
        wanted = [right[stream.task(0, task).test].mean() for task in range(after + 1)]
        for client in range(3):
            np.testing.assert_allclose(results.scores[client, after, : after + 1], wanted, atol=1e-6)


def test_random_features_follow_from_the_plan_alone_and_are_the_same_for_all():
    width = 16
    work = AnalyticWork(encoder(), CLASSES, width=width, seed=5)
    plan = work.initialize_plan()
    found = work.features(plan, {}, {"x": tf.constant(X)}).numpy()
    weights = tf.random.stateless_normal([D, width], plan).numpy() * np.sqrt(2 / D)
    offset = tf.random.stateless_normal([width], tf.random.experimental.stateless_fold_in(plan, 1)).numpy()
    np.testing.assert_allclose(found, with_one(np.maximum(X @ weights + offset, 0)), atol=1e-5)
    states = [work.initialize_client(work.initialize_shared(), plan, tf.constant([c, c])) for c in range(2)]
    assert np.array_equal(states[0]["plan"], states[1]["plan"])
    assert not np.array_equal(plan, AnalyticWork(encoder(), CLASSES, seed=6).initialize_plan())


def test_on_random_features_it_is_ridge_regression_on_them():
    process = build_afcl(encoder(), CLASSES, width=20, regularisation=LAMBDA, seed=2)
    server, _, _ = learnt(process, partition="dirichlet", alpha=0.3)
    phi = process.work.features(process.work.initialize_plan(), {}, {"x": tf.constant(X)}).numpy().astype(np.float64)
    assert_equal(server["shared"], ridge(phi, LABELS))


@pytest.mark.parametrize("covariance", ["shared", "none"])
def test_pooled_statistics_are_those_of_all_data(covariance):
    process = build_prototypes(encoder(), CLASSES, width=0, covariance=covariance, shrinkage=0.05)
    server, _, _ = learnt(process, partition="dirichlet", alpha=0.3, num_clients=5)
    x = X.astype(np.float64)
    means = np.array([x[label == LABELS].mean(axis=0) for label in range(CLASSES)])
    pooled = sum(np.cov(x[k == LABELS].T, bias=True) * (k == LABELS).sum() for k in range(CLASSES)) / len(x)
    spread = 0.95 * pooled + 0.05 * np.trace(pooled) / D * np.eye(D)
    inverse = np.linalg.inv(spread) if covariance == "shared" else np.eye(D)
    wanted = np.concatenate([inverse @ means.T, [[-0.5 * m @ inverse @ m for m in means]]])
    assert_equal(server["shared"], wanted)
    # The same decision as the distance to each mean.
    gaps = TEST_X[:, None] - means
    distances = np.einsum("nkd,de,nke->nk", gaps, inverse, gaps)
    assert np.array_equal((with_one(TEST_X) @ server["shared"]).argmax(1), distances.argmin(1))
    assert ("gram" in server["finalizer"]) == (covariance == "shared")


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (build_afcl, {"regularisation": 0.0}, "regularisation"),
        (build_afcl, {"width": -1}, "width"),
        (build_prototypes, {"covariance": "full"}, "covariance: expected one of shared, none, found 'full'"),
        (build_prototypes, {"shrinkage": 1.5}, "shrinkage: expected at most 1, found 1.5"),
    ],
)
def test_what_makes_no_sense_is_refused(build, options, message):
    with pytest.raises(InputError, match=message):
        build(encoder(), CLASSES, **options)


world = module_at(pathlib.Path(__file__).with_name("orthogonal_world.py"))


@pytest.fixture(name="work", scope="module")
def _work(small):
    return OrthogonalWork(world.network(), small.training(), seed=2)


def data(small, count, seed=0):
    examples = small.tensors(world.examples(count, seed))
    return {"context": small.tensors(world.context()), "train": examples, "validation": examples}


@pytest.fixture(name="client", scope="module")
def _client(work, small):
    """(state in its first task, a function that trains a round)."""
    shared = work.initialize_shared()
    state = work.initialize_client(shared, work.initialize_plan(), tf.constant([1, 2]))
    run = small.compiled(work)

    def train(state, data, number=0):
        reads = {name: state[name] for name in work.train_reads}
        changed, update, weight, metrics = run(reads, shared, data, tf.constant(number))
        return {**state, **changed}, update, float(weight), metrics

    return work.begin_task(state, shared, tf.zeros([0, 0])), train


def expected(shared, features):
    hidden, _ = world.forward(shared, features)
    return np.concatenate([world.triangle(world.with_one(rows)) for rows in (features.astype(float), hidden)])


@pytest.mark.parametrize("count", [0, 1, 33, 70])
def test_the_sums_are_those_of_each_layers_inputs_and_of_a_one(work, small, count):
    shared = work.initialize_shared() + 0.1
    one = data(small, count)
    found = work.gram(shared, tf.zeros([0]), one["context"], one["train"])
    np.testing.assert_allclose(found, expected(shared.numpy(), one["train"]["features"].numpy()), rtol=1e-4, atol=1e-4)


def test_a_bias_that_is_a_clients_own_is_not_among_them(small):
    work = OrthogonalWork(world.network(whole=False), small.training())
    assert [(layer.name, layer.size, layer.bias) for layer in work.layers] == [("0_below_kernel", world.INPUTS, None)]
    features = world.examples(5)["features"]
    local = work.network.initial_local(None)
    found = work.gram(work.initialize_shared(), local, {}, small.tensors(world.examples(5)))
    np.testing.assert_allclose(found, world.triangle(features.astype(float)), rtol=1e-4, atol=1e-4)


def test_they_are_sent_once_with_the_first_round_in_which_the_client_takes_part_again(work, small, client):
    state, train = client
    first, second, nothing = data(small, 9), data(small, 7, seed=1), data(small, 0)
    state, update, _, metrics = train(state, first)
    assert not np.any(update["gram"])
    assert metrics["extra_bytes"] == 0
    shared = work.initialize_shared()
    ended, _ = work.end_task(state, shared, first)
    wanted = expected(shared.numpy(), first["train"]["features"].numpy())
    began = work.begin_task(ended, shared, tf.zeros([0, 0]))
    away, update, weight, metrics = train(began, nothing)  # it has no examples in this round
    assert weight == 0
    assert not np.any(update["gram"])
    np.testing.assert_array_equal(away["gram"], began["gram"])
    back, update, _, metrics = train(away, second, 1)
    np.testing.assert_allclose(update["gram"], wanted, rtol=1e-4, atol=1e-4)
    assert metrics["extra_bytes"] == 4 * work.gram_size
    _, update, _, metrics = train(back, second, 2)
    assert not np.any(update["gram"])
    assert metrics["extra_bytes"] == 0


def test_those_of_a_task_without_any_round_wait_and_add_up(work, small, client):
    state, train = client
    shared, tasks = work.initialize_shared(), [data(small, count, seed=count) for count in (4, 6)]
    for task in tasks:
        state, _ = work.end_task(state, shared, task)
        state = work.begin_task(state, shared, tf.zeros([0, 0]))
    assert state["gram"].shape == (1, work.gram_size)
    _, update, _, _ = train(state, tasks[0])
    wanted = sum(expected(shared.numpy(), task["train"]["features"].numpy()) for task in tasks)
    np.testing.assert_allclose(update["gram"], wanted, rtol=1e-4, atol=1e-4)


def test_without_sums_to_send_it_trains_and_sends_what_fedavgs_client_does(work, small, client):
    state, train = client
    plain = PlainWork(world.network(), small.training(), seed=2)
    one = data(small, 9)
    reads = {name: state[name] for name in plain.train_reads}
    changed, update, weight, _ = small.compiled(plain)(reads, plain.initialize_shared(), one, tf.constant(0))
    after, own, own_weight, _ = train(state, one)
    for name, value in update.items():
        np.testing.assert_array_equal(own["weights"][name], value)
    for name, value in changed.items():
        np.testing.assert_array_equal(after[name], value)
    assert own_weight == weight


def test_no_type_of_what_is_sent_grows_with_the_examples(small, client):
    """What leaves a client is as large for one example as for many; no example's row is among it."""
    state, train = client
    sizes = []
    for count in (1, 50):
        _, update, _, metrics = train(state, data(small, count))
        sizes.append({path: np.shape(value) for path, value in leaves({**update, "metrics": dict(metrics)})})
    assert sizes[0] == sizes[1]
    vectors = {path for path, shape in sizes[0].items() if len(shape)}
    assert vectors == {"weights/delta", "weights/sent", "gram"}


def test_what_is_not_finite_is_not_kept(work, small, client):
    state, _ = client
    one = data(small, 3)
    one["train"] = dict(one["train"], features=one["train"]["features"] * np.nan)
    ended, _ = work.end_task(state, work.initialize_shared(), one)
    assert not np.any(ended["gram"])


def test_what_it_does_not_take_is_said_in_a_line(small):
    with pytest.raises(errors.InputError, match="does not show what its layers multiply; take a KerasNetwork"):
        OrthogonalWork(AlignedTextCNN(small.config(), 0), small.training())
    with pytest.raises(errors.InputError, match="FedCurv has the server keep sums over clients"):
        OrthogonalWork(world.network(), small.training(), penalty=FedCurv(1.0))
