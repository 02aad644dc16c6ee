"""Reading pixels off what was sent: noise gives nothing, a linear map everything, and by hand in between."""

import numpy as np
import pytest

from tffcl import metrics
from tffcl.errors import InputError


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
        ({"train_raw": ROWS + np.nan}, "train_sent or train_raw: found NaN"),
        ({"test_sent": [["a", "b"]] * 20}, "test_sent and test_raw: expected numbers"),
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
