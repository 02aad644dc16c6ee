"""Workers that die, hang or were never there: the computation ends on the others, or with one clear line."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
import traceback

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from serving import Accident, assert_settles, is_running, wait_until

from tffcl import errors, runtime
from tffcl.runtime import executor, worker_runtimes
from tffcl.runtime import worker as worker_lib
from tffcl.runtime.processes import resident_bytes
from tffcl.runtime.worker import Worker

_VECTOR = tff.TensorType(np.float32, [None])
_ONE = tff.TensorType(np.float32, [1])


@tff.tensorflow.computation(_ONE)
def _slow_square(x):
    """Some work for each element of x, which cannot be told from any other work."""

    def step(n, total):
        a = tf.fill([300, 300], 1e-3) + tf.cast(n, tf.float32) * 1e-9
        for _ in range(8):
            a = a @ a
        return n + 1, total + tf.reduce_sum(a)

    total = tf.while_loop(lambda n, _: n < 60 * tf.size(x), step, (0, 0.0))[1]
    return x * x + 0.0 * total


@tff.federated_computation(tff.FederatedType(_ONE, tff.CLIENTS))
def _work(x):
    squares = tff.federated_map(_slow_square, x)
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


@contextlib.contextmanager
def two_workers(**options):
    """Two workers of our own, and a runtime that knows only their addresses."""
    with Worker(1) as one, Worker(1) as other, runtime.remote([one.address, other.address], **options) as entered:
        yield entered, (one, other)


@pytest.mark.parametrize("victim", [0, 1])
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


def test_a_worker_that_stands_still_in_mid_round():
    with two_workers(patience=3.0) as (entered, workers):
        assert _quick(CLIENTS) == 10
        with Accident(workers[1].address, lambda: os.kill(workers[1].pid, signal.SIGSTOP)):
            assert_right(_work(CLIENTS))
        (event,) = entered.events
        assert event == {"worker": workers[1].address, "reason": "no answer within 3 s"}


def test_a_worker_that_goes_on_takes_part_again():
    with two_workers(patience=3.0) as (entered, workers):
        os.kill(workers[1].pid, signal.SIGSTOP)
        assert _quick(CLIENTS) == 10
        os.kill(workers[1].pid, signal.SIGCONT)

        def is_back():
            assert _quick(CLIENTS) == 10
            return entered.workers[1].reason is None

        wait_until(is_back, lambda: entered.workers[1].reason)
        assert len(entered.events) == 1


def test_a_worker_that_needs_longer_than_the_deadline():
    seconds = 3.0
    with two_workers(call_timeout=seconds) as (entered, workers):
        assert _quick(CLIENTS) == 10
        os.kill(workers[0].pid, signal.SIGSTOP)
        start = time.monotonic()
        assert _quick(CLIENTS) == 10
        assert time.monotonic() - start > seconds / 2
        assert entered.events[0] == {
            "worker": workers[0].address, "reason": "not done within the time for a call"
        }  # fmt: skip


def test_a_worker_that_is_slow_to_free_something_is_not_lost(monkeypatch):
    monkeypatch.setattr(executor, "_DISPOSE_SECONDS", 0.2)
    with two_workers() as (entered, workers):
        assert _quick(CLIENTS) == 10
        os.kill(workers[1].pid, signal.SIGSTOP)
        entered.workers[1].executors.forget(2)
        os.kill(workers[1].pid, signal.SIGCONT)
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


def test_an_error_of_a_computation_is_not_the_loss_of_a_worker():
    @tff.tensorflow.computation(_VECTOR)
    def check(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 4.0, message="too large")]):
            return tf.identity(x)

    @tff.federated_computation(tff.FederatedType(_VECTOR, tff.CLIENTS))
    def check_all(x):
        return tff.federated_map(check, x)

    with two_workers() as (entered, _):
        with pytest.raises(Exception, match="too large"):
            check_all(CLIENTS)
        np.testing.assert_array_equal(check_all(CLIENTS[:3]), CLIENTS[:3])
        assert not entered.events


def test_workers_of_others_go_on_and_our_own_end():
    with two_workers() as (_, workers):
        pids = [worker.pid for worker in workers]
        assert _quick(CLIENTS) == 10
    # The inner `with` has ended first, and left them as they were; two_workers then ended them.
    assert not any(map(is_running, pids))
    with Worker(1) as one:
        with runtime.remote([one.address]):
            assert _quick(CLIENTS) == 10
        assert is_running(one.pid)
        assert worker_lib.probe(one.address, 5.0) is None
    with runtime.local(num_threads=1, num_workers=2) as local:
        pids = [process.pid for process in local.processes]
        assert _quick(CLIENTS) == 10
        assert all(map(is_running, pids))
    assert not any(map(is_running, pids))


def test_a_closed_runtime_is_one_clear_line():
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


def test_no_thread_watches_a_channel_that_will_be_closed():
    before = _watching()
    with runtime.local(1, num_workers=2) as local, runtime.local(1):
        _quick(CLIENTS)
        with tff.framework.get_context_stack().install(local.context):
            _quick(CLIENTS)
        assert _watching() <= before


def test_workers_that_are_not_there(monkeypatch):
    monkeypatch.setattr(worker_runtimes, "_START_SECONDS", 1.0)
    with pytest.raises(errors.RunError, match="no worker answers at localhost:9 .*tffcl worker"):
        runtime.remote(["localhost:9"])


@pytest.mark.parametrize("options", [{"call_timeout": 0}, {"patience": -1.0}])
def test_seconds_that_are_none(options):
    with Worker(1) as one, pytest.raises(errors.InputError, match="a number above 0"):
        runtime.remote([one.address], **options)


def test_nothing_is_kept_from_call_to_call():
    """A worker gets 4 MB in each call."""
    big = [np.ones(500_000, np.float32)] * 4
    with runtime.local(num_threads=1, num_workers=2) as local:
        pids = [process.pid for process in local.processes]
        assert_settles(lambda: _quick(big), lambda: sum(map(resident_bytes, pids)), 16e6)
        assert all(map(is_running, pids))


def test_in_context_of_one_worker_nothing_is_lost(tff_context):
    with tff.framework.get_context_stack().install(tff_context.context):
        assert runtime.take_worker_failures() == []
