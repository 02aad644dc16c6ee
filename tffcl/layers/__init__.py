"""Keras layers with decomposed kernels, and the pure functions under them."""

from tffcl.layers.alignment import ForeignAlignment
from tffcl.layers.decomposed import DecomposedConv1D, DecomposedConv2D, DecomposedDense
from tffcl.layers.kernels import KernelLayout, VectorLayout

__all__ = [
    "DecomposedConv1D",
    "DecomposedConv2D",
    "DecomposedDense",
    "ForeignAlignment",
    "KernelLayout",
    "VectorLayout",
]
