"""Rows for rehearsal: those that a client or the server keeps, and those that a client sends (FIL-VER, 3.2 and 3.3).

A memory is of constant size, with a fair share for every label of every task. Each row has a priority that was drawn
once. A label of a task keeps its rows of the lowest priorities, so that a memory is a random sample of all rows that
ever came, whatever their order; rows that leave never return. Labels and tasks take turns until the memory is full, so
that none has two rows more than another that has any left to give.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_works import randomness
from tffcl.errors import InputError, check_above_zero, check_choice
from tffcl.models.encoders import Encoder, draw
from tffcl.templates.messages import Fault

Rows = Mapping[str, tf.Tensor]


def rows_type(width: int) -> OrderedDict:
    """The type of rows: vectors of `width` numbers, their labels and tasks, and their priorities in the memory."""
    number = tff.TensorType(np.int32, [None])
    return OrderedDict(vectors=tff.TensorType(np.float32, [None, width]), label=number, task=number, priority=number)


def no_rows(width: int) -> OrderedDict:
    """An empty memory."""
    number = tf.zeros([0], tf.int32)
    return OrderedDict(vectors=tf.zeros([0, width]), label=number, task=number, priority=number)


def row_faults(rows: Rows, most: tf.Tensor, task: tf.Tensor, classes: int) -> Sequence[Fault]:
    """Faults of rows that a client sends of a task, beside their values (`ClientWork.faults`).

    Args:
      rows: as sent, possibly of different lengths.
      most: int32, rows that the client may send.
      task: int32, number of the task that it learns.
      classes: labels lie in [0, classes).
    """
    counts = tf.stack([tf.shape(values)[0] for values in rows.values()])
    label, shown = rows["label"], [tf.strings.as_string(number) for number in (most, counts[0])]
    return [
        (tf.reduce_any(tf.not_equal(counts, counts[0])), f"rehearsal: {', '.join(rows)} should be equally many"),
        (counts[0] > most, tf.strings.join(["rehearsal: should be ", shown[0], " rows at most, found ", shown[1]])),
        (tf.reduce_any((label < 0) | (label >= classes)), f"rehearsal: labels should be 0 to {classes - 1}"),
        (tf.reduce_any(tf.not_equal(rows["task"], task)), "rehearsal: rows should be of the task that is learned"),
    ]


def turns(rows: Rows) -> tf.Tensor:
    """The order in which rows have a claim to stay: the first of every (task, label), then the second, ...: `[N]`."""
    by_priority = tf.argsort(rows["priority"], stable=True)
    task, label = tf.gather(rows["task"], by_priority), tf.gather(rows["label"], by_priority)
    by_label = tf.argsort(label, stable=True)
    by_cell = tf.gather(by_label, tf.argsort(tf.gather(task, by_label), stable=True))
    positions = tf.range(tf.size(by_cell))
    task, label = tf.gather(task, by_cell), tf.gather(label, by_cell)
    changes = tf.logical_or(tf.not_equal(task[1:], task[:-1]), tf.not_equal(label[1:], label[:-1]))
    new_cell = tf.concat([tf.ones([tf.minimum(tf.size(positions), 1)], tf.bool), changes], 0)
    starts = tf.gather(tf.boolean_mask(positions, new_cell), tf.cumsum(tf.cast(new_cell, tf.int32)) - 1)
    turn = tf.scatter_nd(by_cell[:, None], positions - starts, tf.shape(by_cell))
    return tf.gather(by_priority, tf.argsort(turn, stable=True))


def remember(memory: Rows, arrived: Rows, capacity: int) -> OrderedDict:
    """The memory, at most `capacity` rows, after more rows came; of `rows_type` each."""
    rows = {name: tf.concat([memory[name], arrived[name]], 0) for name in memory}
    kept = turns(rows)[:capacity]
    return OrderedDict((name, tf.gather(rows[name], kept)) for name in rows)


def task_rows(vectors: tf.Tensor, label: tf.Tensor, task: tf.Tensor, key: tf.Tensor) -> OrderedDict:
    """A task's examples as rows for a memory; `key` (int32 `[2]`) is that of the client and the task."""
    count = tf.size(label)
    key = randomness.fold(key, randomness.PRIORITIES)
    priority = tf.random.stateless_uniform([count], key, None, None, tf.int32)
    return OrderedDict(vectors=vectors, label=label, task=tf.fill([count], task), priority=priority)


