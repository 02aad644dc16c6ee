"""What a client does, as plain TensorFlow functions with the types that cross its border.

A client work knows nothing of placements: `compose_continual_process` wraps its methods into federated
computations. Its state is a flat mapping from names to few dense tensors. A method takes only the entries of the
state that it names, and returns the entries that it changes, so that a round moves nothing that it does not use.
"""

from __future__ import annotations

import abc
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tffcl.templates import admission

Tensors = Mapping[str, tf.Tensor]


class ClientWork(abc.ABC):
    """The client's part of a continual process.

    Types (all `OrderedDict`s of `tff.TensorType`, in the order in which the tensors travel):
      state_type: everything that a client keeps between calls. An entry `run_task`, int32, is set by the program
        before `begin_task` to the number of the run's task, which is not the number of tasks that the client has had
        where clients come and go. An entry `secret`, int32 [2], is set by the program to random bits of the operating
        system when the state is first made: for noise that nobody else may know.
      train_reads / train_writes: names of the state that one round reads and changes.
      prepare_reads: names of the state that `prepare` reads.
      evaluate_type: the state of one task at one client, all that `evaluate` reads (see `task_view`).
      context_type: data that belong to all examples of a client (word vectors, for example); no leading N.
      example_type: raw examples, every tensor `[N, ...]`, with `label` among them where the work is supervised.
      prepared_type: `example_type` and whatever `prepare` adds to it, `[N, ...]`.
      shared_type: what the server holds and broadcasts (a tensor type).
      plan_size: entries of the plan, what the server decides once and tells every client at the start.
      knowledge_size: values in a row of the knowledge base, i.e. in `upload["knowledge"]`.
      num_foreign: K, the most rows that a client receives for a task.
      max_classes: labels of a task lie in [0, max_classes); None where there are no labels.
      largest_value: the server takes no float of a larger magnitude from a client.
    """

    state_type: OrderedDict
    train_reads: tuple[str, ...]
    train_writes: tuple[str, ...]
    prepare_reads: tuple[str, ...] = ("key",)
    evaluate_type: OrderedDict
    context_type: OrderedDict
    example_type: OrderedDict
    prepared_type: OrderedDict
    shared_type: tff.TensorType
    plan_size: int = 0
    knowledge_size: int
    num_foreign: int
    max_classes: int | None = None
    largest_value: float = admission.LARGEST

    @abc.abstractmethod
    def initialize_shared(self) -> tf.Tensor:
        """The server's first shared value."""

    def initialize_plan(self) -> tf.Tensor:
        """The server's plan, int32 `[plan_size]`."""
        return tf.zeros([0], tf.int32)

    @abc.abstractmethod
    def initialize_client(self, shared: tf.Tensor, plan: tf.Tensor, key: tf.Tensor) -> Tensors:
        """A client's first state, of `state_type`; `key` is int32 `[2]`, the root of all its randomness."""

    @abc.abstractmethod
    def begin_task(self, state: Tensors, shared: tf.Tensor, foreign: tf.Tensor) -> Tensors:
        """The state with fresh parameters for a new task; `foreign` is float32 `[k, knowledge_size]`, k <= K."""

    def prepare(self, state: Tensors, foreign: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        """Examples with all that is frozen for the whole task computed once; by default they stay as they are."""
        del state, foreign, context
        return examples

    @abc.abstractmethod
    def train(
        self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any], round_num: tf.Tensor
    ) -> tuple[Tensors, Tensors, tf.Tensor, Tensors]:
        """One round at one client.

        Args:
          state: the entries `train_reads`.
          shared: the server's shared value.
          data: `context`, `train` and `validation`, of `context_type` and twice `prepared_type`.
          round_num: int32, the server's count of rounds, for seeds.

        Returns:
          The entries `train_writes`; the update (a mapping of tensors, for the aggregator); its weight, float32,
          0 where the client has nothing to say; metrics (a mapping of scalars).
        """

    def limits(self, state: Tensors, data: Mapping[str, Any]) -> Tensors:
        """What the program knows of a client's message of a round without asking it, scalars by name.

        Args:
          state: the entries `train_reads`, as the program hands them to the client.
          data: as for `train`.

        Returns:
          `weight`, float32, the largest that the update may have: the number of training examples unless a work weighs
          its clients otherwise; and what `faults` needs.
        """
        del state
        return {"weight": tf.cast(tf.shape(next(iter(data["train"].values())))[0], tf.float32)}

    def faults(self, update: Tensors, limits: Tensors) -> Sequence[admission.Fault]:
        """What may be wrong with an update beyond its weight and values; runs at the server, as does no other method.

        Args:
          update: as a client sent it, of the type that `train` returns.
          limits: what `limits` returned for that client.

        Returns:
          Pairs of a bool scalar and the text that stands in the history where it is true. The first is told.
        """
        del update, limits
        return ()

    @abc.abstractmethod
    def end_task(self, state: Tensors, shared: tf.Tensor, data: Mapping[str, Any]) -> tuple[Tensors, Tensors]:
        """The state with the task put among the past ones, and what the client uploads (`knowledge` in it)."""

    @abc.abstractmethod
    def evaluate(self, view: Tensors, shared: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        """One task's parameters on examples: sums `count`, `loss` and `correct`, or `losses` `[N]` of a density."""

    @abc.abstractmethod
    def task_view(self, state: Mapping[str, Any], task: Any) -> OrderedDict:
        """The entries of a client's state with which task number `task` is evaluated: `evaluate_type`.

        Both are numpy values; or, where clients keep their states themselves (`tffcl.program.ClientFiles`), tensors.
        """
