"""The decomposed client work against hand computation: task borders, exchange, objective, evaluation."""

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors, runtime
from tffcl.aggregators import SparseMeanFactory
from tffcl.client_works import DecomposedWork, Decomposition, Proximal
from tffcl.client_works.local_training import fresh_schedule
from tffcl.client_works.randomness import Step
from tffcl.models import MADEConfig, MADENetwork

FORMS = ("drift", "closed_form", "gradient", "stored")


@pytest.fixture(name="fedseit", scope="module")
def _fedseit(small):
    one_step = small.training(num_epochs=1, batch_size=64)
    return small.Runner(aligned=True, training=one_step, sparsity=0.0)


@pytest.fixture(name="fedweit", scope="module")
def _fedweit(small):
    one_step = small.training(num_epochs=1, batch_size=64)
    return small.Runner(training=one_step, sparsity=0.0, retention_form="gradient")


def randomised(runner, tasks, seed=0, foreign=None):
    """A state in task number `tasks`, every float in it drawn anew."""
    state = runner.start()
    for _ in range(tasks):
        state = runner.begin(state, foreign=foreign)
        state, _ = runner.end(state, runner.data(1))
    state = runner.begin(state, foreign=foreign)
    rng = np.random.default_rng(seed)
    fixed = ("key", "task", "schedule", "foreign", "trained")
    drawn = {
        name: value if name in fixed else (0.5 * rng.normal(size=value.shape)).astype("f")
        for name, value in state.items()
    }
    return {**drawn, "trained": np.int32(1)}


# -- task borders ---------------------------------------------------------------------------------------------


def test_a_task_begins_with_the_base_divided(small):
    runner = small.Runner(adaptive_factor=4.0, mask_start=0.8)
    own = np.linspace(1, 2, runner.work.knowledge_size).astype("f")
    theirs = np.where(np.arange(own.size) % 3, -own, 0).astype("f")  # zero: the server has nothing there
    foreign = small.adaptives(runner.work, 2)
    state = runner.begin({**runner.start(), "base": own}, theirs, foreign)
    expected = np.where(theirs != 0, theirs, own)
    np.testing.assert_allclose(state["adaptive"], expected / 4, rtol=1e-6)
    np.testing.assert_allclose(small.sigmoid(state["mask_logits"]), 0.8, rtol=1e-6)
    np.testing.assert_array_equal(state["foreign"], foreign)
    np.testing.assert_array_equal(state["schedule"], fresh_schedule(small.training()))
    assert state["task"] == 0
    assert not np.allclose(state["attention"], runner.begin(state)["attention"])  # drawn anew for each task
    # A round starts from the server's entries, and from its own where there are none.
    after, _, _, _ = runner.train(state, runner.data(0, foreign=foreign), theirs)
    np.testing.assert_array_equal(after["base"], own)  # without examples nothing is taken
    np.testing.assert_array_equal(runner.work.base_in(tf.constant(own), tf.constant(theirs)), expected)


@pytest.mark.parametrize("form", FORMS)
def test_the_end_of_a_task_keeps_all_that_it_needs(small, form):
    runner = small.Runner(sparsity=0.3, retention_form=form)
    foreign = small.adaptives(runner.work, 2)
    state = randomised(runner, 0, foreign=foreign)
    ended, knowledge = runner.end(state, runner.data(1))
    adaptive, alpha = state["adaptive"], state["attention"]
    pruned = np.where(np.abs(adaptive) > np.float32(0.3), adaptive, 0)
    np.testing.assert_array_equal(knowledge, pruned)
    kept = pruned if form in ("drift", "stored") else adaptive  # these refer to the kernel as it was evaluated
    np.testing.assert_array_equal(ended["past_adaptive"], [kept])
    for name in ("mask_logits", "attention", "local"):
        np.testing.assert_array_equal(ended[f"past_{name}"], [state[name]])
    kernel = small.theta(state["base"], state["mask_logits"], kept)
    np.testing.assert_allclose(ended["past_reference"], [kernel], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ended["past_foreign"], [weighted(small, alpha, foreign)], rtol=1e-5, atol=1e-6)


