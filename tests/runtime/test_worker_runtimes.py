"""Runtimes over one worker or several: when one dies or hangs, the others go on, or there is one clear line."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import traceback

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from serving import Accident, assert_settles, is_running, wait_until
from slow_work import ONE, slow_square

from tffcl import errors, runtime
from tffcl.runtime import executor, worker_runtimes
from tffcl.runtime import worker as worker_lib
from tffcl.runtime.worker import Worker

_VECTOR = tff.TensorType(np.float32, [None])


@tff.federated_computation(tff.FederatedType(ONE, tff.CLIENTS))
def _work(x):
    squares = tff.federated_map(slow_square, x)
    return squares, tff.federated_sum(squares)


_total = tff.tensorflow.computation(lambda x: tf.reduce_sum(x), _VECTOR)


@tff.federated_computation(tff.FederatedType(_VECTOR, tff.CLIENTS))
def _quick(x):
    return tff.federated_sum(tff.federated_map(_total, x))


CLIENTS = [np.array([n], np.float32) for n in (1, 2, 3, 4)]
EXPECTED = [n * n for n in (1, 2, 3, 4)]


def assert_right(result):
    squares, total = result
    np.testing.assert_allclose(np.concatenate(squares), EXPECTED)
    np.testing.assert_allclose(total, [sum(EXPECTED)])


@pytest.fixture(name="pair", scope="module")
def _pair():
    """Two workers of our own that nothing happens to for long."""
    with Worker(1) as one, Worker(1) as other:
        yield one, other


@contextlib.contextmanager
def two_workers(pair=None, **options):
    """A runtime that knows only the addresses of two workers; those are its own where they shall be killed."""
    with contextlib.ExitStack() as started:
        workers = pair or [started.enter_context(Worker(1)) for _ in range(2)]
        yield started.enter_context(runtime.remote([worker.address for worker in workers], **options)), workers


@contextlib.contextmanager
def stopped(worker):
    """What is stopped inside goes on afterwards."""
    try:
        yield
    finally:
        os.kill(worker.pid, signal.SIGCONT)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_worker_that_is_killed_in_mid_round(victim, caplog):
    told = []
    with two_workers(on_failure=told.append) as (entered, workers):
        assert _quick(CLIENTS) == 10
        pid = workers[victim].pid
        with (
            caplog.at_level(logging.WARNING, logger="tffcl"),
            Accident(workers[victim].address, lambda: os.kill(pid, signal.SIGKILL)),
        ):
            assert_right(_work(CLIENTS))
        (event,) = entered.events
        assert event["worker"] == workers[victim].address
        assert told == [event]
        assert runtime.take_worker_failures() == [event]
        assert runtime.take_worker_failures() == []
        assert [r for r in caplog.records if "lost the worker at" in r.message]
        assert _quick(CLIENTS) == 10
        assert len(entered.events) == 1


@pytest.mark.slow
def test_a_worker_that_stands_still_in_mid_round_is_lost_and_takes_part_again_when_it_goes_on(pair):
    with two_workers(pair, patience=3.0) as (entered, workers):
        assert _quick(CLIENTS) == 10
        with stopped(workers[1]):
            with Accident(workers[1].address, lambda: os.kill(workers[1].pid, signal.SIGSTOP)):
                assert_right(_work(CLIENTS))
            (event,) = entered.events
            assert event == {"worker": workers[1].address, "reason": "no answer within 3 s"}

        def is_back():
            assert _quick(CLIENTS) == 10
            return entered.workers[1].reason is None

        wait_until(is_back, lambda: entered.workers[1].reason)
        assert len(entered.events) == 1


def test_a_worker_that_is_slow_to_free_something_is_not_lost(pair, monkeypatch):
    monkeypatch.setattr(executor, "_DISPOSE_SECONDS", 0.2)
    with two_workers(pair) as (entered, workers):
        assert _quick(CLIENTS) == 10
        with stopped(workers[1]):
            os.kill(workers[1].pid, signal.SIGSTOP)
            entered.workers[1].executors.forget(2)
        assert _quick(CLIENTS) == 10
        assert not entered.events


def test_all_workers_gone_is_one_clear_line():
    with two_workers() as (_, workers):
        assert _quick(CLIENTS) == 10
        for worker in workers:
            os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(errors.RunError, match=r"^lost all workers \(localhost:.*; localhost:.*\)$") as caught:
            _quick(CLIENTS)
        assert "\n" not in str(caught.value)


def test_an_error_of_a_computation_is_not_the_loss_of_a_worker(pair):
    @tff.tensorflow.computation(_VECTOR)
    def check(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 4.0, message="too large")]):
            return tf.identity(x)

    @tff.federated_computation(tff.FederatedType(_VECTOR, tff.CLIENTS))
    def check_all(x):
        return tff.federated_map(check, x)

    with two_workers(pair) as (entered, _):
        with pytest.raises(errors.OperationError, match="too large"):
            check_all(CLIENTS)
        np.testing.assert_array_equal(check_all(CLIENTS[:3]), CLIENTS[:3])
        assert not entered.events


def test_workers_of_others_go_on_and_our_own_end(pair):
    with runtime.remote([pair[0].address]):
        assert _quick(CLIENTS) == 10
    assert is_running(pair[0].pid)
    assert worker_lib.probe(pair[0].address, 5.0) is None
    with runtime.local(num_threads=1, num_workers=2) as local:
        pids = [process.pid for process in local.processes]
        assert _quick(CLIENTS) == 10
        assert all(map(is_running, pids))
    assert not any(map(is_running, pids))


def test_a_closed_runtime_of_several_workers_is_one_clear_line():
    with runtime.local(num_threads=1, num_workers=2) as local:
        local.close()
        with pytest.raises(errors.RunError, match="this runtime is closed"):
            _quick(CLIENTS)
        assert not local.events


def _watching():
    """Threads that ask gRPC again and again how a channel stands: an exception ends them when it is closed."""
    found = set()
    for thread, frame in sys._current_frames().items():
        names = {each.f_code.co_name for each, _ in traceback.walk_stack(frame)}
        found |= {thread} if "_poll_connectivity" in names else set()
    return found


def test_no_thread_watches_a_channel_that_will_be_closed(pair, tff_context):
    before = _watching()
    with two_workers(pair):
        _quick(CLIENTS)
        with tff.framework.get_context_stack().install(tff_context.context):
            _quick(CLIENTS)
        assert _watching() <= before


def test_workers_that_are_not_there(monkeypatch):
    monkeypatch.setattr(worker_runtimes, "_START_SECONDS", 1.0)
    with pytest.raises(errors.RunError, match="no worker answers at localhost:9 .*tffcl worker"):
        runtime.remote(["localhost:9"])


@pytest.mark.parametrize(("addresses", "message"), [([], "a list of host:port"), (["::1:9000"], "expected host:port")])
def test_addresses_that_are_none(addresses, message):
    with pytest.raises(errors.InputError, match=message):
        runtime.remote(addresses)


@pytest.mark.parametrize("options", [{"call_timeout": 0}, {"patience": -1.0}])
def test_seconds_that_are_none(options):
    with pytest.raises(errors.InputError, match="a number above 0"):
        runtime.remote(["localhost:9"], **options)


@pytest.mark.slow
def test_nothing_is_kept_from_call_to_call():
    """A worker gets 4 MB in each call."""
    big = [np.ones(500_000, np.float32)] * 4
    with runtime.local(num_threads=1, num_workers=2) as local:
        pids = [process.pid for process in local.processes]
        assert_settles(lambda: _quick(big), lambda: sum(psutil.Process(pid).memory_info().rss for pid in pids), 16e6)
        assert all(map(is_running, pids))


def test_in_context_of_one_worker_nothing_is_lost(tff_context):
    with tff.framework.get_context_stack().install(tff_context.context):
        assert runtime.take_worker_failures() == []


# -- one worker ------------------------------------------------------------------------------------------------


@tff.tensorflow.computation(_VECTOR)
def _double(x):
    return 2.0 * x


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


def test_a_proxy_for_the_web_is_not_asked_for_a_worker_of_this_machine(monkeypatch):
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody listens
    with runtime.local(num_threads=1):
        assert _three() == 3


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
