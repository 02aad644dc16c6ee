"""Rows gathered from clients, and aggregators by name."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow_federated as tff

from tffcl import aggregators, errors, runtime

_ROWS = tff.to_type(OrderedDict(vectors=tff.TensorType(np.float32, [None, 2]), label=tff.TensorType(np.int32, [None])))


def _rows(count: int, start: int) -> OrderedDict:
    numbers = np.arange(start, start + count)
    return OrderedDict(
        vectors=np.stack([numbers, -numbers], 1).astype(np.float32).reshape(-1, 2), label=numbers.astype("i4")
    )


@pytest.mark.parametrize("where", ["local", "in-process"])
def test_rows_stand_in_the_order_of_clients(tff_context, where):
    process = aggregators.ConcatenationFactory().create(_ROWS)
    clients = [_rows(2, 0), _rows(0, 5), _rows(3, 10), _rows(1, 20)]
    if where == "local":
        output = process.next(process.initialize(), clients)
    else:
        with runtime.in_process():
            output = process.next(process.initialize(), clients)
    np.testing.assert_array_equal(output.result["label"], [0, 1, 10, 11, 12, 20])
    np.testing.assert_array_equal(output.result["vectors"][:, 1], [0, -1, -10, -11, -12, -20])


@pytest.mark.parametrize("where", ["local", "in-process"])
def test_nothing_from_anybody_is_no_rows(tff_context, where):
    process = aggregators.ConcatenationFactory().create(_ROWS)
    if where == "local":
        output = process.next(process.initialize(), [_rows(0, 0)])
    else:
        with runtime.in_process():
            output = process.next(process.initialize(), [_rows(0, 0)])
    assert np.shape(output.result["vectors"]) == (0, 2)


@pytest.mark.parametrize(
    "kind",
    [
        tff.TensorType(np.float32, [None]),
        tff.to_type(OrderedDict(a=tff.TensorType(np.float32, [3]))),
        tff.to_type(OrderedDict(a=tff.TensorType(np.float32, []))),
        tff.to_type(OrderedDict(a=tff.TensorType(np.float32, [None, None]))),
        tff.to_type(OrderedDict()),
    ],
)
def test_other_types_are_refused(kind):
    with pytest.raises(errors.ContractError, match="concatenation: takes"):
        aggregators.ConcatenationFactory().create(kind)
