"""Data sets: texts with word vectors, images, binary vectors; loaders, and small sets that need no download."""

from tffcl.datasets.binarisation import binarise, binarise_stochastic
from tffcl.datasets.binary_dataset import BinaryDataset, load_binary
from tffcl.datasets.binary_vectors import BinaryVectors, join_vectors
from tffcl.datasets.domain_sets import (
    class_groups,
    emnist_balanced,
    mild,
    mnist_fashion,
    permutations,
    rotations,
)
from tffcl.datasets.domains import Domain, Domains
from tffcl.datasets.encoding import EncodedTextDataset, RaggedTokens, encode
from tffcl.datasets.idx_files import read_idx
from tffcl.datasets.image_dataset import ImageDataset
from tffcl.datasets.image_registry import load_images
from tffcl.datasets.registry import available, load
from tffcl.datasets.table_files import from_directory, from_files
from tffcl.datasets.text_dataset import TextDataset, from_texts
from tffcl.datasets.tokens import tokenise
from tffcl.datasets.vector_sources import vectors_of_images, vectors_of_sets
from tffcl.datasets.word_vectors import WordVectors, load_word_vectors, train_word_vectors

__all__ = [
    "BinaryDataset",
    "BinaryVectors",
    "Domain",
    "Domains",
    "EncodedTextDataset",
    "ImageDataset",
    "RaggedTokens",
    "TextDataset",
    "WordVectors",
    "available",
    "binarise",
    "binarise_stochastic",
    "class_groups",
    "emnist_balanced",
    "encode",
    "from_directory",
    "from_files",
    "from_texts",
    "join_vectors",
    "load",
    "load_binary",
    "load_images",
    "load_word_vectors",
    "mild",
    "mnist_fashion",
    "permutations",
    "read_idx",
    "rotations",
    "tokenise",
    "train_word_vectors",
    "vectors_of_images",
    "vectors_of_sets",
]
