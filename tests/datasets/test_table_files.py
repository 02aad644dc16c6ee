import numpy as np
import pytest

from tffcl.datasets import available, from_directory, from_files, load
from tffcl.errors import DatasetError

ROWS = [('good, "very" good', "pos"), ("bad\x85\u2028thing", "neg"), ("", "pos")]
CSV = 'text,label\r\n"good, ""very"" good",pos\r\nbad\x85\u2028thing,neg\r\n,pos\r\n'
TSV = 'label\tid\ttext\npos\t1\tgood, "very" good\nneg\t2\tbad\x85\u2028thing\npos\t3\t'
JSONL = (
    '{"text": "good, \\"very\\" good", "label": "pos"}\n\n'
    '{"label": "neg", "text": "bad\x85\u2028thing", "more": 1}\n{"text": "", "label": "pos"}'
)


def _write(folder, name, text):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


@pytest.mark.parametrize(("name", "text"), [("a.csv", CSV), ("a.TSV", TSV), ("a.jsonl", JSONL)])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_formats_give_the_same_rows(tmp_path, name, text, mark):
    path = _write(tmp_path, name, mark + text.encode("utf-8"))
    data = from_files(path, path)
    assert list(data.train_texts) == [row[0] for row in ROWS]
    assert [data.label_names[i] for i in data.train_labels] == [row[1] for row in ROWS]
    np.testing.assert_array_equal(data.train_labels, data.test_labels)
    assert data.name == tmp_path.name


def test_csv_text_over_two_lines_and_latin_1(tmp_path):
    path = _write(tmp_path, "a.csv", 'text,label\n"caf\xe9\nbar",x\n'.encode("latin-1"))
    assert from_files(path, path, encoding="latin-1").train_texts == ("café\nbar",)


def test_directory(tmp_path):
    folder = tmp_path / "reviews"
    folder.mkdir()
    assert not available(folder)
    _write(folder, "train.csv", CSV)
    with pytest.raises(DatasetError, match=r"expected one of test\.csv, test\.tsv, test\.jsonl, found none"):
        load(folder)
    _write(folder, "test.jsonl", JSONL)
    assert available(folder)
    assert load(str(folder)).name == "reviews"
    assert len(from_directory(folder).test_texts) == 3
    _write(folder, "test.csv", CSV)
    with pytest.raises(DatasetError, match=r"found test\.csv and test\.jsonl"):
        load(folder)


def test_columns_by_other_names(tmp_path):
    path = _write(tmp_path, "a.csv", "body,topic\nx,1\n")
    assert from_files(path, path, text_column="body", label_column="topic").label_names == ("1",)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "", "holds no rows"),
        ("a.csv", "text,label\n", "holds no rows"),
        ("a.csv", "body,label\nx,y\n", "line 1: expected one column 'text'"),
        ("a.csv", "text,label\nx,y\nx,y,z\n", "line 3: expected 2 fields, found 3"),
        ("a.csv", 'text,label\nx,y\n"x,y\n', "line 3: not CSV"),
        ("a.csv", "text,label\nx,y\nx,\n", "line 3: the label must be"),
        ("a.tsv", "text\tlabel\nx\n", "line 2: expected 2 fields, found 1"),
        ("a.csv", b"text,label\nx,y\n\xff,y\n", "line 3: byte 0xFF is not utf-8"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": ', "line 2: not JSON"),
        ("a.jsonl", "[1]\n", "line 1: expected an object with 'text' and 'label'"),
        ("a.jsonl", '{"text": 1, "label": 1}\n', "line 1: the text must be a string"),
        ("a.jsonl", '{"text": "x", "label": null}\n', "line 1: the label must be"),
        ("a.xlsx", "x", "unknown format; the extension must be one of .csv, .tsv, .jsonl"),
    ],
)
def test_errors_name_file_and_line(tmp_path, name, text, message):
    path = _write(tmp_path, name, text)
    with pytest.raises(DatasetError, match=message) as caught:
        from_files(path, path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(DatasetError, match=r"gone\.csv: no such file"):
        from_files(tmp_path / "gone.csv", tmp_path / "gone.csv")


def test_of_one_table_every_fifth_row_of_a_label_is_for_testing(tmp_path):
    labels = list("aabbababbabbbbb")
    lines = ["text,label", *(f"t{n},{label}" for n, label in enumerate(labels))]
    data = load(_write(tmp_path, "mine.csv", "\n".join(lines)))
    tested = sorted(row for label in "ab" for row in [n for n, each in enumerate(labels) if each == label][4::5])
    assert data.test_texts == tuple(f"t{n}" for n in tested) == ("t8", "t9", "t14")
    assert data.train_texts == tuple(f"t{n}" for n in range(len(labels)) if n not in tested)
    assert data.name == "mine"


def test_a_table_that_is_too_short_to_be_divided(tmp_path):
    with pytest.raises(DatasetError, match=r"train\.csv: no label has 5 rows, .* give a folder with train"):
        load(_write(tmp_path, "train.csv", CSV))
