"""How well an attacker who knows the encoder finds out whose example something sent was made of.

FIL-VER (section 3.1) calls a sampled embedding z = mu + sigma e private because it does not determine its example.
The attacker here does not invert the encoder: it has a set of candidates, one of which is the true source, encodes
them all, and says which makes what was sent most likely. Where everything is linked, nothing is hidden; chance is
1 / number of candidates.

Paper: Tackling Dynamics in Federated Incremental Learning with Variational Embedding Rehearsal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from tffcl.errors import InputError

CHUNK = 2**22  # scores at a time: 32 MiB


@dataclasses.dataclass(frozen=True)
class LinkResult:
    """How high the true source ranks among the candidates, mean over what was sent.

    Candidates that score the same share their places, as if drawn in random order: of N equal candidates the true
    one is first in 1 / N of the cases.

    Attributes:
      top1: share of what was sent whose source is the first candidate, 0 .. 1.
      top5: share whose source is among the first five.
      mean_rank: place of the source, from 1; (N + 1) / 2 by chance.
    """

    top1: float
    top5: float
    mean_rank: float


def link_by_likelihood(sent: ArrayLike, mean: ArrayLike, log_scale: ArrayLike, truth: ArrayLike) -> LinkResult:
    """Links sampled embeddings to the candidates of which they are most likely: the best attack that there is on them.

    Candidate i says log p = sum_d -(z_d - mu_id)^2 / (2 sigma_id^2) - log sigma_id + const. Samples of one example
    that were sent one after the other are independent: their log-likelihoods add up.

    Args:
      sent: z, `[M, d]`, or `[R, M, d]` where each example was sampled and sent R times.
      mean: mu of each candidate, `[N, d]`.
      log_scale: log sigma of each candidate, `[N, d]`.
      truth: the candidate that each was made of, whole numbers 0 .. N-1, `[M]`.

    >>> link_by_likelihood([[0.1, 0.9]], [[0, 1], [5, 5]], [[-1, -1], [-1, -1]], [0])
    LinkResult(top1=1.0, top5=1.0, mean_rank=1.0)

    Raises:
      InputError: shapes that do not fit, nothing sent, no candidates, non-finite numbers, a scale too small for
        float64, or a truth that is no candidate.
    """
    samples, means = _finite(sent, "sent"), _finite(mean, "mean")
    scales, truth = _finite(log_scale, "log_scale"), np.asarray(truth)
    samples = samples[None] if samples.ndim == 2 else samples
    if samples.ndim != 3 or means.ndim != 2 or scales.shape != means.shape:
        raise InputError(
            "expected sent [M, d] or [R, M, d], mean [N, d] and log_scale [N, d]; got "
            f"{list(np.shape(sent))}, {list(means.shape)} and {list(scales.shape)}"
        )
    _check_sizes(samples, means, truth)
    return _link(samples, means, scales, truth)


def link_by_distance(sent: ArrayLike, candidates: ArrayLike, truth: ArrayLike) -> LinkResult:
    """Links what was sent to the nearest candidates (Euclidean): the attack on raw data, embeddings and statistics.

    Args:
      sent: `[M, k]`; statistics as mu and log sigma side by side.
      candidates: what each candidate would have sent, `[N, k]`.
      truth: the candidate that each was made of, whole numbers 0 .. N-1, `[M]`.

    >>> link_by_distance([[0.0], [4.0]], [[1.0], [2.0], [3.0]], [0, 1])
    LinkResult(top1=0.5, top5=1.0, mean_rank=1.5)

    Raises:
      InputError: as `link_by_likelihood`.
    """
    vectors, others, truth = _finite(sent, "sent"), _finite(candidates, "candidates"), np.asarray(truth)
    if vectors.ndim != 2 or others.ndim != 2:
        raise InputError(
            f"expected sent [M, k] and candidates [N, k]; got {list(vectors.shape)} and {list(others.shape)}"
        )
    _check_sizes(vectors[None], others, truth)
    # The nearest candidate is the most likely one where all have the same scale.
    return _link(vectors[None], others, np.zeros_like(others), truth)


def _link(samples: np.ndarray, means: np.ndarray, scales: np.ndarray, truth: np.ndarray) -> LinkResult:
    # Candidates that are equal are scored once and counted: rounding must not tell them apart.
    candidates, place, counts = np.unique(
        np.concatenate([means, scales], axis=1), axis=0, return_inverse=True, return_counts=True
    )
    own_place = place[truth]
    better, tied = np.empty(len(truth)), np.empty(len(truth))
    for rows, scores in _log_likelihoods(samples, *np.split(candidates, 2, axis=1)):
        own = np.take_along_axis(scores, own_place[rows, None], axis=1)
        better[rows] = (scores > own) @ counts
        tied[rows] = (scores == own) @ counts
    top1, top5 = (float(np.clip((k - better) / tied, 0, 1).mean()) for k in (1, 5))
    return LinkResult(top1, top5, float((better + (tied + 1) / 2).mean()))


def _log_likelihoods(samples: np.ndarray, means: np.ndarray, scales: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Chunks of log p, up to a constant, `[rows, N]`; the square written out, so that it is matrix products.

    Of all the samples of an example only sum z and sum z^2 count.
    """
    centre = means.mean(axis=0)  # squares of what all have in common would only cost digits
    means, samples = means - centre, samples - centre
    first, second = samples.sum(axis=0), np.square(samples).sum(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):  # said below
        precision = np.exp(-2 * scales)
        weighted = means * precision
        alone = -len(samples) * (0.5 * means * weighted + scales).sum(axis=1)
        step = max(1, CHUNK // len(means))
        for start in range(0, len(first), step):
            rows = slice(start, start + step)
            scores = first[rows] @ weighted.T - 0.5 * second[rows] @ precision.T + alone
            if not np.isfinite(scores).all():
                raise InputError(
                    "log_scale: the likelihood leaves the range of float64, smallest log scale "
                    f"{scales.min():.4g}; link what is sent without noise with link_by_distance"
                )
            yield rows, scores


def _finite(values: ArrayLike, name: str) -> np.ndarray:
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected numbers; {error}") from error
    if not np.isfinite(array).all():
        raise InputError(f"{name}: found NaN or an infinite value; every number must be finite")
    return array


def _check_sizes(samples: np.ndarray, candidates: np.ndarray, truth: np.ndarray) -> None:
    """`samples` `[R, M, d]` and `candidates` `[N, d]` are of one width and not empty, and `truth` names candidates."""
    if samples.shape[-1] != candidates.shape[-1] or not samples.size or not candidates.size:
        raise InputError(
            "expected something sent, and candidates of the same width; got "
            f"{list(samples.shape[-2:])} and {list(candidates.shape)}"
        )
    if truth.shape != samples.shape[1:2] or not np.issubdtype(truth.dtype, np.integer):
        raise InputError(f"truth: expected whole numbers [{samples.shape[1]}], got {truth.dtype} {list(truth.shape)}")
    if truth.min() < 0 or truth.max() >= len(candidates):
        raise InputError(
            f"truth: expected places 0..{len(candidates) - 1} of candidates, found {truth.min()}..{truth.max()}"
        )