def weighted(small, alpha, foreign):
    """sum_k alpha_k A_k, with one alpha for each kernel."""
    sizes = [width * small.D * small.F for width in small.SIZES]
    return sum(np.repeat(alpha[k], sizes) * row for k, row in enumerate(foreign))


def test_who_trained_in_no_round_has_no_knowledge_to_send(small, fedweit):
    """Without examples, never drawn, never finite: A still is the part of B with which a task begins."""
    state, data, words = fedweit.begin(fedweit.start()), fedweit.data(), small.context()
    words["vectors"][1:, 2] = np.nan
    spoiled, *_ = fedweit.train(state, fedweit.data(words=words))
    empty, *_ = fedweit.train(state, fedweit.data(0))
    for untrained, examples in ((state, data), (spoiled, data), (empty, fedweit.data(0))):
        assert untrained["adaptive"].any()
        assert not fedweit.end(untrained, examples)[1].any()
    trained, *_ = fedweit.train(spoiled, data)
    np.testing.assert_array_equal(fedweit.end(trained, data)[1], trained["adaptive"])
    assert not fedweit.end(fedweit.begin(fedweit.end(trained, data)[0]), data)[1].any()  # each task anew


@pytest.mark.parametrize("start", [1e-300, 1e-9, 1 - 1e-9, np.nextafter(1.0, 0.0)])
def test_extreme_masks_are_finite(small, start):
    runner = small.Runner(mask_start=float(start))
    state = runner.begin(runner.start())
    assert np.isfinite(state["mask_logits"]).all()
    gate = runner.work.gate(tf.constant(state["mask_logits"]))
    assert set(gate.numpy()) == {start > 0.5}


# -- what is sent ---------------------------------------------------------------------------------------------


def test_gated_upload_sends_open_units_unscaled(small):
    runner = small.Runner(gate_cutoff=0.4)
    rng = np.random.default_rng(0)
    base, shared = rng.normal(size=(2, runner.work.knowledge_size)).astype("f")
    masks = np.array([2, -2, 0, -0.3, -0.5, 1], np.float32)  # sigmoid: .88 .12 .5 .43 .38 .73
    vector, sent = runner.work.outgoing({"base": base, "mask_logits": masks, "local": tf.zeros([0])}, shared)
    np.testing.assert_array_equal(sent, small.spread(np.array([1, 0, 1, 1, 0, 1])) > 0)
    np.testing.assert_array_equal(vector, base)


def test_scaled_upload_sends_everything_times_the_mask(small):
    runner = small.Runner(base_upload="scaled")
    rng = np.random.default_rng(0)
    base, shared = rng.normal(size=(2, runner.work.knowledge_size)).astype("f")
    masks = rng.normal(size=6).astype("f")
    vector, sent = runner.work.outgoing({"base": base, "mask_logits": masks, "local": tf.zeros([0])}, shared)
    assert sent.numpy().all()
    np.testing.assert_allclose(vector, base * small.spread(small.sigmoid(masks)), rtol=1e-5)


def test_an_update_is_what_changed_where_it_is_sent(small, fedweit):
    data = fedweit.data()
    state = fedweit.begin(fedweit.start())
    masks = np.array([2, -2, 2, 2, -2, 2], np.float32)
    after, update, weight, metrics = fedweit.train({**state, "mask_logits": masks}, data)
    opened = small.spread(masks) > 0
    np.testing.assert_array_equal(update["sent"], opened)
    np.testing.assert_allclose(update["delta"], np.where(opened, after["base"] - fedweit.shared, 0), atol=1e-7)
    assert weight == 8
    assert metrics["sent"] == opened.sum()
    np.testing.assert_allclose(metrics["open_gates"], 4 / 6, rtol=1e-6)


