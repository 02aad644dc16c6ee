"""The knowledge base: what clients have learned from their past tasks, as the server keeps it."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np

from tffcl import errors
from tffcl.transfers import archive

Summary = Mapping[str, np.ndarray]  # as it is given
Arrays = dict[str, np.ndarray]  # as it is kept


class KnowledgeBase:
    """Append-only entries (client, task, knowledge, summary), numbered 0, 1, ... as they came.

    Knowledge is a float32 `[knowledge_size]` vector (the adaptive parameters A of one task), kept sparse, for
    clients prune it before they send it. A summary is whatever a `Transfer` has a client say about its task.

    >>> base = KnowledgeBase(3)
    >>> base.add(client=0, task=0, knowledge=np.array([0.0, 2.0, 0.0], np.float32))
    0
    >>> base.rows([0]).tolist(), base.nonzeros(0), base.find(0, 0), base.find(1, 0)
    ([[0.0, 2.0, 0.0]], 1, 0, None)
    """

    def __init__(self, knowledge_size: int):
        if int(knowledge_size) != knowledge_size or knowledge_size < 0:
            raise errors.InputError(f"knowledge_size should be a whole number >= 0, found {knowledge_size!r}")
        self.knowledge_size = int(knowledge_size)
        self._ids: dict[tuple[int, int], int] = {}
        self._indices: list[np.ndarray] = []
        self._values: list[np.ndarray] = []
        self._summaries: list[Arrays | None] = []

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
            row[self._indices[self._known(entry)]] = self._values[entry]
        return rows

    def nonzeros(self, entry: int) -> int:
        """How many values of an entry's knowledge are not zero."""
        return len(self._indices[self._known(entry)])

    def summary(self, entry: int) -> Arrays | None:
        """What the client said about the task of this entry, if anything."""
        return self._summaries[self._known(entry)]

    def transfer_in(self, selections: Sequence[Sequence[int]], num_foreign: int) -> OrderedDict:
        """What `ContinualProcess.begin_task` and `prepare` take: only the rows that somebody needs.

        Args:
          selections: for each client the ids of its entries, most relevant first.
          num_foreign: K, the most entries that a client may receive.

        Returns:
          `rows` float32 `[R, knowledge_size]` (one row of zeros when nobody needs any); `keys`, for each
          client int32 `[K]`, the numbers of its rows, padded with 0; `count`, for each client int32, how
          many it has.

        Raises:
          InputError: more than K entries for a client, or an id that does not stand.
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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes everything to one .npz file; what stood there before is replaced whole or not at all.

        Raises:
          RunError: the file cannot be written (a full disk, no such folder).
        """
        pairs = np.array(self.entries, np.int64).reshape(-1, 2)
        arrays: dict[str, np.ndarray] = {"knowledge_size": np.array(self.knowledge_size), "entries": pairs}
        arrays["nonzeros"] = np.array([len(indices) for indices in self._indices], np.int64)
        arrays["indices"] = np.concatenate([np.zeros([0], np.int32), *self._indices])
        arrays["values"] = np.concatenate([np.zeros([0], np.float32), *self._values])
        arrays["has_summary"] = np.array([summary is not None for summary in self._summaries], bool)
        for entry, summary in enumerate(self._summaries):
            arrays.update({f"summary/{entry}/{name}": array for name, array in (summary or {}).items()})
        archive.write(path, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KnowledgeBase:
        """The knowledge base that `save` wrote.

        Raises:
          RunError: no such file, a truncated one, or one of another kind.
        """
        arrays = archive.read(path)
        try:
            return cls._from_arrays(arrays)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise errors.RunError(f"{os.fspath(path)} is not a whole knowledge base: {error}") from error

    @classmethod
    def _from_arrays(cls, arrays: dict[str, np.ndarray]) -> KnowledgeBase:
        base = cls(int(arrays["knowledge_size"]))
        summaries: list[Arrays | None] = [{} if has else None for has in arrays["has_summary"]]
        for key, array in arrays.items():
            if key.startswith("summary/"):
                _, entry, name = key.split("/", 2)
                array.setflags(write=False)
                summaries[int(entry)][name] = array  # type: ignore[index]
        cuts = np.cumsum(arrays["nonzeros"])[:-1]
        indices, values = (np.split(arrays[name], cuts) for name in ("indices", "values"))
        pairs = arrays["entries"].tolist()
        if len(summaries) != len(pairs) or len(arrays["nonzeros"]) != len(pairs):
            raise ValueError("its parts differ in length")
        for number, (client, task) in enumerate(pairs):
            base._append(client, task, indices[number], values[number], summaries[number])
        return base

    def _append(
        self, client: int, task: int, indices: np.ndarray, values: np.ndarray, summary: Arrays | None
    ) -> None:
        self._ids[client, task] = len(self._ids)
        self._indices.append(indices)
        self._values.append(values)
        self._summaries.append(summary)

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
