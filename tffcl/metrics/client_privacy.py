"""What noise on the sum of clients' updates guarantees over a run: differential privacy of a whole client."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import NamedTuple

from tffcl.errors import InputError
from tffcl.metrics.privacy import check_mechanism, embedding_epsilon

# Of Renyi divergence. Between whole numbers the bound for draws is interpolated, at a price; above these it is weak.
_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256)


class ClientEpsilon(NamedTuple):
    """Two accounts of one run.

    Attributes:
      known: whoever sees the results may also know who took part in which round, as everybody does who reads the
        run's history: the composition of the rounds of the client that took part in most. No amplification.
      hidden: for whoever does not know who took part, where a fixed number was drawn without replacement. At most
        `known`, and equal to it where nothing is drawn.
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
    check_mechanism(noise_multiplier, delta)
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
    known = _composed(noise_multiplier, max(took_part.values()), delta)
    different = {tuple(sorted(drawn.items())) for drawn in draws.values()}
    hidden = max(_sampled(noise_multiplier, dict(drawn), delta) for drawn in different)
    return ClientEpsilon(known, min(known, hidden))


def _composed(noise_multiplier: float, times: int, delta: float) -> float:
    """Of a client that took part so many times: exact."""
    return embedding_epsilon(noise_multiplier, delta, times)  # the same mechanism, of the same sensitivity


def _sampled(noise_multiplier: float, drawn: dict[tuple[int, int], int], delta: float) -> float:
    """Of a client that could be drawn, by (drawn, candidates) so many times; what is better, with or without that."""
    every = _composed(noise_multiplier, sum(drawn.values()), delta)
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
