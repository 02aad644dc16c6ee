from __future__ import annotations

import numpy as np
import pytest
import tensorflow_federated as tff

from tffcl import errors, finalizers

pytestmark = pytest.mark.usefixtures("tff_context")


def run(finalizer, shared, *aggregates):
    state = finalizer.initialize()
    for aggregate in aggregates:
        output = finalizer.next(state, shared, np.array(aggregate, np.float32))
        state, shared = output.state, output.result
    return shared, output


def test_default_adds_the_aggregate_and_keeps_every_bit_where_it_is_zero():
    shared = np.array([1.0, -7e-9, 0.0, 1e-30, 3.0, np.float32(0.1)], np.float32)
    aggregate = [0.0, 0.0, -0.0, 0.0, -0.5, np.float32(0.2)]
    finalizer = finalizers.build_server_update(tff.TensorType(np.float32, [6]))
    result, output = run(finalizer, shared, aggregate)
    assert result[:4].tobytes() == shared[:4].tobytes()
    np.testing.assert_array_equal(result, shared + np.array(aggregate, np.float32))
    np.testing.assert_allclose(output.measurements["update_norm"], np.hypot(0.5, 0.2), rtol=1e-6)
    assert output.measurements["rejected"] == 0


def test_another_optimizer_steps_along_the_aggregate():
    rate, beta_1, beta_2, epsilon = 0.1, 0.9, 0.99, 1e-3
    optimizer = tff.learning.optimizers.build_adam(rate, beta_1, beta_2, epsilon)
    aggregates = np.array([[1.0, -2.0], [0.5, 3.0], [0.0, 1.0]], np.float32)
    finalizer = finalizers.build_server_update(tff.TensorType(np.float32, [2]), optimizer)
    result, _ = run(finalizer, np.zeros(2, np.float32), *aggregates)
    first, second, expected = np.zeros(2), np.zeros(2), np.zeros(2)
    for step, gradient in enumerate(-aggregates.astype(np.float64), 1):
        first = beta_1 * first + (1 - beta_1) * gradient
        second = beta_2 * second + (1 - beta_2) * gradient**2
        scale = np.sqrt(1 - beta_2**step) / (1 - beta_1**step)
        expected -= rate * scale * first / (np.sqrt(second) + epsilon)
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_an_aggregate_that_is_not_finite_changes_nothing_and_is_reported():
    optimizer = tff.learning.optimizers.build_sgdm(0.5, momentum=0.9)
    finalizer = finalizers.build_server_update(tff.TensorType(np.float32, [2]), optimizer)
    shared = np.array([1.0, 2.0], np.float32)
    spoiled, output = run(finalizer, shared, [1.0, 1.0], [np.nan, 1.0])
    clean, _ = run(finalizer, shared, [1.0, 1.0])
    np.testing.assert_array_equal(spoiled, clean)
    assert output.measurements["rejected"] == 1
    assert output.measurements["update_norm"] == 0.0
    after_spoiled, _ = run(finalizer, shared, [1.0, 1.0], [np.nan, 1.0], [1.0, 0.0])
    after_clean, _ = run(finalizer, shared, [1.0, 1.0], [1.0, 0.0])
    np.testing.assert_array_equal(after_spoiled, after_clean)


def test_an_optimizer_may_be_kept_to_the_first_entries():
    optimizer = tff.learning.optimizers.build_adam(0.1)
    aggregates = [[0.3, -0.2, 5.0], [0.1, 0.4, -2.0]]
    whole = finalizers.build_server_update(tff.TensorType(np.float32, [3]), optimizer, optimized=2)
    result, output = run(whole, np.array([1.0, 2.0, 7.0], np.float32), *aggregates)
    part = finalizers.build_server_update(tff.TensorType(np.float32, [2]), optimizer)
    expected, alone = run(part, np.array([1.0, 2.0], np.float32), *[a[:2] for a in aggregates])
    np.testing.assert_array_equal(result, [*expected, 10.0])
    assert output.measurements == alone.measurements
    _, output = run(whole, result, [np.nan, 0.0, 1.0])
    np.testing.assert_array_equal(output.result, result)
    with pytest.raises(errors.ContractError, match="a vector of 4 entries or more"):
        finalizers.build_server_update(tff.TensorType(np.float32, [3]), optimizer, optimized=4)


@pytest.mark.parametrize("wrong", [tff.TensorType(np.int32, [2]), tff.TensorType(np.float32, [None])])
def test_another_shared_type_is_one_clear_error(wrong):
    with pytest.raises(errors.ContractError, match="server update: shared_type should be a float32 tensor"):
        finalizers.build_server_update(wrong)
