"""Calls that end without the clients of a lost worker: who is counted is who is returned, whenever it gets lost."""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import os
import signal
import time

import numpy as np
import pytest
import tensorflow_federated as tff

from tffcl import errors, runtime
from tffcl.runtime.executor import WorkerExecutor
from tffcl.runtime.worker import Worker

_VECTOR = tff.TensorType(np.float32, [2])
_add = tff.tensorflow.computation(lambda a, b: a + b, (_VECTOR, _VECTOR))
_distance = tff.tensorflow.computation(lambda a, b: a - b, (_VECTOR, _VECTOR))


@tff.federated_computation(tff.FederatedType(_VECTOR, tff.SERVER), tff.FederatedType(_VECTOR, tff.CLIENTS))
def _round(server, x):
    """The server's new value, each client's, and one that hangs from the mean of all clients'."""
    moved = tff.federated_map(_add, (x, tff.federated_broadcast(server)))
    mean = tff.federated_mean(moved)
    apart = tff.federated_map(_distance, (moved, tff.federated_broadcast(mean)))
    return tff.federated_map(_add, (server, mean)), moved, apart


SERVER = np.array([10, 20], np.float32)
CLIENTS = [np.array([n, n * n], np.float32) for n in (1, 2, 3, 4, 5)]  # three for the first worker, two for the other
OF_WORKER = ([0, 1, 2], [3, 4])
FETCHES = 11  # of partial sums, of the mean for its broadcast, and of the results


def assert_round_of(result, clients):
    """What numpy makes of these clients alone."""
    moved = np.stack([CLIENTS[client] + SERVER for client in clients])
    for found, expected in zip(result, (SERVER + moved.mean(0), moved, moved - moved.mean(0))):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.fixture(name="pair", scope="module")
def _pair():
    with Worker(1) as one, Worker(1) as other:
        yield one, other


@pytest.fixture(name="two")
def _two(pair):
    with runtime.remote([worker.address for worker in pair], on_lost_worker="leave-out") as entered:
        yield entered


@contextlib.contextmanager
def at_fetch(number, happen, monkeypatch):
    """Something happens when this fetch, counted from 0, is about to be made."""
    numbers, original = itertools.count(), WorkerExecutor.fetch

    def counted(self, value):
        if next(numbers) == number:
            happen()
        return original(self, value)

    with monkeypatch.context() as patch:
        patch.setattr(WorkerExecutor, "fetch", counted)
        yield numbers


def lost_at(fetch, worker, monkeypatch):
    """A worker gets lost then."""
    return at_fetch(fetch, lambda: worker.lose("cut off by the test"), monkeypatch)


def call(comp=_round, clients=CLIENTS):
    with runtime.allow_missing_clients() as missing:
        result = comp(SERVER, clients)
    return result, missing


def test_nobody_is_missing_while_no_worker_gets_lost(two, monkeypatch):
    with lost_at(-1, None, monkeypatch) as numbers:
        result, missing = call()
    assert missing == []
    assert_round_of(result, range(5))
    assert next(numbers) == FETCHES


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])  # the first also computes what is at the server
@pytest.mark.parametrize("fetch", range(FETCHES))
def test_whenever_a_worker_gets_lost(two, victim, fetch, monkeypatch, caplog):
    with lost_at(fetch, two.workers[victim], monkeypatch), caplog.at_level(logging.WARNING, "tffcl"):
        result, missing = call()
    if fetch >= FETCHES - 2 and not missing:  # the victim had given all that was asked of it
        assert_round_of(result, range(5))
        return
    assert missing == OF_WORKER[victim]
    assert_round_of(result, OF_WORKER[1 - victim])
    (event,) = runtime.take_worker_failures()
    assert event == {"worker": two.workers[victim].address, "reason": "cut off by the test"}
    assert f"{len(missing)} of 5 clients are left out" in caplog.text
    assert "go to the others" not in caplog.text
    result, missing = call()  # all clients are with the one that is left
    assert missing == []
    assert_round_of(result, range(5))


def test_what_the_others_have_done_is_not_done_again(two, monkeypatch):
    asked, original = collections.Counter(), WorkerExecutor.call

    def counted(self, computation, *argument):
        asked[id(self), id(computation)] += 1
        return original(self, computation, *argument)

    call()
    monkeypatch.setattr(WorkerExecutor, "call", counted)
    with lost_at(5, two.workers[1], monkeypatch):
        _, missing = call()
    assert missing == [3, 4]
    of_first = sorted(n for (executor, _), n in asked.items() if executor == id(_executor_of(two, 0, 3)))
    assert of_first[-1] == 1, of_first


def _executor_of(two, worker, num_clients):
    return two.workers[worker].executors.get(num_clients)


def test_without_leave_nobody_is_left_out(two, monkeypatch):
    with lost_at(4, two.workers[1], monkeypatch):
        result = _round(SERVER, CLIENTS)
    assert_round_of(result, range(5))
    assert len(two.events) == 1


def test_where_nobody_would_be_left_the_call_runs_again(two, monkeypatch):
    with lost_at(1, two.workers[0], monkeypatch):
        result, missing = call(clients=CLIENTS[:1])
    assert missing == []
    assert_round_of(result, [0])
    assert len(two.events) == 1


def test_a_worker_that_was_lost_before_has_no_clients_to_lose(two):
    two.workers[1].lose("cut off by the test")
    result, missing = call()
    assert missing == []
    assert_round_of(result, range(5))


def test_retry_is_the_default_and_other_contexts_know_nothing_of_it(pair, tff_context, monkeypatch):
    with runtime.remote([worker.address for worker in pair]) as entered:
        with lost_at(4, entered.workers[1], monkeypatch):
            result, missing = call()
        assert missing == []
        assert_round_of(result, range(5))
    with tff.framework.get_context_stack().install(tff_context.context):
        result, missing = call()
    assert missing == []
    assert_round_of(result, range(5))


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["retry", "leave-out"])
def test_a_worker_that_hangs_is_noticed_within_the_time_for_a_call(pair, choice, monkeypatch):
    seconds, noticed = 3.0, []
    options = {"call_timeout": seconds, "on_failure": lambda _: noticed.append(time.monotonic())}
    with runtime.remote([worker.address for worker in pair], on_lost_worker=choice, **options) as entered:
        call()
        start = time.monotonic()
        try:
            with at_fetch(0, lambda: os.kill(pair[1].pid, signal.SIGSTOP), monkeypatch):
                result, missing = call()
        finally:
            os.kill(pair[1].pid, signal.SIGCONT)
        assert missing == (OF_WORKER[1] if choice == "leave-out" else [])
        assert_round_of(result, OF_WORKER[0] if choice == "leave-out" else range(5))
        (event,) = entered.events
        assert event == {"worker": pair[1].address, "reason": "not done within the time for a call"}
        assert noticed[0] - start > seconds / 2  # the time counts from the start of the call, after it was compiled


def test_a_choice_that_is_none(pair):
    with pytest.raises(errors.InputError, match="on_lost_worker: expected one of retry, leave-out, found 'drop'"):
        runtime.remote([pair[0].address], on_lost_worker="drop")
