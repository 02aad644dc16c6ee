"""Raw tasks that do not suit a process are named; entries in another order are put into that of its types."""

from __future__ import annotations

import dataclasses
import itertools
import re
import types
from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from run_directories import history

from tffcl import runtime
from tffcl.errors import InputError
from tffcl.models.network import document_types
from tffcl.program import ClientFiles, ClientTask, StoredData, task_data, write_client_data
from tffcl.program.task_data import ordered
from tffcl.transfers import NoTransfer


def examples(count=3, **changes):
    usual = {"x": np.zeros((count, 3), np.float32), "label": np.zeros(count, np.int32)}
    return OrderedDict({**usual, **changes})


NAN = np.full((3, 3), np.nan, np.float32)
CASES = [
    ({"train": examples(0)}, "client 1, task 2: no training examples"),
    ({"train": examples(label=np.array([0, 2, 0], np.int32))}, "client 1, task 2, train: label 2 at row 1"),
    ({"test": examples(label=np.array([0, 0, -1], np.int32))}, "client 1, task 2, test: label -1 at row 2"),
    ({"validation": examples(x=NAN)}, "client 1, task 2, validation: x holds a value that is not finite"),
    ({"context": OrderedDict(scale=NAN[0])}, "client 1, task 2, context: scale holds a value that is not finite"),
    ({"train": examples(x=np.zeros((3, 3)))}, "x should be float32[?,3], found float64[3, 3]"),
    ({"train": examples(x=np.zeros((3, 4), np.float32))}, "x should be float32[?,3], found float32[3, 4]"),
    ({"train": examples(label=np.zeros(2, np.int32))}, "different numbers of examples: {'x': 3, 'label': 2}"),
    ({"train": OrderedDict(x=NAN)}, "expected the tensors ['x', 'label'], found ['x']"),
    ({"num_classes": 3}, "client 1, task 2: has 3 classes; the process takes 1 to 2"),
    ({"num_classes": None}, "client 1, task 2: has None classes"),
]


FIELDS = ("context", "train", "validation", "test_context", "test")
CASES += [
    ({field: value}, f"client 1, task 2, {field}: expected a mapping of the tensors [")
    for field in FIELDS
    for value in (None, [], NAN, "x")
]


@pytest.mark.parametrize(("changes", "message"), CASES)
def test_wrong_data(tiny, process, changes, message):
    with pytest.raises(InputError, match=re.escape(message)) as raised:
        tiny.run(process, data=tiny.TinyData(client_1_task_2=changes))
    assert "\n" not in str(raised.value)


def texts(**changes):
    usual = {"start": [0, 2], "length": [2, 1], "label": [0, 1]}
    return OrderedDict((name, np.array(values, np.int32)) for name, values in {**usual, **changes}.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"train": {"start": [0, 3], "length": [3, 0]}}, None),
        ({"train": {"start": [0, -1]}}, "client 1, train: start -1 at row 1; expected 0..3, places in the tokens"),
        ({"validation": {"length": [-1, 1]}}, "client 1, validation: length -1 at row 0; expected 0..3"),
        ({"test": {"length": [2, 2]}}, "client 1, test: start + length 4 at row 1; expected 0..3"),
        ({"train": {"start": [2**31 - 1, 0]}}, "client 1, train: start 2147483647 at row 0"),
        ({"test": {"start": [3, 0], "length": [2**31 - 1, 0]}}, "client 1, test: length 2147483647 at row 0"),
        ({"context": {"tokens": [2, 0, 1]}}, "client 1, context: token 0 at row 1; expected 1..3, rows of its vectors"),
        ({"test_context": {"tokens": [2, 1, 4]}}, "client 1, test_context: token 4 at row 2; expected 1..3"),
    ],
)
def test_documents_stand_in_the_tokens_of_their_context(changes, message):
    context, documents = document_types(2)
    label = tff.TensorType(np.int32, [None])
    raw = tff.to_type(OrderedDict(context=context, examples=OrderedDict(documents, label=label)))
    signature = types.SimpleNamespace(parameter=[None, None, None, types.SimpleNamespace(member=raw)])
    process = types.SimpleNamespace(prepare=types.SimpleNamespace(type_signature=signature), max_classes=2)
    usual = {"vectors": np.zeros((4, 2), np.float32), "tokens": np.array([2, 3, 1], np.int32)}
    contexts = {
        name: {**usual, **{key: np.array(v, np.int32) for key, v in changes.get(name, {}).items()}}
        for name in ("context", "test_context")
    }
    parts = {name: texts(**changes.get(name, {})) for name in ("train", "validation", "test")}
    task = ClientTask(**contexts, **parts, num_classes=2)
    if message is None:
        task_data.check_task(process, task, "client 1")
    else:
        with pytest.raises(InputError, match=re.escape(message)):
            task_data.check_task(process, task, "client 1")


def test_with_one_head_labels_are_among_those_that_may_occur():
    """Else its loss would be that of a score of -1e9."""
    label, classes = tff.TensorType(np.int32, [None]), tff.TensorType(np.bool_, [3])
    raw = tff.to_type(OrderedDict(context=OrderedDict(classes=classes), examples=OrderedDict(label=label)))
    signature = types.SimpleNamespace(parameter=[None, None, None, types.SimpleNamespace(member=raw)])
    process = types.SimpleNamespace(prepare=types.SimpleNamespace(type_signature=signature), max_classes=3)
    task = ClientTask(
        **dict.fromkeys(("context", "test_context"), {"classes": np.array([True, False, True])}),
        **dict.fromkeys(("train", "validation"), {"label": np.array([0, 2, 2], np.int32)}),
        test={"label": np.array([2, 1], np.int32)},
        num_classes=3,
    )
    with pytest.raises(InputError, match="client 1, test: label 1 at row 1 may not occur by the context's `classes`"):
        task_data.check_task(process, task, "client 1")
    task_data.check_task(process, dataclasses.replace(task, test=task.train), "client 1")


def test_no_clients(tiny, process):
    with pytest.raises(InputError, match="at least one client and one task"):
        tiny.run(process, data=tiny.TinyData(num_clients=0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_rounds": 0}, "num_rounds: expected at least 1, found 0"),
        ({"num_rounds": 1.5}, "num_rounds: expected a whole number, found 1.5"),
        ({"seed": -1}, "seed: expected at least 0, found -1"),
        ({"clients_per_round": 0}, "clients_per_round: expected at least 1, found 0"),
        ({"evaluate_every": "epoch"}, "evaluate_every: expected one of round, task; found 'epoch'"),
        ({"transfer": NoTransfer()}, "transfer: gives up to 0 entries .* the process was built for 2"),
    ],
)
def test_wrong_settings(tiny, process, options, message):
    with pytest.raises(InputError, match=message):
        tiny.run(process, **options)


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


@pytest.mark.slow
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


@pytest.mark.slow
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
