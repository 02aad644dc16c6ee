"""Keras layers with decomposed kernels, and the pure functions under them.

Importing this package registers the layers with Keras: `tf.keras.models.load_model` of a saved model that has them
needs no more than that, and fails without it.
"""

from tffcl.layers.alignment import ForeignAlignment
from tffcl.layers.autoregressive import AutoregressiveMask
from tffcl.layers.decomposed import DecomposedConv1D, DecomposedConv2D, DecomposedDense
from tffcl.layers.kernels import KernelLayout, VectorLayout
from tffcl.layers.masked import DecomposedMaskedDense, MaskedDense
from tffcl.layers.variational import GaussianHead

__all__ = [
    "AutoregressiveMask",
    "DecomposedConv1D",
    "DecomposedConv2D",
    "DecomposedDense",
    "DecomposedMaskedDense",
    "ForeignAlignment",
    "GaussianHead",
    "KernelLayout",
    "MaskedDense",
    "VectorLayout",
]
