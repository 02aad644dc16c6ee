"""The data and the word vectors that the flags ask for, or what is at hand, with a line that says which."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Optional

from tffcl import datasets, errors, streams
from tffcl.commands.entry import say
from tffcl.commands.fedseit_options import FedSeITOptions
from tffcl.commands.running import checksum
from tffcl.datasets import glove_package, registry

DEFAULT_DATASET = "trec6"


def load_texts(options: FedSeITOptions) -> tuple[datasets.TextDataset, FedSeITOptions]:
    """The documents, and the options with what depends on them filled in.

    Without `--dataset`, TREC6 where it is at hand or can be downloaded, else the sample that ships.

    Raises:
      DatasetError: the data set that was asked for is missing or malformed.
    """
    if options.dataset is not None:
        texts = datasets.load(options.dataset, options.data_dir)
    else:
        texts = _default_texts(options.data_dir)
    if options.tokeniser is not None:
        texts = dataclasses.replace(texts, unicode=options.tokeniser == "unicode")
    complete = options.complete(texts.name)
    say(
        f"data: {texts.name}, {len(texts.train_texts)} training and {len(texts.test_texts)} test documents, "
        f"{len(texts.label_names)} labels; {complete.num_rounds} rounds a task, up to {complete.num_epochs} epochs"
    )
    return texts, complete


def _default_texts(data_dir: Optional[str]) -> datasets.TextDataset:
    if not datasets.available(DEFAULT_DATASET, data_dir):
        try:
            return datasets.load(DEFAULT_DATASET, data_dir)  # from the network into the cache
        except errors.DatasetError as error:
            say(
                f"data: {DEFAULT_DATASET} is not at hand ({str(error).partition(';')[0]}): taking the small sample "
                "that ships; --data-dir DIR or --dataset NAME|PATH for other data"
            )
            return datasets.load("sample")
    return datasets.load(DEFAULT_DATASET, data_dir)


def load_vectors(options: FedSeITOptions, texts: datasets.TextDataset) -> datasets.WordVectors:
    """Word vectors of the words in use.

    Raises:
      WordVectorError: what was asked for is missing or malformed.
    """
    source = options.embeddings or _default_vectors(options.data_dir)
    if source == "own":
        tokenised = [texts.tokenise(text)[: options.max_words] for text in texts.train_texts]
        vectors = datasets.train_word_vectors(tokenised, seed=options.seed)
    else:
        words = {word for text in (*texts.train_texts, *texts.test_texts) for word in texts.tokenise(text)}
        vectors = datasets.load_word_vectors(source, words, allow_pickle=options.allow_pickle)
    say(
        f"word vectors: {len(vectors.words)} words, {vectors.vectors.shape[1]} dimensions, from {vectors.source}"
    )
    return vectors


def _default_vectors(data_dir: Optional[str]) -> str:
    folder = data_dir or os.environ.get(registry.ENVIRONMENT_VARIABLE)
    files = sorted(pathlib.Path(os.path.expanduser(folder)).glob("glove/*.bin")) if folder else []
    if files:
        return str(files[0])
    return "glove-50" if glove_package.available() else "own"


def split(options: FedSeITOptions, texts: datasets.TextDataset) -> streams.TaskStream:
    """The paper's non-iid split.

    Raises:
      StreamError: the labels or documents do not allow what was asked for.
    """
    stream = streams.non_iid(
        texts.train_labels,
        texts.test_labels,
        num_clients=options.num_clients,
        num_tasks=options.num_tasks,
        labels_per_task=options.labels_per_task,
        seed=options.split_seed,
        order_seed=options.seed,
        label_names=texts.label_names,
    )
    if stream.excluded_labels:
        names = ", ".join(texts.label_names[label] for label in stream.excluded_labels)
        say(f"data: too few documents, or none to test with, for the labels {names}; no task has them")
    if options.max_test_documents is not None:
        stream = streams.fewer_tests(stream, options.max_test_documents, options.split_seed)
    return stream


def fingerprint(encoded: datasets.EncodedTextDataset) -> str:
    """A short sum over documents and word vectors, so that a run is not resumed with other ones."""
    tokens = (encoded.train_tokens, encoded.test_tokens)
    return checksum(
        [
            encoded.embedding,
            *(array for one in tokens for array in (one.values, one.row_splits)),
            encoded.train_labels,
            encoded.test_labels,
        ]
    )