@pytest.mark.parametrize("aligned", [False, True])
def test_dense_layer_sharing(small, aligned):
    runner = small.Runner(aligned=aligned, share_dense=True, training=small.training(num_epochs=1))
    layout, size = runner.work.network.local, runner.work.knowledge_size
    names = ["head_kernel", "head_bias"]
    if aligned:
        names = ["foreign_projection_2", "foreign_projection_3", "augment_projection", "augment_bias", *names]
    sizes = [np.prod(shape) for name, shape in layout.parts if name in names]
    assert len(runner.shared) == size + sum(sizes)
    shared = np.random.default_rng(0).normal(size=len(runner.shared)).astype("f")
    state = runner.begin(runner.start(), shared)
    own = runner.begin(runner.start(), runner.shared)
    parts = {name: value.numpy() for name, value in layout.split(state["local"]).items()}
    pieces = np.split(shared[size:], np.cumsum(sizes)[:-1])
    for name, piece in zip(names, pieces):
        np.testing.assert_array_equal(parts[name].ravel(), piece)
    biases = [name for name in parts if name.startswith("bias_")]
    assert set(parts) == {*names, *biases}
    changed = {**state, "local": np.full_like(state["local"], 0.25)}
    taken = layout.split(runner.work.local_in(changed["local"], tf.constant(shared)))
    for name in biases:
        np.testing.assert_array_equal(taken[name], 0.25)
    after, update, _, _ = runner.train(state, runner.data(), shared)
    assert update["sent"][size:].all()
    trained = {name: value.numpy() for name, value in layout.split(after["local"]).items()}
    dense = np.concatenate([trained[name].ravel() for name in names])
    np.testing.assert_allclose(update["delta"][size:], dense - shared[size:], atol=1e-6)
    assert own["local"].shape == state["local"].shape


def dense_parts(runner, vector):
    """The shared local parts in a vector of the server, by name."""
    layout, parts, start = runner.work.network.local, {}, runner.work.knowledge_size
    for name, shape in layout.parts:
        if name in runner.work.network.shareable:
            parts[name] = np.asarray(vector)[start : start + np.prod(shape)].reshape(shape)
            start += np.prod(shape)
    assert start == len(vector)
    return parts


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("form", ["start", "round"])
def test_shared_parts_by_label_arrive_when_a_task_begins(small, form, aligned):
    """Under `start` that is all; under `round` they arrive in every round."""
    runner = small.Runner(aligned=aligned, share_dense=form, training=small.training(num_epochs=1))
    rng = np.random.default_rng(0)
    shared, newer = rng.normal(size=(2, len(runner.shared))).astype("f")
    state = runner.begin(runner.start(), shared)
    theirs, own = dense_parts(runner, shared), runner.work.network.local.split(state["local"])
    for name, value in theirs.items():
        np.testing.assert_array_equal(own[name], value)
    here = runner.work.begin_round(small.tensors(state), tf.constant(newer), runner.data(), tf.constant(0))
    first = runner.work.network.local.split(here.first["local"])
    for name, value in dense_parts(runner, shared if form == "start" else newer).items():
        np.testing.assert_array_equal(first[name], value)
    # A later task begins from the server's, not from the client's own.
    ended, _ = runner.end(runner.train(state, runner.data(), shared)[0], runner.data())
    later = runner.work.network.local.split(runner.begin(ended, newer)["local"])
    for name, value in dense_parts(runner, newer).items():
        np.testing.assert_array_equal(later[name], value)


def test_head_columns_are_sent_for_the_labels_of_the_examples(small):
    runner = small.Runner(aligned=True, share_dense="start", training=small.training(num_epochs=1))
    data = runner.data()
    labels = np.arange(small.CLASSES)[1:]  # label 0 does not occur
    data["train"]["label"] = tf.constant(np.resize(labels, data["train"]["label"].shape[0]).astype(np.int32))
    state = runner.begin(runner.start())
    after, update, _, _ = runner.train(state, data)
    sent, delta = dense_parts(runner, update["sent"]), dense_parts(runner, update["delta"])
    trained = runner.work.network.local.split(after["local"])
    for name, first in dense_parts(runner, runner.shared).items():
        if name.startswith("head_"):
            assert not sent[name][..., 0].any()
            assert sent[name][..., 1:].all()
        else:
            assert sent[name].all()
        np.testing.assert_allclose(delta[name], np.where(sent[name], trained[name] - first, 0), atol=1e-6)


