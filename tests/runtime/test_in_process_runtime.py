"""The in-process runtime: what is kept, copied, repeated and drawn anew; errors and ends. Its values: test_equality."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import subprocess
import sys
import threading
from unittest import mock

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from serving import assert_settles

from tffcl import errors, runtime
from tffcl.runtime import in_process_runtime

_VECTOR = tff.TensorType(np.float32, [None])
_INT = tff.TensorType(np.int32)
_INTS = tff.FederatedType(_INT, tff.CLIENTS)
_VECTORS = tff.FederatedType(_VECTOR, tff.CLIENTS)


@pytest.fixture(name="in_process")
def _in_process():
    with runtime.in_process(clients_at_once=2) as entered:
        yield entered


_add_one = tff.tensorflow.computation(lambda x: x + 1, _INT)


def test_select_may_give_slices_of_different_sizes(in_process):
    keys = tff.FederatedType(tff.TensorType(np.int32, [2]), tff.CLIENTS)
    rows = tff.FederatedType(tff.TensorType(np.float32, [None, 2]), tff.SERVER)
    pick = tff.tensorflow.computation(lambda rows, key: tf.tile(rows[key], [key + 1]), rows.member, _INT)

    @tff.federated_computation(keys, rows)
    def compute(keys, rows):
        return tff.federated_select(keys, tff.federated_value(2, tff.SERVER), rows, pick)

    found = compute([[2, 0], [0, 1]], np.arange(6, dtype=np.float32).reshape(3, 2))
    assert [[len(row) for row in one.as_numpy_iterator()] for one in found] == [[6, 2], [2, 4]]


# -- what is kept, copied and repeated -------------------------------------------------------------------------


@tff.tensorflow.computation(_VECTOR)
def _total(x):
    return tf.reduce_sum(x)


@tff.tensorflow.computation(_VECTOR)
def _counting(x):
    calls = tf.Variable(0.0)
    values = tf.Variable(tf.zeros([0]), shape=[None])

    @tf.function
    def work(x):
        values.assign(x)
        for _ in tf.range(3):
            calls.assign_add(1.0)
            values.assign(values * 2.0)
        return values.read_value(), calls.read_value()

    return work(x)


@tff.federated_computation(_VECTORS)
def _count_at_clients(vectors):
    counted = tff.federated_map(_counting, vectors)
    return counted, tff.federated_mean(tff.federated_map(_total, vectors))


@pytest.mark.parametrize("size", [3, 50_000])
def test_variables_are_fresh_in_each_call_and_client_and_arguments_stay_as_they_are(size):
    clients = [np.arange(size, dtype=np.float32) + client for client in range(5)]
    copies = [client.copy() for client in clients]
    for at_once in (1, 4):
        with runtime.in_process(clients_at_once=at_once):
            for _ in range(3):
                counted, _ = _count_at_clients(clients)
                for (values, calls), copy in zip(counted, copies):
                    np.testing.assert_array_equal(values, 8 * copy)
                    assert calls == 3
    np.testing.assert_array_equal(clients, copies)


def test_results_go_in_again_by_reference_and_stay_as_they_are(in_process):
    first = _counting(np.ones(50_000, np.float32))[0]
    second = _counting(first)[0]
    np.testing.assert_array_equal(first, np.full(50_000, 8.0))
    np.testing.assert_array_equal(second, np.full(50_000, 64.0))
    passed = tff.tensorflow.computation(lambda x: tf.identity(x), _VECTOR)(first)
    assert np.shares_memory(first, passed)
    assert not passed.flags.writeable


def test_a_user_s_array_is_not_shared_with_the_result(in_process):
    given = np.ones(50_000, np.float32)
    same = tff.federated_computation(lambda x: x, _VECTORS)
    (found,) = same([given])
    given[:] = 5
    np.testing.assert_array_equal(found, np.ones(50_000))


def test_tensors_and_variables_may_be_given(in_process):
    for value in (tf.constant([1.0, 2.0]), tf.Variable([1.0, 2.0])):
        assert _total(value) == 3.0


def test_nothing_is_compiled_again_and_memory_does_not_grow():
    vectors = [np.ones(500_000, np.float32)] * 3
    wrapped = mock.Mock(wraps=tff.framework.to_call_dominant)
    with mock.patch.object(tff.framework, "to_call_dominant", wrapped) as compiler:
        double = tff.tensorflow.computation(lambda x: 2.0 * x + tf.Variable(1.25), _VECTOR)
        compute = tff.federated_computation(lambda x: tff.federated_map(double, x), _VECTORS)
        for _ in range(2):  # another runtime has no need to compile either
            with runtime.in_process(clients_at_once=1):
                compute(vectors)
                graphs, calls = len(in_process_runtime._planner.graphs), itertools.count()

                def compute_again(calls=calls):
                    call = next(calls)
                    compute([vectors[0][: 500_000 - call]] * (1 + call % 4))

                # A window makes 75 variables and results of 2 MB each.
                assert_settles(compute_again, lambda: psutil.Process().memory_info().rss, 16e6)
                assert len(in_process_runtime._planner.graphs) == graphs
    assert compiler.call_count == 1


def test_a_client_goes_through_its_steps_without_waiting_for_others_and_through_each_once(monkeypatch):
    square = tff.tensorflow.computation(lambda x: x * x, _INT)
    more = tff.tensorflow.computation(lambda x: x + 100, _INT)
    unused = tff.tensorflow.computation(lambda x: x - 1000, _INT)

    @tff.federated_computation(tff.FederatedType(_INT, tff.CLIENTS))
    def compute(numbers):
        squares = tff.federated_map(square, numbers)
        tff.federated_map(unused, numbers)
        larger = tff.federated_map(more, squares)
        return squares, tff.federated_sum(larger), tff.federated_map(more, larger)

    calls, run = [], in_process_runtime.GraphFunction.__call__

    def recorded(graph, argument=()):
        result = run(graph, argument)
        calls.append((np.array(argument).tolist(), int(result)))
        return result

    monkeypatch.setattr(in_process_runtime.GraphFunction, "__call__", recorded)
    with runtime.in_process(clients_at_once=1):
        assert compute([1, 2, 3]) == ([1, 4, 9], 314, [201, 204, 209])
    of_clients = [call for call in calls if isinstance(call[0], int)]
    steps = [(1, 1), (1, 101), (2, 4), (4, 104), (3, 9), (9, 109), (101, 201), (104, 204), (109, 209)]
    assert of_clients == steps
    sums = [call for call in calls if isinstance(call[0], list) and call[0]]
    assert sums == [([0, 101], 101), ([101, 104], 205), ([205, 109], 314)]


def test_a_chain_may_have_more_steps_than_python_has_frames(in_process):
    @tff.federated_computation(_INTS)
    def compute(numbers):
        for _ in range(400):
            numbers = tff.federated_map(_add_one, numbers)
        return numbers, tff.federated_sum(numbers)

    assert compute([1, 2]) == ([401, 402], 803)


def test_a_client_s_error_is_raised_though_an_earlier_one_is_never_done():
    fails = tff.tensorflow.computation(lambda x: tf.debugging.check_numerics(1.0 / x, "one over nought"), np.float32)

    @tff.tensorflow.computation(np.float32)
    def forever(x):
        return tf.while_loop(lambda y: y > 0.0, lambda y: [tf.nn.relu(y) + 1.0], [x])[0]

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def compute(numbers):
        return tff.federated_sum(tff.federated_map(forever, tff.federated_map(fails, numbers)))

    with runtime.in_process(clients_at_once=2), pytest.raises(errors.OperationError, match="one over nought"):
        compute([1.0, 0.0])


@pytest.mark.slow
def test_graphs_are_freed_with_their_computations():
    in_process_runtime._plan.cache_clear()
    gc.collect()
    cache = in_process_runtime._planner.graphs
    before = len(cache)
    for number in range(1001, 1004):  # no computation of another test adds them
        in_process_runtime._plan(tff.tensorflow.computation(lambda x: x + number, _INT))  # noqa: B023
    assert len(cache) == before + 3
    in_process_runtime._plan.cache_clear()
    gc.collect()
    assert len(cache) == before


# -- random draws ----------------------------------------------------------------------------------------------


def _private_means(noise):
    """The means of two rounds of a differentially private aggregation, and those of the clipped updates."""
    factory = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(noise, 3, clip=1.0)
    process = factory.create(tff.TensorType(np.float32, [3]))
    clients = [np.array([n, -2.0 * n, 0.1], np.float32) for n in range(1, 4)]
    state, means = process.initialize(), []
    for _ in range(2):
        output = process.next(state, clients)
        state = output.state
        means.append(output.result)
    return means, np.mean([client / np.linalg.norm(client) for client in clients], 0)


def test_a_differentially_private_mean_is_that_of_clipped_updates(in_process):
    means, expected = _private_means(1e-9)
    for mean in means:
        np.testing.assert_allclose(mean, expected, rtol=1e-5)


def test_noise_is_drawn_anew_in_each_call(in_process):
    means, _ = _private_means(1.0)
    assert means[0].tobytes() != means[1].tobytes()


def test_clients_draw_each_their_own(in_process):
    draw = tff.tensorflow.computation(lambda _: tf.random.uniform([]), _INT)
    compute = tff.federated_computation(lambda x: tff.federated_map(draw, x), _INTS)
    assert len({float(value) for value in compute([0] * 8) + compute([0] * 8)}) == 16


# -- errors and ends -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ([[1.5]], r"argument\[client 0\]: expected int32, found \[1.5\]"),
        ([1, "a"], r"argument\[client 1\]: expected int32, found 'a'"),
        ([np.arange(2)], r"argument\[client 0\]: expected int32"),
        (3, "expected a list with a value for each client, found int"),
    ],
)
def test_a_wrong_argument_is_one_clear_line(in_process, argument, message):
    with pytest.raises(errors.InputError, match=message) as caught:
        tff.federated_computation(tff.federated_sum, _INTS)(argument)
    assert "\n" not in str(caught.value)


def test_clients_that_do_not_agree_on_their_number(in_process):
    compute = tff.federated_computation(lambda x, y: (x, y), [_INTS, _INTS])
    with pytest.raises(errors.InputError, match="expected values for 2 clients, found 1"):
        compute([1, 2], [3])


def test_an_unknown_device_is_one_clear_line():
    for name in ("/GPU:17", "nonsense", "/CPU:1"):
        with pytest.raises(errors.InputError, match=rf"TensorFlow sees no '{name}' here, only .*CPU:0"):
            runtime.in_process(name)
    with pytest.raises(errors.InputError, match="clients_at_once must be a whole number, 1 or more; got 0"):
        runtime.in_process(clients_at_once=0)


def test_tensorflow_keeps_the_threads_that_it_has_begun_with():
    tf.constant(0)
    with pytest.raises(
        errors.InputError, match=r"threads_per_client: TensorFlow has begun .* TF_NUM_INTRAOP_THREADS=7"
    ):
        runtime.in_process(threads_per_client=7)
    with pytest.raises(errors.InputError, match="threads_per_client must be a whole number, 1 or more; got 0"):
        runtime.in_process(threads_per_client=0)


@pytest.mark.parametrize(("given", "at_once"), [("1", 9), ("2", 4), ("3", 2), ("16", 1)])
def test_one_client_more_than_cores_or_as_many_as_these_have_room_for(given, at_once, monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", given)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    with runtime.in_process() as entered:
        assert entered._threads.at_once == at_once


_THREADS = """
import os
import tensorflow as tf
from tensorflow.python.eager import context
from tffcl import runtime
for options in ({}, {"threads_per_client": 3}):
    child = os.fork()  # one import for both; TensorFlow begins in the children alone
    if child == 0:
        with runtime.in_process(**options):
            print(context.context().config.intra_op_parallelism_threads, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.slow
def test_threads_are_set_where_tensorflow_has_not_begun():
    environment = {name: value for name, value in os.environ.items() if name != "TF_NUM_INTRAOP_THREADS"}
    done = subprocess.run([sys.executable, "-c", _THREADS], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "3"], done.stderr


def test_an_unknown_intrinsic_is_named():
    unknown = tff.framework.Intrinsic("federated_something", tff.FunctionType(_INTS, _INTS))
    with pytest.raises(errors.RunError, match="the in-process runtime has no federated_something"):
        in_process_runtime.Planner().plan(unknown)


def test_an_error_inside_a_computation_is_one_line_and_ends_nothing(in_process):
    @tff.tensorflow.computation(_VECTOR)
    def check(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 1.0, message="too large")]):
            return tf.identity(x)

    compute = tff.federated_computation(lambda x: tff.federated_map(check, x), _VECTORS)
    with pytest.raises(errors.RunError, match="a TensorFlow operation failed: .*too large") as caught:
        compute([np.ones(3, "f"), np.zeros(3, "f")])
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(compute([np.zeros(3, "f")]), np.zeros([1, 3]))


