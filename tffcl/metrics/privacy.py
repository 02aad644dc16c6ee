"""Privacy: what noise guarantees, and what two attacks by one who knows the encoder learn from a client's message.

Epsilon (`client_epsilon`, `embedding_epsilon`): of a client's updates over a run, and of an embedding that is sent.
Linking (`link_by_likelihood`, `link_by_distance`): FIL-VER (Park, Kumatani, Dimitriadis: Tackling Dynamics in Federated
Incremental Learning with Variational Embedding Rehearsal, 2021, section 3.1) calls a sampled embedding z = mu + sigma e
private because it does not determine its example. The attacker does not invert the encoder: it encodes a set of
candidates, the true source among them, and says which makes the message most likely. Where everything is linked,
nothing is hidden; chance is 1 / number of candidates. Reconstruction (`reconstruction_r2`): the attacker has examples
of its own, and learns to predict pixels from embedding and label.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
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


CHUNK = 2**22  # scores of candidates at a time: 32 MiB

STRENGTHS = (1e-6, 1e-4, 1e-2, 1.0, 100.0)  # of the ridge, per example
HIDDEN = 256
MOST_EPOCHS, PATIENCE, BATCH = 40, 3, 100
HELD_OUT = 0.2
FEWEST_EXAMPLES = 10
ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class LinkResult:
    """How high the true source ranks among the candidates, mean over the messages.

    Candidates of the same score share their ranks, as if drawn in random order: of N equal candidates the source is
    first in 1 / N of the cases.

    Shown with `link_by_distance`.

    Attributes:
      top1: share of messages whose source is the first candidate, 0 .. 1.
      top5: share whose source is among the first five.
      mean_rank: rank of the source, from 1; (N + 1) / 2 by chance.
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
    # The nearest candidate is the most likely one where all have the same scale.
    return _link(vectors[None], others, np.zeros_like(others), truth)


def _link(samples: np.ndarray, means: np.ndarray, scales: np.ndarray, truth: np.ndarray) -> LinkResult:
    if samples.shape[-1] != means.shape[-1] or not samples.size or not means.size:
        raise InputError(
            "expected something sent, and candidates of the same width; got "
            f"{list(samples.shape[-2:])} and {list(means.shape)}"
        )
    if truth.shape != samples.shape[1:2] or not np.issubdtype(truth.dtype, np.integer):
        raise InputError(f"truth: expected whole numbers [{samples.shape[1]}], got {truth.dtype} {list(truth.shape)}")
    if truth.min() < 0 or truth.max() >= len(means):
        raise InputError(
            f"truth: expected places 0..{len(means) - 1} of candidates, found {truth.min()}..{truth.max()}"
        )
    # Candidates that are equal are scored once and counted: rounding must not tell them apart.
    candidates, index, counts = np.unique(
        np.concatenate([means, scales], axis=1), axis=0, return_inverse=True, return_counts=True
    )
    source = index[truth]
    better, tied = np.empty(len(truth)), np.empty(len(truth))
    for rows, scores in _log_likelihoods(samples, *np.split(candidates, 2, axis=1)):
        own = np.take_along_axis(scores, source[rows, None], axis=1)
        better[rows] = (scores > own) @ counts
        tied[rows] = (scores == own) @ counts
    top1, top5 = (float(np.clip((k - better) / tied, 0, 1).mean()) for k in (1, 5))
    return LinkResult(top1, top5, float((better + (tied + 1) / 2).mean()))