# -- privacy ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class EmbeddingPrivacy:
    """Clips each vector to the Euclidean norm `clip` and adds noise N(0, (noise_multiplier clip)^2) to every entry.

    The Gaussian mechanism (Dwork, Roth: The Algorithmic Foundations of Differential Privacy, 2014, appendix A), on
    every example by itself: `tffcl.metrics.embedding_epsilon` says what it guarantees for one that is sent once,
    and what it does not protect: labels, the number of examples, the model update.

    The noise does not follow from the run's seed, which the server knows and config.json holds, but from a secret: 64
    bits of the operating system in the client's own state, drawn once (`tffcl.program`). So a run that is resumed, or a
    computation that runs again when a worker gets lost, sends the same noise again and reveals nothing more; a run
    with the same seed has other noise. Still to be trusted: checkpoints hold the secret, as they hold the client's
    memories; the generator (TensorFlow's Philox) is not a cryptographic one; the low bits of floats may reveal the
    value that the noise was added to.

    The noise's norm is about noise_multiplier clip sqrt(d), much more than the vector's own unless noise_multiplier is
    small.

    Shown in docs/contract.md.

    Args:
      clip: largest norm that a vector keeps.
      noise_multiplier: standard deviation of the noise / clip.
      seed: for tests: the noise then follows from this and the run's seed, and there is no guarantee at all. None for
        the client's secret.

    Raises:
      InputError: a number is not finite, or not above 0; a seed that is negative.
    """

    clip: float
    noise_multiplier: float
    seed: Optional[int] = None

    def __post_init__(self) -> None:
        for name in ("clip", "noise_multiplier"):
            check_above_zero(name, getattr(self, name))
        if self.seed is not None and not 0 <= self.seed < 2**31:
            raise InputError(f"seed: expected 0 to 2**31 - 1, found {self.seed!r}")

    def apply(self, vectors: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """The clipped and noised vectors, float32 `[N, d]`.

        A vector with NaN or an infinite entry counts as zeros: it too must leave with noise alone.

        Args:
          vectors: float32 `[N, d]`.
          key: int32 `[2]`, used nowhere else: the difference of two vectors with the same noise has none.
        """
        finite = tf.reduce_all(tf.math.is_finite(vectors), axis=1, keepdims=True)
        vectors = tf.where(finite, vectors, 0.0)
        # Squares of large entries overflow; those of entries up to 1 do not.
        largest = tf.reduce_max(tf.abs(vectors), axis=1, keepdims=True)
        scaled = tf.math.divide_no_nan(vectors, largest)
        norm = tf.norm(scaled, axis=1, keepdims=True)
        # The norm is largest * norm, compared without the product, which may overflow as well.
        kept = tf.minimum(largest, tf.math.divide_no_nan(self.clip, norm))
        noise = tf.random.stateless_normal(tf.shape(vectors), key)
        return scaled * kept + self.noise_multiplier * self.clip * noise


# -- sharing ------------------------------------------------------------------------------------------------------

# "sampled": one sample z of each posterior (VER-Sampled). "stats": mu and log sigma (VER-Stats).
# "embeddings": what a deterministic encoder gives (EBR). "none": nothing but the update of the classifier.
SHARING = ("none", "sampled", "stats", "embeddings")


@dataclasses.dataclass(frozen=True)
class Sharing:
    """Which of an encoder's statistics are sent, and of how many examples in a round.

    An example is sampled once, with a key that depends on the client, the task and the example's index alone, and sent
    once at most: further samples of one posterior would reveal more and more of its example.

    Shown with `RehearsalWork`.

    Attributes:
      encoder: of the statistics.
      kind: one of `SHARING`.
      send_per_round: examples that a client sends in a round; those of a task are sent in a random order with its
        labels in turn, until all have been.
      privacy: clipping and noise on each vector that is sent, or None.

    Raises:
      InputError: no such kind, a kind that does not go with the encoder, or fewer than 1 example in a round.
    """

    encoder: Encoder
    kind: str = "sampled"
    send_per_round: int = 50
    privacy: EmbeddingPrivacy | None = None

    def __post_init__(self) -> None:
        check_choice("sharing", self.kind, SHARING)
        variational = self.encoder.variational
        if self.kind in (("embeddings",) if variational else ("sampled", "stats")):
            kind = "variational" if variational else "deterministic"
            raise InputError(f"sharing {self.kind!r} does not go with a {kind} encoder")
        if self.send_per_round < 1:
            raise InputError(f"send_per_round: expected at least 1, found {self.send_per_round}")
        if self.privacy is not None and self.kind == "none":
            raise InputError("privacy: nothing is sent that could be clipped and get noise")

    @property
    def width(self) -> int:
        """Numbers that are sent of an example."""
        size = self.encoder.embedding_size
        return {"none": 0, "sampled": size, "stats": 2 * size, "embeddings": size}[self.kind]

    @property
    def row_bytes(self) -> int:
        """Bytes of an example that is sent: its numbers, label, task and priority."""
        return 4 * (self.width + 3)

    @property
    def as_stats(self) -> bool:
        """Whether mu and log sigma are sent, to be sampled at each use."""
        return self.kind == "stats"

    def sent(
        self,
        stats: tf.Tensor,
        label: tf.Tensor,
        task: tf.Tensor,
        offered: tf.Tensor,
        key: tf.Tensor,
        noise_key: tf.Tensor | None = None,
    ) -> OrderedDict:
        """The rows that a client sends in a round, of `rows_type(width)`, at most `send_per_round`.

        Args:
          stats: float32 `[N, stats_size]`, of all its examples of the task.
          label: int32 `[N]`.
          task: int32, number of the task.
          offered: int32, how many of the task's examples the client sent in earlier rounds.
          key: int32 `[2]`, of the client and the task.
          noise_key: int32 `[2]`, of the client and the task and known to the client alone; None without `privacy`.
        """
        rows = task_rows(self._vectors(stats, key, noise_key), label, task, key)
        chosen = turns(rows)[offered : offered + self.send_per_round]
        return OrderedDict((name, tf.gather(values, chosen)) for name, values in rows.items())

    def _vectors(self, stats: tf.Tensor, key: tf.Tensor, noise_key: tf.Tensor | None) -> tf.Tensor:
        """The vectors of all examples, the same in every round of the task."""
        if self.kind == "sampled":
            stats = draw(stats, randomness.fold(key, randomness.SAMPLES), self.encoder.embedding_size, True)
        return stats if self.privacy is None else self.privacy.apply(stats, noise_key)
