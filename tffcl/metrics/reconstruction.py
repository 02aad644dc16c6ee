"""How much of an example's pixels an attacker reads off what was sent: a regression attack.

The attacker has examples of its own of which it knows what would be sent, because it knows the encoder, and learns to
predict pixels from that and from the label, which is sent in any case.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tffcl.errors import InputError

STRENGTHS = (1e-6, 1e-4, 1e-2, 1.0, 100.0)  # of the ridge, per example
HIDDEN = 256
MOST_EPOCHS, PATIENCE, BATCH = 40, 3, 100
HELD_OUT = 0.2
FEWEST_EXAMPLES = 10
ROUNDING = 1e-9


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
    classes, place = np.unique(train[2], return_inverse=True)
    test_place = np.searchsorted(classes, test[2])
    means = np.stack([train[1][place == label].mean(axis=0) for label in range(len(classes))])
    left, test_left = train[1] - means[place], test[1] - means[test_place]
    baseline = float(np.square(test_left).mean())
    if baseline <= ROUNDING**2 * float(np.square(test[1]).mean()):
        raise InputError("test_raw: every example equals the mean of its class; nothing is left to find out")
    # One scale for all pixels, so that the network learns equally well of bytes and of fractions.
    scale = float(np.sqrt(np.square(left).mean())) or 1.0
    centre, spread = train[0].mean(axis=0), train[0].std(axis=0)
    spread[spread <= ROUNDING * np.abs(centre)] = 1  # a constant
    known, attacked = (
        np.concatenate([(sent - centre) / spread, np.eye(len(classes))[label]], axis=1)
        for sent, label in ((train[0], place), (test[0], test_place))
    )
    attack = _best_attack(known, left / scale, seed)
    return 1 - _error(scale * attack.predict(attacked), test_left) / baseline


def _best_attack(features: np.ndarray, targets: np.ndarray, seed: int) -> Any:
    """What predicts `targets` `[n, p]` best, in the rows held out, from `features` `[n, k]`."""
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
    """The network as it was after its best epoch, and its error on what is held out.

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
    try:
        vectors, pixels = np.asarray(sent, np.float64), np.asarray(raw, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{which}_sent and {which}_raw: expected numbers; {error}") from error
    labels = np.asarray(labels)
    size = len(vectors) if vectors.ndim else 0
    if not size or vectors.ndim != 2 or pixels.shape[:1] != (size,) or labels.shape != (size,):
        raise InputError(
            f"expected {which}_sent [n, k], {which}_raw [n, ...] and {which}_labels [n]; got "
            f"{list(vectors.shape)}, {list(pixels.shape)} and {list(labels.shape)}"
        )
    if not (np.isfinite(vectors).all() and np.isfinite(pixels).all()):
        raise InputError(f"{which}_sent or {which}_raw: found NaN or an infinite value")
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
