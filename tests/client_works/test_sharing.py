"""What a client sends for rehearsal and what a memory keeps; clipped and noised vectors."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import rehearsing
import tensorflow as tf
from scipy import stats as scipy_stats

from tffcl import errors
from tffcl.client_works import EmbeddingPrivacy, Sharing
from tffcl.client_works import sharing as sharing_lib

KEY, OTHER = tf.constant([3, 4]), tf.constant([5, 6])


def _statistics(count, seed=0):
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(count, rehearsing.SIZE)).astype(np.float32)
    log_scale = rng.uniform(-2, 0, size=mean.shape).astype(np.float32)
    label = rng.integers(0, rehearsing.CLASSES, count).astype(np.int32)
    return mean, log_scale, label


def _sent(sharing, values, label, offered=0, key=KEY, task=2, noise_key=OTHER):
    numbers = tf.constant(task), tf.constant(offered)
    rows = sharing.sent(tf.constant(values), tf.constant(label), *numbers, key, noise_key)
    return {name: value.numpy() for name, value in rows.items()}


def _sharing(kind="sampled", send=4, **options):
    return Sharing(rehearsing.encoder(kind != "embeddings").encoder, kind, send, **options)


@pytest.mark.parametrize("kind", ["sampled", "stats", "embeddings"])
def test_over_the_rounds_each_example_is_sent_once_and_always_the_same(kind):
    mean, log_scale, label = _statistics(23)
    values = mean if kind == "embeddings" else np.concatenate([mean, log_scale], 1)
    everything = _sent(_sharing(kind, send=1000), values, label)
    parts = [_sent(_sharing(kind, send=4), values, label, offered) for offered in range(0, 28, 4)]
    assert [len(part["label"]) for part in parts] == [4, 4, 4, 4, 4, 3, 0]
    for name in everything:
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), everything[name])
    assert len(set(everything["priority"])) == 23
    assert set(everything["task"]) == {2}
    assert sorted(everything["label"]) == sorted(label)


def test_a_sample_is_of_its_own_posterior():
    mean, log_scale, label = _statistics(4000)
    rows = _sent(_sharing(send=4000), np.concatenate([mean, log_scale], 1), label)
    found = rows["vectors"]
    # Which example a row is of is not told; with a narrow posterior it is the nearest one.
    narrow = np.full_like(log_scale, -9)
    exact = _sent(_sharing(send=4000), np.concatenate([mean, narrow], 1), label)["vectors"]
    place = np.array([np.argmin(((mean - row) ** 2).sum(1)) for row in exact])
    assert len(set(place)) == 4000
    np.testing.assert_array_equal(rows["label"], label[place])
    noise = (found - mean[place]) / np.exp(log_scale[place])
    assert scipy_stats.kstest(noise.ravel(), "norm").pvalue > 0.01
    assert np.abs(np.corrcoef(noise.T) - np.eye(rehearsing.SIZE)).max() < 0.06


def test_statistics_and_embeddings_go_as_they_are():
    mean, log_scale, label = _statistics(9)
    values = np.concatenate([mean, log_scale], 1)
    rows = _sent(_sharing("stats", 100), values, label)
    assert {tuple(row) for row in rows["vectors"]} == {tuple(row) for row in values}
    rows = _sent(_sharing("embeddings", 100), mean, label)
    assert {tuple(row) for row in rows["vectors"]} == {tuple(row) for row in mean}


def test_labels_take_turns():
    mean, log_scale, label = _statistics(200)
    rows = _sent(_sharing(send=200), np.concatenate([mean, log_scale], 1), label)
    for sent in range(1, 100):
        counts = np.bincount(rows["label"][:sent], minlength=rehearsing.CLASSES)
        assert counts.max() - counts.min() <= 1


def test_clients_and_tasks_draw_apart():
    mean, log_scale, label = _statistics(9)
    values = np.concatenate([mean, log_scale], 1)
    one, other = (_sent(_sharing(send=9), values, label, key=tf.constant(key))["vectors"] for key in ([3, 4], [3, 5]))
    assert not np.isclose(np.sort(one, 0), np.sort(other, 0)).any()


def test_privacy_stands_on_every_vector_and_is_drawn_once():
    mean, log_scale, label = _statistics(12)
    values = np.concatenate([100 * mean, log_scale], 1)
    private = EmbeddingPrivacy(clip=0.5, noise_multiplier=1e-4)
    rows = _sent(_sharing(send=12, privacy=private), values, label)
    np.testing.assert_allclose(np.linalg.norm(rows["vectors"], axis=1), 0.5, rtol=1e-2)
    noisy = EmbeddingPrivacy(clip=0.5, noise_multiplier=3.0)
    first = _sent(_sharing(send=12, privacy=noisy), values, label)
    later = _sent(_sharing(send=4, privacy=noisy), values, label, offered=4)
    np.testing.assert_array_equal(first["vectors"][4:8], later["vectors"])
    # The noise hangs from its own key alone: whoever knows the other one knows nothing of it.
    other = _sent(_sharing(send=12, privacy=noisy), values, label, noise_key=tf.constant([5, 7]))
    assert not np.isclose(first["vectors"], other["vectors"]).any()
    np.testing.assert_array_equal(first["label"], other["label"])


def test_what_does_not_fit_is_said():
    variational, plain = rehearsing.encoder().encoder, rehearsing.encoder(False).encoder
    for bad, match in (
        (lambda: Sharing(variational, "raw"), "sharing: expected one of none, sampled, stats, embeddings, found 'raw'"),
        (lambda: Sharing(variational, "embeddings"), "'embeddings' does not go with a variational encoder"),
        (lambda: Sharing(plain, "sampled"), "'sampled' does not go with a deterministic encoder"),
        (lambda: Sharing(plain, "stats"), "'stats' does not go with a deterministic encoder"),
        (lambda: Sharing(variational, "sampled", 0), "send_per_round: expected at least 1, found 0"),
        (lambda: Sharing(variational, "none", privacy=EmbeddingPrivacy(1.0, 1.0)), "nothing is sent"),
    ):
        with pytest.raises(errors.InputError, match=match):
            bad()
    assert Sharing(variational, "none").width == 0
    assert Sharing(variational, "stats").row_bytes == 4 * (2 * rehearsing.SIZE + 3)


# -- memory, against a plain loop that deals rows out in turns ---------------------------------------------------------


def _rows(rng, count, tasks=3, labels=4, width=2):
    return {
        "vectors": rng.normal(size=(count, width)).astype(np.float32),
        "label": rng.integers(0, labels, count).astype(np.int32),
        "task": rng.integers(0, tasks, count).astype(np.int32),
        "priority": rng.integers(-(2**31), 2**31, count).astype(np.int32),
    }


def _kept_by_hand(rows, capacity):
    """Priorities of the rows that stay: cells take turns, each giving its lowest priorities."""
    cells = collections.defaultdict(list)
    for task, label, priority in zip(rows["task"], rows["label"], rows["priority"]):
        cells[task, label].append(int(priority))
    claims = [(turn, p) for cell in cells.values() for turn, p in enumerate(sorted(cell))]
    return sorted(p for _, p in sorted(claims)[:capacity])


def _size(memory):
    return len(memory["label"])


@pytest.mark.parametrize("capacity", [0, 1, 7, 30, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_what_stays_is_what_a_plain_loop_keeps(capacity, seed):
    rows = _rows(np.random.default_rng(seed), 60)
    kept = sharing_lib.remember(sharing_lib.no_rows(2), rows, capacity)
    assert sorted(kept["priority"].numpy().tolist()) == _kept_by_hand(rows, capacity)
    places = {int(priority): place for place, priority in enumerate(rows["priority"])}
    for place, priority in enumerate(kept["priority"].numpy()):
        for name in rows:  # rows stay whole
            np.testing.assert_array_equal(kept[name][place], rows[name][places[int(priority)]])


def test_nothing_and_nothing_is_nothing():
    kept = sharing_lib.remember(sharing_lib.no_rows(2), sharing_lib.no_rows(2), 10)
    assert _size(kept) == 0
    assert kept["vectors"].shape == (0, 2)


@pytest.mark.parametrize("seed", range(2))
def test_the_order_of_arrival_decides_nothing(seed):
    rng = np.random.default_rng(seed)
    rows = _rows(rng, 200)

    def in_parts(order, size):
        memory = sharing_lib.no_rows(2)
        for start in range(0, len(order), size):
            part = order[start : start + size]
            memory = sharing_lib.remember(memory, {name: one[part] for name, one in rows.items()}, 50)
            assert _size(memory) == min(50, start + len(part))
        return sorted(memory["priority"].numpy().tolist())

    once = in_parts(np.arange(200), 200)
    assert in_parts(np.arange(200), 13) == in_parts(rng.permutation(200), 37) == once


def test_shares_are_fair_and_the_size_is_constant():
    rng = np.random.default_rng(0)
    memory = sharing_lib.no_rows(2)
    for task in range(5):
        for _ in range(6):  # rounds
            rows = _rows(rng, 100)
            rows["task"][:] = task
            memory = sharing_lib.remember(memory, rows, 120)
        counts = collections.Counter(zip(memory["task"].numpy(), memory["label"].numpy()))
        assert _size(memory) == 120
        assert len(counts) == 4 * (task + 1)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_a_label_with_few_rows_leaves_its_share_to_the_others():
    rows = _rows(np.random.default_rng(1), 100, tasks=1, labels=2)
    rows["label"][:] = 0
    rows["label"][:3] = 1
    counts = collections.Counter(sharing_lib.remember(sharing_lib.no_rows(2), rows, 20)["label"].numpy())
    assert counts == {0: 17, 1: 3}


def test_a_client_that_left_keeps_its_share():
    """Two clients sent as much of a task as each other; what later tasks push out is taken from both alike."""
    rng = np.random.default_rng(2)
    early, late = (_rows(rng, 400, tasks=1) for _ in range(2))
    early["vectors"][:] = 1.0
    late["vectors"][:] = 0.0
    memory = sharing_lib.remember(sharing_lib.no_rows(2), early, 400)  # client 1 came, and left
    memory = sharing_lib.remember(memory, late, 400)
    other = _rows(rng, 400, tasks=1)
    other["task"][:], other["vectors"][:] = 1, 0.0
    memory = sharing_lib.remember(memory, other, 400)
    of_first_task = memory["vectors"].numpy()[memory["task"].numpy() == 0, 0]
    assert len(of_first_task) == 200
    assert abs(of_first_task.mean() - 0.5) < 0.12  # three standard deviations of a fair draw


def test_priorities_depend_on_their_key_alone():
    def priorities(key):
        rows = sharing_lib.task_rows(tf.zeros([5, 2]), tf.zeros([5], tf.int32), tf.constant(0), tf.constant(key))
        return rows["priority"].numpy()

    np.testing.assert_array_equal(priorities([1, 2]), priorities([1, 2]))
    assert len({*priorities([1, 2]), *priorities([1, 3])}) == 10


# -- privacy -----------------------------------------------------------------------------------------------------------


def clipped(vectors, clip):
    """What is left without noise: the multiplier is below what float32 can add to numbers near 1."""
    return EmbeddingPrivacy(clip, 1e-12).apply(tf.constant(vectors, tf.float32), KEY).numpy()


def test_clip_by_hand():
    # Norms 5, 0.5, 0, and one whose squares overflow.
    vectors = [[3.0, 4.0], [0.3, -0.4], [0.0, 0.0], [-3e38, 0.0], [3e38, 3e38]]
    half = np.sqrt(0.5)
    expected = [[0.6, 0.8], [0.3, -0.4], [0, 0], [-1, 0], [half, half]]
    np.testing.assert_allclose(clipped(vectors, 1.0), expected, atol=1e-6)


def test_no_norm_exceeds_the_clip_and_shorter_vectors_stay():
    vectors = np.random.default_rng(0).normal(size=(500, 16)).astype(np.float32)
    norms, kept = np.linalg.norm(vectors, axis=1), clipped(vectors, 4.0)
    assert (norms > 4).any()
    assert (norms < 4).any()
    np.testing.assert_allclose(np.linalg.norm(kept, axis=1), np.minimum(norms, 4), rtol=1e-6)
    np.testing.assert_allclose(kept[norms < 4], vectors[norms < 4], rtol=1e-6)


def test_a_vector_that_is_not_finite_leaves_with_noise_alone():
    vectors = [[np.nan, 9.0], [np.inf, 9.0], [0.0, 0.0]]
    np.testing.assert_allclose(clipped(vectors, 1.0), 0, atol=1e-6)
    sent = EmbeddingPrivacy(1.0, 2.0).apply(tf.constant(vectors), KEY)
    zeros = EmbeddingPrivacy(1.0, 2.0).apply(tf.zeros([3, 2]), KEY)
    np.testing.assert_array_equal(sent, zeros)


def test_noise_is_gaussian_with_the_spread_of_multiplier_times_clip():
    privacy = EmbeddingPrivacy(clip=0.5, noise_multiplier=3.0)
    vectors = tf.constant([[0.3, 0.4]] * 50_000)
    noise = privacy.apply(vectors, KEY).numpy() - vectors.numpy()
    # Standard error of a standard deviation over 1e5 numbers: 0.2 %.
    assert noise.std() == pytest.approx(1.5, rel=0.01)
    assert abs(noise.mean()) < 0.02
    assert scipy_stats.kstest(noise.ravel() / 1.5, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.02
    assert len(np.unique(noise, axis=0)) > 49_000


def test_the_key_decides_in_a_graph_as_well():
    privacy, vectors = EmbeddingPrivacy(1.0, 1.0), tf.ones([4, 3])
    sent = tf.function(privacy.apply)(vectors, KEY)
    np.testing.assert_allclose(sent, privacy.apply(vectors, KEY), rtol=1e-6)
    assert not np.allclose(sent, privacy.apply(vectors, tf.constant([3, 6])))
    assert privacy.apply(vectors[:0], KEY).shape == [0, 3]


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_a_seed_that_is_none(seed):
    with pytest.raises(errors.InputError, match="seed: expected 0 to"):
        EmbeddingPrivacy(1.0, 1.0, seed)


@pytest.mark.parametrize("name", ["clip", "noise_multiplier"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_settings(name, value):
    with pytest.raises(errors.InputError, match=f"{name}: expected a number above 0, found"):
        EmbeddingPrivacy(**{"clip": 1.0, "noise_multiplier": 1.0, name: value})
