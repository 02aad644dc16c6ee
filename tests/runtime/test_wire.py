"""Requests written by hand say, field by field, what TFF's own serialisation says."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow_federated as tff
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow_federated.proto.v0 import executor_pb2

from tffcl import errors
from tffcl.runtime import wire

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
