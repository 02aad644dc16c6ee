"""What noise on embeddings guarantees: differential privacy of one example's vector."""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize, special

from tffcl.errors import InputError

_TOLERANCE = 1e-9  # of the root, in standard deviations of the privacy loss; it is rounded to the safe side


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
    check_mechanism(noise_multiplier, delta)
    if isinstance(times, bool) or not isinstance(times, (int, np.integer)) or times < 1:
        raise InputError(f"times: expected a whole number, 1 or more, got {times!r}")
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


def check_mechanism(noise_multiplier: float, delta: float) -> None:
    """Raises InputError for noise, or a delta, of which there is no epsilon."""
    if not (noise_multiplier > 0 and math.isfinite(noise_multiplier)):
        raise InputError(f"noise_multiplier: expected a number above 0, got {noise_multiplier!r}")
    if not 0 < delta < 1:
        raise InputError(f"delta: expected a number between 0 and 1, got {delta!r}")
