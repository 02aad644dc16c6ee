"""Requests written by hand say, field by field, what TFF's own serialisation says; what is too large for one."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow_federated.proto.v0 import executor_pb2

from tffcl import errors, runtime
from tffcl.runtime import executor, wire

_LARGE = 8192  # float32 elements: over the size from which arrays are written by hand
_EXECUTOR = executor_pb2.ExecutorId(id="executor")


def _both_ways(value, type_spec):
    ours = executor_pb2.CreateValueRequest.FromString(wire.encode_create_value(_EXECUTOR, value, type_spec))
    theirs = tff.framework.serialize_value(value, type_spec)[0]
    return ours, executor_pb2.CreateValueRequest(executor=_EXECUTOR, value=theirs)


def _large(dtype=np.float32, shape=(_LARGE,)):
    return np.random.default_rng(0).integers(0, 100, size=shape).astype(dtype)


def _at_clients(member):
    return tff.FederatedType(member, tff.CLIENTS)


VECTOR = tff.TensorType(np.float32, [None])
PAIR = tff.to_type(collections.OrderedDict(b=VECTOR, a=tff.TensorType(np.int32)))

CASES = {
    "vector": (_large(), VECTOR),
    "static shape": (_large(shape=(64, 128)), tff.TensorType(np.float32, [64, 128])),
    "column order": (np.asfortranarray(_large(shape=(64, 128))), tff.TensorType(np.float32, [64, None])),
    "strided": (_large()[::2], VECTOR),
    "int64": (_large(np.int64), tff.TensorType(np.int64, [None])),
    "uint8": (_large(np.uint8, (256, 256)), tff.TensorType(np.uint8, [256, 256])),
    "bool": (_large(np.bool_, (256, 256)), tff.TensorType(np.bool_, [256, 256])),
    "float16": (_large(np.float16, (256, 256)), tff.TensorType(np.float16, [256, 256])),
    "scalar": (np.float32(3), tff.TensorType(np.float32)),
    "small": (np.arange(3, dtype=np.float32), VECTOR),
    "empty": (np.zeros([0], np.float32), VECTOR),
    "string": ("text", tff.TensorType(np.str_)),
    "clients": ([_large(), _large()[:5000]], _at_clients(VECTOR)),
    "no clients": ([], _at_clients(VECTOR)),
    "server": (_large(), tff.FederatedType(VECTOR, tff.SERVER)),
    "broadcast": (_large(), tff.FederatedType(VECTOR, tff.CLIENTS, all_equal=True)),
    "named": (collections.OrderedDict(b=_large(), a=7), PAIR),
    "unnamed": ((_large(), 7), tff.to_type((VECTOR, np.int32))),
    "clients with structures": ([collections.OrderedDict(b=_large(), a=i) for i in range(3)], _at_clients(PAIR)),
    "structure of clients": (([_large()], _large()), tff.to_type((_at_clients(VECTOR), VECTOR))),
}


@pytest.mark.parametrize(("value", "type_spec"), CASES.values(), ids=CASES.keys())
def test_request_equals_tffs(value, type_spec):
    ours, theirs = _both_ways(value, type_spec)
    assert ours == theirs


@settings(max_examples=25)
@given(st.lists(st.integers(0, 3 * wire.LARGE_BYTES), max_size=4))
def test_request_equals_tffs_for_any_sizes(sizes):
    ours, theirs = _both_ways([_large(shape=(size,)) for size in sizes], _at_clients(VECTOR))
    assert ours == theirs


@pytest.mark.parametrize(
    ("value", "type_spec"),
    [
        (_large(np.float64), VECTOR),
        (_large(shape=(64, 128)), VECTOR),
        (_large(), tff.TensorType(np.float32, [3])),
        (_large(), _at_clients(VECTOR)),
        ((_large(),), tff.to_type((VECTOR, VECTOR))),
        (None, PAIR),
    ],
)
def test_a_value_that_does_not_fit_raises_what_tff_raises(value, type_spec):
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        tff.framework.serialize_value(value, type_spec)
    with pytest.raises(theirs.type) as ours:
        wire.encode_create_value(_EXECUTOR, value, type_spec)
    assert isinstance(ours.value, errors.ArgumentError)
    assert str(ours.value) == f"expected a value of type {type_spec}: {' '.join(str(theirs.value).split())}"


@pytest.mark.parametrize(("number", "expected"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\1"), (300, b"\xac\2")])
def test_varint(number, expected):
    assert wire._varint(number) == expected


# -- values that are larger than a message can be, with a small limit in the place of 2 GiB --------------------

_TASK = tff.to_type(collections.OrderedDict(tokens=VECTOR, train=collections.OrderedDict(extremes=VECTOR)))
_LIMIT = 64 * 1024


@tff.tensorflow.computation(_TASK)
def _totals(task):
    return tf.reduce_sum(task["tokens"]), tf.reduce_sum(task["train"]["extremes"])


@tff.federated_computation(tff.FederatedType(_TASK, tff.CLIENTS))
def _totals_of_clients(tasks):
    return tff.federated_map(_totals, tasks)


@tff.federated_computation(
    tff.FederatedType(VECTOR, tff.SERVER, all_equal=True), tff.FederatedType(VECTOR, tff.CLIENTS)
)
def _broadcast(shared, own):
    return tff.federated_map(
        tff.tensorflow.computation(lambda one, other: tf.reduce_sum(one) + tf.reduce_sum(other), [VECTOR, VECTOR]),
        (tff.federated_broadcast(shared), own),
    )


def _task(tokens: int, extremes: int):
    ones = [np.ones(count, np.float32) for count in (tokens, extremes)]
    return collections.OrderedDict(tokens=ones[0], train=collections.OrderedDict(extremes=ones[1]))


@pytest.fixture(name="small_limit")
def _small_limit(monkeypatch):
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", _LIMIT)


@pytest.mark.usefixtures("small_limit", "tff_context")
def test_what_clients_hold_is_named_with_its_size_and_nothing_is_sent(monkeypatch):
    sent = []
    send = executor.WorkerStub.create_encoded_value
    monkeypatch.setattr(
        executor.WorkerStub, "create_encoded_value", lambda stub, request: sent.append(1) or send(stub, request)
    )
    with pytest.raises(errors.RunError) as caught:
        _totals_of_clients([_task(10, 5000)] * 4)  # 80,000 bytes; 20,000 for each client
    message = str(caught.value)
    assert "cannot be sent to a worker, which takes at most 64.00 KiB in one message" in message
    assert "the largest in what 4 clients hold is train.extremes, 78.12 KiB" in message
    assert "\n" not in message
    assert not sent
    assert len(_totals_of_clients([_task(10, 5000)] * 3)) == 3  # below the limit; the worker is as it was


@pytest.mark.usefixtures("small_limit", "tff_context")
def test_a_structure_goes_in_parts_if_each_fits():
    found = _totals(_task(12_000, 15_000))  # 48,000 and 60,000 bytes
    assert [float(one) for one in found] == [12_000, 15_000]
    with pytest.raises(errors.RunError, match="its only tensor, 78.12 KiB"):
        _totals(_task(10, 20_000))


@pytest.mark.usefixtures("small_limit")
def test_several_workers_take_what_one_cannot_and_a_broadcast_is_checked_too():
    with runtime.local(num_threads=1, num_workers=2):
        assert len(_totals_of_clients([_task(10, 5000)] * 4)) == 4  # two clients for each worker
        with pytest.raises(errors.RunError, match="what 4 clients hold is tokens, 78.12 KiB"):
            _totals_of_clients([_task(5000, 10)] * 8)
        with pytest.raises(errors.RunError, match="78.14 KiB cannot be sent to a worker"):
            _broadcast(np.ones(20_000, np.float32), [np.ones(3, np.float32)] * 2)


_PARTS = collections.OrderedDict(
    b=tff.TensorType(np.float32, [12_000]), a=(tff.TensorType(np.float32, [15_000]), tff.TensorType(np.int32))
)


@tff.tensorflow.computation(tff.TensorType(np.float32))
def _large_structure(x):
    return collections.OrderedDict(b=tf.fill([12_000], x), a=(tf.fill([15_000], 2 * x), tf.constant(3)))


_identity = tff.tensorflow.computation(lambda x: tf.nest.map_structure(tf.identity, x), _PARTS)


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("parts", [lambda: _large_structure(1.0), lambda: _identity(_large_structure(1.0))])
def test_a_structure_comes_in_parts_where_its_type_says_that_it_is_large(num_workers, parts, monkeypatch):
    with runtime.local(num_threads=1, num_workers=num_workers):
        expected = parts()
        monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", _LIMIT)
        whole, fetch = [], executor.WorkerExecutor.fetch

        def watched(self, value_ref):
            message = fetch(self, value_ref)
            whole.append(message.ByteSize())
            return message

        monkeypatch.setattr(executor.WorkerExecutor, "fetch", watched)
        found = parts()
    assert max(whole) < _LIMIT
    assert type(found) is type(expected)
    assert list(found) == list(expected)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


def test_the_limit_is_below_that_of_protobuf():
    assert wire.MAX_MESSAGE_BYTES < 2**31 - 1
