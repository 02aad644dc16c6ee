from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow_federated as tff

from tffcl import aggregators, errors

pytestmark = pytest.mark.usefixtures("tff_context")


def update_type(size: int) -> tff.Type:
    return tff.to_type(OrderedDict(delta=tff.TensorType(np.float32, [size]), sent=tff.TensorType(np.bool_, [size])))


def update(delta, sent) -> OrderedDict:
    return OrderedDict(delta=np.array(delta, np.float32), sent=np.array(sent, bool))


def draw(seed: int, clients: int, size: int) -> list[OrderedDict]:
    rng = np.random.default_rng(seed)
    sent = rng.random([clients, size]) < 0.4
    return [update(rng.normal(size=size), row) for row in sent]


def brute_force(updates) -> np.ndarray:
    result = np.zeros(len(updates[0]["delta"]), np.float32)
    for entry in range(len(result)):
        senders = [u["delta"][entry] for u in updates if u["sent"][entry]]
        if senders:
            result[entry] = np.mean(senders)
    return result


def test_by_hand():
    process = aggregators.SparseMeanFactory().create(update_type(4))
    updates = [
        update([1.0, 3.0, 5.0, 7.0], [True, True, False, False]),
        update([0.0, 9.0, 2.0, 7.0], [True, False, True, False]),
    ]
    output = process.next(process.initialize(), updates)
    # A zero that was sent counts; an entry that nobody sent is 0.
    np.testing.assert_array_equal(output.result, [0.5, 3.0, 2.0, 0.0])
    assert output.measurements["sent"]["entries_sent"] == 4
    assert output.measurements["sent"]["entries_covered"] == 3


@pytest.mark.parametrize("clients", [1, 2, 7])
def test_equals_brute_force(clients):
    process = aggregators.SparseMeanFactory().create(update_type(50))
    updates = draw(clients, clients, 50)
    result = process.next(process.initialize(), updates).result
    np.testing.assert_allclose(result, brute_force(updates), rtol=1e-6, atol=1e-7)


def test_number_of_clients_may_change_between_rounds():
    process = aggregators.SparseMeanFactory().create(update_type(9))
    state = process.initialize()
    for clients in (3, 1, 5):
        updates = draw(clients, clients, 9)
        output = process.next(state, updates)
        state = output.state
        np.testing.assert_allclose(output.result, brute_force(updates), rtol=1e-6, atol=1e-7)


def test_nobody_sends_anything():
    process = aggregators.SparseMeanFactory().create(update_type(3))
    output = process.next(process.initialize(), [update([1, 2, 3], [False] * 3)] * 2)
    np.testing.assert_array_equal(output.result, np.zeros(3, np.float32))
    assert output.measurements["sent"]["entries_sent"] == 0


def test_entries_that_were_not_sent_have_no_effect_even_when_not_finite():
    process = aggregators.SparseMeanFactory().create(update_type(2))
    updates = [update([np.nan, np.inf], [False, False]), update([4.0, 5.0], [True, False])]
    np.testing.assert_array_equal(process.next(process.initialize(), updates).result, [4.0, 0.0])


def test_other_sums_may_be_used():
    factory = aggregators.SparseMeanFactory(
        value_sum_factory=tff.aggregators.clipping_factory(1.0, tff.aggregators.SumFactory()),
        count_sum_factory=tff.aggregators.SumFactory(),
    )
    process = factory.create(update_type(2))
    result = process.next(process.initialize(), [update([3.0, 4.0], [True, True])] * 2).result
    np.testing.assert_allclose(result, [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        tff.TensorType(np.float32, [3]),
        tff.to_type(OrderedDict(delta=(np.float32, [3]), sent=(np.float32, [3]))),
        tff.to_type(OrderedDict(delta=(np.float32, [3]), sent=(np.bool_, [2]))),
        tff.to_type(OrderedDict(delta=(np.float32, [None]), sent=(np.bool_, [None]))),
    ],
)
@pytest.mark.parametrize("name", ["sparse mean", "gated"])
def test_another_update_type_is_one_clear_error(wrong, name):
    inner = tff.aggregators.UnweightedMeanFactory()
    factory = aggregators.SparseMeanFactory() if name == "sparse mean" else aggregators.gated(inner)
    with pytest.raises(errors.ContractError, match=rf"{name}.*delta=float32\[n\]"):
        factory.create(wrong)
