"""Entries of a mapping are told by their names: a run does not depend on the order in which data have them."""

from __future__ import annotations

import dataclasses
import itertools
from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from run_directories import history

from tffcl import runtime
from tffcl.errors import InputError
from tffcl.program import ClientFiles, ClientTask, StoredData, write_client_data
from tffcl.program.task_data import ordered

INTS = tff.TensorType(np.int32, (None,))


class TwinData:
    """Examples with two tensors of the same type: whoever takes one for the other gets no error."""

    num_clients, num_tasks = 3, 1

    def __init__(self, swapped=False):
        self.swapped = swapped

    def task(self, client, task):
        def examples(count):
            feature = np.random.default_rng((client, task, count)).integers(3, size=count).astype(np.int32)
            return self._in_order(feature=feature, label=(feature > 0).astype(np.int32))

        context = self._in_order(scale=np.ones(3, np.float32), shift=np.zeros(3, np.float32))
        parts = {"train": examples(12), "validation": examples(4), "test": examples(6)}
        return ClientTask(context, test_context=context, num_classes=2, **parts)

    def _in_order(self, **entries):
        return OrderedDict(reversed(entries.items()) if self.swapped else entries.items())


@pytest.fixture(scope="module")
def twin(tiny, tff_context):
    class TwinWork(tiny.TinyWork):
        context_type = OrderedDict(scale=tiny.floats(3), shift=tiny.floats(3))
        example_type = OrderedDict(feature=INTS, label=INTS)

        def prepare(self, state, foreign, context, examples):
            x = tf.one_hot(examples["feature"], 3) + context["shift"]
            return super().prepare(state, foreign, context, {"x": x, "label": examples["label"]})

    return tiny.build_process(TwinWork())


@pytest.fixture(scope="module")
def straight(tiny, twin, tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight") / "run"
    tiny.run(twin, folder, TwinData(), num_rounds=1, summarise=summarise)
    return history(folder)


def summarise(task):
    return task.train["feature"][:, None].astype(np.float32)


@pytest.mark.parametrize("files", [False, True], ids=["in memory", "in files"])
def test_the_same_run_in_each_order(tiny, twin, straight, tmp_path, files):
    kept = ClientFiles(str(tmp_path / "clients")) if files else None
    data = TwinData(swapped=True)
    tiny.run(twin, tmp_path / "run", data, num_rounds=1, summarise=summarise, client_files=kept)
    assert history(tmp_path / "run") == straight


def test_the_same_run_in_each_order_in_process(tiny, twin, tmp_path):
    with runtime.in_process():
        for swapped in (False, True):
            data = TwinData(swapped)
            tiny.run(twin, tmp_path / str(swapped), data, num_rounds=1, summarise=summarise)
    assert history(tmp_path / "True") == history(tmp_path / "False")


@pytest.mark.parametrize("known", [False, True], ids=["alone", "with the process"])
def test_the_same_run_from_files_that_were_written_in_each_order(tiny, twin, straight, tmp_path, known):
    write_client_data(TwinData(swapped=True), tmp_path / "data", process=twin if known else None)
    data, files = StoredData(str(tmp_path / "data"), 3, 1), ClientFiles(str(tmp_path / "clients"))
    tiny.run(twin, tmp_path / "run", data, num_rounds=1, client_files=files)
    assert history(tmp_path / "run") == straight


KIND = tff.to_type(OrderedDict(context=OrderedDict(c=np.int32), train=OrderedDict(b=np.int32, a=np.int32, d=np.int32)))


@pytest.mark.parametrize("names", itertools.permutations("abd"))
def test_every_order_becomes_that_of_the_type(names):
    value = {"train": {name: ord(name) for name in names}, "context": {"c": 0}}
    found = ordered(value, KIND, "client 0")
    assert list(found) == ["context", "train"]
    assert list(found["train"].items()) == [("b", ord("b")), ("a", ord("a")), ("d", ord("d"))]


@pytest.mark.parametrize("names", ["ab", "abde", "abc", ""])
def test_other_entries_are_named_with_their_client(names):
    value = {"context": {"c": 0}, "train": dict.fromkeys(names, 0)}
    with pytest.raises(InputError, match=r"client 0, task 1, train: expected the entries \['b', 'a', 'd'\], found"):
        ordered(value, KIND, "client 0, task 1")


@pytest.mark.parametrize("part", ["context", "train", "validation", "test_context", "test"])
def test_data_with_other_entries_name_client_task_and_part(tiny, twin, part):
    class OtherData(TwinData):
        def task(self, client, task):
            one = super().task(client, task)
            entries = getattr(one, part)
            renamed = {name.replace("feature", "x").replace("shift", "x"): entries[name] for name in entries}
            return dataclasses.replace(one, **{part: renamed}) if client == 1 else one

    with pytest.raises(InputError, match=f"client 1, task 0, {part}: expected the tensors .*, found .*'x'"):
        tiny.run(twin, data=OtherData(), num_rounds=1)