@pytest.mark.parametrize("factory", [SparseMeanFactory(), SparseMeanFactory.secure(1.0)], ids=["plain", "secure"])
def test_a_column_is_the_mean_over_the_clients_that_have_its_label(small, factory):
    """Three clients with labels (0, 1), (1, 2) and none: column by column, by hand."""
    runner = small.Runner(share_dense="start", training=small.training(num_epochs=1))
    updates, finals = [], []
    for held in ([0, 1], [1, 2]):
        data = runner.data(seed=held[0])
        rows = data["train"]["label"].shape[0]
        data["train"]["label"] = tf.constant(np.resize(held, rows).astype(np.int32))
        after, update, *_ = runner.train(runner.begin(runner.start()), data)
        updates.append(update)
        finals.append(runner.work.network.local.split(after["local"])["head_kernel"].numpy())
    empty = runner.train(runner.begin(runner.start()), runner.data(0))[1]
    size = len(runner.shared)
    types = OrderedDict(delta=tff.TensorType(np.float32, [size]), sent=tff.TensorType(np.bool_, [size]))
    process = factory.create(tff.to_type(types))
    with runtime.in_process():  # TFF's own contexts have no secure sums
        summed = process.next(process.initialize(), [*updates, empty]).result
    merged = dense_parts(runner, runner.shared + summed)["head_kernel"]
    first = dense_parts(runner, runner.shared)["head_kernel"]
    expected = [finals[0][:, 0], (finals[0][:, 1] + finals[1][:, 1]) / 2, finals[1][:, 2], *first.T[3:]]
    np.testing.assert_allclose(merged, np.stack(expected, 1), atol=1e-6)


@pytest.mark.parametrize("form", ["no", "start"])
def test_a_client_alone_begins_from_its_own_last_parts(small, form):
    """The warm start: projections and head as the last task left them, biases drawn anew."""
    runner = small.Runner(aligned=True, exchange=False, share_dense=form, places=0)
    data = runner.data()
    drawn = runner.begin(runner.start())
    ended, _ = runner.end(runner.train(drawn, data)[0], data)
    split = runner.work.network.local.split
    last, first, again = split(ended["local"]), split(runner.begin(ended)["local"]), split(drawn["local"])
    for name in last:
        assert not np.array_equal(last[name], again[name]) or last[name].shape[0] == 0
        kept = form == "start" and not name.startswith("bias_")
        if kept or last[name].shape[0] == 0:
            np.testing.assert_array_equal(first[name], last[name])
        else:
            assert not np.array_equal(first[name], last[name])


def test_a_network_without_local_parts_has_nothing_to_share(small):
    network = MADENetwork(MADEConfig(input_size=4, hidden=()))
    with pytest.raises(errors.InputError, match="share_dense: MADENetwork has no local parts that could be shared"):
        DecomposedWork(network, small.training(), Decomposition(share_dense="start"))


@pytest.mark.parametrize("share_dense", [False, True])
def test_without_exchange_nothing_enters_and_nothing_leaves(small, share_dense):
    runner = small.Runner(exchange=False, share_dense=share_dense, places=0)
    data, other = runner.data(), -2 * runner.shared
    state = runner.begin(runner.start())
    same = runner.begin(runner.start(), other)
    first, update, _, metrics = runner.train(state, data)
    second, _, _, _ = runner.train(same, data, other)
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])
    assert not update["sent"].any()
    assert not update["delta"].any()
    assert metrics["sent"] == 0
    assert (first["base"] != state["base"]).any()


# -- learning -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ["fedseit", "fedweit"])
def test_every_group_moves_in_one_step(small, system, request):
    runner = request.getfixturevalue(system)
    foreign = small.adaptives(runner.work, 2)
    words = small.context()
    data = runner.data(16, foreign=foreign, words=words)
    assert data["train"]["label"].shape == 16
    state = runner.begin(runner.start(), foreign=foreign)
    after, _, _, metrics = runner.train(state, data)
    assert metrics["epochs"] == 1
    before, now = runner.parts(state), runner.parts(after)
    still = [name for name, value in before.items() if np.array_equal(value, now[name])]
    assert still == []
    # Every alpha with an entry behind it moves, the others have nothing to move for.
    np.testing.assert_array_equal(before["attention"][2:], now["attention"][2:])
    assert (before["attention"][:2] != now["attention"][:2]).all()
    # The foreign adaptives and the word vectors are read and never written.
    assert not {"foreign", "past_foreign"} & set(runner.work.train_writes)
    np.testing.assert_array_equal(data["context"]["vectors"], words["vectors"])
    if "foreign" in state:
        np.testing.assert_array_equal(after["foreign"], foreign)


