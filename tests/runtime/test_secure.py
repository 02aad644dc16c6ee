"""Secure aggregation in runtimes that have no protocol for it: the same sums, and it is said that they are plain."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow_federated as tff

from tffcl import aggregators, runtime

UPDATE_TYPE = tff.to_type(OrderedDict(delta=(np.float32, [6]), sent=(np.bool_, [6])))
WARNING = "secure aggregation is simulated: the server here sees every summand"


@pytest.fixture(scope="module", params=["local", "in_process"])
def context(request):
    with getattr(runtime, request.param)() as own:
        yield own


def updates(scale: float) -> list[OrderedDict]:
    rng = np.random.default_rng(3)
    return [
        OrderedDict(delta=(scale * rng.normal(size=6)).astype(np.float32), sent=rng.random(6) < 0.6) for _ in range(3)
    ]


@pytest.mark.usefixtures("context")
def test_secure_sparse_mean_is_the_plain_one_within_a_step_of_quantisation(caplog):
    bound = 2.0
    process = aggregators.SparseMeanFactory.secure(bound).create(UPDATE_TYPE)
    state = process.initialize()
    assert WARNING not in caplog.text  # nothing has been summed yet
    for scale in (0.3, 5.0):  # the second is clipped
        given = updates(scale)
        found = process.next(state, given).result
        sent = np.array([one["sent"] for one in given])
        values = np.where(sent, np.clip([one["delta"] for one in given], -bound, bound), 0.0)
        expected = values.sum(axis=0) / np.maximum(sent.sum(axis=0), 1)
        # Each client rounds to 2^32 steps over twice the bound; the mean is float32.
        np.testing.assert_allclose(found, expected, atol=2 * bound / 2**32 + 1e-6)
    assert WARNING in caplog.text


@pytest.mark.usefixtures("context")
def test_the_three_secure_sums_of_tff():
    ints = tff.FederatedType(tff.TensorType(np.int32, [3]), tff.CLIENTS)

    @tff.federated_computation(ints)
    def sums(values):
        return tff.federated_secure_sum(values, 10), tff.federated_secure_sum_bitwidth(values, 4)

    values = [np.array([1, 2, 3], np.int32), np.array([7, 0, 10], np.int32)]
    for one in sums(values):
        assert np.asarray(one).tolist() == [8, 2, 13]
    process = tff.aggregators.SecureModularSumFactory(8).create(tff.TensorType(np.int32, [3]))
    assert process.next(process.initialize(), values).result.tolist() == [0, 2, 5]  # mod 8


def test_other_computations_are_compiled_without_a_word(context, caplog):
    assert tff.federated_computation(lambda: tff.federated_value(1, tff.SERVER))() == 1
    assert "secure" not in caplog.text
