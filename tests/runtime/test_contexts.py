"""Computations in a local worker: results, errors, and what is sent how often."""

from __future__ import annotations

import contextlib
import os
import signal

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors, runtime

_VECTOR = tff.TensorType(np.float32, [None])


@tff.tensorflow.computation(_VECTOR)
def _double(x):
    return 2.0 * x


@tff.tensorflow.computation(_VECTOR)
def _total(x):
    return tf.reduce_sum(x)


@tff.federated_computation(tff.FederatedType(_VECTOR, tff.CLIENTS), tff.FederatedType(_VECTOR, tff.SERVER))
def _double_and_mean(values, scale):
    return tff.federated_map(_double, values), tff.federated_mean(tff.federated_map(_total, values)), scale


@tff.tensorflow.computation
def _three():
    return tf.constant(3)


def test_values_go_in_and_come_back(tff_context):
    for size in (1, 3, 50_000):  # small ones and large ones take different ways
        clients = [np.arange(size, dtype=np.float32) + client for client in range(3)]
        doubled, mean, scale = _double_and_mean(clients, clients[0])
        np.testing.assert_array_equal(doubled, [2 * value for value in clients])
        np.testing.assert_allclose(mean, np.sum(clients[1], dtype=np.float64), rtol=1e-5)
        np.testing.assert_array_equal(scale, clients[0])


def test_the_number_of_clients_may_change(tff_context):
    for number in (1, 4, 2, 4):
        doubled, _, _ = _double_and_mean([np.ones(5, np.float32)] * number, np.ones(1, np.float32))
        assert len(doubled) == number


def test_executors_for_numbers_of_clients_of_long_ago_are_closed(tff_context):
    factory = tff_context.context.executor_factory
    first = factory.create_executor({tff.CLIENTS: 1})
    for number in range(2, 13):
        _double_and_mean([np.ones(5, np.float32)] * number, np.ones(1, np.float32))
    assert first._executor_id is None
    assert factory.create_executor({tff.CLIENTS: 12}) is factory.create_executor({tff.CLIENTS: 12})
    _double_and_mean([np.ones(5, np.float32)], np.ones(1, np.float32))


def test_a_computation_without_clients(tff_context):
    assert _three() == 3


def test_a_computation_is_sent_once(tff_context, monkeypatch):
    clients = [np.ones(5, np.float32)] * 5
    _double_and_mean(clients, clients[0])
    sent = []
    stub = type(tff_context.context.executor_factory.create_executor({tff.CLIENTS: 5})._stub)
    plain = stub.create_value
    monkeypatch.setattr(stub, "create_value", lambda self, request: sent.append(request) or plain(self, request))
    _double_and_mean(clients, clients[0])
    assert not sent
    tff.federated_computation(lambda x: x, tff.FederatedType(_VECTOR, tff.CLIENTS))(clients)
    assert len(sent) == 1


def test_an_error_inside_a_computation_does_not_end_the_worker(tff_context):
    @tff.tensorflow.computation(_VECTOR)
    def check(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 1.0, message="too large")]):
            return tf.identity(x)

    with pytest.raises(Exception, match="too large"):
        check(np.ones(3, np.float32))
    np.testing.assert_array_equal(check(np.zeros(3, np.float32)), np.zeros(3))
    assert tff_context.worker._process.poll() is None


def test_leaving_restores_the_context_and_ends_the_worker():
    stack = tff.framework.get_context_stack()
    before = stack.current
    with contextlib.suppress(ZeroDivisionError), runtime.local(num_threads=1) as local:
        assert stack.current is local.context
        assert _three() == 3
        raise ZeroDivisionError
    assert stack.current is before
    assert local.worker._process.poll() is not None


def test_a_closed_runtime_is_one_clear_line():
    with runtime.local() as local:
        local.close()
        with pytest.raises(errors.RunError, match="lost the worker"):
            _three()


@pytest.mark.parametrize("size", [1, 50_000])
def test_a_killed_worker_is_one_clear_line_and_nothing_is_tried_again(size):
    clients = [np.ones(size, np.float32)]
    with runtime.local() as local:
        _double_and_mean(clients, clients[0])
        os.kill(local.worker.pid, signal.SIGKILL)
        with pytest.raises(errors.RunError, match=r"^lost the worker .* was ended by SIGKILL.*$") as caught:
            _double_and_mean(clients, clients[0])
        assert "\n" not in str(caught.value)