def _log_likelihoods(samples: np.ndarray, means: np.ndarray, scales: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Chunks of log p, up to a constant, `[rows, N]`: products of sum z and sum z^2 over an example's samples."""
    centre = means.mean(axis=0)  # squares of a common offset would only cost digits
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


def reconstruction_r2(
    train_sent: ArrayLike,
    train_raw: ArrayLike,
    train_labels: ArrayLike,
    test_sent: ArrayLike,
    test_raw: ArrayLike,
    test_labels: ArrayLike,
    *,
    seed: int = 0,
) -> float:
    """R^2 of the better of two attacks, ridge regression and a network with one hidden layer, beside the class mean.

    1 - MSE(attack) / MSE(mean of the class in the attacker's data), over all pixels of the test examples. 1: every
    pixel is known; 0: no better than knowing the label; noise may come out a little below. Both attacks learn what
    is left over of the class mean. The strength of the ridge, the epochs of the network and which of the two counts
    are chosen on rows held out of the attacker's data.

    Shown with `link_by_distance`.

    Args:
      train_sent: of the attacker's n examples what would be sent, `[n, k]`; the mean where it is sent several times.
      train_raw: their pixels, `[n, ...]`.
      train_labels: `[n]`.
      test_sent: what the m attacked examples sent, `[m, k]`.
      test_raw: their pixels, `[m, ...]`.
      test_labels: `[m]`.
      seed: of the rows held out and of the network.

    Raises:
      InputError: shapes that do not fit, non-finite numbers, fewer than ten examples of the attacker, a label that
        it has no example of, or test examples that are all equal to their class mean.
    """
    train = _checked(train_sent, train_raw, train_labels, "train")
    test = _checked(test_sent, test_raw, test_labels, "test")
    _check_pair(train, test)
    classes, label = np.unique(train[2], return_inverse=True)
    test_label = np.searchsorted(classes, test[2])
    means = np.stack([train[1][label == number].mean(axis=0) for number in range(len(classes))])
    left, test_left = train[1] - means[label], test[1] - means[test_label]
    baseline = float(np.square(test_left).mean())
    if baseline <= ROUNDING**2 * float(np.square(test[1]).mean()):
        raise InputError("test_raw: every example equals the mean of its class; there is nothing to reconstruct")
    # One scale for all pixels, so that the network learns equally well of bytes and of fractions.
    scale = float(np.sqrt(np.square(left).mean())) or 1.0
    centre, spread = train[0].mean(axis=0), train[0].std(axis=0)
    spread[spread <= ROUNDING * np.abs(centre)] = 1  # a constant
    known, attacked = (
        np.concatenate([(sent - centre) / spread, np.eye(len(classes))[labels]], axis=1)
        for sent, labels in ((train[0], label), (test[0], test_label))
    )
    attack = _best_attack(known, left / scale, seed)
    return 1 - _error(scale * attack.predict(attacked), test_left) / baseline


def _best_attack(features: np.ndarray, targets: np.ndarray, seed: int) -> Any:
    """The predictor of `targets` `[n, p]` from `features` `[n, k]` with the least error on rows held out."""
    from sklearn.linear_model import Ridge  # slow to import

    order = np.random.default_rng(seed).permutation(len(features))
    held, rest = np.split(order, [max(1, round(HELD_OUT * len(order)))])
    errors = []
    for strength in STRENGTHS:
        ridge = Ridge(alpha=strength * len(rest)).fit(features[rest], targets[rest])
        errors.append(_error(ridge.predict(features[held]), targets[held]))
    network, error = _train_network(features[rest], targets[rest], features[held], targets[held], seed)
    if error < min(errors):
        return network
    strength = STRENGTHS[int(np.argmin(errors))]
    return Ridge(alpha=strength * len(order)).fit(features, targets)


def _train_network(
    features: np.ndarray, targets: np.ndarray, held_features: np.ndarray, held_targets: np.ndarray, seed: int
) -> tuple[Any, float]:
    """The network after its best epoch, and its error on the rows held out.

    sklearn's own early stopping looks at R^2 of each pixel alone, which pixels that hardly vary decide.
    """
    from sklearn.neural_network import MLPRegressor

    features, targets, held_features = (array.astype(np.float32) for array in (features, targets, held_features))
    network = MLPRegressor([HIDDEN], batch_size=min(BATCH, len(features)), random_state=seed)
    best, least, waited = network, np.inf, 0
    for _ in range(MOST_EPOCHS):
        network.partial_fit(features, targets)
        error = _error(network.predict(held_features), held_targets)
        if error < least:
            best, least, waited = copy.deepcopy(network), error, 0
        else:
            waited += 1
        if waited == PATIENCE:
            break
    return best, least


def _error(predicted: np.ndarray, targets: np.ndarray) -> float:
    # A single pixel comes back without its dimension.
    return float(np.square(predicted.reshape(targets.shape) - targets).mean(dtype=np.float64))


def _checked(
    sent: ArrayLike, raw: ArrayLike, labels: ArrayLike, which: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Checked: sent float64 `[n, k]`, raw float64 `[n, pixels]`, labels `[n]`."""
    vectors, pixels = _finite(sent, f"{which}_sent"), _finite(raw, f"{which}_raw")
    labels = np.asarray(labels)
    size = len(vectors) if vectors.ndim else 0
    if not size or vectors.ndim != 2 or pixels.shape[:1] != (size,) or labels.shape != (size,):
        raise InputError(
            f"expected {which}_sent [n, k], {which}_raw [n, ...] and {which}_labels [n]; got "
            f"{list(vectors.shape)}, {list(pixels.shape)} and {list(labels.shape)}"
        )
    return vectors, pixels.reshape(size, -1), labels


def _check_pair(
    train: tuple[np.ndarray, np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    for name, known, attacked in (("sent", train[0], test[0]), ("raw", train[1], test[1])):
        if known.shape[1] != attacked.shape[1]:
            raise InputError(
                f"test_{name}: expected rows of {known.shape[1]} as in train_{name}, got {attacked.shape[1]}"
            )
    if len(train[0]) < FEWEST_EXAMPLES:
        raise InputError(
            f"train_sent: expected at least {FEWEST_EXAMPLES} examples of the attacker, got {len(train[0])}"
        )
    unknown = np.setdiff1d(test[2], train[2])
    if unknown.size:
        raise InputError(f"test_labels: the attacker has no example of label {unknown[0]}")