@pytest.mark.parametrize("aligned", [False, True])
def test_a_round_with_kernels_in_pieces_is_that_with_one_vector(small, aligned):
    rounds = []
    for whole in (False, True):
        runner = small.Runner(aligned=aligned)
        if whole:
            network = runner.work.network
            network.__class__ = type("InOne", (type(network),), {"kernel_pieces": (network.kernels.size,)})
        assert len(runner.work.trained()["base"].pieces) == (1 if whole else len(small.SIZES))
        foreign = small.adaptives(runner.work, 2)
        state = runner.begin(runner.start(), foreign=foreign)
        rounds.append(runner.train(state, runner.data(16, foreign=foreign)))
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *rounds)


@pytest.mark.parametrize("system", ["fedseit", "fedweit"])
def test_a_foreign_adaptive_changes_the_prediction(small, system, request):
    runner = request.getfixturevalue(system)
    foreign = small.adaptives(runner.work, 2)
    losses = []
    for scale in (1.0, 0.0, 1.5):
        changed = foreign * np.array([[1.0], [scale]], np.float32)
        state = runner.begin(runner.start(), foreign=changed)
        losses.append(float(runner.evaluate(state, 0, runner.data(foreign=changed))["loss"]))
    assert len(set(losses)) == 3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("tasks", [0, 2])
def test_the_objective_is_equation_five(small, form, aligned, tasks):
    runner = small.Runner(aligned=aligned, retention_form=form, sparsity=0.02, retention=0.7)
    foreign = small.adaptives(runner.work, 2)
    data = runner.data(foreign=foreign)
    state = randomised(runner, tasks, foreign=foreign)
    rng = np.random.default_rng(8)
    names = ["base", "mask_logits", "adaptive", "attention", "local"]
    names += ["past_adaptive"] if form == "gradient" else []
    values = {name: (0.5 * rng.normal(size=state[name].shape)).astype("f") for name in names}
    here = runner.work.begin_round(small.tensors(state), tf.constant(runner.shared), data, tf.constant(0))
    step = Step(None, tf.constant(0), tf.constant(0))
    rows = tf.range(len(data["train"]["label"]))
    found, found_loss, *_ = runner.work.step_loss(small.tensors(values), rows, step, here)
    kernel = small.theta(values["base"], values["mask_logits"], values["adaptive"])
    if not aligned:
        kernel = kernel + weighted(small, values["attention"], foreign)
    local = {k: v.numpy() for k, v in runner.work.network.local.split(values["local"]).items()}
    batch = small.examples(8)
    scores = small.logits(
        kernel, local, values["attention"], foreign, small.documents(batch), small.context()["vectors"], aligned
    )
    loss = small.cross_entropies(scores, batch["label"]).mean()
    expected = loss + 0.02 * (small.sigmoid(values["mask_logits"]).sum() + np.abs(values["adaptive"]).sum())
    if form == "gradient":
        for i, past in enumerate(values["past_adaptive"]):
            drift = small.theta(values["base"], state["past_mask_logits"][i], past) - state["past_reference"][i]
            expected += 0.7 * (drift**2).sum() + 0.02 * np.abs(past).sum()
    np.testing.assert_allclose(found_loss, loss, rtol=1e-4)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_proximal_term_holds_the_base(small):
    moved = []
    for mu in (0.0, 100.0):
        optimizer = tff.learning.optimizers.build_sgdm(1.0)
        runner = small.Runner(
            penalty=Proximal(mu),
            sparsity=0.0,
            training=small.training(optimizer=optimizer, num_epochs=6, batch_size=64),
        )
        after, *_ = runner.train(runner.begin(runner.start()), runner.data())
        moved.append(np.linalg.norm(after["base"] - runner.shared))
    assert 0 < moved[1] < 0.9 * moved[0]


# -- retention through a whole round --------------------------------------------------------------------------


