"""Keras layers with decomposed kernels, and the pure functions under them.

Importing this package registers the layers with Keras: `tf.keras.models.load_model` of a saved model that has them
needs no more than that, and fails without it.
"""

import lazy_loader

from tffcl.layers import keras_layers  # noqa: F401  # registers its layers

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
