"""What holds for every reader of data files: byte-order marks, encodings, what is no regular file, gzip, paths."""

import csv
import gzip
import os
import shutil
import struct
import subprocess
import sys
import tracemalloc

import pytest

import tffcl
from tffcl.datasets import (
    available,
    from_directory,
    from_files,
    load,
    load_arrays,
    load_binary,
    load_images,
    load_word_vectors,
    official,
    read_idx,
)
from tffcl.datasets.binary import read_binary_rows
from tffcl.datasets.text import read_rows
from tffcl.errors import DatasetError, InputError
from tffcl.experiment import loading


def read_enrollment(path):
    experiment = tffcl.Experiment("fil-ver", data="digits", num_clients=2, num_tasks=3, enrollment=str(path))
    return loading.enrollment_of(experiment).table()


def read_table(path):
    """A table of numbers, for training and testing alike."""
    shutil.copy(path, path.with_stem("test"))
    data = load_arrays(str(path.parent))
    return data.train_x.tolist(), [data.label_names[label] for label in data.train_labels]


def read_npz(path):
    return load_arrays(str(path))


def read_vectors(path):
    loaded = load_word_vectors(path)
    return loaded.words, loaded.vectors.tolist()


# name of the file, its reader, its text, what comes out
TEXTS = {
    "CSV": ("a.csv", read_rows, "text,label\nété,x\n", [("été", "x")]),
    "TSV": ("a.tsv", read_rows, "label\ttext\nx\tété\n", [("été", "x")]),
    "JSONL": ("a.jsonl", read_rows, '{"text": "été", "label": "x"}\n', [("été", "x")]),
    "TREC": ("a", lambda path: official.read_trec(path, True), "DESC:def What ?\n", [("What ?", "DESC:def")]),
    "R8": ("a", official.read_tab_separated, "earn\tété\n", [("été", "earn")]),
    "SUBJ": ("a", lambda path: official.read_sentences(path, "x"), "a line\n", [("a line", "x")]),
    "news": ("news", official.read_news, "T\nD\nl\n1\nd\ns\nus\n\n", [("T D", "us")]),
    "binary rows": ("a.data", lambda path: read_binary_rows(path).tolist(), "0,1\n1,1\n", [[0, 1], [1, 1]]),
    "table of numbers": ("train.csv", read_table, "size,label\n0,b\n2,é\n", ([[-1.0], [1.0]], ["b", "é"])),
    "enrollment": ("who.csv", read_enrollment, "*,*,o\nx,*,*\n", ("**o", "x**")),
    "GloVe": ("a.txt", read_vectors, "été 1 2\n", (("été",), [[1, 2]])),
    "word2vec": ("a.txt", read_vectors, "1 2\nété 1 2\n", (("été",), [[1, 2]])),
}
cases = pytest.mark.parametrize(("name", "read", "text", "expected"), TEXTS.values(), ids=TEXTS)


@cases
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path, name, read, text, expected, mark, end):
    (tmp_path / name).write_bytes((mark + text).replace("\n", end).encode())
    assert read(tmp_path / name) == expected


@cases
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf_16_is_called_that(tmp_path, name, read, text, expected, encoding):
    (tmp_path / name).write_bytes(text.replace("é", "e").encode(encoding))
    with pytest.raises(InputError, match=r"is UTF-\d\d text; convert it to UTF-8: iconv") as caught:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-8-sig", "cp1252"])
def test_another_encoding_can_be_asked_for(tmp_path, encoding):
    path = tmp_path / "a.csv"
    path.write_bytes("text,label\nété,x\n".encode(encoding))
    assert from_files(path, path, encoding=encoding).train_texts == ("été",)


def test_an_encoding_that_nobody_knows(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nx,y\n")
    for encoding in ("utf-9", "hex"):
        with pytest.raises(InputError, match=f"encoding: '{encoding}' is none that Python knows"):
            read_rows(tmp_path / "a.csv", encoding=encoding)


READERS = {
    **{name: (file_name, read) for name, (file_name, read, _, _) in TEXTS.items() if name != "table of numbers"},
    "IDX": ("train-images-idx3-ubyte.gz", lambda path: read_idx(path, 3)),
    "news.gz": ("news.gz", official.read_news),
    "vectors.gz": ("a.txt.gz", read_vectors),
    "arrays": ("a.npz", read_npz),
}


@pytest.mark.parametrize(("name", "read"), READERS.values(), ids=READERS)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, name, read, make):
    make(tmp_path / name)
    with pytest.raises(InputError, match=r"in a regular file, found a (pipe|folder|device)") as caught:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [read for _, read in READERS.values()], ids=READERS)
