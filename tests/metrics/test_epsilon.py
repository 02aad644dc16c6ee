"""Epsilon against the exact privacy of the Gaussian mechanism, and against dp_accounting's accountants."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from scipy import optimize, stats

from tffcl import metrics
from tffcl.errors import InputError


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
def test_wrong_input(arguments, message):
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
