"""Fewer test documents for each task, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from tffcl import streams
from tffcl.errors import StreamError

LABELS = np.repeat(np.arange(4), 30)
STREAM = streams.non_iid(LABELS, np.repeat(np.arange(4), 25), num_clients=3, num_tasks=2, labels_per_task=2)


def test_only_the_test_documents_become_fewer():
    found = streams.fewer_tests(STREAM, 20)
    for before, after in zip(STREAM.tasks, found.tasks):
        for old, new in zip(before, after):
            assert (new.client, new.task, new.labels) == (old.client, old.task, old.labels)
            assert np.array_equal(new.train, old.train)
            assert np.array_equal(new.validation, old.validation)
            assert (len(old.test), len(new.test), len(set(new.test))) == (50, 20, 20)
            assert set(new.test) <= set(old.test)
    assert found.name == STREAM.name


def test_the_draw_hangs_from_the_seed_and_differs_between_tasks():
    def drawn(**seed):
        return [tuple(task.test) for tasks in streams.fewer_tests(STREAM, 20, **seed).tasks for task in tasks]

    assert drawn() == drawn()
    assert drawn() != drawn(seed=1)
    assert len(set(drawn())) == 6


def test_a_task_that_has_no_more_stays_as_it_is():
    assert streams.fewer_tests(STREAM, 50).tasks == STREAM.tasks
    with pytest.raises(StreamError, match="most must be a whole number, 1 or more; got 0"):
        streams.fewer_tests(STREAM, 0)
