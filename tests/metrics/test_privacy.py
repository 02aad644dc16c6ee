"""Epsilon of noised vectors, against the exact privacy of the Gaussian mechanism."""

import numpy as np
import pytest
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
        ((0.0, 1e-5), "noise_multiplier: expected a number above 0, got 0.0"),
        ((float("inf"), 1e-5), "noise_multiplier"),
        ((float("nan"), 1e-5), "noise_multiplier"),
        ((1.0, 0.0), "delta: expected a number between 0 and 1, got 0.0"),
        ((1.0, 1.0), "delta"),
        ((1.0, 1e-5, 0), "times: expected a whole number, 1 or more, got 0"),
        ((1.0, 1e-5, 1.5), "times"),
        ((1.0, 1e-5, True), "times"),
    ],
)
def test_wrong_input(arguments, message):
    with pytest.raises(InputError, match=message):
        metrics.embedding_epsilon(*arguments)
