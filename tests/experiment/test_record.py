"""An exported stream has the rows that clients get, and is read by numpy alone."""

from __future__ import annotations

import command_line
import numpy as np
import pytest

from tffcl import Experiment
from tffcl.errors import InputError
from tffcl.experiment.record import export_stream

CHOSEN = {
    "vector": {"data": "iris", "scenario": "class-incremental", "num_tasks": 3, "labels_per_task": 1},
    "image": {"data": "digits", "scenario": "class-incremental", "num_tasks": 2, "labels_per_task": 2},
    "own orders": {"data": "digits", "scenario": "non-iid", "num_tasks": 2, "labels_per_task": 2},
    "binary": {"data": "digits", "network": "made", "num_tasks": 2, "labels_per_task": 1},
    "text": {"data": "sample", "scenario": "class-incremental", "num_tasks": 2, "labels_per_task": 2},
}


@pytest.fixture(name="plan", params=CHOSEN)
def _plan(request, tmp_path):
    chosen = dict(CHOSEN[request.param], num_clients=3, quiet=True)
    if chosen.get("scenario") == "class-incremental":
        chosen.update(partition="dirichlet", alpha=0.5)
    if request.param == "text":
        chosen["embeddings"] = str(command_line.small_vectors(tmp_path))
    return Experiment("fedavg", **chosen).plan()


def test_its_rows_are_those_that_clients_get(plan, tmp_path):
    export_stream(plan, tmp_path / "stream.npz")
    with np.load(tmp_path / "stream.npz", allow_pickle=False) as file:
        stream = dict(file)
    counted = dict.fromkeys(("train", "validation", "test"), 0)
    for client in range(3):
        for task in range(plan.data.num_tasks):
            one = plan.data.task(client, task)
            for split in counted:
                examples = getattr(one, split)
                whose = stream[f"client_{split}"]
                of_task = stream[f"task_{split}"] == task
                mine = of_task & ((whose == client) | ((whose == -1) & bool(len(examples[next(iter(examples))]))))
                counted[split] += mine.sum()
                assert_equal(stream, split, mine, one, examples)
    assert counted["train"] == len(stream["x_train"])
    assert counted["test"] >= len(stream["x_test"])


def assert_equal(stream, split, mine, one, examples):
    x = stream[f"x_{split}"][mine]
    if "label" in examples:
        names = np.asarray(one.labels)[examples["label"]] if one.labels else examples["label"]
        np.testing.assert_array_equal(stream[f"y_{split}"][mine], names)
    if "length" not in examples:
        np.testing.assert_array_equal(x, next(iter(examples.values())))
        return
    context = one.test_context if split == "test" else one.context
    assert len(x) == len(examples["length"])
    for row, start, length in zip(x, examples["start"], examples["length"]):
        tokens = context["tokens"][start : start + length]
        np.testing.assert_array_equal(stream["vectors"][row[:length]], context["vectors"][tokens])
        assert not row[length:].any()


def test_test_rows_that_all_clients_share_stand_once(tmp_path):
    plan = Experiment("fedavg", num_clients=3, quiet=True, **CHOSEN["image"]).plan()
    arrays = export_stream(plan, tmp_path / "stream.npz")
    assert set(arrays["client_test"]) == {-1}
    assert len(arrays["y_test"]) == sum(len(plan.stream.task(0, task).test) for task in range(2))
    assert set(arrays["client_train"]) == {0, 1, 2}


def test_another_ending_is_refused_before_anything_is_written(tmp_path):
    plan = Experiment("fedavg", num_clients=2, quiet=True, **CHOSEN["vector"]).plan()
    with pytest.raises(InputError, match=r"expected a name that ends in \.npz"):
        export_stream(plan, tmp_path / "stream.csv")
    assert not list(tmp_path.iterdir())


def test_the_command_takes_the_flags_of_a_run(run, tmp_path):
    flags = ["--data", "iris", "--scenario", "class-incremental", "--num-tasks", "3", "--labels-per-task", "1"]
    flags += ["--num-clients", "2"]
    done = run("streams", "export", str(tmp_path / "stream.npz"), "--", *flags, "--evaluate-on", "validation")
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "stream.npz", allow_pickle=False) as file:
        assert done.stdout.endswith(
            f"{len(file['y_train'])} train, {len(file['y_validation'])} validation, {len(file['y_test'])} test rows, "
            "2 clients, 3 tasks\n"
        )
        assert len(file["y_test"]) > len(file["y_validation"])
