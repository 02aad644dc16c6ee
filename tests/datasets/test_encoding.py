import hashlib
import tracemalloc

import numpy as np
import pytest

from tffcl.datasets import RaggedTokens, WordVectors, encode, from_texts
from tffcl.datasets.encoding import random_vector
from tffcl.errors import InputError, WordVectorError

VECTORS = WordVectors(("cat", "dog", "unused"), np.array([[1, 2], [3, 4], [5, 6]], np.float32), source="three by hand")
DATA = from_texts([("Dog bites cat", "a"), ("", "b"), ("qqq", "a")], [("zzz dog", "b")])


def test_by_hand():
    encoded = encode(DATA, VECTORS)
    assert encoded.words[2:] == ("cat", "dog"), "only the words in use are kept"
    np.testing.assert_array_equal(encoded.embedding, [[0, 0], [0, 0], [1, 2], [3, 4]])
    np.testing.assert_array_equal(encoded.train_tokens.padded(), [[3, 1, 2], [0, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(encoded.test_tokens.padded(), [[1, 3]])
    assert encoded.embedding.dtype == np.float32
    assert encoded.train_tokens.values.dtype == encoded.train_labels.dtype == np.int32
    assert encoded.label_names == ("a", "b")


def test_random_vectors_for_unknown_words():
    encoded = encode(DATA, VECTORS, oov="random")
    assert encoded.words[2:] == ("bites", "cat", "dog", "qqq", "zzz")
    assert not encoded.embedding[:2].any()
    np.testing.assert_array_equal(encoded.embedding[3:5], [[1, 2], [3, 4]])
    other = from_texts([("dog qqq", "a")], [("dog", "a")])
    again = encode(other, VECTORS, oov="random")
    np.testing.assert_array_equal(
        encoded.embedding[encoded.words.index("qqq")], again.embedding[again.words.index("qqq")]
    )


def test_random_vector_is_fixed_by_the_words_bytes():
    values = np.stack([random_vector(str(number), 50, variance=0.16) for number in range(400)])
    assert values.dtype == np.float32
    np.testing.assert_allclose(values.var(), 0.16, rtol=0.02)
    np.testing.assert_allclose(values.mean(), 0.0, atol=0.01)
    assert len(np.unique(values)) > 19_000
    seed = int.from_bytes(hashlib.sha256("naïve".encode()).digest()[:16], "big")
    expected = np.random.Generator(np.random.PCG64(seed)).random(50) * 2 - 1
    np.testing.assert_allclose(random_vector("naïve", 50, variance=1 / 3), expected, rtol=1e-6)


def test_variance_that_clients_agree_on():
    half = WordVectors(("dog",), np.array([[3, 4]], np.float32), "half")
    one = encode(DATA, VECTORS, "random", oov_variance=0.1)
    two = encode(DATA, half, "random", oov_variance=0.1)
    np.testing.assert_array_equal(one.embedding[2], two.embedding[2])


def test_longer_documents_are_cut_and_counted(caplog):
    encoded = encode(DATA, VECTORS, max_words=2, tokeniser=lambda text: text.lower().split())
    np.testing.assert_array_equal(encoded.train_tokens.padded(), [[2, 1], [0, 0], [1, 0]])
    assert "texts: 1 of 4 documents have more than 2 words and are cut" in caplog.text
    caplog.clear()
    encode(DATA, VECTORS, max_words=3)
    assert not caplog.text


FRENCH = WordVectors(("été", "t"), np.eye(2, dtype=np.float32), "two by hand")


@pytest.mark.parametrize(("unicode", "known"), [(True, "été"), (False, "t")])
def test_own_data_are_tokenised_by_their_own_rule(unicode, known, caplog):
    data = from_texts([("L'ete, l'été: été.", "a")], [("été", "a")], unicode=unicode)
    assert encode(data, FRENCH).words[2:] == (known,)
    assert ("texts: the tokeniser drops 43 % of the characters" in caplog.text) is not unicode
    assert ("--tokeniser unicode" in caplog.text) is not unicode


def test_a_few_dropped_characters_take_no_line(caplog):
    encode(from_texts([("dog " * 100, "a"), ("é", "a")], [("cat", "a")], unicode=False), VECTORS)
    encode(DATA, VECTORS, tokeniser=str.split)  # nobody knows what another tokeniser drops
    assert not caplog.text


ROWS = [[5, 2, 7], [], [3], [4, 4, 4, 4], []]


@pytest.mark.parametrize("rows", [[], [0], [1], [3, 0, 3], [4, 2, 1, 0, 3], list(range(5))])
def test_taken_documents_are_the_documents(rows):
    taken = RaggedTokens.from_rows(ROWS).take(rows)
    expected = [ROWS[row] for row in rows]
    assert [part.tolist() for part in np.split(taken.values, taken.row_splits[1:-1])][: len(rows)] == expected
    assert (len(taken), taken.lengths.tolist()) == (len(rows), list(map(len, expected)))
    assert (taken.values.dtype, taken.lengths.dtype) == (np.int32, np.int32)
    padded = taken.padded()
    longest = max(1, max(map(len, expected), default=0))
    assert padded.tolist() == [row + [0] * (longest - len(row)) for row in expected] or not rows
    assert padded.shape == (len(rows), longest)


@pytest.mark.parametrize("splits", [[], [0], [0, 3], [1, 2], [0, 2, 1, 2], [[0, 2]]])
def test_splits_that_divide_no_tokens(splits):
    with pytest.raises(InputError, match="row_splits: expected"):
        RaggedTokens([5, 6], splits)


def test_one_long_document_costs_its_own_words():
    short, words = [("dog cat", "a")] * 2_000, 10_000
    data = from_texts([*short, ("dog " * words, "a")], [("dog", "a")])
    encode(data, VECTORS)  # what is imported and cached on the way
    tracemalloc.start()
    encoded = encode(data, VECTORS)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(encoded.train_tokens.values), encoded.train_tokens.lengths.max()) == (4_000 + words, words)
    assert most < 4 * 2_001 * words / 8, "a dense array would be eight times that, and more"


def test_only_empty_documents():
    encoded = encode(from_texts([("", "a")], [("...", "a")]), VECTORS)
    assert encoded.train_tokens.padded().tolist() == [[0]]
    assert encoded.embedding.shape == (2, 2)


def test_wrong_input():
    with pytest.raises(InputError, match="oov: expected one of zero, random, found 'mean'"):
        encode(DATA, VECTORS, oov="mean")
    with pytest.raises(InputError, match="max_words must be a whole number, 1 or more; got 0"):
        encode(DATA, VECTORS, max_words=0)
    with pytest.raises(WordVectorError, match="none of the .* words in use has a vector"):
        encode(DATA, WordVectors(("chat",), np.ones((1, 2), np.float32), "French"))
    with pytest.raises(WordVectorError, match="the vector of 'dog' holds a value that is not finite"):
        encode(DATA, WordVectors(("dog",), np.array([[np.nan, 1]], np.float32), "broken"))
    with pytest.raises(WordVectorError, match="2 words, vectors"):
        encode(DATA, WordVectors(("dog", "cat"), np.ones((1, 2), np.float32), "short"))


def test_real_trec(data_dir):
    from tffcl.datasets import load, load_word_vectors, tokenise

    data = load("trec6", data_dir)
    words = {word for text in data.train_texts + data.test_texts for word in tokenise(text)}
    vectors = load_word_vectors(data_dir / "glove" / "glove.6B.100d.subset.bin", words)
    encoded = encode(data, vectors)
    assert encoded.embedding.shape == (2 + len(vectors.words), 100)
    lengths = encoded.train_tokens.lengths
    assert lengths.max() == 37
    assert lengths.min() > 0
    known = (encoded.train_tokens.values > 1).mean()
    assert 0.9 < known < 1
