import hashlib

import numpy as np
import pytest

from tffcl.datasets import WordVectors, encode, from_texts
from tffcl.datasets.encoding import random_vector
from tffcl.errors import InputError, WordVectorError

VECTORS = WordVectors(
    ("cat", "dog", "unused"), np.array([[1, 2], [3, 4], [5, 6]], np.float32), source="three by hand"
)
DATA = from_texts([("Dog bites cat", "a"), ("", "b"), ("qqq", "a")], [("zzz dog", "b")])


def test_by_hand():
    encoded = encode(DATA, VECTORS)
    assert encoded.words[2:] == ("cat", "dog"), "only the words in use are kept"
    np.testing.assert_array_equal(encoded.embedding, [[0, 0], [0, 0], [1, 2], [3, 4]])
    np.testing.assert_array_equal(encoded.train_tokens, [[3, 1, 2], [0, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(encoded.test_tokens, [[1, 3]])
    assert encoded.embedding.dtype == np.float32
    assert encoded.train_tokens.dtype == encoded.train_labels.dtype == np.int32
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


def test_max_length_and_tokeniser():
    encoded = encode(DATA, VECTORS, max_length=2, tokeniser=lambda text: text.lower().split())
    np.testing.assert_array_equal(encoded.train_tokens, [[2, 1], [0, 0], [1, 0]])


def test_only_empty_documents():
    encoded = encode(from_texts([("", "a")], [("...", "a")]), VECTORS)
    assert encoded.train_tokens.shape == (1, 1)
    assert not encoded.train_tokens.any()
    assert encoded.embedding.shape == (2, 2)


def test_wrong_input():
    with pytest.raises(InputError, match="oov must be 'zero' or 'random', found 'mean'"):
        encode(DATA, VECTORS, oov="mean")
    with pytest.raises(InputError, match="max_length must be at least 1"):
        encode(DATA, VECTORS, max_length=0)
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
    lengths = (encoded.train_tokens > 0).sum(axis=1)
    assert lengths.max() == encoded.train_tokens.shape[1] == 37
    assert lengths.min() > 0
    known = (encoded.train_tokens > 1).sum() / lengths.sum()
    assert 0.9 < known < 1
