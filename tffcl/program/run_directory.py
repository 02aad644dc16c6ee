"""The run directory: config.json, history.jsonl, checkpoints/ and, at the end, results.json.

A checkpoint is the whole state of a run, written so that every kind of end leaves a usable one behind. It is files in
one folder, all of arrays without pickle: the server's state (`STEP.npz`), the entries of each client's state as they
were when they last changed (`client-NUMBER-STEP.npz`), what entered the knowledge base with each task
(`knowledge-ENTRIES.npz`, never written again), and last of all a manifest (`STEP.json`) with the checksums of them all,
of the history so far, and of itself. So a round writes what has changed in it, whatever the number of clients, past
tasks and entries. A checkpoint without a manifest does not exist; one that any of these sums does not fit, down to
those of the arrays in the files, is passed over for the one before it.

When a run has ended, one compact state stands in the place of its checkpoints, unless `--keep` says otherwise.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import pathlib
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Optional

import numpy as np
import tree

from tffcl import archive, storage
from tffcl.errors import RunError, run_exists
from tffcl.program.events import Event
from tffcl.program.state import ClientStore, RunState
from tffcl.storage import PathLike
from tffcl.transfers import KnowledgeBase

_KEPT = 2
KEEP = ("all", "last", "none")
_PLACE = ("selections", "task", "round", "fresh")  # entries of a state that stand in its manifest
_FORMAT = 4
_MANIFEST = re.compile(r"[0-9]{8}\.json", re.ASCII)
_ARRAYS = re.compile(r"([0-9]{8}|client-[0-9]{4,}-[0-9]{8}|knowledge-[0-9]{6,})\.npz", re.ASCII)
_SECRET = "secret/"  # what the names of secrets begin with
logger = logging.getLogger(__name__)
_MISSING = object()


class History:
    """The events of a run: one line each, none lost, none doubled.

    With a path they stand in that file, too, which is on the disk before `append` returns.
    """

    def __init__(self, path: Optional[pathlib.Path] = None):
        self.events: list[Event] = []
        self.size = 0  # bytes of the file, which a checkpoint records
        self._sum = hashlib.sha256()  # of them
        self._path = path

    @property
    def checksum(self) -> str:
        """SHA-256 of the file."""
        return self._sum.hexdigest()

    def append(self, event: Mapping[str, Any]) -> Event:
        """Adds an event and returns it in the form that stands in the file; RunError if that cannot be written."""
        line = storage.plain(event)
        if self._path is not None:
            content = (json.dumps(line, allow_nan=False) + "\n").encode()
            try:
                with os.fdopen(_open(self._path, os.O_WRONLY | os.O_APPEND), "ab") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise storage.cannot_write(self._path, error) from error
            self.size += len(content)
            self._sum.update(content)
        self.events.append(line)
        return line

    def read(self, size: int, checksum: str) -> None:
        """Reads the first `size` bytes of the file, all that a checkpoint knows of.

        Raises:
          RunError: the file is shorter than that, or its checksum another.
        """
        if self._path is None:
            raise RunError("a history without a file cannot be resumed")
        with storage.open_regular(self._path, "the history of a run", max_bytes=None, error=RunError) as file:
            content = file.read(size)
        if len(content) < size:
            raise RunError(f"{self._path} is damaged: it has {len(content)} bytes, its checkpoint tells of {size}")
        read = hashlib.sha256(content)
        if read.hexdigest() != checksum:
            raise RunError(f"{self._path} is damaged: it is not what its checkpoint tells of")
        self.events = [
            storage.parse_object(line, f"{self._path}, line {number}", RunError)
            for number, line in enumerate(content.split(b"\n")[:-1], start=1)
        ]
        self.size, self._sum = size, read

    def cut(self) -> None:
        """Cuts off what the file has beyond the events: lines that no checkpoint knows of."""
        if self._path is None:
            return
        try:
            descriptor = _open(self._path, os.O_WRONLY)
            try:
                os.ftruncate(descriptor, self.size)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise storage.cannot_write(self._path, error) from error


def _open(path: pathlib.Path, flags: int) -> int:
    """Opens the file, for its owner alone where it is new; a pipe without a reader is an error rather than a wait."""
    return os.open(path, flags | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)


# By entry of a client's state the file in which it was last written, its checksum, and the entry's version there.
_Files = dict[str, tuple[str, str, int]]


class Checkpoints:
    """The checkpoints of one run; the last two stay, and after its end one compact state (`finish`)."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self.compact = False  # whether what was restored is the compact state of a finished run
        self._clients: dict[int, _Files] = {}
        self._knowledge: list[tuple[int, str, str]] = []  # entries up to a file's end, its name and checksum

    def save(self, state: RunState, history: History) -> None:
        """Writes a checkpoint of a run, with its history so far, then removes those older than the last two.

        Raises:
          RunError: it cannot be written, for want of room for example; the checkpoint before it is untouched.
        """
        storage.make_folder(self._folder, "a folder of checkpoints")
        steps = self._steps()
        step = 1 + (steps[-1] if steps else 0)
        written: list[pathlib.Path] = []
        try:
            server = self._write(written, f"{step:08d}.npz", _server_arrays(state))
            self._save_clients(written, step, state.store)
            self._save_knowledge(written, state.base)
        except RunError:
            for path in written:
                self._remove(path)  # room for whoever resumes
            raise
        own = {
            "server": server,
            # In the order of their steps: an entry that stands in several files is newest in the last.
            "clients": [
                sorted({(name, checksum) for name, checksum, _ in self._clients[client].values()})
                for client in range(len(state.store))
            ],
            "knowledge": self._knowledge,
        }
        self._write_manifest(step, state, history, own)
        self._remove_old([*steps, step])

    def finish(self, state: RunState, history: History, keep: str) -> None:
        """After the end of a run: keeps what `keep` says, one of `KEEP`.

        "last" writes one compact state (`tffcl.archive.packed`) in the place of all checkpoints. Large float32 arrays
        are rounded to 8 significant bits: it serves for models and further tasks, but for no second results.

        Raises:
          RunError: it cannot be written; the checkpoints are untouched.
        """
        steps = self._steps()
        if keep == "last":
            step = 1 + (steps[-1] if steps else 0)
            path = self._folder / f"{step:08d}.npz"
            storage.make_folder(self._folder, "a folder of checkpoints")
            archive.write(path, archive.packed(_all_arrays(state)))
            own = {
                "packed": [path.name, archive.checksum(path)],
                "clients": len(state.store),
                "entries": [list(entry) for entry in state.base.entries],
                "knowledge_size": state.base.knowledge_size,
            }
            self._write_manifest(step, state, history, own)
            self._remove_old([*steps, step], kept=1)
        elif keep == "none":
            self._remove_old(steps, kept=0)

    def _write_manifest(self, step: int, state: RunState, history: History, own: Mapping[str, Any]) -> None:
        manifest = {
            "format": _FORMAT,
            **{name: getattr(state, name) for name in _PLACE},
            "history": [history.size, history.checksum],
            **own,
        }
        storage.write_json(self._folder / f"{step:08d}.json", {**manifest, "checksum": _checksum(manifest)})

    def exact(self) -> bool:
        """Whether the last checkpoint, whole or not, is one of a run that goes on: no compact state."""
        steps = self._steps()
        try:
            return bool(steps) and "packed" not in _read_manifest(self._folder / f"{steps[-1]:08d}.json")
        except RunError:  # `restore` says what is wrong with it
            return True

    def any(self) -> bool:
        """Whether there is a checkpoint, whole or not."""
        return bool(self._steps())

    def restore(self, template: RunState, history: History) -> Optional[RunState]:
        """The state at the last whole checkpoint, and `history` with the events up to there; None where there is none.

        `template` is a first state of the same process, which says how the values are arranged.

        Raises:
          RunError: there are checkpoints, but not one of them is whole.
        """
        found = self._latest(template, history)
        if found is None:
            return None
        step, restored, failures = found
        for failure in failures:
            logger.warning("%s; going on from the checkpoint before it", failure)
        for later in self._steps():  # damaged: lest they be taken for the last again
            if later > step:
                self._remove(self._folder / f"{later:08d}.json")
        self._remove_old(self._steps())
        return restored

    def latest(self, template: RunState, history: History) -> Optional[RunState]:
        """As `restore`, of a run that is only looked at: no file is changed."""
        found = self._latest(template, history)
        return None if found is None else found[1]

    def _latest(self, template: RunState, history: History) -> Optional[tuple[int, RunState, list[str]]]:
        """Number and state of the last whole checkpoint, and what is wrong with those after it."""
        failures: list[str] = []
        for step in reversed(self._steps()):
            try:
                return step, self._read(self._folder / f"{step:08d}.json", template, history), failures
            except RunError as error:
                failures.append(str(error))
        if failures:
            raise RunError(f"no whole checkpoint in {self._folder}: {failures[0]}")
        return None

    def _read(self, path: pathlib.Path, template: RunState, history: History) -> RunState:
        manifest = _read_manifest(path)
        try:
            for name, checksum in _files(manifest):
                if archive.checksum(self._folder / name) != checksum:
                    raise RunError(f"{self._folder / name} is damaged: it is not what its checkpoint tells of")
            if "packed" in manifest:
                state = self._read_packed(manifest, template)
                history.read(*manifest["history"])
                self.compact = True
                return state
            saved: dict[int, _Files] = {}
            server = archive.read(self._folder / manifest["server"][0])
            state = RunState(
                _server_state(server, template),
                ClientStore(self._client_states(manifest["clients"], template, saved)),
                KnowledgeBase.load(*(self._folder / name for _, name, _ in manifest["knowledge"])),
                **{name: manifest[name] for name in _PLACE},
                secrets={name: server[_SECRET + name] for name in template.secrets},
            )
            if len(state.selections) not in (state.task, state.task + 1):
                raise ValueError(f"{len(state.selections)} selections in task {state.task}")
            history.read(*manifest["history"])
            self._clients = saved
            self._knowledge = [tuple(one) for one in manifest["knowledge"]]
            return state
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{path} is no checkpoint of this run ({error!r})") from error

    def _read_packed(self, manifest: Mapping[str, Any], template: RunState) -> RunState:
        found = archive.Packed(self._folder / manifest["packed"][0])
        if manifest["clients"] != len(template.store):
            raise ValueError(f"{manifest['clients']} clients, expected {len(template.store)}")
        server = {name: found[name] for name in found.names if name.startswith(("server/", _SECRET))}
        states = (
            OrderedDict((entry, found[f"client/{client}/{entry}"]) for entry in template.store.versions(client))
            for client in range(manifest["clients"])
        )
        base = KnowledgeBase(manifest["knowledge_size"])
        for number, (client, task) in enumerate(manifest["entries"]):
            prefix = f"summary/{number}/"
            summary = {name.removeprefix(prefix): found[name] for name in found.names if name.startswith(prefix)}
            base.add(client, task, found[f"knowledge/{number}"], summary or None)
        return RunState(
            _server_state(server, template),
            ClientStore(states),
            base,
            **{name: manifest[name] for name in _PLACE},
            secrets={name: server[_SECRET + name] for name in template.secrets},
        )

    def _client_states(
        self, clients: list[list[tuple[str, str]]], template: RunState, saved: dict[int, _Files]
    ) -> Iterator[OrderedDict]:
        """The states of all clients, read one by one; `saved` gets the files that each was read from."""
        if len(clients) != len(template.store):
            raise ValueError(f"{len(clients)} clients, expected {len(template.store)}")
        for client, files in enumerate(clients):
            arrays, saved[client] = self._read_client(files)
            yield OrderedDict((entry, arrays[entry]) for entry in template.store.versions(client))

    def _read_client(self, files: list[tuple[str, str]]) -> tuple[dict[str, np.ndarray], _Files]:
        """The entries of a client's state, and the file of each: the last of those that it stands in is the newest."""
        arrays: dict[str, np.ndarray] = {}
        saved: _Files = {}
        for name, checksum in files:
            part = archive.read(self._folder / name)
            saved.update(dict.fromkeys(part, (name, checksum, 0)))
            arrays.update(part)
        return arrays, saved

    def client_bytes(self) -> list[int]:
        """Bytes of each client's state at the last checkpoint, or of its handle where the client keeps it; or nothing.

        Raises:
          RunError: the checkpoint is not whole.
        """
        steps = self._steps()
        manifest: Mapping[str, Any] = (
            _read_manifest(self._folder / f"{steps[-1]:08d}.json") if steps else {"clients": []}
        )
        clients = manifest["clients"]
        if "packed" in manifest:
            found = archive.Packed(self._folder / manifest["packed"][0])
            own = [[name for name in found.names if name.startswith(f"client/{one}/")] for one in range(clients)]
            return [sum(map(found.num_bytes, names)) for names in own]
        return [sum(array.nbytes for array in self._read_client(files)[0].values()) for files in clients]

    def _write(self, written: list[pathlib.Path], name: str, arrays: archive.Named) -> tuple[str, str]:
        """Name and checksum of a new file."""
        path = self._folder / name
        written.append(path)
        archive.write(path, arrays)
        return name, archive.checksum(path)

    def _save_clients(self, written: list[pathlib.Path], step: int, store: ClientStore) -> None:
        """A file for each client that has entries which changed since they were last written, with these."""
        for client in range(len(store)):
            saved, versions = self._clients.setdefault(client, {}), store.versions(client)
            changed = [entry for entry, now in versions.items() if entry not in saved or saved[entry][2] != now]
            if changed:
                name = f"client-{client:04d}-{step:08d}.npz"
                file = self._write(written, name, store.entries(client, changed))
                saved.update({entry: (*file, versions[entry]) for entry in changed})

    def _save_knowledge(self, written: list[pathlib.Path], base: KnowledgeBase) -> None:
        """A file of the entries that are in none yet; one even if there are none."""
        first = self._knowledge[-1][0] if self._knowledge else 0
        if len(base) > first or not self._knowledge:
            path = self._folder / f"knowledge-{len(base):06d}.npz"
            written.append(path)
            base.save(path, first)
            self._knowledge.append((len(base), path.name, archive.checksum(path)))

    def _steps(self) -> list[int]:
        return sorted(int(path.stem) for path in self._folder.glob("*.json") if _MANIFEST.fullmatch(path.name))

    def _remove_old(self, steps: list[int], kept: int = _KEPT) -> None:
        """Manifests first, so that none stands without its files."""
        newest = steps[len(steps) - kept :] if kept < len(steps) else steps
        for old in steps[: len(steps) - len(newest)]:
            self._remove(self._folder / f"{old:08d}.json")
        used: set[str] = set()
        for step in newest:
            with contextlib.suppress(RunError):  # damaged by others
                used.update(name for name, _ in _files(_read_manifest(self._folder / f"{step:08d}.json")))
        for path in [*self._folder.glob("*.npz"), *self._folder.glob(".*")]:
            if path.name not in used:
                self._remove(path)

    @staticmethod
    def _remove(path: pathlib.Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink()


def _checksum(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of all of a manifest but its checksum, whatever its layout."""
    values = {name: value for name, value in manifest.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(storage.plain(values), sort_keys=True).encode()).hexdigest()


def _read_manifest(path: pathlib.Path) -> dict[str, Any]:
    """A manifest; RunError if it is not as it was written, of another version, or names what is no checkpoint's."""
    manifest = storage.read_object(path, "a checkpoint", error=RunError)
    if manifest.get("format") != _FORMAT:
        raise RunError(
            f"{path} is a checkpoint of another version of tffcl: format {manifest.get('format')}, expected {_FORMAT}"
        )
    if manifest.get("checksum") != _checksum(manifest):
        raise RunError(f"{path} is damaged: its checksum does not fit it")
    try:
        wrong = [name for name, _ in _files(manifest) if not _ARRAYS.fullmatch(name)]
    except (LookupError, TypeError, ValueError) as error:
        raise RunError(f"{path} is no checkpoint of this run ({error!r})") from error
    if wrong:
        raise RunError(f"{path} is damaged: {wrong[0]!r} is no file of a checkpoint")
    return manifest


def _files(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and checksum of every file of a checkpoint."""
    if "packed" in manifest:
        name, checksum = manifest["packed"]
        return [(name, checksum)]
    clients = [part for parts in manifest["clients"] for part in parts]
    knowledge = [one[1:] for one in manifest["knowledge"]]
    return [(name, checksum) for name, checksum in (manifest["server"], *clients, *knowledge)]


def _all_arrays(state: RunState) -> Iterator[tuple[str, np.ndarray]]:
    """Every array of a state by name, one client and one entry of the knowledge base after the other."""
    yield from _server_arrays(state).items()
    for client in range(len(state.store)):
        for entry, value in state.store[client].items():
            yield f"client/{client}/{entry}", np.asarray(value)
    for number in range(len(state.base)):
        yield f"knowledge/{number}", state.base.rows([number])[0]
        for name, value in (state.base.summary(number) or {}).items():
            yield f"summary/{number}/{name}", value


def _server_arrays(state: RunState) -> dict[str, np.ndarray]:
    """The values of the flattened structure under their places, and the run's secrets under their names."""
    secrets = {_SECRET + name: secret for name, secret in state.secrets.items()}
    values = {f"server/{place}": np.asarray(leaf) for place, leaf in enumerate(tree.flatten(state.server))}
    return {**values, **secrets}


def _server_state(arrays: dict[str, np.ndarray], template: RunState) -> Any:
    """Out of `_server_arrays`; KeyError or ValueError where a value is missing or of another dtype or rank.

    Entries are in alphabetical order, the shared vector last; of a template that has it alone, only that is taken.
    """
    leaves = []
    alone = list(template.server) == ["shared"]
    first = sum(name.startswith("server/") for name in arrays) - 1 if alone else 0
    for place, old in enumerate(map(np.asarray, tree.flatten(template.server)), first):
        leaf = arrays[f"server/{place}"]
        if leaf.dtype != old.dtype or leaf.ndim != old.ndim:
            raise ValueError(f"server state: expected {old.dtype}{old.shape}, found {leaf.dtype}{leaf.shape}")
        leaves.append(leaf)
    return tree.unflatten_as(template.server, leaves)


class RunDirectory:
    """What one run keeps: on disk, or only in memory where there is no path. What cannot be used is a RunError."""

    def __init__(self, path: Optional[pathlib.Path] = None):
        self.path = path
        self.history = History(None if path is None else path / "history.jsonl")
        self._checkpoints = None if path is None else Checkpoints(path / "checkpoints")

    def restore(self, first: RunState) -> RunState:
        """The state to go on from, that of the last whole checkpoint or else `first`, with the history up to there."""
        if self._checkpoints is None:
            return first
        state = self._checkpoints.restore(first, self.history)
        if self._checkpoints.compact:
            raise RunError(
                f"{self.path} holds the compact state of a run that had ended, and its results.json is gone; run it "
                "again in another directory"
            )
        with self.advising():
            self.history.cut()
        return state or first

    def finished(self) -> Optional[dict[str, Any]]:
        """The results of a run that has ended, with its whole history; None where a checkpoint can be gone on from."""
        if self.path is None or not os.path.lexists(self.path / "results.json"):
            return None
        if self._checkpoints is not None and self._checkpoints.exact():
            return None
        results = storage.read_object(self.path / "results.json", "the results of a run", error=RunError)
        content = storage.read_regular(self.path / "history.jsonl", "the history of a run", error=RunError)
        self.history.read(len(content), hashlib.sha256(content).hexdigest())
        return results

    def save(self, state: RunState) -> None:
        """Writes a checkpoint that knows of the history as it stands; the one before it stays whole if that fails."""
        if self._checkpoints is not None:
            self._checkpoints.save(state, self.history)

    @contextlib.contextmanager
    def advising(self) -> Iterator[None]:
        """Adds to a RunError inside that there is a checkpoint to go on from, where there is one."""
        try:
            yield
        except RunError as error:
            if self._checkpoints is None or not self._checkpoints.any():
                raise
            raise RunError(f"{error}; the last checkpoint is whole: resume to go on from it") from error

    def finish(self, results: Mapping[str, Any], state: RunState, keep: str) -> None:
        """Writes results.json, then keeps of the checkpoints what `keep` says (`Checkpoints.finish`)."""
        if self.path is not None and self._checkpoints is not None:
            with self.advising():
                storage.write_json(self.path / "results.json", results)
            self._checkpoints.finish(state, self.history, keep)


@contextlib.contextmanager
def open_run(path: Optional[PathLike], config: Mapping[str, Any], resume: bool) -> Iterator[RunDirectory]:
    """The run directory at `path`, for this process alone as long as the block runs; None keeps everything in memory.

    All that is written inside, by whatever library, is for the owner alone (`tffcl.storage.private`). With `resume` the
    run that is there goes on.

    Raises:
      RunError: a run is there but `resume` is not given, it has another configuration, another process is at
        work on it, or the directory cannot be made.
    """
    if path is None:
        if resume:
            raise RunError("resume needs the directory of the run to go on with (output_dir)")
        with storage.private():
            yield RunDirectory()
        return
    folder = pathlib.Path(path)
    storage.make_folder(folder, "a run directory")
    try:
        handle = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise storage.cannot_write(folder / ".lock", error) from error
    try:
        with storage.private():
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed, or the process ends, however
            except BlockingIOError:
                raise RunError(f"{folder}: another process is at work on this run") from None
            except OSError:  # a file system without locks
                pass
            _settle_config(folder, storage.plain(config), resume)
            yield RunDirectory(folder)
    finally:
        os.close(handle)


def _settle_config(folder: pathlib.Path, config: dict[str, Any], resume: bool) -> None:
    """Writes config.json for a new run; for a resumed one compares it."""
    path = folder / "config.json"
    if not os.path.lexists(path):
        names = sorted(entry.name for entry in folder.iterdir())
        others = [name for name in names if name != ".lock" and not name.startswith(storage.TEMPORARY)]
        if others:
            raise RunError(f"{folder} is not empty and holds no run ({others[0]} stands there); give another directory")
        storage.write_json(path, config)
        return
    if not resume:
        raise run_exists(folder)
    there = storage.read_object(path, "the configuration of a run", error=RunError)
    difference = config_difference(there, config)
    if difference is not None:
        raise RunError(f"{folder} holds a run of another configuration: {difference}")


def config_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> Optional[str]:
    """The first setting that differs, in words; None where all are equal.

    >>> config_difference({"num_rounds": 3, "seed": 1}, {"num_rounds": 10, "seed": 1})
    'num_rounds is 3 there and 10 here'
    """
    for key in {**here, **there}:
        values = [config.get(key, _MISSING) for config in (there, here)]
        if values[0] != values[1]:
            old, new = ("not set" if value is _MISSING else repr(value) for value in values)
            return f"{key} is {old} there and {new} here"
    return None
