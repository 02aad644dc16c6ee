"""What a client sends for rehearsal at the server, if anything (FIL-VER, 3.2 and 3.3)."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

import tensorflow as tf

from tffcl import errors
from tffcl.client_works import randomness, rehearsal_memory
from tffcl.client_works.embedding_privacy import EmbeddingPrivacy
from tffcl.models.encoders import Encoder, draw

# "sampled": one sample z of each posterior (VER-Sampled). "stats": mu and log sigma (VER-Stats).
# "embeddings": what a deterministic encoder gives (EBR). "none": nothing but the update of the classifier.
SHARING = ("none", "sampled", "stats", "embeddings")


@dataclasses.dataclass(frozen=True)
class Sharing:
    """What is sent of an encoder's statistics, and of how many examples in a round.

    An example is sampled once, with a key that depends on the client, the task and the example's place alone, and sent
    once at most: further samples of one posterior would tell more and more of its example.

    Attributes:
      encoder: whose statistics they are.
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
        if self.kind not in SHARING:
            raise errors.InputError(f"sharing must be one of {', '.join(SHARING)}; got {self.kind!r}")
        wrong = self.kind == "embeddings" if self.encoder.variational else self.kind in ("sampled", "stats")
        if wrong:
            kind = "variational" if self.encoder.variational else "deterministic"
            raise errors.InputError(f"sharing {self.kind!r} does not go with a {kind} encoder")
        if self.send_per_round < 1:
            raise errors.InputError(f"send_per_round: expected at least 1, found {self.send_per_round}")
        if self.privacy is not None and self.kind == "none":
            raise errors.InputError("privacy: nothing is sent that could be clipped and get noise")

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
        """Whether what is sent are mu and log sigma, to be sampled at each use."""
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
        """The rows that a client sends in a round.

        Args:
          stats: float32 `[N, stats_size]`, of all its examples of the task.
          label: int32 `[N]`.
          task: int32, number of the task.
          offered: int32, how many of the task's examples the client sent in earlier rounds.
          key: int32 `[2]`, of the client and the task.
          noise_key: int32 `[2]`, of the client and the task and known to the client alone; None without `privacy`.

        Returns:
          Of `rehearsal_memory.rows_type(width)`, at most `send_per_round` rows.
        """
        rows = task_rows(self._vectors(stats, key, noise_key), label, task, key)
        chosen = rehearsal_memory.turns(rows)[offered : offered + self.send_per_round]
        return OrderedDict((name, tf.gather(values, chosen)) for name, values in rows.items())

    def _vectors(self, stats: tf.Tensor, key: tf.Tensor, noise_key: tf.Tensor | None) -> tf.Tensor:
        """What would be sent of every example, the same in every round of the task."""
        size = self.encoder.embedding_size
        vectors = stats
        if self.kind == "sampled":
            vectors = draw(stats, randomness.fold(key, randomness.SAMPLES), size, True)
        if self.privacy is not None:
            vectors = self.privacy.apply(vectors, noise_key)
        return vectors


def task_rows(vectors: tf.Tensor, label: tf.Tensor, task: tf.Tensor, key: tf.Tensor) -> OrderedDict:
    """A task's examples as rows for a memory; `key` (int32 `[2]`) is that of the client and the task."""
    count = tf.size(label)
    priority = rehearsal_memory.draw_priorities(count, randomness.fold(key, randomness.PRIORITIES))
    return OrderedDict(vectors=vectors, label=label, task=tf.fill([count], task), priority=priority)
