"""The knowledge base: what clients have learned from their past tasks, as the server keeps it."""

from __future__ import annotations

import itertools
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tffcl import archive, errors
from tffcl.archive import Shelf

Summary = Mapping[str, np.ndarray]
Arrays = dict[str, np.ndarray]


class KnowledgeBase:
    """Append-only entries (client, task, knowledge, summary), numbered 0, 1, ... as they came.

    Knowledge is a float32 `[knowledge_size]` vector (the adaptive parameters A of one task), kept sparse, for
    clients prune it before they send it. A summary is what `Transfer.summarise` returned for the task.
    Once memory holds `tffcl.archive.MEMORY_BYTES` of both, the rest lies on the disk.

    >>> base = KnowledgeBase(3)
    >>> base.add(client=0, task=0, knowledge=np.array([0.0, 2.0, 0.0], np.float32))
    0
    >>> base.rows([0]).tolist(), base.nonzeros(0), base.find(0, 0), base.find(1, 0)
    ([[0.0, 2.0, 0.0]], 1, 0, None)
    """

    def __init__(self, knowledge_size: int):
        self.knowledge_size = errors.check_whole("knowledge_size", knowledge_size, 0)
        self._ids: dict[tuple[int, int], int] = {}
        self._nonzeros: list[int] = []
        self._has_summary: list[bool] = []
        # Under ("knowledge", ID) `indices` and `values`, under ("summary", ID) the arrays of the summary.
        self._shelf = Shelf()

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(client, task) of every entry, in the order of their ids."""
        return tuple(self._ids)

    def find(self, client: int, task: int) -> int | None:
        """The id of a client's entry for a task, None where there is none."""
        return self._ids.get((int(client), int(task)))

    def add(self, client: int, task: int, knowledge: np.ndarray, summary: Summary | None = None) -> int:
        """Appends an entry and returns its id.

        Args:
          client: number of the client that learned it, 0 or more.
          task: number of its task, 0 or more.
          knowledge: float32 `[knowledge_size]`.
          summary: named numeric arrays, or None.

        Raises:
          InputError: a wrong shape, a value that is not finite, or a (client, task) that already stands.
        """
        client, task = int(client), int(task)
        where = f"knowledge of client {client}, task {task}"
        if client < 0 or task < 0:
            raise errors.InputError(f"{where}: client and task should be 0 or more")
        if (client, task) in self._ids:
            raise errors.InputError(f"{where} stands already; entries are never replaced")
        vector = np.asarray(knowledge, np.float32)
        if vector.shape != (self.knowledge_size,):
            wanted = f"[{self.knowledge_size}]"
            raise errors.InputError(f"{where} should have shape {wanted}, found {list(vector.shape)}")
        if not np.isfinite(vector).all():
            raise errors.InputError(f"{where} holds values that are not finite")
        indices = np.flatnonzero(vector).astype(np.int32)
        kept = _frozen(summary, where)
        self._append(client, task, indices, vector[indices], kept)
        return len(self) - 1

    def rows(self, ids: Sequence[int]) -> np.ndarray:
        """The knowledge of entries, dense: float32 `[len(ids), knowledge_size]`.

        Raises:
          InputError: there is no such entry.
        """
        rows = np.zeros([len(ids), self.knowledge_size], np.float32)
        for row, entry in zip(rows, ids):
            sparse = self._shelf["knowledge", self._known(entry)]
            row[sparse["indices"]] = sparse["values"]
        return rows

    def nonzeros(self, entry: int) -> int:
        """How many values of an entry's knowledge are not zero."""
        return self._nonzeros[self._known(entry)]

    def summary(self, entry: int) -> Arrays | None:
        """The summary of the entry's task, None where the client sent none."""
        return dict(self._shelf["summary", entry]) if self.has_summary(entry) else None

    def has_summary(self, entry: int) -> bool:
        """Whether there is a summary of the entry's task."""
        return self._has_summary[self._known(entry)]

    def transfer_in(self, selections: Sequence[Sequence[int]], num_foreign: int) -> OrderedDict:
        """Rows for `ContinualProcess.begin_task` and `prepare`: only those that a client needs.

        Args:
          selections: for each client the ids of its entries, most relevant first.
          num_foreign: K, the most entries that a client may receive.

        Returns:
          `rows` float32 `[R, knowledge_size]` (a row of zeros when no client needs any); `keys`, for each client
          int32 `[K]`, the numbers of its rows, padded with 0; `count`, for each client int32, how many it has.

        Raises:
          InputError: more than K entries for a client, or an unknown id.
        """
        for position, selection in enumerate(selections):
            if len(selection) > num_foreign:
                raise errors.InputError(
                    f"selection {position} has {len(selection)} entries; a client takes at most {num_foreign}"
                )
        needed = sorted({self._known(entry) for selection in selections for entry in selection})
        row_of = {entry: row for row, entry in enumerate(needed)}
        keys = np.zeros([len(selections), num_foreign], np.int32)
        for row, selection in zip(keys, selections):
            row[: len(selection)] = [row_of[entry] for entry in selection]
        rows = self.rows(needed) if needed else np.zeros([1, self.knowledge_size], np.float32)
        count = [np.int32(len(selection)) for selection in selections]
        return OrderedDict(rows=rows, keys=list(keys), count=count)

    def save(self, path: str | os.PathLike[str], first: int = 0) -> None:
        """Writes the entries from number `first` on to one .npz file, whole or not at all.

        Raises:
          RunError: the file cannot be written (a full disk, no such folder).
        """
        arrays: dict[str, np.ndarray] = {
            "knowledge_size": np.array(self.knowledge_size),
            "first": np.array(first),
            "entries": np.array(self.entries[first:], np.int64).reshape(-1, 2),
            "has_summary": np.array(self._has_summary[first:], bool),
        }
        archive.write(path, itertools.chain(arrays.items(), *map(self._saved, range(first, len(self)))))

    def _saved(self, entry: int) -> Iterator[tuple[str, np.ndarray]]:
        """The arrays of one entry, read when they are written: a base need not fit into memory."""
        for name, array in self._shelf["knowledge", entry].items():
            yield f"{name}/{entry}", array
        if self.has_summary(entry):
            for name, array in self._shelf["summary", entry].items():
                yield f"summary/{entry}/{name}", array

    @classmethod
    def load(cls, *paths: str | os.PathLike[str]) -> KnowledgeBase:
        """The knowledge base that `save` wrote to these files, in their order.

        Raises:
          RunError: no such file, a truncated one, one of another kind, or one that does not follow the one before it.
        """
        base: KnowledgeBase | None = None
        for path in paths:
            arrays = archive.read(path)
            try:
                base = cls(int(arrays["knowledge_size"])) if base is None else base
                base._extend(arrays)
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise errors.RunError(f"{os.fspath(path)} is not a whole knowledge base: {error}") from error
        if base is None:
            raise errors.RunError("a knowledge base needs at least one file")
        return base

    def _extend(self, arrays: dict[str, np.ndarray]) -> None:
        """Appends the entries of a file."""
        if int(arrays["first"]) != len(self) or int(arrays["knowledge_size"]) != self.knowledge_size:
            raise ValueError(f"its first entry is {arrays['first']}, expected {len(self)}")
        summaries: dict[int, Arrays] = {}
        for key, array in arrays.items():
            if key.startswith("summary/"):
                _, number, name = key.split("/", 2)
                summaries.setdefault(int(number), {})[name] = array
        pairs, has_summary = arrays["entries"].tolist(), arrays["has_summary"].tolist()
        if len(has_summary) != len(pairs):
            raise ValueError("its parts differ in length")
        for (client, task), summarised in zip(pairs, has_summary):
            entry = len(self)
            summary = summaries.get(entry, {}) if summarised else None
            self._append(client, task, arrays[f"indices/{entry}"], arrays[f"values/{entry}"], summary)

    def _append(self, client: int, task: int, indices: np.ndarray, values: np.ndarray, summary: Arrays | None) -> None:
        entry = len(self._ids)
        self._ids[client, task] = entry
        self._nonzeros.append(len(indices))
        self._has_summary.append(summary is not None)
        self._shelf["knowledge", entry] = {"indices": indices, "values": values}
        if summary is not None:
            for array in summary.values():
                array.setflags(write=False)
            self._shelf["summary", entry] = summary

    def _known(self, entry: int) -> int:
        if not 0 <= entry < len(self):
            raise errors.InputError(f"knowledge base: no entry {entry}; it has {len(self)}")
        return int(entry)


def _frozen(summary: Summary | None, where: str) -> Arrays | None:
    """Copies that nobody can write to."""
    if summary is None:
        return None
    kept = {name: np.array(array) for name, array in summary.items()}
    for name, array in kept.items():
        if array.dtype.kind not in "biuf":
            raise errors.InputError(f"summary {name!r} beside {where} should be numeric, found {array.dtype}")
        array.setflags(write=False)
    return kept
