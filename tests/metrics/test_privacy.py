"""Linking against scipy's densities, neighbours and chance; reconstruction by hand; epsilon against dp_accounting."""

from __future__ import annotations

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from scipy import optimize, stats
from sklearn.neighbors import NearestNeighbors

from tffcl import metrics
from tffcl.errors import InputError


def candidates(count, width, scale, seed=0):
    """Means, log scales around `scale`, and a generator."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, width)), np.log(scale) + 0.3 * rng.normal(size=(count, width)), rng


def sampled(mean, log_scale, truth, resends, rng):
    return mean[truth] + np.exp(log_scale[truth]) * rng.normal(size=(resends, len(truth), mean.shape[1]))


def by_hand(sent, mean, log_scale, truth):
    """Ranks of the truth by log-densities summed one by one, all different."""
    log_p = stats.norm.logpdf(sent[:, :, None], mean, np.exp(log_scale)).sum(axis=(0, 3))
    return np.array([1 + (row > row[place]).sum() for row, place in zip(log_p, truth)])


@pytest.mark.parametrize("resends", [1, 3])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_likelihood_against_summed_densities(resends, offset, monkeypatch):
    monkeypatch.setattr("tffcl.metrics.privacy.CHUNK", 100)  # chunks of 5 of the 40 sent
    mean, log_scale, rng = candidates(20, 3, scale=1.0)
    truth = rng.integers(20, size=40)
    sent = sampled(mean + offset, log_scale, truth, resends, rng)
    ranks = by_hand(sent, mean + offset, log_scale, truth)
    assert 1 < ranks.mean() < 10
    found = metrics.link_by_likelihood(sent, mean + offset, log_scale, truth)
    assert found == metrics.LinkResult((ranks == 1).mean(), (ranks <= 5).mean(), ranks.mean())
    if resends == 1:
        assert metrics.link_by_likelihood(sent[0], mean + offset, log_scale, truth) == found


def test_likelihood_uses_the_scale_and_distance_does_not():
    # 0.9 is nearer to the mean 1 of the narrow candidate, and 90 of its standard deviations away.
    sent, mean, log_scale = [[0.1]], [[0.0], [1.0]], np.log([[0.001], [1.0]])
    assert metrics.link_by_likelihood(sent, mean, log_scale, [1]).top1 == 1
    assert metrics.link_by_distance(sent, mean, [1]).top1 == 0


def test_distance_against_neighbours_of_sklearn():
    mean, _, rng = candidates(30, 4, scale=1.0)
    sent, truth = rng.normal(size=(50, 4)), rng.integers(30, size=50)
    order = NearestNeighbors(n_neighbors=30, algorithm="brute").fit(mean).kneighbors(sent)[1]
    ranks = 1 + np.argmax(order == truth[:, None], axis=1)
    expected = metrics.LinkResult((ranks == 1).mean(), (ranks <= 5).mean(), ranks.mean())
    assert metrics.link_by_distance(sent, mean, truth) == expected


def test_what_is_deterministic_is_linked_always():
    mean, log_scale, rng = candidates(200, 8, scale=1e-6)
    truth = rng.permutation(200)
    always = metrics.LinkResult(1, 1, 1)
    assert metrics.link_by_distance(mean[truth], mean, truth) == always
    # One byte of one pixel apart, beside a large common part.
    close = 1e4 + np.eye(200) / 255
    assert metrics.link_by_distance(close[truth], close, truth) == always
    sent = sampled(mean, log_scale, truth, 1, rng)
    assert metrics.link_by_likelihood(sent, mean, log_scale, truth) == always


def test_noise_that_drowns_everything_leaves_chance():
    mean, _, rng = candidates(50, 8, scale=1.0)
    log_scale, truth = np.full_like(mean, np.log(1e4)), rng.integers(50, size=20_000)
    found = metrics.link_by_likelihood(sampled(mean, log_scale, truth, 1, rng), mean, log_scale, truth)
    # Standard deviations of the three means: 0.001, 0.002, 0.1.
    assert found.top1 == pytest.approx(1 / 50, abs=0.004)
    assert found.top5 == pytest.approx(5 / 50, abs=0.008)
    assert found.mean_rank == pytest.approx(51 / 2, abs=0.4)


def test_sending_again_leaks_more():
    mean, log_scale, rng = candidates(300, 16, scale=3.0)
    truth = np.arange(300)
    sent = sampled(mean, log_scale, truth, 8, rng)
    shares = [metrics.link_by_likelihood(sent[:r], mean, log_scale, truth).top1 for r in (1, 2, 4, 8)]
    assert shares == sorted(shares)
    assert shares[0] < 0.5 < 0.8 < shares[-1]


def test_equal_candidates_share_their_places():
    # Three equal candidates nearer than the rest: places 1, 2, 3 in random order.
    mean = np.array([[1.0, 2.0]] * 3 + [[5.0, 5.0], [9.0, 9.0], [7.0, 7.0]])
    sent = [[1.1, 2.1], [1.1, 2.1]]
    first = metrics.link_by_distance(sent[:1], mean, [1])
    assert first.top1 == pytest.approx(1 / 3)
    assert (first.top5, first.mean_rank) == (1, 2)
    assert metrics.link_by_distance(sent[:1], mean, [4]) == metrics.LinkResult(0, 0, 6)
    everywhere = metrics.link_by_likelihood(sent, np.zeros([8, 2]), np.zeros([8, 2]), [0, 7])
    assert everywhere == metrics.LinkResult(1 / 8, 5 / 8, 4.5)


def test_a_single_candidate():
    assert metrics.link_by_distance([[3.0], [4.0]], [[0.0]], [0, 0]) == metrics.LinkResult(1, 1, 1)
    assert metrics.link_by_likelihood([[3.0]], [[0.0]], [[0.0]], [0]) == metrics.LinkResult(1, 1, 1)


PAIR = np.zeros([2, 3])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((PAIR, PAIR, PAIR + np.nan, [0, 1]), "log_scale: found NaN"),
        ((PAIR - np.inf, PAIR, PAIR, [0, 1]), "sent: found NaN or an infinite value"),
        (([["a"] * 3], PAIR, PAIR, [0]), "sent: expected numbers"),
        ((PAIR[0], PAIR, PAIR, [0]), r"expected sent \[M, d\] or \[R, M, d\].* got \[3\]"),
        ((PAIR, PAIR, PAIR[:1], [0, 1]), r"log_scale \[N, d\]; got \[2, 3\], \[2, 3\] and \[1, 3\]"),
        ((PAIR[:, :2], PAIR, PAIR, [0, 1]), r"candidates of the same width; got \[2, 2\] and \[2, 3\]"),
        ((PAIR[:0], PAIR, PAIR, []), "expected something sent"),
        ((PAIR, PAIR[:0], PAIR[:0], [0, 1]), r"got \[2, 3\] and \[0, 3\]"),
        ((PAIR, PAIR, PAIR, [0]), r"truth: expected whole numbers \[2\], got int64 \[1\]"),
        ((PAIR, PAIR, PAIR, [0.0, 1.0]), r"truth: expected whole numbers \[2\], got float64"),
        ((PAIR, PAIR, PAIR, [0, 2]), r"truth: expected places 0..1 of candidates, found 0..2"),
        ((PAIR, PAIR, PAIR, [-1, 0]), r"found -1..0"),
        ((PAIR, PAIR, PAIR - 400, [0, 1]), "log_scale: the likelihood leaves the range.* -400"),
    ],
)
def test_wrong_input_to_likelihood(arguments, message):
    with pytest.raises(InputError, match=message):
        metrics.link_by_likelihood(*arguments)


def test_wrong_input_to_distance():
    with pytest.raises(InputError, match=r"expected sent \[M, k\] and candidates \[N, k\]; got \[1, 2, 3\]"):
        metrics.link_by_distance(PAIR[None], PAIR, [0, 1])
    with pytest.raises(InputError, match="candidates: found NaN"):
        metrics.link_by_distance(PAIR, PAIR + np.nan, [0, 1])
    with pytest.raises(InputError, match="truth"):
        metrics.link_by_distance(PAIR, PAIR, [0, 5])


# -- reconstruction -----------------------------------------------------------------------------------------


def examples(count, seed):
    """24 pixels that 6 factors and the class (of 3) make, the factors, and the labels."""
    rng = np.random.default_rng(seed)
    mixing, means = (np.random.default_rng(7).normal(size=(6, 24)), np.random.default_rng(8).normal(size=(3, 24)))
    factors, labels = rng.normal(size=(count, 6)), rng.integers(3, size=count)
    return factors, 2 * means[labels] + factors @ mixing, labels


def attack(send, known=600, attacked=400, **kwargs):
    (train, train_raw, train_labels), (test, test_raw, test_labels) = (examples(known, 1), examples(attacked, 2))
    return metrics.reconstruction_r2(
        send(train, train_raw), train_raw, train_labels, send(test, test_raw), test_raw, test_labels, **kwargs
    )


@pytest.mark.slow
def test_a_linear_map_gives_everything():
    assert attack(lambda factors, raw: raw) == pytest.approx(1, abs=1e-3)
    matrix = np.random.default_rng(3).normal(size=(6, 9))
    assert attack(lambda factors, raw: 1e6 + 1e-3 * factors @ matrix) == pytest.approx(1, abs=1e-3)


def test_noise_and_constants_give_nothing():
    rng = np.random.default_rng(4)
    assert -0.05 < attack(lambda factors, raw: rng.normal(size=(len(raw), 32))) < 0.05
    # The label alone: the class mean itself.
    assert attack(lambda factors, raw: np.full([len(raw), 2], 0.1)) == pytest.approx(0, abs=1e-3)


def test_half_of_the_factors_give_their_share():
    # What is left of the class mean is factors @ mixing; half of it stays unknown.
    mixing = np.random.default_rng(7).normal(size=(6, 24))
    share = np.square(mixing[:3]).sum() / np.square(mixing).sum()
    assert attack(lambda factors, raw: factors[:, :3], known=2000, attacked=2000) == pytest.approx(share, abs=0.03)


def test_the_network_finds_what_no_linear_map_can():
    # Folded at 0: even in each factor, so that a linear attack on the pixels finds nothing.
    def examples_of(count, seed):
        rng = np.random.default_rng(seed)
        sent = rng.normal(size=(count, 2))
        return sent, np.abs(sent), np.zeros(count, int)

    known, attacked = examples_of(2000, 5), examples_of(500, 6)
    found = metrics.reconstruction_r2(*known, *attacked)
    assert found > 0.9
    assert found == metrics.reconstruction_r2(*known, *attacked)


def test_the_scale_and_shape_of_pixels_do_not_matter():
    factors, raw, labels = examples(200, 1)
    found = [
        metrics.reconstruction_r2(factors, pixels, labels, factors[:50], pixels[:50], labels[:50])
        for pixels in (raw, 255 * raw.reshape(200, 4, 6))
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-3)


ROWS = np.arange(40.0).reshape(20, 2) % 7
LABELS = np.arange(20) % 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_sent": ROWS[:5]}, r"expected train_sent \[n, k\].* got \[5, 2\], \[20, 2\] and \[20\]"),
        ({"test_labels": LABELS[:3]}, r"test_labels \[n\]; got"),
        ({"test_sent": ROWS[:0]}, "expected test_sent"),
        ({"train_raw": ROWS + np.nan}, "train_raw: found NaN"),
        ({"test_sent": [["a", "b"]] * 20}, "test_sent: expected numbers"),
        ({"test_sent": ROWS[:, :1]}, "test_sent: expected rows of 2 as in train_sent, got 1"),
        ({"test_raw": ROWS[:, :1]}, "test_raw: expected rows of 2 as in train_raw, got 1"),
        ({"test_labels": LABELS + 1}, "no example of label 2"),
        ({"train_raw": ROWS * 0 + 0.1, "test_raw": ROWS * 0 + 0.1}, "every example equals the mean"),
        (
            {"train_sent": ROWS[:9], "train_raw": ROWS[:9], "train_labels": LABELS[:9]},
            "at least 10 examples of the attacker, got 9",
        ),
    ],
)
def test_wrong_input(changed, message):
    arguments = {
        f"{which}_{name}": value
        for which in ("train", "test")
        for name, value in (("sent", ROWS), ("raw", ROWS), ("labels", LABELS))
    }
    with pytest.raises(InputError, match=message):
        metrics.reconstruction_r2(**{**arguments, **changed})


# -- bytes --------------------------------------------------------------------------------------------------


def exact(noise_multiplier, delta, times):
    """Balle and Wang 2018, theorem 8: sensitivity 2; so many samples are one of sqrt(times) the shift."""
    shift = 2 * np.sqrt(times) / noise_multiplier

    def excess(epsilon):
        above = stats.norm.cdf(shift / 2 - epsilon / shift)
        return above - np.exp(epsilon + stats.norm.logcdf(-shift / 2 - epsilon / shift)) - delta

    return optimize.brentq(excess, 0, shift**2 + 20 * shift, xtol=1e-12) if excess(0) > 0 else 0.0


@pytest.mark.parametrize("noise_multiplier", [1e4, 200.0, 20.0, 4.0, 1.0, 0.3, 0.1, 0.06, 1e-2])
@pytest.mark.parametrize("times", [1, 6])
@pytest.mark.parametrize("delta", [0.9, 1e-3, 1e-5, 1e-8])
def test_a_tight_upper_bound(noise_multiplier, times, delta):
    found, right = (metrics.embedding_epsilon(noise_multiplier, delta, times), exact(noise_multiplier, delta, times))
    assert right * (1 - 1e-6) <= found <= right * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("noise_multiplier", [1e-3, 1e-6, 1e-12])
def test_hardly_any_noise_costs_no_more_than_much(noise_multiplier):
    """The two distributions do not overlap: delta is the one tail Phi(shift / 2 - epsilon / shift)."""
    shift = 2 * np.sqrt(6) / noise_multiplier
    found = metrics.embedding_epsilon(noise_multiplier, 1e-5, times=6)
    assert found == pytest.approx(shift**2 / 2 - shift * stats.norm.ppf(1e-5), rel=1e-6)
    everybody = [((0, 1), (0, 1))] * 6
    assert metrics.client_epsilon(noise_multiplier, everybody, 1e-5) == (found, found)


def test_more_noise_or_fewer_samples_mean_less():
    by_noise = [metrics.embedding_epsilon(noise, 1e-5) for noise in (1, 2, 4)]
    by_times = [metrics.embedding_epsilon(2, 1e-5, times) for times in (6, 2, 1)]
    assert by_noise == sorted(by_noise, reverse=True)
    assert by_times == sorted(by_times, reverse=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1e-5), "noise_multiplier: expected a number above 0, found 0.0"),
        ((float("inf"), 1e-5), "noise_multiplier"),
        ((float("nan"), 1e-5), "noise_multiplier"),
        ((1.0, 0.0), "delta: expected a number between 0 and 1, found 0.0"),
        ((1.0, 1.0), "delta"),
        ((1.0, 1e-5, 0), "times must be a whole number, 1 or more; got 0"),
        ((1.0, 1e-5, 1.5), "times"),
        ((1.0, 1e-5, True), "times"),
    ],
)
def test_wrong_input_to_epsilon(arguments, message):
    with pytest.raises(InputError, match=message):
        metrics.embedding_epsilon(*arguments)


# -- of clients ---------------------------------------------------------------------------------------------

DELTA = 1e-5


def drawn(size: int, most: int, times: int) -> list:
    rng = np.random.default_rng(0)
    everybody = list(range(most))
    return [(rng.choice(most, size, replace=False).tolist(), everybody) for _ in range(times)]


def gaussian_delta(epsilon: float, sensitivity: float) -> float:
    """Of one Gaussian with standard deviation 1 (Balle, Wang: Improving the Gaussian Mechanism, 2018, theorem 8)."""
    half, ratio = sensitivity / 2, epsilon / sensitivity
    return stats.norm.cdf(half - ratio) - np.exp(epsilon) * stats.norm.cdf(-half - ratio)


@pytest.mark.parametrize(("noise", "times"), [(1.0, 1), (4.0, 7), (20.0, 300)])
def test_all_clients_in_every_round_is_the_closed_form(noise, times):
    """So many Gaussians are one, whose ratio of sensitivity (two clips) to deviation grows with the root."""
    found = metrics.client_epsilon(noise, [((0, 1, 2), (0, 1, 2))] * times, DELTA)
    assert found.known == found.hidden
    # The accountant rounds to the safe side.
    assert gaussian_delta(found.known, 2 * np.sqrt(times) / noise) <= DELTA
    assert gaussian_delta(0.99 * found.known, 2 * np.sqrt(times) / noise) > DELTA


def test_who_took_part_most_decides_where_that_is_known():
    rounds = [((0,), (0, 1)), ((0,), (0, 1)), ((0,), (0, 1)), ((1,), (0, 1))]
    three = metrics.client_epsilon(5.0, [((0,), (0,))] * 3, DELTA)
    assert metrics.client_epsilon(5.0, rounds, DELTA).known == three.known


def test_hidden_draws_without_replacement_are_amplified():
    rounds = drawn(5, 500, 4)
    found = metrics.client_epsilon(2.0, rounds, DELTA)
    orders = (3, 5, 8, 13, 20)  # any will do for an upper bound; more of them can only be better
    accountant = rdp.RdpAccountant(orders, dp_accounting.NeighboringRelation.REPLACE_ONE)
    for _ in rounds:  # sensitivity two clips: half the noise
        accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(500, 5, dp_accounting.GaussianDpEvent(1.0)))
    assert accountant.get_epsilon(DELTA) * 0.8 < found.hidden <= accountant.get_epsilon(DELTA)
    assert found.hidden < found.known


@pytest.mark.slow
@pytest.mark.parametrize("others", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("most", [2, 20])
def test_no_pair_of_federations_is_told_apart_better_than_that(most, others):
    """By quadrature, for one client of several, drawn alone, whose update of norm 1 changes its sign."""
    noise, delta = 1.5, 1e-3
    epsilon = metrics.client_epsilon(noise, [((0,), range(most))], delta).hidden
    x = np.linspace(-20, 20, 400_001)
    rest = (1 - 1 / most) * stats.norm.pdf(x, others, noise)
    one, other = (rest + stats.norm.pdf(x, sign, noise) / most for sign in (1, -1))
    for p, q in ((one, other), (other, one)):
        assert np.maximum(p - np.exp(epsilon) * q, 0).sum() * (x[1] - x[0]) <= delta


def test_clients_of_some_tasks_only():
    """A client that leaves after two rounds has spent no more than these; one that stays spends on."""
    rounds = [((0, 1), (0, 1))] * 2 + [((1,), (1,))] * 3
    five = metrics.client_epsilon(3.0, [((0,), (0,))] * 5, DELTA)
    assert metrics.client_epsilon(3.0, rounds, DELTA) == five


def test_rounds_without_anybody_cost_nothing():
    assert metrics.client_epsilon(1.0, [((), (0, 1)), ((), ())], DELTA) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ((0.0, [], DELTA), "noise_multiplier"),
        ((1.0, [], 1.0), "delta"),
        ((1.0, [((2,), (0, 1))], DELTA), r"\[2\] took part, drawn of \[0, 1\]"),
    ],
)
def test_wrong_arguments_are_one_clear_error(args, match):
    with pytest.raises(InputError, match=match):
        metrics.client_epsilon(*args)
