from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow_federated as tff

from tffcl import aggregators, errors

VALUE_TYPE = tff.TensorType(np.float32, [5])
VALUES = [np.array(row, np.float32) for row in ([1, 2, 3, 4, 5], [3, 6, -1, 0, 7], [9, 9, 1, 1, 1])]


@pytest.mark.usefixtures("tff_context")
def test_the_mean_of_the_first_and_the_sum_of_the_rest():
    factory = aggregators.split_at(2, tff.aggregators.MeanFactory(), tff.aggregators.SumFactory())
    assert isinstance(factory, tff.aggregators.WeightedAggregationFactory)
    process = factory.create(VALUE_TYPE, tff.TensorType(np.float32))
    output = process.next(process.initialize(), VALUES, [1.0, 3.0, 0.0])
    np.testing.assert_allclose(output.result, [2.5, 5.0, 3.0, 5.0, 13.0])
    assert list(output.measurements) == ["first", "rest"]


@pytest.mark.usefixtures("tff_context")
def test_two_without_weights_stay_so_and_keep_their_states():
    clipped = tff.aggregators.clipping_factory(100.0, tff.aggregators.UnweightedMeanFactory())
    factory = aggregators.split_at(3, tff.aggregators.SumFactory(), clipped)
    assert isinstance(factory, tff.aggregators.UnweightedAggregationFactory)
    process = factory.create(VALUE_TYPE)
    state = process.initialize()
    assert list(state) == ["first", "rest"]
    output = process.next(state, VALUES[:2])
    np.testing.assert_allclose(output.result, [4, 8, 2, 2, 6])
    assert output.measurements["rest"]["clipped_count"] == 0


@pytest.mark.usefixtures("tff_context")
def test_weights_reach_the_rest_alone_and_a_gate_goes_around_both():
    factory = aggregators.split_at(4, tff.aggregators.SumFactory(), tff.aggregators.MeanFactory())
    update_type = tff.to_type(OrderedDict(delta=VALUE_TYPE, sent=(np.bool_, [5])))
    process = aggregators.gated(factory).create(update_type, tff.TensorType(np.float32))
    sent = np.array([True, False, True, True, True])
    updates = [OrderedDict(delta=value, sent=sent) for value in VALUES[:2]]
    result = process.next(process.initialize(), updates, [1.0, 3.0]).result
    np.testing.assert_allclose(result, [4, 0, 2, 4, 6.5])


@pytest.mark.parametrize("wrong", [(np.float32, [2]), (np.int32, [5]), (np.float32, [None]), (np.float32, [5, 1])])
def test_another_type_of_value_is_one_clear_error(wrong):
    factory = aggregators.split_at(2, tff.aggregators.SumFactory(), tff.aggregators.SumFactory())
    with pytest.raises(errors.ContractError, match=r"split_at: takes float32\[n\] with n above 2, found"):
        factory.create(tff.to_type(wrong))


def test_wrong_arguments_are_one_clear_error():
    with pytest.raises(errors.ContractError, match="split_at: takes tff.aggregators factories, found str"):
        aggregators.split_at(2, "mean", tff.aggregators.SumFactory())
    with pytest.raises(errors.InputError, match="split_at: expected a positive size, found 0"):
        aggregators.split_at(0, tff.aggregators.SumFactory(), tff.aggregators.SumFactory())
