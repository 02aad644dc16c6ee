"""Documents as vectors, clusters against brute force, and centroids with noise against their distribution."""

from __future__ import annotations

import itertools
import logging

import numpy as np
import pytest
from scipy import stats

from tffcl import errors, transfers
from tffcl.transfers import document_vectors, sit

CLIP = 2.0
EVERY = pytest.mark.parametrize("name", sorted(sit.CLUSTERINGS))


# -- documents ----------------------------------------------------------------------------------------------


def mean_vectors(documents, vectors):
    """`document_vectors` of documents that stand one after the other."""
    length = np.array([len(document) for document in documents], np.int32)
    tokens = np.array([token for document in documents for token in document], np.int32)
    return document_vectors(tokens, np.cumsum(length) - length, length, vectors)


def test_equals_the_mean_over_the_words_of_each_document():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=[30, 5]).astype(np.float32)
    vectors[:2] = 0.0
    documents = [rng.integers(1, 30, rng.integers(0, 10)) for _ in range(12)]
    expected = [vectors[words].sum(axis=0) / max(1, len(words)) for words in documents]
    found = mean_vectors(documents, vectors)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_company_and_the_place_of_the_words_change_nothing():
    vectors = np.random.default_rng(1).normal(size=[6, 3]).astype(np.float32)
    alone = mean_vectors([[2, 3, 5]], vectors)
    among = mean_vectors([[5, 4, 3, 2, 2], [2, 3, 5]], vectors)
    tokens, start, length = np.array([4, 2, 3, 5, 4]), np.array([1, 0]), np.array([3, 2])
    inside = document_vectors(tokens, start, length, vectors)
    assert alone[0].tobytes() == among[1].tobytes() == inside[0].tobytes()


def test_empty_documents_and_no_documents():
    vectors = np.ones([3, 2], np.float32)
    assert mean_vectors([[], []], vectors).tolist() == [[0.0, 0.0]] * 2
    assert mean_vectors([], vectors).shape == (0, 2)


@pytest.mark.parametrize("token", [3, -1])
def test_an_id_without_a_vector_is_one_clear_error(token):
    with pytest.raises(errors.InputError, match=r"word ids should lie in \[0, 3\)"):
        mean_vectors([[token]], np.ones([3, 2], np.float32))
    with pytest.raises(errors.InputError, match=r"expected tokens \[W\]"):
        document_vectors(*[np.zeros([1, 2], np.int32)] * 3, np.ones([3, 2], np.float32))


# -- clusters -----------------------------------------------------------------------------------------------


def blobs(seed: int, centres, each: int, scale: float = 0.05) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = np.concatenate([c + scale * rng.normal(size=[each, len(c)]) for c in np.array(centres, float)])
    return rows[rng.permutation(len(rows))].astype(np.float32)


@EVERY
def test_finds_clusters_that_are_plain_to_see(name):
    centres = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    found = sit.cluster_centres(blobs(0, centres, 20), name, 3, 2, seed=1)
    assert found.shape == (3, 2)
    assert found.dtype == np.float32
    for centre in centres:
        assert np.linalg.norm(found - centre, axis=1).min() < 0.05


@EVERY
def test_fewer_documents_than_clusters_means_fewer_clusters(name):
    vectors = np.random.default_rng(2).normal(size=[25, 4]).astype(np.float32)
    for min_size in (2, 5):
        found = sit.cluster_centres(vectors, name, 200, min_size, seed=0)
        assert 1 <= len(found) <= 25 // min_size
        assert np.isfinite(found).all()


@pytest.mark.parametrize("name", ["kmeans", "gmm"])
@pytest.mark.parametrize("seed", range(5))
def test_a_centre_is_never_a_document(name, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=[30, 4]).astype(np.float32)
    vectors = np.concatenate([vectors, vectors[:12], vectors[:6]])  # documents that occur twice and three times
    found = sit.cluster_centres(vectors, name, 200, 2, seed)
    assert len(found)
    assert np.abs(found[:, None] - vectors).max(axis=2).min() > 1e-4


@EVERY
def test_small_clusters_are_not_sent(name):
    outlier = np.array([[50.0, 50.0]], np.float32)
    vectors = np.concatenate([blobs(3, [[1.0, 0.0], [0.0, 1.0]], 10), outlier])
    found = sit.cluster_centres(vectors, name, 3, 2, seed=0)
    assert len(found) == 2
    assert np.abs(found).max() < 2.0


@EVERY
@pytest.mark.parametrize(
    "vectors",
    [
        np.zeros([0, 3]),
        np.zeros([9, 3]),
        np.ones([1, 3]),
        np.ones([9, 3]),  # one document nine times
    ],
)
def test_nothing_to_send(name, vectors):
    assert sit.cluster_centres(vectors.astype(np.float32), name, 5, 2, seed=0).shape == (0, 3)


@EVERY
def test_zero_vectors_are_left_out(name):
    vectors = blobs(4, [[3.0, 3.0]], 12)
    padded = np.concatenate([np.zeros([40, 2], np.float32), vectors])
    expected = sit.cluster_centres(vectors, name, 1, 2, seed=0)
    np.testing.assert_allclose(sit.cluster_centres(padded, name, 1, 2, seed=0), expected, rtol=1e-6)


