from __future__ import annotations

from collections import OrderedDict

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import aggregators, errors, runtime

SIZE = 2000
CLIP, NOISE = 0.5, 2.0


@pytest.fixture(scope="module", autouse=True)
def context():
    with runtime.in_process() as own:
        yield own


def sparse_type(size: int) -> tff.Type:
    return tff.to_type(OrderedDict(delta=(np.float32, [size]), sent=(np.bool_, [size])))


def update(delta, sent=None) -> OrderedDict:
    delta = np.asarray(delta, np.float32)
    return OrderedDict(delta=delta, sent=np.ones(len(delta), bool) if sent is None else sent)


def process_of(size: int = SIZE, **changes) -> tff.templates.AggregationProcess:
    options = {"clip": CLIP, "noise_multiplier": NOISE, "clients_per_round": 4, **changes}
    return aggregators.gated(aggregators.ClientPrivacy(**options).factory()).create(sparse_type(size))


@pytest.fixture(scope="module")
def quiet():
    """One client's clipped vector, with next to no noise."""
    process = process_of(6, noise_multiplier=1e-6, clients_per_round=1)
    state = process.initialize()
    return lambda one: process.next(state, [one]).result


@pytest.mark.parametrize(
    "sent",
    [
        [1e30, -1e30, 0, 0, 0, 0],  # whose squares overflow
        [3.4e38] * 6,
        [1e19, 1, 1, 1, 1, 1],
        [0.3, -0.4, 0.5, 0, 0, 0.1],
        [1e-30] * 6,
        [0.0] * 6,
    ],
)
def test_no_client_moves_the_sum_by_more_than_the_clip(quiet, sent):
    found = quiet(update(sent)).astype(np.float64)
    vector = np.array(sent, np.float32).astype(np.float64)
    norm = np.linalg.norm(vector)
    np.testing.assert_allclose(found, vector * min(1.0, CLIP / max(norm, 1e-300)), atol=5e-6)
    assert np.linalg.norm(found) < CLIP * (1 + 1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_counts_as_nothing(quiet, bad):
    assert np.abs(quiet(update([1, bad, 0, 0, 0, 0]))).max() < 5e-6
    kept = quiet(update([0.1, bad, 0, 0, 0, 0], np.array([True, False, True, True, True, True])))
    np.testing.assert_allclose(kept, [0.1, 0, 0, 0, 0, 0], atol=5e-6)


def test_sum_of_clipped_gated_updates_over_a_fixed_number():
    """Neither the number of senders of an entry nor that of clients divides anything."""
    rng = np.random.default_rng(0)
    delta, sent = rng.normal(size=[3, 6]), rng.random([3, 6]) < 0.5
    sent[:, 2] = False  # an entry that nobody sent
    process = process_of(6, noise_multiplier=1e-6)
    found = process.next(process.initialize(), [update(d, s) for d, s in zip(delta, sent)]).result
    kept = np.where(sent, delta, 0.0)
    clipped = kept * np.minimum(1.0, CLIP / np.linalg.norm(kept, axis=1, keepdims=True))
    np.testing.assert_allclose(found, clipped.sum(axis=0) / 4, atol=5e-6)


def test_no_weight_reaches_it():
    factory = aggregators.gated(aggregators.ClientPrivacy(CLIP, NOISE, 4).factory())
    assert isinstance(factory, tff.aggregators.UnweightedAggregationFactory)


def test_noise_of_the_stated_size_on_every_entry_whoever_sent_it():
    process = process_of()
    state = process.initialize()
    sent = np.arange(SIZE) < SIZE // 2  # the other half is sent by nobody
    clients = [update(np.zeros(SIZE), sent)] * 3
    first, second = (process.next(state, clients).result for _ in range(2))
    expected = NOISE * CLIP / 4
    for noise in (first[sent], first[~sent], second[sent], second[~sent]):
        # Five standard errors: of a standard deviation out of n draws 1 / sqrt(2 n), of a mean 1 / sqrt(n).
        assert abs(noise.std() / expected - 1) < 5 / np.sqrt(2 * len(noise))
        assert abs(noise.mean()) < 5 * expected / np.sqrt(len(noise))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(SIZE)


def test_no_seed_repeats_the_noise():
    drawn = []
    for clip in (1.0, 2.0):  # two computations, so that no cache gives the second the generator of the first
        tf.random.set_seed(1)
        process = process_of(8, clip=clip)
        drawn.append(process.next(process.initialize(), [update(np.zeros(8))]).result / clip)
    assert np.abs(drawn[0] - drawn[1]).min() > 1e-6


def test_the_clip_goes_to_the_quantile_of_the_norms():
    process = process_of(4, clip=1.0, noise_multiplier=0.01, quantile=0.5)
    state = process.initialize()
    clients = [update([norm, 0, 0, 0]) for norm in (1.5, 2, 4, 5)]
    for _ in range(25):
        output = process.next(state, clients)
        state = output.state
    # Between 2 and 4 half of the norms are below; the noise on their number moves the clip by about 1 % in a round.
    assert 1.9 < output.measurements["dp_query_metrics"]["clip"] < 4.2


@pytest.mark.slow
@pytest.mark.parametrize(("quantile", "clients"), [(None, 3), (0.5, 3), (0.5, 1000)])
def test_tff_says_that_it_spent_the_noise_that_is_accounted_for(quantile, clients):
    """Of several Gaussians on one sum 1 / z^2 adds up (Andrew et al., 2021, theorem 1)."""
    process = aggregators.ClientPrivacy(CLIP, NOISE, clients, quantile).factory().create(
        tff.TensorType(np.float32, [2])
    )  # fmt: skip
    state = process.next(process.initialize(), [np.ones(2, np.float32)]).state
    event = dp_accounting.DpEvent.from_named_tuple(state.dp_event)
    parts = [event] if quantile is None else event.events
    assert sum(float(part.noise_multiplier) ** -2 for part in parts) ** -0.5 == pytest.approx(NOISE, rel=1e-5)


@pytest.mark.parametrize(
    "changes",
    [{"clip": 0.0}, {"noise_multiplier": np.inf}, {"clients_per_round": 0}, {"quantile": 1.0}, {"delta": 0.0}],
)
def test_numbers_out_of_range_are_one_clear_error(changes):
    (name,) = changes
    with pytest.raises(errors.InputError, match=f"^{name}: expected a number"):
        aggregators.ClientPrivacy(**{"clip": 1.0, "noise_multiplier": 1.0, "clients_per_round": 2, **changes})
