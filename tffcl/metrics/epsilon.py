"""What noise guarantees: epsilon of a client's updates over a run, and of an embedding that is sent."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy import optimize, special

from tffcl.errors import InputError, check_above_zero, check_between_0_and_1, check_whole

_TOLERANCE = 1e-9  # of the root, in standard deviations of the privacy loss; it is rounded to the safe side
# Of Renyi divergence. Between whole numbers the bound for draws is interpolated, at a price; above these it is weak.
_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256)


def embedding_epsilon(noise_multiplier: float, delta: float, times: int = 1) -> float:
    """Epsilon at `delta` of vectors that were clipped and noised by `tffcl.client_works.EmbeddingPrivacy`.

    Neighbouring: one example's vector is replaced by any other, so the sensitivity is twice the clip, and the
    mechanism Gaussian with a standard deviation of noise_multiplier / 2 of it. Every vector is noised alone, so the
    guarantee holds for each example by itself, against the server too, however many there are.

    Not protected: labels, which are sent as they are; how many examples there are; the model update, which is
    trained on the same examples and needs an aggregator with noise of its own; an encoder that was pre-trained on
    them. The guarantee holds against whoever does not know the clients' secrets, from which the noise follows.

    Args:
      noise_multiplier: standard deviation of the noise / clip.
      delta: the other parameter, between 0 and 1.
      times: how often the same example is noised anew and sent; a vector that is kept and sent again counts once.

    Returns:
      The exact value, rounded up in its last digits (Balle and Wang: Improving the Gaussian Mechanism for Differential
      Privacy, ICML 2018, theorem 8), at the same cost for any noise. So many Gaussians are one, of less noise.

    >>> round(embedding_epsilon(4.0, delta=1e-5), 2)
    1.99

    Raises:
      InputError: an argument out of its range.
    """
    _check_mechanism(noise_multiplier, delta)
    times = check_whole("times", times, 1)
    shift = 2 * math.sqrt(times) / noise_multiplier  # sensitivity / standard deviation, also that of the privacy loss

    def excess(above: float) -> float:
        """delta(epsilon) - delta at epsilon = shift (shift / 2 - above), without a difference of large exponents."""
        tail = math.exp(-(above**2) / 2) * special.erfcx((shift - above) / math.sqrt(2)) / 2
        return special.ndtr(above) - tail - delta

    if excess(shift / 2) <= 0:
        return 0.0
    lowest = special.ndtri(delta) - 1.0  # already the first term is below delta there
    above = optimize.brentq(excess, lowest, shift / 2, xtol=_TOLERANCE) - 2 * _TOLERANCE
    return shift * (shift / 2 - above)


class ClientEpsilon(NamedTuple):
    """Two accounts of one run.

    Shown with `client_epsilon`.

    Attributes:
      known: against an observer who knows who took part in which round, as every reader of the run's history does:
        the composition of the rounds of the client that took part in most. No amplification.
      hidden: against an observer who does not know who took part, where a fixed number was drawn without replacement.
        At most `known`, and equal to it where nothing is drawn.
    """

    known: float
    hidden: float


def client_epsilon(
    noise_multiplier: float, rounds: Sequence[tuple[Sequence[int], Sequence[int]]], delta: float
) -> ClientEpsilon:
    """Epsilon at `delta` of all rounds whose updates were aggregated as `tffcl.aggregators.ClientPrivacy` does it.

    Neighbouring: everything that one client has, in all of its tasks, is replaced by anything else. Its update then
    moves the sum by up to twice the clip, so the mechanism is Gaussian with a standard deviation of noise_multiplier /
    2 of that. (For adding or removing a client, epsilon would be that of twice the noise_multiplier; but then the
    number of clients would have to be a secret.)

    Only what is learned from the noised sums is counted. Whatever else a client sends (adaptives that other clients
    train with, for example) is taken as known already, together with what it changes in the updates of others.

    Who is drawn must not depend on anybody's data. A round's draw is of a fixed number without replacement: its
    amplification is that of Wang, Balle, Kasiviswanathan (Subsampled Renyi Differential Privacy and Analytical Moments
    Accountant, 2019, theorem 27), which is no bound for Poisson sampling, nor that for this.

    Args:
      noise_multiplier: standard deviation of the noise on the sum / clip.
      rounds: of each round the clients that took part, and all of which they were drawn.
      delta: above 0, below 1.

    >>> every_round = [((0, 1), (0, 1))] * 10
    >>> [round(epsilon, 2) for epsilon in client_epsilon(8.0, every_round, delta=1e-5)]
    [3.34, 3.34]

    Raises:
      InputError: an argument out of its range, or a client that took part but could not be drawn.
    """
    _check_mechanism(noise_multiplier, delta)
    took_part: collections.Counter[int] = collections.Counter()
    draws: dict[int, collections.Counter[tuple[int, int]]] = collections.defaultdict(collections.Counter)
    for participants, candidates in rounds:
        if not set(participants) <= set(candidates):
            raise InputError(f"rounds: {list(participants)} took part, drawn of {list(candidates)}")
        took_part.update(participants)
        for client in candidates if participants else ():
            draws[client][len(participants), len(candidates)] += 1
    if not took_part:
        return ClientEpsilon(0.0, 0.0)
    known = embedding_epsilon(noise_multiplier, delta, max(took_part.values()))  # the same mechanism and sensitivity
    different = {tuple(sorted(drawn.items())) for drawn in draws.values()}
    hidden = max(_sampled(noise_multiplier, dict(drawn), delta) for drawn in different)
    return ClientEpsilon(known, min(known, hidden))


def _sampled(noise_multiplier: float, drawn: dict[tuple[int, int], int], delta: float) -> float:
    """Epsilon of a client by how often it could be drawn of (drawn, candidates), amplified if that is lower."""
    every = embedding_epsilon(noise_multiplier, delta, sum(drawn.values()))
    if all(size == most for size, most in drawn):
        return every
    import dp_accounting  # slow to import, and only this needs it
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(_ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    noised = dp_accounting.GaussianDpEvent(noise_multiplier / 2)
    for (size, most), times in drawn.items():
        event = dp_accounting.SampledWithoutReplacementDpEvent(most, size, noised)
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, times))
    return min(every, float(accountant.get_epsilon(delta)))


def _check_mechanism(noise_multiplier: float, delta: float) -> None:
    check_above_zero("noise_multiplier", noise_multiplier)
    check_between_0_and_1("delta", delta)
