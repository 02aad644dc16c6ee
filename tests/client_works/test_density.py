"""The decomposed work on a density: connectivity, what is sent, and how a task starts."""

import numpy as np
import pytest
import tensorflow as tf

from tffcl.client_works import DecomposedWork, Decomposition, LocalTraining
from tffcl.client_works.randomness import Step
from tffcl.models import MADEConfig, MADENetwork

D = 5


def made(num_foreign=2, **options):
    return MADENetwork(MADEConfig(D, (4,), **options), num_foreign)


def work_of(network, **options):
    options = {"sparsity": 1e-3, "adaptive_factor": 3.0, "retention": 1.0, **options}
    training = LocalTraining(num_epochs=2, batch_size=4, learning_rate=0.05, patience=0)
    return DecomposedWork(network, training, Decomposition(**options), seed=3)


def data(count=9, seed=0):
    x = (np.random.default_rng(seed).random((count, D)) < 0.4).astype(np.uint8)
    part = {"x": tf.constant(x)}
    return {"context": {"observed": tf.ones([D])}, "train": part, "validation": part}


def begun(work, foreign=None, key=(1, 2)):
    shared = work.initialize_shared()
    state = work.initialize_client(shared, work.initialize_plan(), tf.constant(key))
    foreign = tf.zeros([0, work.knowledge_size]) if foreign is None else foreign
    return shared, dict(work.begin_task(state, shared, foreign))


def trained(work, shared, state, round_num=0):
    reads = {name: state[name] for name in work.train_reads}
    changed, update, weight, metrics = work.trainer().python_function(reads, shared, data(), tf.constant(round_num))
    return {**state, **changed}, update, weight, metrics


def test_what_the_masks_leave_out_is_neither_sent_nor_kept():
    work = work_of(made())
    shared, state = begun(work)
    support = work.network.support(state["plan"]).numpy() > 0
    assert 0 < support.sum() < len(support)
    assert np.allclose(state["adaptive"], np.where(support, shared.numpy() / 3, 0))
    state, update, _, metrics = trained(work, shared, state)
    assert not update["sent"].numpy()[~support].any()
    assert update["sent"].numpy()[support].any()
    assert int(metrics["sent"]) == update["sent"].numpy().sum()
    assert not state["adaptive"].numpy()[~support].any()
    _, upload = work.end_task(state, shared, data())
    assert not upload["knowledge"].numpy()[~support].any()
    assert upload["knowledge"].numpy().any()


def test_fedweit_as_it_is_sends_and_penalises_everything():
    work = work_of(made(), connectivity_aware=False)
    shared, state = begun(work)
    outside = work.network.support(state["plan"]).numpy() == 0
    start = state["adaptive"].numpy()[outside]
    assert np.allclose(start, shared.numpy()[outside] / 3)
    state["schedule"] = tf.constant([1e-3, np.inf, 0.0, 0.0])
    state, update, _, _ = trained(work, shared, state)
    assert update["sent"].numpy()[outside].any()
    end = state["adaptive"].numpy()[outside]
    far = np.abs(start) > 0.01  # further than six steps go
    assert far.any()
    assert np.all((end - start)[far] * start[far] < 0)  # pulled by lambda_1 alone, towards zero


def test_the_first_round_of_a_task_starts_from_its_data():
    work = work_of(made())
    shared, state = begun(work)
    state["schedule"] = tf.constant([1e-12, np.inf, 0.0, 0.0])
    first, *_ = trained(work, shared, state)
    expected = work.network.start(state["local"], data()["context"], data()["train"]).numpy()
    assert np.allclose(first["local"], expected, atol=1e-6)
    moved = {**first, "local": first["local"] + 1.0}
    second, *_ = trained(work, shared, moved)
    assert np.allclose(second["local"], expected + 1.0, atol=1e-6)
    assert (int(first["trained"]), int(second["trained"])) == (1, 2)
    again = work.begin_task(second, shared, tf.zeros([0, work.knowledge_size]))
    assert int(again["trained"]) == 0


def test_losses_of_a_view_are_those_of_the_network():
    work = work_of(made())
    rows = tf.random.stateless_normal([2, work.knowledge_size], [5, 6]) * 0.3
    shared, state = begun(work, rows)
    state, *_ = trained(work, shared, state)
    view = work.task_view({name: np.asarray(value) for name, value in state.items()}, 0)
    found = work.evaluate(
        {name: tf.convert_to_tensor(value) for name, value in view.items()}, shared, data()["context"], data()["train"]
    )
    pruned = np.where(np.abs(state["adaptive"]) > 1e-3, state["adaptive"], 0)
    gates = 1 / (1 + np.exp(-state["mask_logits"].numpy()))
    layout = work.network.kernels
    kernel, start, unit = [], 0, 0
    for place, (_, shape) in enumerate(layout.parts):
        size = int(np.prod(shape))
        part = slice(start, start + size)
        scaled = state["base"].numpy()[part].reshape(shape) * gates[unit : unit + shape[-1]]
        foreign = sum(float(state["attention"][k, place]) * rows[k].numpy()[part] for k in range(2))
        kernel.append(scaled.ravel() + pruned[part] + foreign)
        start, unit = start + size, unit + shape[-1]
    weights = np.concatenate(kernel) * work.network.connectivity(state["plan"], 0).numpy()
    expected = work.network.losses(
        tf.constant(weights.astype("f")), state["local"], None, data()["context"], data()["train"], None
    )
    assert np.allclose(found["losses"], expected, atol=1e-5)
    assert np.any(state["attention"].numpy() != 0)


@pytest.mark.parametrize("distinct", [False, True])
def test_clients_train_the_same_pattern_at_the_same_step_if_their_masks_are_the_servers(distinct):
    work = work_of(made(order_agnostic=True, num_masks=50, distinct_masks=distinct))

    def masks(key):
        _, state = begun(work, key=key)
        mask = work.connectivity(state["plan"], tf.constant(2))
        steps = [(0, 0), (0, 1), (1, 0)]
        return [mask(Step(tf.constant(key), tf.constant(e), tf.constant(s))).numpy() for e, s in steps]

    one, other = masks((1, 2)), masks((3, 4))
    assert any(np.any(a != b) for a, b in zip(one, one[1:]))
    assert all(np.array_equal(a, b) for a, b in zip(one, other)) != distinct


@pytest.mark.parametrize("options", [{}, {"order_agnostic": True, "num_masks": 3}], ids=["one mask", "three masks"])
@pytest.mark.parametrize("aware", [True, False])
def test_a_round_with_kernels_in_pieces_is_that_with_one_vector(options, aware):
    class InOne(MADENetwork):
        kernel_pieces = property(lambda self: (self.kernels.size,))

    ended = []
    for kind in (MADENetwork, InOne):
        work = work_of(kind(MADEConfig(D, (4,), **options), 2), connectivity_aware=aware)
        pieces = work.trained()["adaptive"].pieces
        assert len(pieces) == (3 if kind is MADENetwork else 1)
        rows = np.random.default_rng(3).normal(size=(2, work.knowledge_size)).astype("f")
        shared, state = begun(work, tf.constant(rows))
        state = {**state, "attention": tf.constant([[0.5, -0.3, 0.2], [0.1, 0.4, -0.6]])}
        state, update, *_ = trained(work, shared, state)
        ended.append((state, update["delta"]))
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *ended)
