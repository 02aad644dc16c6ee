from __future__ import annotations

import logging

import numpy as np
import pytest
from scipy import stats

from tffcl import errors, transfers
from tffcl.transfers import private_centroids
from tffcl.transfers.clustering import cluster_centres

CLIP = 2.0


def privacy(**changes) -> transfers.CentroidPrivacy:
    return transfers.CentroidPrivacy(**{"clip": CLIP, "noise_multiplier": 1e-9, **changes})


def documents(seed: int, count: int = 60, size: int = 5) -> np.ndarray:
    return (3 * np.random.default_rng(seed).normal(size=[count, size])).astype(np.float32)


def test_no_document_is_longer_than_the_clip():
    rows = documents(0).astype(float)
    found = private_centroids.clipped(rows, CLIP)
    for row, one in zip(rows, found):
        np.testing.assert_allclose(one, row * min(1.0, CLIP / np.sqrt((row**2).sum())), rtol=1e-12)
    assert private_centroids.clipped(np.zeros([1, 3]), CLIP).tolist() == [[0.0, 0.0, 0.0]]


def test_sums_and_counts_of_the_nearest():
    points, centres = documents(1).astype(float), documents(2, count=4).astype(float)
    sums, counts = np.zeros([4, 5]), np.zeros(4)
    for point in points:
        nearest = min(range(4), key=lambda place: np.linalg.norm(point - centres[place]))
        sums[nearest] += point
        counts[nearest] += 1
    found = private_centroids.sums_and_counts(points, centres)
    np.testing.assert_allclose(found[0], sums)
    assert found[1].tolist() == counts.tolist()


def test_with_next_to_no_noise_it_is_k_means_of_clipped_documents():
    rng = np.random.default_rng(3)
    there = rng.normal(size=[30, 3]) * 0.1 + np.array([9.0, 0, 0])
    back = rng.normal(size=[20, 3]) * 0.1 - np.array([1.0, 1, 0])
    found = privacy().centres(np.concatenate([there, back]).astype(np.float32), 2, 2, seed=[4, 0, 0])
    expected = [private_centroids.clipped(part, CLIP).mean(axis=0) for part in (there, back)]
    assert found.dtype == np.float32
    for centre in expected:
        assert np.linalg.norm(found - centre, axis=1).min() < 1e-5
    assert len(privacy().centres(np.concatenate([there, back]), 2, 25, seed=[4, 0, 0])) == 1


@pytest.mark.parametrize("seed", range(3))
def test_one_document_moves_sums_and_counts_by_no_more_than_is_accounted_for(seed):
    """By trial: any document in the place of any other, in units of each one's noise."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=[3, 2])
    base, most = private_centroids.clipped(5 * rng.normal(size=[8, 2]), CLIP), 0.0
    tries = private_centroids.clipped(np.concatenate([5 * rng.normal(size=[300, 2]), -9 * base[:1]]), CLIP)
    before = private_centroids.sums_and_counts(base, centres)
    for other in tries:
        after = private_centroids.sums_and_counts(np.concatenate([[other], base[1:]]), centres)
        moved = ((after[0] - before[0]) / CLIP, after[1] - before[1])
        most = max(most, np.sqrt(sum((part**2).sum() for part in moved)))
    assert 1.9 < most <= 2.0 + 1e-9


def test_noise_of_the_stated_size():
    noisy = privacy(noise_multiplier=3.0)
    sums, counts = noisy.noised(np.full([4000, 2], 7.0), np.full(4000, 9.0), np.random.default_rng(0))
    for noise, expected in ((sums - 7.0, 3.0 * CLIP), (counts - 9.0, 3.0)):
        assert abs(noise.std() / expected - 1) < 5 / np.sqrt(2 * noise.size)
        assert abs(noise.mean()) < 5 * expected / np.sqrt(noise.size)


@pytest.mark.parametrize(("noise", "steps"), [(2.0, 1), (8.0, 3)])
def test_epsilon_is_the_closed_form(noise, steps):
    """Balle, Wang: Improving the Gaussian Mechanism, 2018, theorem 8."""
    told = privacy(noise_multiplier=noise, steps=steps).account()
    ratio = 2 * np.sqrt(steps) / noise

    def delta(epsilon):
        half, far = ratio / 2, epsilon / ratio
        return stats.norm.cdf(half - far) - np.exp(epsilon) * stats.norm.cdf(-half - far)

    assert delta(told["epsilon"]) <= told["delta"] < delta(0.99 * told["epsilon"])
    assert told["neighbouring"] == "one document is replaced"


def test_first_centres_do_not_look_at_documents():
    """With the same noise, one document in one step changes the two clusters that it leaves and joins, and no other."""
    rows = documents(5, count=400)
    other = np.concatenate([-rows[:1], rows[1:]])
    one = privacy(noise_multiplier=0.01, steps=1)
    first, second = (one.centres(each, 6, 1, seed=7) for each in (rows, other))
    assert first.shape == second.shape == (6, 5)
    assert 1 <= (np.abs(first - second).max(axis=1) > 1e-7).sum() <= 2


def test_the_same_is_told_at_every_call_and_something_else_of_another_task():
    noisy, rows = privacy(noise_multiplier=0.5), documents(6, count=300)
    first, again, other = (noisy.centres(rows, 3, 2, seed) for seed in ((1, 0, 0), (1, 0, 0), (1, 0, 1)))
    assert first.tobytes() == again.tobytes() != other.tobytes()
    assert np.linalg.norm(first, axis=1).max() <= CLIP * (1 + 1e-6)


@pytest.mark.parametrize("count", [0, 1])
def test_hardly_any_documents(count):
    found = privacy(noise_multiplier=0.1).centres(np.zeros([count, 3], np.float32), 3, 5, seed=0)
    assert found.shape == (0, 3)


def test_sit_tells_such_centres_and_without_privacy_what_it_always_told():
    rows = documents(8, count=200)
    noisy = privacy(noise_multiplier=0.5)
    told = transfers.SIT(q=4, min_cluster_size=3, privacy=noisy).summarise(rows, [1, 2, 3])
    np.testing.assert_array_equal(told["centroids"], noisy.centres(rows, 4, 3, [1, 2, 3]))
    plain = transfers.SIT(q=4, min_cluster_size=3).summarise(rows, [1, 2, 3])["centroids"]
    np.testing.assert_array_equal(plain, cluster_centres(rows, "kmeans", 4, 3, [1, 2, 3]))


def test_accounts_pass_through_what_wraps_sit():
    noisy = transfers.SIT(privacy=privacy(noise_multiplier=4.0))
    told = noisy.account()
    assert transfers.Zeroed(noisy).account() == transfers.RandomTask(noisy).account() == told
    assert told["noise_multiplier"] == 4.0
    assert transfers.SIT().account() is None
    assert transfers.PreviousTask().account() is None


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: privacy(clip=0.0), "clip: expected a number above 0"),
        (lambda: privacy(noise_multiplier=np.nan), "noise_multiplier: expected"),
        (lambda: privacy(steps=0), "steps: expected"),
        (lambda: privacy(delta=1.0), "delta: expected a number between 0 and 1"),
        (lambda: transfers.SIT(clustering="gmm", privacy=privacy()), "goes with kmeans; found 'gmm'"),
        (lambda: privacy().centres(np.full([2, 2], np.inf), 1, 1, 0), "expected finite vectors"),
    ],
)
def test_wrong_arguments_are_one_clear_error(make, match, caplog):
    with caplog.at_level(logging.ERROR), pytest.raises(errors.InputError, match=match):
        make()
