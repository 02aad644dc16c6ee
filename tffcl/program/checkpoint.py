"""Checkpoints: the whole state of a run, written so that every kind of end leaves a usable one behind.

A checkpoint is three files in one folder: arrays (`STEP.npz`, no pickle), the knowledge base as it then stood,
which grows only at the end of a task and may serve several checkpoints (`knowledge-ENTRIES.npz`), and last of all
a manifest (`STEP.json`) with the checksums of both. A checkpoint without a manifest does not exist; one whose
files do not have these sums is passed over for the one before it.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
import zlib
from collections import OrderedDict
from typing import Any, Optional

import numpy as np
import tree

from tffcl.errors import RunError
from tffcl.program.client_store import ClientStore
from tffcl.program.files import cannot_write, read_json, write_json
from tffcl.program.state import RunState
from tffcl.transfers import KnowledgeBase, archive

_KEPT = 2
_FORMAT = 1
_log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one run; the last two stay."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._knowledge: Optional[tuple[int, str]] = None  # entries and checksum of the file written last

    def save(self, state: RunState, history_size: int) -> None:
        """Writes a checkpoint, then removes those that are older than the last two.

        Args:
          state: of the run.
          history_size: bytes of `history.jsonl` at this point.

        Raises:
          RunError: it cannot be written, for want of room for example; the checkpoint before it is untouched.
        """
        self._make_folder()
        steps = self._steps()
        step = 1 + (steps[-1] if steps else 0)
        arrays = self._folder / f"{step:08d}.npz"
        try:
            archive.write(arrays, _arrays(state))
            files = {arrays.name: _checksum(arrays), **self._save_knowledge(state.base)}
        except RunError as error:
            self._remove(arrays)  # room for whoever resumes
            raise RunError(f"{error}; the checkpoint before it is whole: make room and resume") from error
        manifest = {
            "format": _FORMAT,
            "task": state.task,
            "round": state.round,
            "fresh": state.fresh,
            "selections": state.selections,
            "history_size": history_size,
            "files": files,
        }
        write_json(self._folder / f"{step:08d}.json", manifest)
        self._remove_old([*steps, step])

    def restore(self, template: RunState) -> Optional[tuple[RunState, int]]:
        """The state and the size of the history at the last whole checkpoint; None where there is none.

        Args:
          template: a first state of the same process, which says how the values are arranged.

        Raises:
          RunError: there are checkpoints, but not one of them is whole.
        """
        failures = []
        for step in reversed(self._steps()):
            path = self._folder / f"{step:08d}.json"
            try:
                restored = self._read(path, template)
            except RunError as error:
                failures.append(str(error))
                continue
            for failure in failures:
                _log.warning("%s; going on from the checkpoint before it", failure)
            self._remove_later(step)
            self._remove_old(self._steps())
            return restored
        if failures:
            raise RunError(f"no whole checkpoint in {self._folder}: {failures[0]}")
        return None

    def _read(self, path: pathlib.Path, template: RunState) -> tuple[RunState, int]:
        manifest = read_json(path)
        try:
            for name, checksum in manifest["files"].items():
                if _checksum(self._folder / name) != checksum:
                    raise RunError(
                        f"{self._folder / name} is damaged: it is not what its checkpoint tells of"
                    )
            arrays_name, knowledge_name = manifest["files"]
            state = RunState(
                *_values(archive.read(self._folder / arrays_name), template),
                KnowledgeBase.load(self._folder / knowledge_name),
                **{name: manifest[name] for name in ("selections", "task", "round", "fresh")},
            )
            return state, manifest["history_size"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{path} is no checkpoint of this run ({error!r})") from error

    def _save_knowledge(self, base: KnowledgeBase) -> dict[str, str]:
        """Name and checksum; written by this run itself, once for each number of entries."""
        path = self._folder / f"knowledge-{len(base):06d}.npz"
        if self._knowledge is None or self._knowledge[0] != len(base):
            base.save(path)
            self._knowledge = (len(base), _checksum(path))
        return {path.name: self._knowledge[1]}

    def _steps(self) -> list[int]:
        return sorted(int(path.stem) for path in self._folder.glob("*.json") if path.stem.isdecimal())

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            raise cannot_write(self._folder, error) from error

    def _remove_later(self, step: int) -> None:
        """Damaged ones after the one that is gone on from, lest they be taken for the last again."""
        for later in self._steps():
            if later > step:
                self._remove(self._folder / f"{later:08d}.json")

    def _remove_old(self, steps: list[int]) -> None:
        """Manifests first, so that none stands without its files."""
        for old in steps[:-_KEPT]:
            self._remove(self._folder / f"{old:08d}.json")
        used: set[str] = set()
        for step in steps[-_KEPT:]:
            with contextlib.suppress(RunError):  # one that was damaged by others
                used.update(read_json(self._folder / f"{step:08d}.json")["files"])
        for path in [*self._folder.glob("*.npz"), *self._folder.glob(".*")]:
            if path.name not in used:
                self._remove(path)

    @staticmethod
    def _remove(path: pathlib.Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink()


def _arrays(state: RunState) -> dict[str, np.ndarray]:
    """All values under names: `server/PLACE` of the flattened structure, `client/NUMBER/ENTRY`."""
    arrays = {f"server/{place}": np.asarray(leaf) for place, leaf in enumerate(tree.flatten(state.server))}
    for client in range(len(state.store)):
        arrays.update({f"client/{client}/{name}": value for name, value in state.store[client].items()})
    return arrays


def _values(arrays: dict[str, np.ndarray], template: RunState) -> tuple[Any, ClientStore]:
    """The server's state and the clients' out of `_arrays`.

    Raises:
      KeyError: an array is missing.
      ValueError: a value of the server has another dtype or shape than the process starts with.
    """
    leaves = []
    for place, old in enumerate(map(np.asarray, tree.flatten(template.server))):
        leaf = arrays[f"server/{place}"]
        if leaf.dtype != old.dtype or leaf.ndim != old.ndim:
            raise ValueError(f"server state: expected {old.dtype}{old.shape}, found {leaf.dtype}{leaf.shape}")
        leaves.append(leaf)
    states = [
        OrderedDict((name, arrays[f"client/{client}/{name}"]) for name in template.store[client])
        for client in range(len(template.store))
    ]
    return tree.unflatten_as(template.server, leaves), ClientStore(states)


def _checksum(path: pathlib.Path) -> str:
    """CRC-32: it has to find what a crash or a bad disk does, and a round should not wait long for it."""
    total = 0
    try:
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                total = zlib.crc32(block, total)
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from error
    return f"{total:08x}"
