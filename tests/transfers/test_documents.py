from __future__ import annotations

import numpy as np
import pytest

from tffcl import errors
from tffcl.transfers import document_vectors


def mean_vectors(documents, vectors):
    """`document_vectors` of documents that stand one after the other."""
    length = np.array([len(document) for document in documents], np.int32)
    tokens = np.array([token for document in documents for token in document], np.int32)
    return document_vectors(tokens, np.cumsum(length) - length, length, vectors)


def test_equals_the_mean_over_the_words_of_each_document():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=[30, 5]).astype(np.float32)
    vectors[:2] = 0.0
    documents = [rng.integers(1, 30, rng.integers(0, 10)) for _ in range(12)]
    expected = [vectors[words].sum(axis=0) / max(1, len(words)) for words in documents]
    found = mean_vectors(documents, vectors)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_company_and_the_place_of_the_words_change_nothing():
    vectors = np.random.default_rng(1).normal(size=[6, 3]).astype(np.float32)
    alone = mean_vectors([[2, 3, 5]], vectors)
    among = mean_vectors([[5, 4, 3, 2, 2], [2, 3, 5]], vectors)
    tokens, start, length = np.array([4, 2, 3, 5, 4]), np.array([1, 0]), np.array([3, 2])
    inside = document_vectors(tokens, start, length, vectors)
    assert alone[0].tobytes() == among[1].tobytes() == inside[0].tobytes()


def test_empty_documents_and_no_documents():
    vectors = np.ones([3, 2], np.float32)
    assert mean_vectors([[], []], vectors).tolist() == [[0.0, 0.0]] * 2
    assert mean_vectors([], vectors).shape == (0, 2)


@pytest.mark.parametrize("token", [3, -1])
def test_an_id_without_a_vector_is_one_clear_error(token):
    with pytest.raises(errors.InputError, match=r"word ids should lie in \[0, 3\)"):
        mean_vectors([[token]], np.ones([3, 2], np.float32))
    with pytest.raises(errors.InputError, match=r"expected tokens \[W\]"):
        document_vectors(*[np.zeros([1, 2], np.int32)] * 3, np.ones([3, 2], np.float32))
