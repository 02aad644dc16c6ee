from __future__ import annotations

import itertools

import numpy as np
import pytest

from tffcl import errors
from tffcl.transfers import clustering

EVERY = pytest.mark.parametrize("name", sorted(clustering.CLUSTERINGS))


def blobs(seed: int, centres, each: int, scale: float = 0.05) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = np.concatenate([c + scale * rng.normal(size=[each, len(c)]) for c in np.array(centres, float)])
    return rows[rng.permutation(len(rows))].astype(np.float32)


@EVERY
def test_finds_clusters_that_are_plain_to_see(name):
    centres = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    found = clustering.cluster_centres(blobs(0, centres, 20), name, 3, 2, seed=1)
    assert found.shape == (3, 2)
    assert found.dtype == np.float32
    for centre in centres:
        assert np.linalg.norm(found - centre, axis=1).min() < 0.05


@EVERY
def test_fewer_documents_than_clusters_means_fewer_clusters(name):
    vectors = np.random.default_rng(2).normal(size=[25, 4]).astype(np.float32)
    for min_size in (2, 5):
        found = clustering.cluster_centres(vectors, name, 200, min_size, seed=0)
        assert 1 <= len(found) <= 25 // min_size
        assert np.isfinite(found).all()


@pytest.mark.parametrize("name", ["kmeans", "gmm"])
@pytest.mark.parametrize("seed", range(5))
def test_a_centre_is_never_a_document(name, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=[30, 4]).astype(np.float32)
    vectors = np.concatenate([vectors, vectors[:12], vectors[:6]])  # documents that occur twice and three times
    found = clustering.cluster_centres(vectors, name, 200, 2, seed)
    assert len(found)
    assert np.abs(found[:, None] - vectors).max(axis=2).min() > 1e-4


@EVERY
def test_small_clusters_are_not_sent(name):
    outlier = np.array([[50.0, 50.0]], np.float32)
    vectors = np.concatenate([blobs(3, [[1.0, 0.0], [0.0, 1.0]], 10), outlier])
    found = clustering.cluster_centres(vectors, name, 3, 2, seed=0)
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
    assert clustering.cluster_centres(vectors.astype(np.float32), name, 5, 2, seed=0).shape == (0, 3)


@EVERY
def test_zero_vectors_are_left_out(name):
    vectors = blobs(4, [[3.0, 3.0]], 12)
    padded = np.concatenate([np.zeros([40, 2], np.float32), vectors])
    expected = clustering.cluster_centres(vectors, name, 1, 2, seed=0)
    np.testing.assert_allclose(clustering.cluster_centres(padded, name, 1, 2, seed=0), expected, rtol=1e-6)


@EVERY
def test_the_same_seed_gives_the_same_bits(name):
    vectors = np.random.default_rng(5).normal(size=[300, 6]).astype(np.float32)
    first, second = (clustering.cluster_centres(vectors, name, 20, 2, seed=[7, 1]) for _ in range(2))
    assert first.tobytes() == second.tobytes()


def test_no_warning_about_duplicates(recwarn):
    vectors = np.repeat(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0]], np.float32), 50, axis=0)
    for name in clustering.CLUSTERINGS:
        clustering.cluster_centres(vectors, name, 200, 2, seed=0)
    assert not recwarn.list


@pytest.mark.parametrize("seed", range(5))
def test_medoids_are_the_members_nearest_to_the_others(seed):
    points = np.random.default_rng(seed).normal(size=[40, 3])
    medoids, labels = clustering.k_medoids(points, 4, seed)
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
        medoids, _ = clustering.k_medoids(points, 3, seed)
        found = np.linalg.norm(points[:, None] - medoids, axis=2).min(axis=1).sum()
        assert min(sums) - 1e-9 <= found <= 1.35 * min(sums)


def test_values_that_are_not_finite_are_one_clear_error():
    with pytest.raises(errors.InputError, match="expected finite vectors"):
        clustering.cluster_centres(np.full([4, 2], np.nan, np.float32), "kmeans", 2, 2, seed=0)
