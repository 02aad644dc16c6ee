"""An aggregator for each entry."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow_federated as tff

from tffcl import aggregators, errors

_KIND = tff.to_type(OrderedDict(a=tff.TensorType(np.float32, [2]), b=OrderedDict(c=tff.TensorType(np.float32, [None]))))
_CLIENTS = [
    OrderedDict(a=np.array([1.0, 2.0], "f"), b=OrderedDict(c=np.array([5.0], "f"))),
    OrderedDict(a=np.array([4.0, 8.0], "f"), b=OrderedDict(c=np.array([6.0, 7.0], "f"))),
]


def test_each_entry_goes_its_own_way(tff_context):
    factory = aggregators.by_name(a=tff.aggregators.MeanFactory(), b=aggregators.ConcatenationFactory())
    assert isinstance(factory, tff.aggregators.WeightedAggregationFactory)
    process = factory.create(_KIND, tff.TensorType(np.float32))
    output = process.next(process.initialize(), _CLIENTS, [1.0, 3.0])
    assert list(output.result) == ["a", "b"]
    np.testing.assert_allclose(output.result["a"], [13 / 4, 26 / 4])
    np.testing.assert_array_equal(output.result["b"]["c"], [5, 6, 7])
    assert process.is_weighted


def test_without_weights(tff_context):
    factory = aggregators.by_name(a=tff.aggregators.SumFactory(), b=aggregators.ConcatenationFactory())
    process = factory.create(_KIND)
    output = process.next(process.initialize(), _CLIENTS)
    np.testing.assert_allclose(output.result["a"], [5, 10])


def test_what_does_not_fit_is_named():
    with pytest.raises(errors.ContractError, match="b should be a tff.aggregators factory, found int"):
        aggregators.by_name(a=tff.aggregators.SumFactory(), b=3)
    with pytest.raises(errors.ContractError, match="at least one"):
        aggregators.by_name()
    with pytest.raises(errors.ContractError, match="takes <a,x>, found"):
        aggregators.by_name(a=tff.aggregators.SumFactory(), x=aggregators.ConcatenationFactory()).create(_KIND)
