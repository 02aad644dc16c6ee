"""The rehearsal memory against a plain loop that deals rows out in turns."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf

from tffcl.client_works import rehearsal_memory as memory_lib


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
    kept = memory_lib.remember(memory_lib.no_rows(2), rows, capacity)
    assert sorted(kept["priority"].numpy().tolist()) == _kept_by_hand(rows, capacity)
    places = {int(priority): place for place, priority in enumerate(rows["priority"])}
    for place, priority in enumerate(kept["priority"].numpy()):
        for name in rows:  # rows stay whole
            np.testing.assert_array_equal(kept[name][place], rows[name][places[int(priority)]])


def test_nothing_and_nothing_is_nothing():
    kept = memory_lib.remember(memory_lib.no_rows(2), memory_lib.no_rows(2), 10)
    assert _size(kept) == 0
    assert kept["vectors"].shape == (0, 2)


@pytest.mark.parametrize("seed", range(2))
def test_the_order_of_arrival_decides_nothing(seed):
    rng = np.random.default_rng(seed)
    rows = _rows(rng, 200)

    def in_parts(order, size):
        memory = memory_lib.no_rows(2)
        for start in range(0, len(order), size):
            part = order[start : start + size]
            memory = memory_lib.remember(memory, {name: one[part] for name, one in rows.items()}, 50)
            assert _size(memory) == min(50, start + len(part))
        return sorted(memory["priority"].numpy().tolist())

    once = in_parts(np.arange(200), 200)
    assert in_parts(np.arange(200), 13) == in_parts(rng.permutation(200), 37) == once


def test_shares_are_fair_and_the_size_is_constant():
    rng = np.random.default_rng(0)
    memory = memory_lib.no_rows(2)
    for task in range(5):
        for _ in range(6):  # rounds
            rows = _rows(rng, 100)
            rows["task"][:] = task
            memory = memory_lib.remember(memory, rows, 120)
        counts = collections.Counter(zip(memory["task"].numpy(), memory["label"].numpy()))
        assert _size(memory) == 120
        assert len(counts) == 4 * (task + 1)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_a_label_with_few_rows_leaves_its_share_to_the_others():
    rows = _rows(np.random.default_rng(1), 100, tasks=1, labels=2)
    rows["label"][:] = 0
    rows["label"][:3] = 1
    counts = collections.Counter(memory_lib.remember(memory_lib.no_rows(2), rows, 20)["label"].numpy())
    assert counts == {0: 17, 1: 3}


def test_a_client_that_left_keeps_its_share():
    """Two clients sent as much of a task as each other; what later tasks push out is taken from both alike."""
    rng = np.random.default_rng(2)
    early, late = (_rows(rng, 400, tasks=1) for _ in range(2))
    early["vectors"][:] = 1.0
    late["vectors"][:] = 0.0
    memory = memory_lib.remember(memory_lib.no_rows(2), early, 400)  # client 1 came, and left
    memory = memory_lib.remember(memory, late, 400)
    other = _rows(rng, 400, tasks=1)
    other["task"][:], other["vectors"][:] = 1, 0.0
    memory = memory_lib.remember(memory, other, 400)
    of_first_task = memory["vectors"].numpy()[memory["task"].numpy() == 0, 0]
    assert len(of_first_task) == 200
    assert abs(of_first_task.mean() - 0.5) < 0.12  # three standard deviations of a fair draw


def test_priorities_hang_from_their_key():
    one = memory_lib.draw_priorities(tf.constant(5), tf.constant([1, 2]))
    again = memory_lib.draw_priorities(tf.constant(5), tf.constant([1, 2]))
    other = memory_lib.draw_priorities(tf.constant(5), tf.constant([1, 3]))
    np.testing.assert_array_equal(one, again)
    assert len({*one.numpy(), *other.numpy()}) == 10
