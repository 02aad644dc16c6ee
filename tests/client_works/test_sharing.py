"""What a client sends for rehearsal: everything once, nothing twice, and only what is named."""

from __future__ import annotations

import numpy as np
import pytest
import rehearsing
import tensorflow as tf
from scipy import stats as scipy_stats

from tffcl import errors
from tffcl.client_works import EmbeddingPrivacy, Sharing

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
        (lambda: Sharing(variational, "raw"), "sharing must be one of none, sampled, stats, embeddings; got 'raw'"),
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
