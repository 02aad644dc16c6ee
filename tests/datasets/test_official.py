import collections
import gzip
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tffcl.datasets import available, load, official, tokenise
from tffcl.errors import DatasetError

COUNTS = [
    ("trec6", 5_452, 500, 6),
    ("trec50", 5_452, 500, 50),
    ("r8", 5_485, 2_189, 8),
    ("tmn", 24_817, 7_780, 7),
    ("subj", 8_000, 2_000, 2),
]


@pytest.mark.parametrize(("name", "train", "test", "labels"), COUNTS)
def test_published_counts(data_dir, name, train, test, labels):
    assert available(name, data_dir)
    data = load(name, data_dir)
    assert (len(data.train_texts), len(data.test_texts), len(data.label_names)) == (train, test, labels)
    assert len(data.train_labels) == train
    assert set(data.test_labels) <= set(data.train_labels) == set(range(labels))


def test_trec_rows(data_dir):
    coarse, fine = load("trec6", data_dir), load("trec50", data_dir)
    assert coarse.label_names == ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
    # counted with `cut -d: -f1 train_5500.label | sort | uniq -c`
    np.testing.assert_array_equal(np.bincount(coarse.train_labels), [86, 1162, 1250, 1223, 835, 896])
    assert coarse.train_texts[0] == "How did serfdom develop in and then leave Russia ?"
    assert fine.label_names[fine.train_labels[0]] == "DESC:manner"
    assert sum("\xf0" in text for text in coarse.train_texts) == 1  # byte 0xF0 at offset 3,695: latin-1, not UTF-8


def test_subj_rows(data_dir):
    data = load("subj", data_dir)
    assert data.label_names == ("objective", "subjective")
    labels = np.concatenate([data.train_labels, data.test_labels])
    np.testing.assert_array_equal(np.bincount(labels), [5_000, 5_000])
    # `str.splitlines` would cut these
    assert sum(text.count("\x85") for text in data.train_texts + data.test_texts) == 21
    assert abs(np.mean(data.test_labels) - 0.5) < 0.05, "the split must be shuffled"


def test_subj_split_is_fixed(data_dir):
    first, second = load("subj", data_dir), load("subj", data_dir)
    assert first.train_texts == second.train_texts
    assert not set(first.train_texts) & set(first.test_texts) or len(set(first.train_texts)) < 8_000


def test_r8_keeps_its_last_line(data_dir):
    raw = (data_dir / "r8" / "r8-test-all-terms.txt").read_bytes()
    assert not raw.endswith(b"\n")
    assert load("r8", data_dir).test_texts[-1] == raw.rsplit(b"\t", 1)[1].decode()


@pytest.mark.parametrize("flat", [False, True])
def test_files_in_a_sub_folder_or_not(data_dir, tmp_path, flat):
    shutil.copytree(data_dir / "trec", tmp_path / "x" / ("" if flat else "trec"))
    assert len(load("trec6", tmp_path / "x").test_texts) == 500


def test_data_dir_from_the_environment(data_dir, monkeypatch):
    monkeypatch.setenv("TFFCL_DATA_DIR", str(data_dir))
    assert available("trec6")
    assert len(load("trec6").test_texts) == 500


def test_truncated_file(data_dir, tmp_path):
    for name in ("train_5500.label", "TREC_10.label"):
        (tmp_path / name).write_bytes((data_dir / "trec" / name).read_bytes())
    cut = (tmp_path / "train_5500.label").read_bytes().split(b"\n")[:5000]
    (tmp_path / "train_5500.label").write_bytes(b"\n".join(cut))
    with pytest.raises(DatasetError, match=r"5452 training and 500 test rows, found 5000 and 500"):
        load("trec6", tmp_path)


def test_missing_files_and_folders(tmp_path, monkeypatch):
    assert not available("trec6", tmp_path)
    with pytest.raises(DatasetError, match=r"train_5500\.label and TREC_10\.label not found in .*cogcomp") as caught:
        load("trec6", tmp_path)
    assert "sample" in str(caught.value)
    with pytest.raises(DatasetError, match="no such folder"):
        load("trec6", tmp_path / "gone")
    monkeypatch.setenv("TFFCL_DATA_DIR", str(tmp_path / "gone"))
    with pytest.raises(DatasetError, match=r"\$TFFCL_DATA_DIR .*no such folder"):
        load("trec6")


