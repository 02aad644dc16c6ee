from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow_federated as tff

from tffcl import aggregators, errors, runtime

SIZE = 20
UPDATE_TYPE = tff.to_type(OrderedDict(delta=(np.float32, [SIZE]), sent=(np.bool_, [SIZE])))


def draw(seed: int, clients: int) -> tuple[list[OrderedDict], np.ndarray]:
    """Updates, and what is left of their deltas, float64 [clients, SIZE]."""
    rng = np.random.default_rng(seed)
    delta = rng.normal(size=[clients, SIZE]).astype(np.float32)
    sent = rng.random([clients, SIZE]) < 0.5
    updates = [OrderedDict(delta=d, sent=s) for d, s in zip(delta, sent)]
    return updates, np.where(sent, delta, 0.0).astype(np.float64)


@pytest.mark.usefixtures("tff_context")
def test_unweighted_mean():
    process = aggregators.gated(tff.aggregators.UnweightedMeanFactory()).create(UPDATE_TYPE)
    updates, kept = draw(1, 4)
    result = process.next(process.initialize(), updates).result
    np.testing.assert_allclose(result, kept.mean(axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("tff_context")
def test_weighted_mean_stays_weighted():
    factory = aggregators.gated(tff.aggregators.MeanFactory())
    assert isinstance(factory, tff.aggregators.WeightedAggregationFactory)
    process = factory.create(UPDATE_TYPE, tff.TensorType(np.float32))
    updates, kept = draw(2, 3)
    weights = [1.0, 0.0, 3.0]
    result = process.next(process.initialize(), updates, weights).result
    np.testing.assert_allclose(result, np.average(kept, axis=0, weights=weights), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("tff_context")
def test_entries_that_were_not_sent_have_no_effect_even_when_not_finite():
    process = aggregators.gated(tff.aggregators.SumFactory()).create(UPDATE_TYPE)
    nothing = OrderedDict(delta=np.full(SIZE, np.nan, np.float32), sent=np.zeros(SIZE, bool))
    updates, kept = draw(3, 1)
    result = process.next(process.initialize(), [*updates, nothing]).result
    np.testing.assert_allclose(result, kept[0], rtol=1e-6)


@pytest.mark.usefixtures("tff_context")
@pytest.mark.parametrize("size", [10.0, 1e6])
def test_what_a_robust_aggregator_leaves_of_one_update_that_is_far_from_all_others(size):
    """By as much as honest clients' updates at most, where a mean goes as far as the client likes."""
    honest = 0.3 + 0.1 * np.random.default_rng(6).normal(size=[9, SIZE])
    rows = [*honest, -size * np.ones(SIZE)]
    updates = [OrderedDict(delta=row.astype(np.float32), sent=np.ones(SIZE, bool)) for row in rows]
    apart = {}
    for name, inner in {"mean": tff.aggregators.MeanFactory(), "robust": tff.learning.robust_aggregator()}.items():
        process = aggregators.gated(inner).create(UPDATE_TYPE, tff.TensorType(np.float32))
        result = process.next(process.initialize(), updates, [1.0] * 10).result
        apart[name] = np.linalg.norm(result - honest.mean(0)) / np.linalg.norm(honest.mean(0))
    assert apart["mean"] == pytest.approx((size + 0.3) / 3.0, rel=0.2)
    assert apart["robust"] < 0.5


@pytest.fixture
def noisy_context(monkeypatch):
    """A worker that lets computations draw noise without a seed, as privacy wants it."""
    monkeypatch.setenv("TF_DETERMINISTIC_OPS", "0")
    with runtime.local() as local_runtime:
        yield local_runtime


@pytest.mark.usefixtures("noisy_context")
def test_differential_privacy_clips_each_client_and_adds_noise_of_the_stated_size():
    clip, multiplier, clients = 0.5, 2.0, 4
    updates, kept = draw(4, clients)
    norms = np.linalg.norm(kept, axis=1, keepdims=True)
    clipped_mean = (kept * np.minimum(1.0, clip / norms)).mean(axis=0)

    def results(noise_multiplier: float, rounds: int) -> np.ndarray:
        dp = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(noise_multiplier, clients, clip)
        process = aggregators.gated(dp).create(UPDATE_TYPE)
        state, rows = process.initialize(), []
        for _ in range(rounds):
            output = process.next(state, updates)
            state = output.state
            rows.append(output.result)
        return np.array(rows)

    np.testing.assert_allclose(results(0.0, 1)[0], clipped_mean, rtol=1e-4, atol=1e-6)
    noise = results(multiplier, 40) - clipped_mean
    expected = multiplier * clip / clients
    assert abs(noise.std() / expected - 1.0) < 0.15  # 800 draws: four standard errors are 0.1
    assert np.abs(noise.mean()) < 4 * expected / np.sqrt(noise.size)


@pytest.mark.usefixtures("tff_context")
def test_robust_aggregator_stays_near_the_honest_clients():
    factory = aggregators.gated(tff.learning.robust_aggregator())
    process = factory.create(UPDATE_TYPE, tff.TensorType(np.float32))
    state = process.initialize()
    updates, kept = draw(5, 5)
    outlier = OrderedDict(delta=np.full(SIZE, 1e8, np.float32), sent=np.ones(SIZE, bool))
    for _ in range(3):
        output = process.next(state, [*updates, outlier], [1.0] * 6)
        state = output.state
    # Zeroing leaves the outlier out; clipping moves nobody further than his own norm.
    assert np.linalg.norm(output.result) <= np.linalg.norm(kept, axis=1).max()


def test_something_else_than_a_factory_is_one_clear_error():
    with pytest.raises(errors.ContractError, match=r"gated: takes a tff.aggregators factory, found str"):
        aggregators.gated("mean")
