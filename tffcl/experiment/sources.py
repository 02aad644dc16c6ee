"""Data sets as a run meets them: by name, folder, file or object, and as the kind that its network takes."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
import zlib
from collections.abc import Iterable
from typing import Any, Optional

import numpy as np

from tffcl import datasets, errors
from tffcl.experiment import kinds
from tffcl.experiment.experiment import Experiment
from tffcl.options import OptionError

logger = logging.getLogger(__name__)


def usual_data(experiment: Experiment) -> str:
    """The name of the data set that a method has where none is given: the paper's if it is at hand."""
    *wanted, ships = kinds.usual_data(experiment.method, experiment.kind)
    missing = []
    for name in wanted:
        if datasets.available(name, experiment.data_dir) or _downloaded(name, experiment.data_dir):
            break
        missing.append(name)
    else:
        name = ships
    if missing:
        shown = {"sample": "the small sample that ships", "digits": "digits, 8 x 8"}.get(name, name)
        logger.info(
            "data: %s not at hand: taking %s; --data-dir DIR or --data NAME|PATH for other data",
            " and ".join(missing), shown,
        )  # fmt: skip
    return name


def _downloaded(name: str, data_dir: Optional[str]) -> bool:
    """Whether a text set comes from the network into the cache; images are not fetched unasked."""
    if name not in kinds.TEXTS:
        return False
    try:
        datasets.load(name, data_dir)
    except errors.DatasetError:
        return False
    return True


def load(experiment: Experiment) -> Any:
    """The data set: a `TextDataset`, `ImageDataset`, `BinaryVectors` or `ArrayDataset`.

    Raises:
      DatasetError: the data are missing or malformed.
    """
    data, kind = experiment.data, experiment.kind
    if kinds.is_own(data):
        own = kinds.own_options(data)
        data = kinds.loaded(data, None if own is None else experiment.groups[own])
        kinds.natural_kind(data)  # says what it should be
    if kind == "text":
        parts = [_texts(experiment, part) for part in kinds.union_of(data) or (data,)]
        return parts[0] if len(parts) == 1 else datasets.join_texts(parts)
    if kind == "binary":
        return _binary(experiment, data)
    if kind == "image" and isinstance(data, str):
        return datasets.load_images(data, experiment.data_dir)
    if kind == "vector":
        return datasets.load_arrays(data) if isinstance(data, str) else datasets.as_arrays(data)
    return data


def _texts(experiment: Experiment, data: Any) -> datasets.TextDataset:
    texts = datasets.load(data, experiment.data_dir) if isinstance(data, str) else data
    if experiment.tokeniser is not None:
        texts = dataclasses.replace(texts, unicode=experiment.tokeniser == "unicode")
    return texts


def _binary(experiment: Experiment, data: Any) -> datasets.BinaryVectors:
    seed = experiment.split_seed if experiment.binarise == "stochastic" else None

    def images(name: str) -> datasets.BinaryVectors:
        return datasets.vectors_of_images(datasets.load_images(name, experiment.data_dir), seed=seed)

    if isinstance(data, datasets.ImageDataset):
        return datasets.vectors_of_images(data, seed=seed)
    if not isinstance(data, str):
        return data
    if data == "mnist+letters":
        return datasets.join_vectors(images("mnist"), images("emnist-letters"))
    if data in kinds.BINARIES:
        names = kinds.BINARY_SETS if data == "binary" else (data,)
        return datasets.vectors_of_sets([datasets.load_binary(name, experiment.data_dir) for name in names])
    return images(data)


def encoded(experiment: Experiment, texts: datasets.TextDataset) -> datasets.EncodedTextDataset:
    """Documents as word ids, with the vectors of the words in use.

    Raises:
      WordVectorError: word vectors that are missing or malformed.
    """
    return datasets.encode(texts, word_vectors(experiment, texts), max_words=experiment.max_words)


def word_vectors(experiment: Experiment, texts: datasets.TextDataset) -> datasets.WordVectors:
    """Word vectors of the words in use."""
    source = experiment.embeddings or _usual_vectors(experiment.data_dir)
    if source == "own":
        tokenised = [texts.tokenise(text)[: experiment.max_words] for text in texts.train_texts]
        vectors = datasets.train_word_vectors(tokenised, seed=experiment.seed)
    else:
        words = {word for text in (*texts.train_texts, *texts.test_texts) for word in texts.tokenise(text)}
        vectors = datasets.load_word_vectors(source, words, allow_pickle=experiment.allow_pickle)
    logger.info(
        "word vectors: %d words, %d dimensions, from %s",
        len(vectors.words), vectors.vectors.shape[1], vectors.source,
    )  # fmt: skip
    return vectors


def _usual_vectors(data_dir: Optional[str]) -> str:
    from tffcl.datasets import download, word_vectors

    folder = data_dir or os.environ.get(download.ENVIRONMENT_VARIABLE)
    files = sorted(pathlib.Path(os.path.expanduser(folder)).glob("glove/*.bin")) if folder else []
    if files:
        return str(files[0])
    return "glove-50" if word_vectors.glove_available() else "own"


def domains_of(experiment: Experiment, images: Any) -> datasets.Domains:
    """The images as ever other domains, one a task."""
    if experiment.data in kinds.PAIRS:
        first, second = experiment.data.split("+")
        every = datasets.mnist_fashion(
            datasets.load_images(first, experiment.data_dir),
            datasets.load_images(f"{second}-mnist", experiment.data_dir),
        )
    elif isinstance(images, datasets.Domains):
        every = images
    elif experiment.domains == "classes":
        every = datasets.emnist_balanced(images)
    elif experiment.domains == "mild":
        every = datasets.mild(images)
    elif experiment.domains == "permutations":
        # Section 5.1 of FIL-VER permutes every task. Else the first is as it is, so that a convolution has something to
        # learn.
        keep = not getattr(experiment.method, "study", False)
        every = datasets.permutations(images, experiment.num_tasks, experiment.split_seed, keep_first=keep)
    else:
        count = experiment.num_tasks
        every = datasets.rotations(images, [360 * turn / count for turn in range(count)])
    if experiment.num_tasks > len(every):
        raise OptionError(
            "num_tasks",
            f"{experiment.num_tasks} tasks, but {every.name} has {len(every)} domains, and each task is one",
        )
    return dataclasses.replace(every, domains=every.domains[: experiment.num_tasks])


def checksum(arrays: Iterable[np.ndarray]) -> str:
    """A short sum over all data of a run, so that it is not resumed with other ones."""
    total = 0
    for array in arrays:
        total = zlib.crc32(np.ascontiguousarray(array).tobytes(), total)
    return f"{total:08x}"