def learned(small, runner, rounds=1):
    """A client that has learned task 0, begun task 1 and trained it; the server's base has moved meanwhile."""
    first, second = runner.data(12, seed=1), runner.data(12, seed=2)
    state, *_ = runner.train(runner.begin(runner.start()), first)
    state, _ = runner.end(state, first)
    old = kernel_of(small, runner, state, 0), runner.evaluate(state, 0, first, "train")
    rng = np.random.default_rng(4)
    shared = runner.shared + (0.1 * rng.normal(size=runner.shared.shape)).astype("f")
    state = runner.begin(state, shared)
    reference = state["past_reference"].copy()
    for round_num in range(rounds):
        state, *_ = runner.train(state, second, shared, round_num + 1)
    np.testing.assert_array_equal(state["past_reference"], reference)
    return state, old, (kernel_of(small, runner, state, 0), runner.evaluate(state, 0, first, "train"))


def kernel_of(small, runner, state, task):
    return runner.work.evaluated_kernel(small.tensors(runner.work.task_view(state, task))).numpy()


@pytest.mark.parametrize(("form", "sparsity"), [("drift", 0.0), ("closed_form", 0.0), ("stored", 0.03)])
def test_a_solution_with_a_threshold_of_zero_forgets_nothing(small, form, sparsity):
    training = small.training(learning_rate=0.05)
    runner = small.Runner(sparsity=sparsity, retention_form=form, places=0, training=training)
    state, (kernel, scores), (now, scores_now) = learned(small, runner)
    assert np.abs(state["base"] - runner.shared).max() > 0.05
    np.testing.assert_allclose(now, kernel, atol=1e-6)
    assert scores_now["correct"] == scores["correct"]
    np.testing.assert_allclose(scores_now["loss"], scores["loss"], rtol=1e-5)


@pytest.mark.parametrize("form", ["drift", "closed_form"])
def test_the_drift_is_bounded_and_does_not_add_up(small, form):
    runner = small.Runner(sparsity=0.04, retention=1.0, retention_form=form, places=0)
    data, rng = runner.data(1), np.random.default_rng(6)
    state = randomised(runner, 0)
    state, _ = runner.end(state, data)
    kernel = state["past_reference"][0].copy()
    for _ in range(4):
        state = runner.begin(state)
        moved = state["base"] + rng.normal(size=state["base"].shape).astype("f")
        state, _ = runner.end({**state, "base": moved}, data)
        drift = np.abs(kernel_of(small, runner, state, 0) - kernel)
        assert 0.01 < drift.max() <= 0.04 / 2 + 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_a_task_that_has_just_ended_is_as_it_was_learned(small, form):
    """But where the threshold cuts A itself: there it loses as much as it may drift later."""
    runner = small.Runner(sparsity=0.04, retention=1.0, retention_form=form, places=0)
    state = randomised(runner, 0)
    learned_kernel = kernel_of(small, runner, state, 0)
    ended, _ = runner.end(state, runner.data(1))
    lost = np.abs(kernel_of(small, runner, ended, 0) - learned_kernel)
    if form == "closed_form":
        assert 0.019 < lost.max() <= 0.06 + 1e-6  # the threshold, 0.04 / 2, and what pruning had cut
    else:
        assert lost.max() < 1e-6


@pytest.mark.slow
def test_retention_reduces_the_drift_in_the_gradient_form(small):
    drift = []
    for retention in (0.0, 30.0):
        runner = small.Runner(
            sparsity=0.0,
            retention=retention,
            retention_form="gradient",
            places=0,
            training=small.training(num_epochs=6, batch_size=12, learning_rate=0.05, patience=0),
        )
        state, _, _ = learned(small, runner)
        moved = small.theta(state["base"], state["past_mask_logits"][0], state["past_adaptive"][0])
        drift.append(np.linalg.norm(moved - state["past_reference"][0]))
    assert 0 < drift[1] < 0.8 * drift[0]


