from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow_federated as tff

from tffcl import aggregators, errors, runtime

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


# -- gated ------------------------------------------------------------------------------------------------------------


SIZE = 20
UPDATE_TYPE = tff.to_type(OrderedDict(delta=(np.float32, [SIZE]), sent=(np.bool_, [SIZE])))


def draw_with_sent(seed: int, clients: int) -> tuple[list[OrderedDict], np.ndarray]:
    """Updates, and what is left of their deltas, float64 [clients, SIZE]."""
    rng = np.random.default_rng(seed)
    delta = rng.normal(size=[clients, SIZE]).astype(np.float32)
    sent = rng.random([clients, SIZE]) < 0.5
    updates = [OrderedDict(delta=d, sent=s) for d, s in zip(delta, sent)]
    return updates, np.where(sent, delta, 0.0).astype(np.float64)


def test_unweighted_mean():
    process = aggregators.gated(tff.aggregators.UnweightedMeanFactory()).create(UPDATE_TYPE)
    updates, kept = draw_with_sent(1, 4)
    result = process.next(process.initialize(), updates).result
    np.testing.assert_allclose(result, kept.mean(axis=0), rtol=1e-5, atol=1e-6)


def test_weighted_mean_stays_weighted():
    factory = aggregators.gated(tff.aggregators.MeanFactory())
    assert isinstance(factory, tff.aggregators.WeightedAggregationFactory)
    process = factory.create(UPDATE_TYPE, tff.TensorType(np.float32))
    updates, kept = draw_with_sent(2, 3)
    weights = [1.0, 0.0, 3.0]
    result = process.next(process.initialize(), updates, weights).result
    np.testing.assert_allclose(result, np.average(kept, axis=0, weights=weights), rtol=1e-5, atol=1e-6)


def test_gated_entries_that_were_not_sent_have_no_effect_even_when_not_finite():
    process = aggregators.gated(tff.aggregators.SumFactory()).create(UPDATE_TYPE)
    nothing = OrderedDict(delta=np.full(SIZE, np.nan, np.float32), sent=np.zeros(SIZE, bool))
    updates, kept = draw_with_sent(3, 1)
    result = process.next(process.initialize(), [*updates, nothing]).result
    np.testing.assert_allclose(result, kept[0], rtol=1e-6)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.usefixtures("noisy_context")
def test_differential_privacy_clips_each_client_and_adds_noise_of_the_stated_size():
    clip, multiplier, clients = 0.5, 2.0, 4
    updates, kept = draw_with_sent(4, clients)
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


@pytest.mark.slow
def test_robust_aggregator_stays_near_the_honest_clients():
    factory = aggregators.gated(tff.learning.robust_aggregator())
    process = factory.create(UPDATE_TYPE, tff.TensorType(np.float32))
    state = process.initialize()
    updates, kept = draw_with_sent(5, 5)
    outlier = OrderedDict(delta=np.full(SIZE, 1e8, np.float32), sent=np.ones(SIZE, bool))
    for _ in range(3):
        output = process.next(state, [*updates, outlier], [1.0] * 6)
        state = output.state
    # Zeroing leaves the outlier out; clipping moves nobody further than his own norm.
    assert np.linalg.norm(output.result) <= np.linalg.norm(kept, axis=1).max()


def test_something_else_than_a_factory_is_one_clear_error():
    with pytest.raises(errors.ContractError, match=r"gated: expected a tff.aggregators factory, found str"):
        aggregators.gated("mean")
