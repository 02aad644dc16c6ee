"""Methods of one growing head: what crosses, and what a weight of 0 leaves."""

from __future__ import annotations

import numpy as np
import pytest
import small
import tensorflow as tf
import tensorflow_federated as tff
from placements import leaves, ways_out

from tffcl import testing
from tffcl.algorithms import build_fed_avg, build_glfc, build_target
from tffcl.client_works import CompensatedWork, PlainWork
from tffcl.errors import InputError
from tffcl.models import KerasNetwork, Whole, with_label_mask
from tffcl.program import ClientFiles, ClientTask, run_program
from tffcl.templates.compose import in_parts
from tffcl.transfers import NoTransfer

TRAINING = small.training(num_epochs=1)


def network():
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([layers.Input([4]), layers.Dense(3, "relu"), layers.Dense(3)])
    return with_label_mask(Whole(KerasNetwork(model)), growing=True)


@pytest.fixture(name="processes", scope="module")
def _processes(tff_context):
    """TARGET, and FedAvg of the same network."""
    sizes = {"synthetic_examples": 6, "generator_steps": 2, "generator_width": 2}
    return build_target(network(), training=TRAINING, **sizes), build_fed_avg(network(), training=TRAINING)


def test_no_example_and_nothing_of_one_leaves_a_client_beyond_fedavgs_update(processes):
    """All types walked: of a round, of a task's start and end, and of what the server does by itself."""
    target, plain = processes
    assert ways_out(target.next) == ways_out(plain.next)
    assert target.message_type == plain.message_type
    for name in ("begin_task", "prepare", "end_task", "evaluate"):
        assert not ways_out(getattr(target, name)), name
    assert target.end_task.type_signature.result[1] == plain.end_task.type_signature.result[1]
    assert target.evaluate.type_signature.result == plain.evaluate.type_signature.result


def test_what_the_server_makes_has_no_part_of_any_client_and_costs_the_same_for_all_numbers_of_them(processes):
    """`consolidate` takes and gives what is at the server alone, of sizes that are known before any client is."""
    kind = processes[0].consolidate.type_signature
    assert not leaves(kind.parameter)
    assert not leaves(kind.result)
    placed = [*kind.parameter, *kind.result]
    assert all(isinstance(each, tff.FederatedType) and each.placement is tff.SERVER for each in placed)
    made = dict(tff.structure.iter_elements(kind.parameter[0].member))["finalizer"]
    assert tuple(made["synthetic"].shape) == (6, 4)
    assert processes[1].consolidate is None


def test_clients_get_the_servers_examples_as_a_task_begins(processes):
    history = testing.History(processes[0], Data())
    history.begin(0)
    assert not any(state["synthetic"].any() for state in history.states)
    history.round("first", history.clients)
    history.end(0)
    made = history.server["finalizer"]["synthetic"]
    assert made.any()
    history.begin(1)
    for state in history.states:
        np.testing.assert_array_equal(state["synthetic"], made)
        kernels = tf.constant(history.server["shared"])
        scores = network().logits(kernels, tf.zeros([0]), tf.zeros([0, 1]), {}, {"features": made}, None)
        np.testing.assert_allclose(state["synthetic_scores"], scores, rtol=1e-4, atol=1e-5)


class Data:
    """Two clients, two tasks, three classes."""

    num_clients, num_tasks = 2, 2

    def task(self, client, task):
        rng = np.random.default_rng(10 * client + task)
        context = {"classes": np.ones(3, bool), "known": np.arange(3) < task}

        def part(count):
            x = rng.normal(size=(count, 4)).astype("f")
            return {"features": x, "label": (x[:, 0] > 0).astype(np.int32)}

        return ClientTask(context, part(6), part(2), context, part(3), 3)


def test_clients_that_keep_their_states_in_files_are_refused_in_a_line(processes, tmp_path):
    with pytest.raises(InputError, match="leave client_files out") as refused:
        run_program(
            processes[0], Data(), NoTransfer(), num_rounds=1, seed=0, client_files=ClientFiles(str(tmp_path))
        )  # fmt: skip
    assert "\n" not in str(refused.value)


def test_a_weight_of_zero_is_fedavg_part_for_part(tff_context):
    with in_parts():
        parts = build_target(network(), weight=0.0, training=TRAINING)
    assert type(parts.work) is PlainWork
    assert parts.finalizer.end_task is None
    assert not parts.work.handed


def test_glfc_without_its_two_losses_is_fedavg_part_for_part(tff_context):
    with in_parts():
        bare = build_glfc(network(), relation=0.0, compensation=False, training=TRAINING)
        whole = build_glfc(network(), training=TRAINING)
    assert type(bare.work) is PlainWork
    assert "lwf_teacher" not in bare.work.state_type
    assert isinstance(whole.work, CompensatedWork)
    assert "lwf_teacher" in whole.work.state_type


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"weight": -1.0}, "weight"),
        ({"synthetic_examples": 0}, "count"),
        ({"generator_steps": 0}, "steps"),
        ({"adversarial": -1.0}, "adversarial"),
        ({"generator_width": 0}, "width"),
    ],
)
def test_numbers_that_make_no_sense_are_one_clear_error(options, named, tff_context):
    with pytest.raises(InputError, match=named) as refused, in_parts():
        build_target(network(), **options)
    assert "\n" not in str(refused.value)