# -- evaluation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("aligned", [False, True])
def test_each_task_is_evaluated_with_its_own_parts(small, form, aligned):
    lam = 0.1
    runner = small.Runner(aligned=aligned, retention_form=form, sparsity=lam, retention=2.0)
    foreign = small.adaptives(runner.work, 2)
    data, batch = runner.data(foreign=foreign), small.examples(4, seed=100)
    state = randomised(runner, 2, foreign=foreign)
    for task in range(3):
        past = task < 2
        own = {n: state[f"past_{n}"][task] if past else state[n] for n in ("mask_logits", "attention", "local")}
        adaptive = state["past_adaptive"][task] if past else state["adaptive"]
        left = state["past_reference"][task] - small.theta(state["base"], own["mask_logits"], 0) if past else None
        if past and form == "closed_form":
            adaptive = np.sign(left) * np.maximum(np.abs(left) - lam / 4, 0)  # sparse as it is
        elif past and form == "drift":
            moved = left - adaptive
            adaptive = adaptive + np.sign(moved) * np.maximum(np.abs(moved) - lam / 4, 0)
        elif past and form == "stored":
            adaptive = left
        else:
            adaptive = np.where(np.abs(adaptive) > lam, adaptive, 0)
        kernel = small.theta(state["base"], own["mask_logits"], adaptive)
        if not aligned:
            kernel = kernel + (state["past_foreign"][task] if past else weighted(small, own["attention"], foreign))
        local = {k: v.numpy() for k, v in runner.work.network.local.split(own["local"]).items()}
        scores = small.logits(
            kernel, local, own["attention"], foreign, small.documents(batch), small.context()["vectors"], aligned
        )
        found = runner.evaluate(state, task, data)
        np.testing.assert_allclose(found["loss"], small.cross_entropies(scores, batch["label"]).sum(), rtol=1e-4)
        assert found["correct"] == (scores.argmax(1) == batch["label"]).sum()
        assert found["count"] == 4


# -- clients that have nothing to say -------------------------------------------------------------------------


def test_a_client_without_examples_is_left_out(small, fedweit):
    state = fedweit.begin(fedweit.start())
    after, update, weight, metrics = fedweit.train(state, fedweit.data(0, held_out=0))
    for name, value in state.items():
        np.testing.assert_array_equal(after[name], value)
    assert weight == 0
    assert not update["sent"].any()
    assert not update["delta"].any()
    assert metrics["examples"] == metrics["epochs"] == metrics["sent"] == metrics["non_finite"] == 0


@pytest.mark.parametrize("system", ["fedseit", "fedweit"])
@pytest.mark.parametrize("rows", [slice(1, None), slice(8, 9)])
def test_a_client_with_nan_in_its_vectors_is_left_out(small, system, rows, request):
    runner = request.getfixturevalue(system)
    words = small.context()
    words["vectors"][rows, 2] = np.nan
    state = runner.begin(runner.start())
    after, update, weight, metrics = runner.train(state, runner.data(words=words))
    assert metrics["non_finite"] == 1
    for name, value in state.items():
        np.testing.assert_array_equal(after[name], value)
    assert weight == 0
    assert not update["sent"].any()
    assert not update["delta"].any()


# -- randomness -----------------------------------------------------------------------------------------------


def test_numbers_hang_from_client_task_and_round(small):
    runner = small.Runner(dropout=0.5, places=0, training=small.training(num_epochs=1))
    data = runner.data()
    state = runner.begin(runner.start())

    def base(changes, round_num=0):
        return runner.train({**state, **changes}, data, round_num=round_num)[0]["base"].tobytes()

    same = base({})
    assert base({}) == same
    others = [base({}, 1), base({"key": np.array([1, 3], np.int32)}), base({"task": np.int32(1)})]
    assert len({same, *others}) == 4


def test_two_clients_begin_differently_and_one_client_always_alike(small):
    runner = small.Runner()
    one, again, other = (runner.begin(runner.start(key)) for key in ((1, 2), (1, 2), (1, 3)))
    for name in ("local", "attention"):
        np.testing.assert_array_equal(one[name], again[name])
        assert (one[name] != other[name]).any()
    np.testing.assert_array_equal(one["base"], other["base"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"mask_start": 0.0},
        {"mask_start": 1.0},
        {"base_upload": "all"},
        {"retention_form": "exact"},
        {"adaptive_factor": 0},
        {"sparsity": -1.0},
        {"retention": float("nan")},
        {"gate_cutoff": 1.0},
    ],
)
def test_impossible_choices_are_named(wrong):
    with pytest.raises(errors.InputError, match=next(iter(wrong))):
        Decomposition(**wrong)