def test_no_such_set(tmp_path):
    with pytest.raises(DatasetError, match=r"trec7: no such data set or folder; known sets are trec6, trec50, r8"):
        load("trec7", tmp_path)


@pytest.mark.parametrize(
    ("reader", "content", "message"),
    [
        (lambda p: official.read_trec(p, True), b"DESC:def What ?\nNUM\n", "line 2: expected 'COARSE:fine text'"),
        (lambda p: official.read_trec(p, True), b"DESC What ?\n", "line 1: expected 'COARSE:fine text'"),
        (official.read_tab_separated, b"earn\tx\nacq y\n", "line 2: expected 'label<TAB>text'"),
        (official.read_tab_separated, b"earn\tx\n\xff\ty\n", "line 2: byte 0xFF is not utf-8"),
    ],
)
def test_malformed_lines(tmp_path, reader, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        reader(path)


NEWS = "Markets fall\nStocks slid.\nhttp://a\n1\n2011\nX\nbusiness\n\nProbe lands\n\nhttp://b\n2\n2011\nY\nsci&tech\n\n"


@pytest.mark.parametrize("name", ["news", "news.gz"])
def test_news_archive(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(NEWS.encode()) if name.endswith("gz") else NEWS.encode())
    assert official.read_news(path) == [("Markets fall Stocks slid.", "business"), ("Probe lands", "sci_tech")]
    assert official.LAYOUTS["tmn"].find(tmp_path) == (path,)


def test_news_archive_cut_short(tmp_path):
    (tmp_path / "news").write_text(NEWS + "Only a title\nand more\n")
    with pytest.raises(DatasetError, match="line 17: a news record is seven lines"):
        official.read_news(tmp_path / "news")
    (tmp_path / "news.gz").write_bytes(gzip.compress(NEWS.encode())[:-9])
    with pytest.raises(DatasetError, match="not a whole gzip file"):
        official.read_news(tmp_path / "news.gz")


def test_seeded_split_is_the_same_everywhere():
    rows = [(str(number), "a") for number in range(10)]
    train, test = official.seeded_split(rows, 8)
    assert sorted(train + test) == sorted(rows)
    # a change here changes every figure for SUBJ
    assert [text for text, _ in train + test] == list("2385140769")


def test_size_and_balance_of_the_sample():
    data = load("sample")
    assert available("sample")
    assert len(data.train_texts) >= 600
    assert len(data.test_texts) >= 120
    assert data.label_names == ("abbreviation", "description", "entity", "human", "location", "number")
    for labels in (data.train_labels, data.test_labels):
        counts = collections.Counter(labels.tolist())
        assert len(counts) == 6
        assert max(counts.values()) < 1.4 * min(counts.values())


def test_no_question_twice():
    data = load("sample")
    questions = [" ".join(tokenise(text)) for text in data.train_texts + data.test_texts]
    assert len(set(questions)) == len(questions)


def test_reads_as_questions():
    data = load("sample")
    for text in data.train_texts + data.test_texts:
        assert text[0].isupper(), text
        assert text.endswith(("?", ".")), text
        assert text == " ".join(text.split()), text
        assert 3 <= len(text.split()) <= 20, text


def test_not_from_trec(data_dir):
    trec = load("trec6", data_dir)
    theirs = {"".join(tokenise(text)) for text in trec.train_texts + trec.test_texts}
    data = load("sample")
    assert not [text for text in data.train_texts + data.test_texts if "".join(tokenise(text)) in theirs]


def test_texts_are_loaded_without_the_heavy_libraries():
    heavy = ["tensorflow", "tensorflow_federated", "gensim", "sklearn", "pooch", "pandas"]
    code = (
        "import sys, tffcl.datasets as d; [getattr(d, name) for name in d.__all__]; d.load('sample');"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
