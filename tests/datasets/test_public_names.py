import subprocess
import sys

from tffcl import datasets


def test_exports():
    assert sorted(datasets.__all__) == datasets.__all__
    assert set(datasets.__all__) == {
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
    }
    assert all(hasattr(datasets, name) for name in datasets.__all__)


def test_import_is_light():
    heavy = ["tensorflow", "tensorflow_federated", "gensim", "sklearn", "pooch", "pandas"]
    code = f"import sys, tffcl.datasets; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
