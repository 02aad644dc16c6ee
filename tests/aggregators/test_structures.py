"""Aggregators of structures against the same by hand."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow_federated as tff

from tffcl import aggregators, errors, runtime

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
    with pytest.raises(errors.ContractError, match="by_name: b: expected a tff.aggregators factory, found int"):
        aggregators.by_name(a=tff.aggregators.SumFactory(), b=3)
    with pytest.raises(errors.ContractError, match="at least one"):
        aggregators.by_name()
    with pytest.raises(errors.ContractError, match="takes <a,x>, found"):
        aggregators.by_name(a=tff.aggregators.SumFactory(), x=aggregators.ConcatenationFactory()).create(_KIND)


# -- split_at ---------------------------------------------------------------------------------------------------------


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
    with pytest.raises(errors.ContractError, match="split_at: expected a tff.aggregators factory, found str"):
        aggregators.split_at(2, "mean", tff.aggregators.SumFactory())
    with pytest.raises(errors.InputError, match="split_at: size must be a whole number, 1 or more; got 0"):
        aggregators.split_at(0, tff.aggregators.SumFactory(), tff.aggregators.SumFactory())


# -- concatenation ----------------------------------------------------------------------------------------------------


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
