"""What noise on embeddings guarantees: differential privacy of one example's vector."""

from __future__ import annotations

import math

import numpy as np

from tffcl.errors import InputError

RESOLUTION = 1e-3  # of the accountant, in standard deviations of the privacy loss


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
      An upper bound, from the accountant of privacy loss distributions of `dp_accounting`: at most 2e-3 of it
      above the exact value (Balle and Wang: Improving the Gaussian Mechanism for Differential Privacy, ICML 2018).

    >>> round(embedding_epsilon(4.0, delta=1e-5), 2)
    1.99

    Raises:
      InputError: an argument out of its range.
    """
    check_mechanism(noise_multiplier, delta)
    if isinstance(times, bool) or not isinstance(times, (int, np.integer)) or times < 1:
        raise InputError(f"times: expected a whole number, 1 or more, got {times!r}")
    import dp_accounting  # slow to import, and only this needs it
    from dp_accounting import pld

    # The standard deviation of the privacy loss: with steps of a fixed size, little noise would take minutes.
    deviation = 2 * math.sqrt(times) / noise_multiplier
    accountant = pld.PLDAccountant(
        dp_accounting.NeighboringRelation.REPLACE_ONE, value_discretization_interval=RESOLUTION * deviation
    )
    sent = dp_accounting.GaussianDpEvent(noise_multiplier / 2)
    accountant.compose(dp_accounting.SelfComposedDpEvent(sent, int(times)))
    return float(accountant.get_epsilon(delta))


def check_mechanism(noise_multiplier: float, delta: float) -> None:
    """Raises InputError for noise, or a delta, of which there is no epsilon."""
    if not (noise_multiplier > 0 and math.isfinite(noise_multiplier)):
        raise InputError(f"noise_multiplier: expected a number above 0, got {noise_multiplier!r}")
    if not 0 < delta < 1:
        raise InputError(f"delta: expected a number between 0 and 1, got {delta!r}")
