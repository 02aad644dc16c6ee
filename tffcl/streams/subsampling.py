"""Streams of which each task is tested on fewer documents: test sets are not divided, and many tasks repeat them."""

from __future__ import annotations

import dataclasses

import numpy as np

from tffcl.streams.request import check_count
from tffcl.streams.stream import Task, TaskStream


def fewer_tests(stream: TaskStream, most: int, seed: int = 42) -> TaskStream:
    """The same stream with at most so many test documents in each task, drawn for each task anew.

    `non_iid` and its like give every task all test documents of its labels. With 200 clients x 10 tasks of Tag My News
    that is 4 million documents to score at the end; a hundred for each task say as much of the mean over all tasks.

    Args:
      stream: any stream.
      most: test documents of a task, 1 or more.
      seed: of the draw.

    Raises:
      StreamError: `most` is no whole number, 1 or more.
    """
    check_count("most", most, 1)

    def cut(task: Task) -> Task:
        if len(task.test) <= most:
            return task
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(task.client, task.task)))
        return dataclasses.replace(task, test=rng.choice(task.test, most, replace=False))

    return dataclasses.replace(stream, tasks=tuple(tuple(map(cut, tasks)) for tasks in stream.tasks))
