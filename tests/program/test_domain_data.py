"""Images of domains as the tensors of clients and tasks."""

from __future__ import annotations

import numpy as np
import pytest

from tffcl import datasets, streams
from tffcl.datasets import ImageDataset
from tffcl.errors import InputError
from tffcl.program import DomainClientData, OfflineDomainData
from tffcl.streams import Enrollment, Task, TaskStream


def images():
    """Row n is all n + 1 but for its first pixel, and shows class n mod 4; test rows begin at 101."""

    def part(first, count):
        pixels = np.repeat(np.arange(first, first + count, dtype=np.uint8), 9).reshape(-1, 3, 3)
        pixels[:, 0, 0] = 0
        return pixels, np.arange(count) % 4

    return ImageDataset("toy", *part(1, 40), *part(101, 12), tuple("abcd"))


TOY = images()
TURNED = datasets.rotations(TOY, (0, 90))


def divided(domains=TURNED, **options):
    return streams.domain_sequence(
        domains.train_labels,
        domains.test_labels,
        **{"num_clients": 2, "examples_per_task": 8, "shared_base": domains.shared_base, **options},
    )


def test_tensors_by_hand():
    rows = {"train": [4, 9], "validation": [3], "test": [2]}
    stream = TaskStream("hand", ((Task(0, 0, (0, 1), **rows), Task(0, 1, (0, 1), **rows)),))
    data = DomainClientData(datasets.class_groups([(TOY, (0, 1, 2, 3)), (TOY, (3, 2, 1, 0))]), stream)
    assert (data.num_clients, data.num_tasks) == (1, 2)
    first, second = data.task(0, 0), data.task(0, 1)
    assert first.context == first.test_context == {}
    assert list(first.train) == ["x", "label"]
    assert first.train["x"].tolist() == [[[0, 5, 5], [5, 5, 5], [5, 5, 5]], [[0, 10, 10], [10, 10, 10], [10, 10, 10]]]
    assert (first.train["label"].tolist(), second.train["label"].tolist()) == ([0, 1], [3, 2])
    assert (first.validation["label"].tolist(), second.test["label"].tolist()) == ([3], [1])
    assert first.test["x"][0, 0].tolist() == [0, 103, 103]
    assert (first.train["x"].dtype, first.train["label"].dtype, first.num_classes) == (np.uint8, np.int32, 4)


def test_each_task_shows_its_domain():
    data = DomainClientData(TURNED, divided(), encoder_input="image")
    for client in range(2):
        for task, corner in ((0, (0, 0)), (1, (2, 0))):  # a turn counter-clockwise: top left goes to bottom left
            one = data.task(client, task)
            for examples in (one.train, one.test):
                assert list(examples) == ["image", "label"]
                dark = np.argwhere(examples["image"] == 0)
                assert dark[:, 1:].tolist() == [list(corner)] * len(examples["label"])


def test_no_examples_where_a_client_is_not_enrolled():
    data = DomainClientData(TURNED, divided(enrollment=Enrollment.from_table(["*o", "x*"])))
    for client, task, size in ((0, 0, 8), (0, 1, 0), (1, 0, 0), (1, 1, 8)):
        one = data.task(client, task)
        assert one.train["x"].shape == (size, 3, 3)
        assert one.test["label"].shape == (12 if size else 0,)


def test_offline_is_everything_of_everybody():
    stream = divided(enrollment=Enrollment.from_table(["**", "x*"]), validation_share=0.25)
    data, offline = DomainClientData(TURNED, stream), OfflineDomainData(TURNED, stream)
    assert (offline.num_clients, offline.num_tasks) == (1, 1)
    whole = offline.task(0, 0)
    assert (whole.num_classes, whole.context) == (4, {})
    for split in ("train", "validation", "test"):
        parts = [getattr(data.task(client, task), split) for task in (0, 1) for client in (0, 1)]
        for name in ("x", "label"):
            assert np.array_equal(getattr(whole, split)[name], np.concatenate([part[name] for part in parts]))
    assert [len(getattr(whole, split)["label"]) for split in ("train", "validation", "test")] == [18, 6, 24]
    assert sum(len(offline.test_of(task)["label"]) for task in (0, 1)) == 24
    assert sorted(offline.test_of(1)["x"].max(axis=(1, 2)).tolist()) == list(range(101, 113))
    assert "_divided" not in repr(offline)
    with pytest.raises(InputError, match="there is no task 1 of client 0"):
        offline.task(0, 1)


def test_a_stream_of_other_domains():
    stream = divided()
    with pytest.raises(InputError, match="toy rotations: has 3 domains, but the stream has 2 tasks"):
        DomainClientData(datasets.rotations(TOY, (0, 90, 180)), stream)
    groups = datasets.class_groups([(TOY, (0, 1)), (TOY, (2, 3))])
    with pytest.raises(
        InputError, match=r"client 0, task 0, training images of domain 'toy 0-1': row \d+ does not belong to it"
    ):
        DomainClientData(groups, stream)
    long = TaskStream("hand", ((Task(0, 0, (0,), [1], [], [12]),),))
    with pytest.raises(InputError, match=r"test images of domain '0 degrees': row 12 does not .* \(1 such\)"):
        DomainClientData(datasets.rotations(TOY, (0,)), long)
