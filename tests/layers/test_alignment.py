"""ForeignAlignment against FedSeIT eq. 3 written as loops."""

import numpy as np
import pytest
import tensorflow as tf

from tffcl import errors
from tffcl.layers import ForeignAlignment


@pytest.mark.parametrize("places", [0, 1, 3])
def test_equation_3(places, tmp_path):
    rng = np.random.default_rng(0)
    own, foreign = rng.normal(size=(4, 5)).astype("f"), rng.normal(size=(4, places, 5)).astype("f")
    inputs = tf.keras.Input([5]), tf.keras.Input([places, 5])
    layer = ForeignAlignment()
    model = tf.keras.Model(inputs, layer(inputs))
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape))
    project, augment = layer.foreign_projection.numpy(), layer.augment_projection.numpy()
    expected = []
    for n in range(4):
        joined = np.concatenate([foreign[n, k] for k in range(places)] or [np.zeros(0)])
        expected.append(np.concatenate([own[n], joined @ project]) @ augment)
    np.testing.assert_allclose(model([own, foreign]), expected, rtol=1e-4, atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded([own, foreign]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shapes", [[(2, 5)], [(2, 5), (2, 3, 4)], [(2, 5), (2, 5)]])
def test_wrong_shapes_are_input_errors(shapes):
    with pytest.raises(errors.InputError, match=r"expected inputs \[N, F\] and \[N, K, F\]"):
        ForeignAlignment()([tf.zeros(shape) for shape in shapes])