@EVERY
def test_the_same_seed_gives_the_same_bits(name):
    vectors = np.random.default_rng(5).normal(size=[300, 6]).astype(np.float32)
    first, second = (sit.cluster_centres(vectors, name, 20, 2, seed=[7, 1]) for _ in range(2))
    assert first.tobytes() == second.tobytes()


def test_no_warning_about_duplicates(recwarn):
    vectors = np.repeat(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0]], np.float32), 50, axis=0)
    for name in sit.CLUSTERINGS:
        sit.cluster_centres(vectors, name, 200, 2, seed=0)
    assert not recwarn.list


@pytest.mark.parametrize("seed", range(5))
def test_medoids_are_the_members_nearest_to_the_others(seed):
    points = np.random.default_rng(seed).normal(size=[40, 3])
    medoids, labels = sit.k_medoids(points, 4, seed)
    for label, medoid in enumerate(medoids):
        own = points[labels == label]
        sums = [sum(np.linalg.norm(a - b) for b in own) for a in own]
        np.testing.assert_array_equal(medoid, own[int(np.argmin(sums))])
    nearest = [int(np.argmin([np.linalg.norm(p - m) for m in medoids])) for p in points]
    np.testing.assert_array_equal(labels, nearest)


def test_medoids_are_close_to_the_best_of_all_choices():
    for seed in range(10):
        points = np.random.default_rng(seed).normal(size=[12, 2])
        distances = np.linalg.norm(points[:, None] - points, axis=2)
        sums = [distances[:, list(c)].min(axis=1).sum() for c in itertools.combinations(range(12), 3)]
        medoids, _ = sit.k_medoids(points, 3, seed)
        found = np.linalg.norm(points[:, None] - medoids, axis=2).min(axis=1).sum()
        assert min(sums) - 1e-9 <= found <= 1.35 * min(sums)


def test_values_that_are_not_finite_are_one_clear_error():
    with pytest.raises(errors.InputError, match="expected finite vectors"):
        sit.cluster_centres(np.full([4, 2], np.nan, np.float32), "kmeans", 2, 2, seed=0)


# -- with differential privacy ------------------------------------------------------------------------------


def privacy(**changes) -> transfers.CentroidPrivacy:
    return transfers.CentroidPrivacy(**{"clip": CLIP, "noise_multiplier": 1e-9, **changes})


def documents(seed: int, count: int = 60, size: int = 5) -> np.ndarray:
    return (3 * np.random.default_rng(seed).normal(size=[count, size])).astype(np.float32)


def test_no_document_is_longer_than_the_clip():
    rows = documents(0).astype(float)
    found = sit.clipped(rows, CLIP)
    for row, one in zip(rows, found):
        np.testing.assert_allclose(one, row * min(1.0, CLIP / np.sqrt((row**2).sum())), rtol=1e-12)
    assert sit.clipped(np.zeros([1, 3]), CLIP).tolist() == [[0.0, 0.0, 0.0]]


def test_sums_and_counts_of_the_nearest():
    points, centres = documents(1).astype(float), documents(2, count=4).astype(float)
    sums, counts = np.zeros([4, 5]), np.zeros(4)
    for point in points:
        nearest = min(range(4), key=lambda place: np.linalg.norm(point - centres[place]))
        sums[nearest] += point
        counts[nearest] += 1
    found = sit.sums_and_counts(points, centres)
    np.testing.assert_allclose(found[0], sums)
    assert found[1].tolist() == counts.tolist()


def test_with_next_to_no_noise_it_is_k_means_of_clipped_documents():
    rng = np.random.default_rng(3)
    there = rng.normal(size=[30, 3]) * 0.1 + np.array([9.0, 0, 0])
    back = rng.normal(size=[20, 3]) * 0.1 - np.array([1.0, 1, 0])
    found = privacy().centres(np.concatenate([there, back]).astype(np.float32), 2, 2, seed=[4, 0, 0])
    expected = [sit.clipped(part, CLIP).mean(axis=0) for part in (there, back)]
    assert found.dtype == np.float32
    for centre in expected:
        assert np.linalg.norm(found - centre, axis=1).min() < 1e-5
    assert len(privacy().centres(np.concatenate([there, back]), 2, 25, seed=[4, 0, 0])) == 1


@pytest.mark.parametrize("seed", range(3))
def test_one_document_moves_sums_and_counts_by_no_more_than_is_accounted_for(seed):
    """By trial: any document in the place of any other, in units of each one's noise."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=[3, 2])
    base, most = sit.clipped(5 * rng.normal(size=[8, 2]), CLIP), 0.0
    tries = sit.clipped(np.concatenate([5 * rng.normal(size=[300, 2]), -9 * base[:1]]), CLIP)
    before = sit.sums_and_counts(base, centres)
    for other in tries:
        after = sit.sums_and_counts(np.concatenate([[other], base[1:]]), centres)
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
    np.testing.assert_array_equal(plain, sit.cluster_centres(rows, "kmeans", 4, 3, [1, 2, 3]))


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
        (lambda: transfers.SIT(clustering="gmm", privacy=privacy()), "goes with kmeans, found 'gmm'"),
        (lambda: privacy().centres(np.full([2, 2], np.inf), 1, 1, 0), "expected finite vectors"),
    ],
)
def test_wrong_arguments_are_one_clear_error(make, match, caplog):
    with caplog.at_level(logging.ERROR), pytest.raises(errors.InputError, match=match):
        make()
