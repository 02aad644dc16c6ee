"""The contract suite of `tffcl.testing` passes a process that holds the contract, and names the faults of others."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tffcl import errors, runtime, testing
from tffcl.algorithms import build_fed_avg
from tffcl.client_works import LocalTraining
from tffcl.models import KerasNetwork
from tffcl.program import ClientTask


class Data:
    def __init__(self, num_clients=2, num_tasks=2):
        self.num_clients, self.num_tasks = num_clients, num_tasks

    def task(self, client, task):
        x = np.random.default_rng((client, task)).normal(size=(4 + client, 2)).astype(np.float32)
        examples = OrderedDict(features=x, label=(x[:, 0] > 0).astype(np.int32))
        return ClientTask({}, examples, examples, {}, examples, 2)


@pytest.fixture(name="process", scope="module")
def _process():
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input([2]), layers.Dense(3, "relu"), layers.Dense(2)])
    with runtime.in_process():
        yield build_fed_avg(KerasNetwork(model), training=LocalTraining(num_epochs=1, batch_size=4, learning_rate=0.1))


def test_a_process_that_holds_the_contract(process):
    testing.check_process(process, Data())


def with_fault(process, name, fault):
    """The process with what a computation returns changed by `fault(result, *arguments)`."""
    computation = getattr(process, name)

    def faulty(*arguments):
        result = computation(*arguments)
        return fault(list(result) if isinstance(result, tuple) else result, *arguments)

    stand_in = mock.Mock(side_effect=faulty, type_signature=computation.type_signature)
    return dataclasses.replace(process, **{name: stand_in})


def shared_plus(change):
    def fault(result, server, states, data):
        server = OrderedDict(result[0], shared=result[0]["shared"] + np.float32(change(server, states, data)))
        return (server, *result[1:])

    return fault


def is_nan(data):
    return bool(np.isnan(data["train"]["features"]).any())


def spreads_nan(result, server, states, data):
    """The state of a client whose data are NaN becomes NaN."""
    changes = [
        {
            name: np.full_like(value, np.nan) if is_nan(one) and name == "local" else value
            for name, value in each.items()
        }
        for each, one in zip(result[1], data)
    ]
    return (result[0], changes, *result[2:])


def without_report(result, *_):
    return (*result[:2], [{**one, "non_finite": 0} for one in result[2]], result[3])


def unchanged(result, server, states, data):
    return (server, [{name: state[name] for name in change} for state, change in zip(states, result[1])], *result[2:])


FAULTS = [
    ("next", unchanged, "learning: training changed neither"),
    ("next", shared_plus(lambda *_: np.random.default_rng().normal() * (np.max(_[0]["round_num"]) > 0)),
     "repeatability: server/shared differs"),
    ("next", shared_plus(lambda *_: 1), "no examples: a round without any examples changes the shared value"),
    ("next", shared_plus(lambda server, states, data: any(map(is_nan, data))),
     "not finite: NaN of one client reaches the server or another client, at 0/shared"),
    ("next", spreads_nan, "not finite: a client whose data hold NaN changes its state, local"),
    ("next", without_report, "not finite: a client whose data hold NaN is not reported"),
    ("next", lambda result, server, states, data: (
        *result[:2], [{**one, "loss": one["loss"] + np.float32(len(data))} for one in result[2]], result[3]),
     "independence: client 0 differs beside another client, at 1/loss"),
    ("next", lambda result, server, states, data: (
        result[0], [{**one, "local": one["local"] + np.float32(1)} for one in result[1]], *result[2:]),
     "no examples: a client without examples changes its state, local"),
    ("evaluate", lambda result, *_: [{**one, "count": one["count"] + 1} for one in result],
     "evaluation: client 0, task 0 after task 0: 5 examples counted, 4 given"),
    ("evaluate", lambda result, *_: [{**one, "loss": np.float32(np.inf)} for one in result],
     "evaluation: client 0, task 0 after task 0: the loss is not finite"),
    ("end_task", lambda result, *_: (
        [{**one, "past_local": np.full_like(one["past_local"], np.nan)} for one in result[0]], result[1]),
     "finite: view of client/0/local holds a value that is not finite after task 0"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fault", "message"), FAULTS, ids=[message for *_, message in FAULTS])
def test_a_fault_is_named_in_one_line(process, name, fault, message):
    with pytest.raises(AssertionError) as raised:
        testing.check_process(with_fault(process, name, fault), Data())
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_uploads_of_another_size_are_named(process):
    with pytest.raises(AssertionError, match=r"types: end_task uploads should hold 'knowledge' of float32\[7\]"):
        testing.check_process(dataclasses.replace(process, knowledge_size=7), Data())


@pytest.mark.parametrize("data", [Data(num_clients=1), Data(num_tasks=1)])
def test_too_few_clients_or_tasks_are_named(process, data):
    with pytest.raises(errors.InputError, match="2 clients and 2 tasks or more; found"):
        testing.check_process(process, data)
