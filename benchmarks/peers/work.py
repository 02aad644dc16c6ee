"""The client work that every peer does in one round, and the line protocol by which `run` asks for it.

A client has 320 documents of ten words, vectors of 100 numbers for them, and four labels that the vectors tell. It
trains a TextCNN (filters over 3, 4 and 5 words, 128 of each, the largest response of each, one layer over them) for one
epoch of SGD in batches of 64; the server takes the mean. Needs NumPy alone: each peer has an environment of its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

DOCUMENTS, WORDS, DIMENSION, VOCABULARY, LABELS = 320, 10, 100, 1200, 4
WIDTHS, FILTERS, BATCH, RATE = (3, 4, 5), 128, 64, 0.05
MOST_CLIENTS = 10


def vectors() -> np.ndarray:
    """Of the words, float32 `[VOCABULARY, DIMENSION]`; that of word 0 is zero, and no document has it."""
    found = np.random.default_rng(0).normal(0, 0.4, (VOCABULARY, DIMENSION)).astype(np.float32)
    found[0] = 0
    return found


def documents(client: int) -> tuple[np.ndarray, np.ndarray]:
    """A client's words, int32 `[DOCUMENTS, WORDS]`, and labels, int32 `[DOCUMENTS]`."""
    words = np.random.default_rng([1, client]).integers(1, VOCABULARY, (DOCUMENTS, WORDS)).astype(np.int32)
    directions = np.random.default_rng(2).normal(size=(DIMENSION, LABELS))
    return words, np.argmax(vectors()[words].mean(1) @ directions, 1).astype(np.int32)


def initial() -> list[np.ndarray]:
    """Kernels and biases of the filters by width, then of the layer over them: Glorot's uniform values and zeros."""
    rng, found = np.random.default_rng(3), []
    shapes = [((width, DIMENSION, FILTERS), width * DIMENSION, width * FILTERS) for width in WIDTHS]
    for shape, fan_in, fan_out in [*shapes, ((FILTERS * len(WIDTHS), LABELS), FILTERS * len(WIDTHS), LABELS)]:
        limit = np.sqrt(6 / (fan_in + fan_out))
        found += [rng.uniform(-limit, limit, shape).astype(np.float32), np.zeros(shape[-1], np.float32)]
    return found


def requests() -> tuple[Iterator[int], Callable[[Any], None]]:
    """Numbers of clients of the rounds that are wanted, one after another, and what answers a request.

    Whatever else the peer or its libraries print goes to stderr.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(found: Any) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    answer("ready")
    return (int(line) for line in sys.stdin), answer
