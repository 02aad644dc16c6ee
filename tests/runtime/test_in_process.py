"""The in-process runtime: the same values in the same form as a local worker gives, without a process."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import runtime

def in_both(computation, *args):
    """The results here and in a worker."""
    with runtime.local():
        expected = computation(*args)
    with runtime.in_process():
        return computation(*args), expected


def assert_same(found, expected):
    """Equal in value and in form: containers, dtypes, and what is an array."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            assert_same(one, other)
    elif isinstance(expected, tf.data.Dataset):
        assert found.element_spec == expected.element_spec
        assert_same(list(found.as_numpy_iterator()), list(expected.as_numpy_iterator()))
    else:
        assert getattr(found, "dtype", None) == getattr(expected, "dtype", None)
        np.testing.assert_array_equal(found, expected)
        if isinstance(expected, np.ndarray):
            assert found.flags.writeable == expected.flags.writeable or expected.dtype == object


@tff.tensorflow.computation
def _many_kinds():
    return OrderedDict(
        text=tf.constant("abc"),
        texts=tf.constant(["a", "b"]),
        number=tf.constant(3),
        truth=tf.constant(True),
        vector=tf.constant([1.0, 2.0]),
        brain=tf.constant([1.0], tf.bfloat16),
        empty=tf.zeros([0, 3]),
        pair=(tf.constant(1.5), OrderedDict(b=tf.constant([1]), a=tf.constant(2))),
        sequence=tf.data.Dataset.range(3).map(lambda n: OrderedDict(b=n, a=2 * n)),
    )


def test_every_kind_of_value_has_the_form_that_a_worker_gives():
    assert_same(*in_both(_many_kinds))
