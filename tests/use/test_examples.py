"""New data as a run's models take them, out of every format; what does not fit names file, line and what is wanted."""

from __future__ import annotations

import io
import json
import sys
import types

import numpy as np
import pytest

from tffcl import datasets
from tffcl.errors import DatasetError, InputError
from tffcl.use.examples import Reader, Writer

NONE = np.zeros(0, np.int32)
LABELS = ("a", "b")


def _run(kind):
    """What a `Reader` looks at of a run."""
    data = {
        "text": None,
        "image": datasets.ImageDataset("i", np.zeros([0, 2, 3], np.uint8), NONE, np.zeros([0, 2, 3], np.uint8), NONE,
                                       LABELS, 16),
        "binary": datasets.BinaryVectors("b", np.zeros([0, 3], np.uint8), NONE, np.zeros([0, 3], np.uint8), NONE,
                                         LABELS, (3, 3)),
        "vector": datasets.ArrayDataset("v", np.zeros([0, 2]), NONE, np.zeros([0, 2]), NONE, LABELS, ("w", "h")),
        "plain vector": datasets.ArrayDataset("v", np.zeros([0, 2]), NONE, np.zeros([0, 2]), NONE, LABELS),
    }[kind]  # fmt: skip
    return types.SimpleNamespace(
        directory="RUN", plan=types.SimpleNamespace(kind=kind.removeprefix("plain "), dataset=data)
    )


def _file(tmp_path, name, content):
    path = tmp_path / name
    if isinstance(content, dict):
        np.savez(path, **content)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


SIX = [1.0, 2, 3, 4, 5, 16]
GOOD = [
    ("image", "x.npz", {"x": np.array([SIX]).reshape(1, 2, 3), "y": ["b"]}, [SIX]),
    ("image", "x.csv", "1,2,3,4,5,6,label\n" + ",".join(map(str, SIX)) + ",b\n", [SIX]),
    ("image", "x.jsonl", json.dumps({"x": [SIX[:3], SIX[3:]], "label": "b"}) + "\n", [SIX]),
    ("vector", "x.csv", "h,label,w\r\n2.5,b,-1\r\n", [[-1, 2.5]]),
    ("vector", "x.tsv", "h\tlabel\tw\n2.5\tb\t-1\n", [[-1, 2.5]]),
    ("vector", "x.jsonl", '{"h": 2.5, "w": -1, "label": "b"}\n\n', [[-1, 2.5]]),
    ("plain vector", "x.csv", "p,q,label\n1,2,b\n", [[1, 2]]),
    ("binary", "x.csv", "p,q,r,label\n1,0,1,b\n", [[1, 0, 1]]),
]


@pytest.mark.parametrize(("kind", "name", "content", "expected"), GOOD)
def test_numbers_are_read_out_of_every_format(tmp_path, kind, name, content, expected):
    reader = Reader(_run(kind), label_column="label")
    rows = list(reader.rows(_file(tmp_path, name, content)))
    assert [row.label for row in rows] == ["b"]
    batch = reader.batch([row.example for row in rows])
    np.testing.assert_array_equal(batch.reshape(len(rows), -1), expected)
    assert batch.dtype == (np.float32 if "vector" in kind else np.uint8)
    assert batch.shape[1:] == ((2, 3) if kind == "image" else (len(expected[0]),))


def test_plain_lines_of_numbers(tmp_path):
    rows = list(Reader(_run("binary")).rows(_file(tmp_path, "x.txt", "1 0 1\n0,0,1\n")))
    assert [row.example.tolist() for row in rows] == [[1, 0, 1], [0, 0, 1]]


@pytest.mark.parametrize(
    ("content", "format", "texts"),
    [
        ("Who?\nIt\u2028is\n\n", "lines", ["Who?", "It\u2028is", ""]),
        ('{"text": "Who?"}\n', "jsonl", ["Who?"]),
        ('id,text\n1,"Who, then?\nHe"\n', "csv", ["Who, then?\nHe"]),
        ("\ufefftext\nWho?\n", "csv", ["Who?"]),
    ],
)
def test_what_standard_input_holds_is_seen_by_its_first_line(monkeypatch, content, format, texts):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    reader = Reader(_run("text"))
    assert [row.example for row in reader.rows("-")] == texts
    assert reader.format == format


@pytest.mark.parametrize(
    ("kind", "name", "content", "words"),
    [
        ("image", "x.npz", {"x": np.zeros([1, 3, 3])}, r"expected image data x \[N, 2, 3\], found \[1, 3, 3\]"),
        ("image", "x.npz", {"y": np.zeros(3)}, "has no array 'x', only y"),
        ("image", "x.npz", b"nothing", "no .npz or .npy file"),
        ("image", "x.csv", "a,b\n1,2\n", "line 2: expected 6 numbers"),
        ("image", "x.csv", "a,b,c,d,e,f\n1,2,3,4,5,17\n", "line 2: expected whole numbers from 0 to 16"),
        ("image", "x.csv", "a,b,c,d,e,f\n1,2,3,4,5,what\n", "line 2: expected numbers alone"),
        ("vector", "x.csv", "w,x\n1,2\n", "line 1: expected one column 'h'"),
        ("vector", "x.csv", "w,h,w\n1,2,3\n", "line 1: expected one column 'w'"),
        ("vector", "x.jsonl", '{"w": 1}\n', "line 1: expected an object with 'h'"),
        ("vector", "x.csv", "w,h\n1,nan\n", "line 2: holds a value that is not finite"),
        ("binary", "x.txt", "1 0 2\n", "line 1: expected whole numbers from 0 to 1"),
        ("text", "x.jsonl", '{"text": 3}\n', "line 1: the text must be a text, found 3"),
        ("text", "x.jsonl", '{"text": "\\ud800"}\n', "line 1: the text is no Unicode"),
        ("text", "x.csv", 'text\n"open\n', "not CSV"),
        ("text", "x.csv", b"text\ncaf\xe9\n", "not UTF-8"),
        ("text", "x.csv", "text\nWho?\n".encode("utf-16"), "UTF-16"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path, kind, name, content, words):
    with pytest.raises(DatasetError, match=words) as raised:
        list(Reader(_run(kind)).rows(_file(tmp_path, name, content)))
    assert "\n" not in str(raised.value)
    assert name in str(raised.value)


def test_arrays_hold_no_pickle(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(DatasetError, match="no .npz or .npy file"):
        list(Reader(_run("image")).rows(str(tmp_path / "x.npy")))


def test_a_format_that_is_none():
    with pytest.raises(InputError, match="format: expected one of csv, tsv"):
        Reader(_run("text"), format="xml")


def test_a_field_whose_name_is_taken_gets_another(tmp_path):
    out = io.StringIO()
    writer = Writer(out, "csv", ["text", "label"])
    writer.write({"text": "a,b", "label": "x"}, {"label": "y", "probability": 0.5})
    assert out.getvalue() == 'text,label,predicted_label,probability\n"a,b",x,y,0.5\n'