def test_the_first_error_stops_clients_that_would_run_for_ever(in_process):
    @tff.tensorflow.computation(_INT)
    def endless(x):
        check = tf.debugging.assert_greater(x, 0, message="found a zero")
        with tf.control_dependencies([check]):
            return tf.while_loop(lambda y: y > 0, lambda y: (tf.maximum(y - 1, 1),), (tf.identity(x),))[0]

    compute = tff.federated_computation(lambda x: tff.federated_map(endless, x), _INTS)
    with pytest.raises(errors.RunError, match="found a zero"):
        compute([0])
    with pytest.raises(errors.RunError, match="found a zero"):
        compute([0, 5, 0])
    with pytest.raises(errors.RunError, match="found a zero"):
        compute([5, 0])  # the first in time is not the first in order
    for _ in range(50):  # whatever the moment at which the others are when the first fails
        with pytest.raises(errors.RunError, match="found a zero"):
            compute([0, 5, 5])


def test_leaving_restores_the_context_and_ends_the_threads():
    stack = tff.framework.get_context_stack()
    before = stack.current
    with runtime.in_process() as entered:
        assert stack.current is entered.context
        assert _add_one(1) == 2
        tff.federated_computation(lambda x: tff.federated_map(_add_one, x), _INTS)([1, 2])
    assert stack.current is before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tffcl-client")]
    with stack.install(entered.context), pytest.raises(errors.RunError, match="closed"):
        _add_one(1)


def test_a_log_line_says_once_on_which_device(in_process, caplog):
    with caplog.at_level(logging.INFO, "tffcl.runtime"):
        _add_one(1), _add_one(2)
    lines = [r.getMessage() for r in caplog.records if r.name.startswith("tffcl.runtime")]
    assert len(lines) == 1
    assert "in this process on CPU:0, up to 2 clients at once" in lines[0] or "GPU:0" in lines[0]


def test_it_works_under_a_graph_and_leaves_tensorflow_s_state_alone(in_process):
    with tf.Graph().as_default(), tf.device("CPU:0"):
        assert _add_one(1) == 2
        assert not tf.executing_eagerly()
    assert tf.executing_eagerly()