def test_a_path_that_cannot_be_one_is_one_line(tmp_path, read):
    for ending in ("csv", "txt"):
        with pytest.raises(InputError) as caught:
            read(tmp_path / f"{'n' * 300}.{ending}")
        assert "\n" not in str(caught.value)


LONG = "n" * 300
LOADERS = {
    "load": lambda folder: load(folder / LONG),
    "from_directory": lambda folder: from_directory(folder / LONG),
    "data_dir of texts": lambda folder: load("trec6", folder / LONG),
    "data_dir of images": lambda folder: load_images("mnist", folder / LONG),
    "data_dir of binary sets": lambda folder: load_binary("adult", folder / LONG),
    "available": lambda folder: available("trec6", folder / LONG),
    "a folder of tables of numbers": lambda folder: load_arrays(str(folder / LONG)),
    "a file of arrays": lambda folder: load_arrays(str(folder / f"{LONG}.npz")),
    "a binary set": lambda folder: load_binary(LONG, folder),
    "an image set": lambda folder: load_images(LONG, folder),
    "nobody's home": lambda folder: load("trec6", "~nobody-of-that-name/x"),
}


@pytest.mark.parametrize("call", LOADERS.values(), ids=LOADERS)
def test_no_loader_takes_a_path_that_cannot_be_one(tmp_path, call):
    with pytest.raises(DatasetError) as caught:
        call(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_of_tables_with_a_long_path_is_not_there(tmp_path):
    assert not available(tmp_path / LONG)


READ_ALL = """
import sys
from tffcl import datasets
folder = sys.argv[1]
print(ascii(folder), datasets.load(folder + "/own").train_texts == ("\\xe9t\\xe9",))
print(datasets.load_word_vectors(folder + "/v.txt").words == ("\\xe9t\\xe9",))
try:
    datasets.load("trec6", folder + "/none")
except ValueError as error:
    print(error, file=sys.stderr)
"""


def test_paths_are_found_where_the_locale_has_no_letters_for_them(tmp_path):
    folder = tmp_path / "donné"
    (folder / "own").mkdir(parents=True)
    for name in ("train.csv", "test.csv"):
        (folder / "own" / name).write_text("text,label\nété,x\n", encoding="utf-8")
    (folder / "v.txt").write_text("été 1 2\n", encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(folder)],
        env={**os.environ, **plain},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines)) == (0, 2), done
    assert "\\udcc3\\udca9' True" in lines[0], "the path has no letters here"
    assert lines[1] == "True"
    assert done.stderr.strip().endswith("none: no such folder")


IMAGES = struct.pack(">IIII", 0x00000803, 2, 3, 4)
BOMBS = {
    "IDX with more than its header says": (IMAGES, lambda path: read_idx(path, 3), "found more"),
    "IDX of another kind": (b"\0\0\x0d\x03", lambda path: read_idx(path, 3), "magic number"),
    "IDX whose header says too much": (
        struct.pack(">IIII", 0x00000803, 60_000, 28_000, 28_000),
        lambda path: read_idx(path, 3),
        "promises 60000 x 28000 x 28000 bytes of data; at most",
    ),
    "news": (b"T\nD\n", official.read_news, r"more than \d+ bytes"),
}


@pytest.mark.parametrize(("start", "read", "message"), BOMBS.values(), ids=BOMBS)
def test_no_more_is_read_of_a_gzip_file_than_allowed(tmp_path, monkeypatch, start, read, message):
    monkeypatch.setattr(official, "_MOST_NEWS_BYTES", 1 << 20)
    (tmp_path / "x.gz").write_bytes(gzip.compress(start + bytes(1 << 26), 1))
    tracemalloc.start()
    with pytest.raises(InputError, match=message):
        read(tmp_path / "x.gz")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 24


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_a_field_may_have_any_length(tmp_path, name):
    text = "word " * 60_000
    header = {"a.csv": "text,label\n", "a.tsv": "text\tlabel\n", "a.jsonl": ""}[name]
    row = {"a.csv": f'"{text}",x\n', "a.tsv": f"{text}\tx\n", "a.jsonl": f'{{"text": "{text}", "label": "x"}}\n'}
    (tmp_path / name).write_text(header + row[name])
    before = csv.field_size_limit()
    assert read_rows(tmp_path / name) == [(text, "x")]
    assert csv.field_size_limit() == before


def test_json_nested_too_deep_names_its_line(tmp_path):
    nested = "[" * 100_000 + "]" * 100_000
    (tmp_path / "a.jsonl").write_text(f'{{"text": "x", "label": 1}}\n{{"text": {nested}, "label": 1}}\n')
    with pytest.raises(DatasetError, match=r"a\.jsonl, line 2: not JSON"):
        read_rows(tmp_path / "a.jsonl")
