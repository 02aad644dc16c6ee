"""Text data sets and word vectors: loaders, tokeniser, encoding, and a small sample that ships."""

from tffcl.datasets.encoding import EncodedTextDataset, encode
from tffcl.datasets.registry import available, load
from tffcl.datasets.table_files import from_directory, from_files
from tffcl.datasets.text_dataset import TextDataset, from_texts
from tffcl.datasets.tokens import tokenise
from tffcl.datasets.word_vectors import WordVectors, load_word_vectors, train_word_vectors

__all__ = [
    "EncodedTextDataset",
    "TextDataset",
    "WordVectors",
    "available",
    "encode",
    "from_directory",
    "from_files",
    "from_texts",
    "load",
    "load_word_vectors",
    "tokenise",
    "train_word_vectors",
]
