from __future__ import annotations

import numpy as np
import pytest

from tffcl import errors
from tffcl.transfers import document_vectors


def test_equals_the_mean_over_the_words_of_each_document():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=[30, 5]).astype(np.float32)
    vectors[:2] = 0.0
    tokens = np.zeros([12, 9], np.int32)
    for row in tokens:
        length = rng.integers(0, 10)
        row[:length] = rng.integers(1, 30, size=length)
    expected = np.zeros([12, 5])
    for row, ids in zip(expected, tokens):
        words = [vectors[i] for i in ids if i != 0]
        if words:
            row[:] = np.sum(words, axis=0) / len(words)
    found = document_vectors(tokens, vectors)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_padding_and_company_change_nothing():
    vectors = np.random.default_rng(1).normal(size=[6, 3]).astype(np.float32)
    alone = document_vectors(np.array([[2, 3, 5]]), vectors)
    padded = document_vectors(np.array([[2, 3, 5, 0, 0], [5, 4, 3, 2, 2]]), vectors)
    assert alone[0].tobytes() == padded[0].tobytes()


def test_empty_documents_and_no_documents():
    vectors = np.ones([3, 2], np.float32)
    assert document_vectors(np.zeros([2, 4], np.int32), vectors).tolist() == [[0.0, 0.0]] * 2
    assert document_vectors(np.zeros([0, 4], np.int32), vectors).shape == (0, 2)


@pytest.mark.parametrize("tokens", [[[3]], [[-1]]])
def test_an_id_without_a_vector_is_one_clear_error(tokens):
    with pytest.raises(errors.InputError, match=r"word ids should lie in \[0, 3\)"):
        document_vectors(np.array(tokens), np.ones([3, 2], np.float32))
    with pytest.raises(errors.InputError, match=r"expected tokens \[N, L\]"):
        document_vectors(np.array([1, 2]), np.ones([3, 2], np.float32))
