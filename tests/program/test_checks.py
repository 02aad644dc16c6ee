"""Wrong data are named, by client and task, before TFF sees them."""

from __future__ import annotations

import re
import types
from collections import OrderedDict

import numpy as np
import pytest
import tensorflow_federated as tff

from tffcl.errors import InputError
from tffcl.models.network import document_types
from tffcl.program import ClientTask, task_data
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
