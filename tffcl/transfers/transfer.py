"""The contract of a transfer: which entries of the knowledge base each client receives for a new task."""

from __future__ import annotations

import abc
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from tffcl import errors
from tffcl.transfers.documents import document_vectors
from tffcl.transfers.knowledge_base import KnowledgeBase, Summary


class Transfer(abc.ABC):
    """Decides, at the start of a task, what each client receives from the knowledge base.

    The driver's part: where `needs_summaries`, each client calls `summarise` on its own data before it
    trains; the server calls `select`, hands `transfer_in` to the process, and stores the summary beside the
    knowledge that the client uploads at the end of the task.

    Attributes:
      needs_summaries: whether `select` reads what `summarise` says.
      noised: whether what `summarise` says has noise with an epsilon: then its seed is a secret of the client, which
        follows from nothing that anybody else knows.
    """

    needs_summaries: bool = False
    noised: bool = False

    @abc.abstractmethod
    def num_foreign(self, num_clients: int) -> int:
        """K, the most entries that one of `num_clients` clients receives for a task."""

    def vectors(self, task: Any) -> np.ndarray:
        """What `summarise` is given of a task: float32 `[N, D]`, a vector for each training example.

        Of text the mean of each document's word vectors (FedSeIT, eq. 6), of arrays the example itself, flattened.

        Args:
          task: a `tffcl.program.ClientTask`; its `labels` are the data set's.

        Raises:
          InputError: examples of another form.
        """
        context, train = task.context, task.train
        if {"tokens", "vectors"} <= set(context) and {"start", "length"} <= set(train):
            return document_vectors(context["tokens"], train["start"], train["length"], context["vectors"])
        inputs = [name for name in train if name != "label"]
        if len(inputs) != 1:
            raise errors.InputError(
                f"this transfer needs a vector for each example, and these have {', '.join(inputs)}; it should say by "
                "`vectors`, or the argument `summarise`, what float32 [N, D] they are"
            )
        return np.reshape(train[inputs[0]], [len(train[inputs[0]]), -1]).astype(np.float32)

    def summarise(self, vectors: np.ndarray, seed: int | Sequence[int]) -> dict[str, np.ndarray] | None:
        """What a client tells the server about its task; runs at the client.

        Args:
          vectors: float32 `[N, D]`, one for each training example of the task (see `document_vectors`).
          seed: root of all randomness in here: a number or several, 0 or more.

        Returns:
          Named arrays, or None where there is nothing to tell.
        """
        del vectors, seed
        return None

    def refusal(self, summary: Summary, dimension: int) -> str:
        """Why the server does not take what a client told, empty where it does; see `tffcl.templates.admission`.

        Args:
          summary: as a client sent it.
          dimension: D of the vectors that it should be of.
        """
        from tffcl.templates import admission  # imports TensorFlow, which nothing else of a transfer needs

        arrays = {name: np.asarray(array) for name, array in summary.items()}
        wrong = [f"{name}: should be numbers" for name, one in arrays.items() if one.dtype.kind not in "biuf"]
        wrong += [text for found, text in self.faults(arrays, dimension) if found]
        return wrong[0] if wrong else admission.verdict(arrays).numpy().decode()

    def faults(self, summary: Summary, dimension: int) -> list[tuple[bool, str]]:
        """What may be wrong with a summary, beside values that are not finite or too large; as for `refusal`."""
        del summary, dimension
        return []

    def account(self) -> dict[str, Any] | None:
        """What noise on summaries guarantees, `epsilon` and `delta` among it, for the results; None without noise."""
        return None

    @abc.abstractmethod
    def select(
        self, knowledge_base: KnowledgeBase, task: int, clients: Sequence[int], summaries: Sequence[Summary | None]
    ) -> list[list[int]]:
        """The entries for each client that begins task number `task`; runs at the server.

        Args:
          knowledge_base: all entries so far; only those of tasks before `task` are chosen.
          task: number of the task that begins, from 0.
          clients: numbers of the clients that begin it.
          summaries: what each of them told about it, None where nothing.

        Returns:
          For each client the ids of at most K entries, most relevant first.
        """

    def transfer_in(
        self, knowledge_base: KnowledgeBase, selections: Sequence[Sequence[int]], num_clients: int
    ) -> OrderedDict:
        """What travels for these selections; see `KnowledgeBase.transfer_in`.

        Args:
          knowledge_base: the base that the selections refer to.
          selections: for each client that takes part the ids of its entries.
          num_clients: clients in the whole federation, which decide K.
        """
        return knowledge_base.transfer_in(selections, self.num_foreign(num_clients))


def past_entries(knowledge_base: KnowledgeBase, task: int, client: int, include_own: bool = False) -> list[int]:
    """Ids of the entries of tasks before `task`, by (client, task); the client's own only on request."""
    chosen = [
        (owner, past, entry)
        for entry, (owner, past) in enumerate(knowledge_base.entries)
        if past < task and (include_own or owner != client)
    ]
    return [entry for _, _, entry in sorted(chosen)]


def whole_number(value: object, name: str, least: int) -> int:
    """`value` as an int.

    Raises:
      InputError: not a whole number, or less than `least`.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise errors.InputError(f"{name} should be a whole number, {least} or more; found {value!r}")
    return int(value)
