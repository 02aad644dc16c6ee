"""Observers of a run: a progress bar, TensorBoard, CSV, any TFF release manager."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional, Protocol, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

from tffcl import storage
from tffcl.errors import RunError
from tffcl.program.events import Event

_NO_NUMBERS = (
    "event", "task", "round", "participants", "left_out", "left_out_reasons", "not_reported", "nothing_learned",
    "selection", "attention",
)  # fmt: skip


class Reporter(Protocol):
    """Gets the events of a run, in order, each after its checkpoint."""

    def start(self, num_tasks: int, num_rounds: int, past: Sequence[Event]) -> None:
        """The run starts, or goes on after `past` events."""

    def report(self, event: Event) -> None:
        """Something happened; see `tffcl.program.events` for the form."""

    def close(self) -> None:
        """The run has ended, or failed."""


class ProgressBar:
    """One bar over all rounds on stderr, with the task and the mean accuracy over all tasks so far."""

    def __init__(self, file: Any = None):
        self._file = file
        self._bar: Optional[tqdm.tqdm] = None

    def start(self, num_tasks: int, num_rounds: int, past: Sequence[Event]) -> None:
        done = sum(event["event"] == "round" for event in past)
        self._bar = tqdm.tqdm(
            total=num_tasks * num_rounds, initial=done, unit="round", file=self._file or sys.stderr, dynamic_ncols=True
        )

    def report(self, event: Event) -> None:
        if self._bar is None:
            return
        shown = {"task": event["task"] + 1}
        mean = mean_score(event)
        if mean is not None:
            shown["score"] = f"{mean:.3f}"
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update(event["event"] == "round")
        for line in _faults_of(event):
            self._bar.write(line, file=self._file or sys.stderr)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None


class Released:
    """Hands the numbers of each round to a `tff.program.ReleaseManager`; its key is the round, over all tasks.

    The scores at the end of a task stand with the task's last round.

    Args:
      manager: releases a flat mapping of floats under an int key.
    """

    def __init__(self, manager: tff.program.ReleaseManager):
        self._manager = manager
        self._num_rounds = 0
        self._held: dict[str, float] = {}

    def start(self, num_tasks: int, num_rounds: int, past: Sequence[Event]) -> None:
        del num_tasks
        self._num_rounds = num_rounds
        # A run that was killed may have died after its checkpoint and before it reported.
        for event in past:
            self.report(event)

    def report(self, event: Event) -> None:
        self._held.update(numbers_of(event))
        last = self._num_rounds - 1
        # What the end of a task adds belongs to its last round.
        if event["event"] != "round" or event["round"] < last:
            key = event["task"] * self._num_rounds + event.get("round", last) + 1
            with _write_errors(self._manager):
                _wait_for(functools.partial(self._manager.release, self._held, key))
            self._held = {}

    def close(self) -> None:
        """Nothing is held back but a last round whose task has not ended; a resumed run releases it."""


class _RunFiles(Released):
    """Released to files of a run directory, which are made anew from the run's history whenever it goes on.

    So each round stands there once, whatever a killed run had reported, and however often it went on. `files` is their
    pattern, below a folder that may not be there yet; `make` makes the manager that writes them.
    """

    def __init__(self, files: pathlib.Path, make: Callable[[], tff.program.ReleaseManager]):
        super().__init__(None)
        self._files, self._make = files, make

    def start(self, num_tasks: int, num_rounds: int, past: Sequence[Event]) -> None:
        with _write_errors(self._files):
            for path in self._files.parent.glob(self._files.name):
                path.unlink()
            self._manager = self._make()
        super().start(num_tasks, num_rounds, past)


def default_reporters(output_dir: Optional[Union[str, os.PathLike[str]]]) -> list[Reporter]:
    """A progress bar; with a run directory also `tensorboard/` and `metrics.csv` in it."""
    reporters: list[Reporter] = [ProgressBar()]
    if output_dir is not None:
        folder = pathlib.Path(output_dir)
        board, table = folder / "tensorboard", folder / "metrics.csv"
        reporters.append(
            _RunFiles(board / "events.out.tfevents.*", lambda: tff.program.TensorBoardReleaseManager(board))
        )
        reporters.append(_RunFiles(table, lambda: tff.program.CSVFileReleaseManager(table, key_fieldname="round")))
    return reporters


def _faults_of(event: Event) -> Iterator[str]:
    """A line for each reason for which clients were left out, and for each part that rejected something."""
    where = f"task {event['task']}, round {event['round']}" if "round" in event else f"task {event['task']}"
    clients: dict[str, list[str]] = {}
    for client, reason in event.get("left_out_reasons", {}).items():
        clients.setdefault(reason, []).append(client)
    for reason, some in clients.items():
        yield f"{where}: client(s) {', '.join(some)} left out: {reason}"
    if event.get("nothing_learned"):
        unlearned = ", ".join(map(str, event["nothing_learned"]))
        yield f"task {event['task']}: client(s) {unlearned} have learned nothing and send nothing to the others"
    for path, count in event.get("server_metrics", {}).items():
        if count and path.endswith("/rejected"):
            yield f"{where}: {path.removesuffix('/rejected')} at the server did not take what was not finite"


def mean_score(event: Event) -> Optional[float]:
    """Mean score over all clients and tasks in an event; None without data."""
    rows = event.get("accuracy") or event.get("nll") or []
    known = [one for row in (rows.values() if isinstance(rows, Mapping) else rows) for one in row if one is not None]
    return float(np.mean(known)) if known else None


def numbers_of(event: Event) -> Iterator[tuple[str, float]]:
    """The numbers in an event by name: `loss/client_0`, `accuracy/client_0/task_1`, `seconds`.

    Of what the server measured only the scalars.
    """
    for name, value in event.items():
        if name in _NO_NUMBERS:
            continue
        if name == "server_metrics":
            value = {path: number for path, number in value.items() if not isinstance(number, list)}
        if isinstance(value, list):
            value = {str(client): row for client, row in enumerate(value)}
        if not isinstance(value, Mapping):
            value = {"": value}
        for key, entry in value.items():
            prefix = f"{name}/client_{key}" if key.isdecimal() else f"{name}/{key}".rstrip("/")
            named = (
                [(f"{prefix}/task_{task}", number) for task, number in enumerate(entry)]
                if isinstance(entry, list)
                else [(prefix, entry)]
            )
            yield from ((label, float(number)) for label, number in named if isinstance(number, (int, float)))


@contextlib.contextmanager
def _write_errors(what: Any) -> Iterator[None]:
    """Turns errors of files into one that names what was written."""
    try:
        yield
    except OSError as error:
        raise storage.cannot_write(error.filename or type(what).__name__, error) from error
    except tf.errors.OpError as error:
        raise RunError(f"cannot write to {what}: {error.message}") from error


def _wait_for(call: Callable[[], Any]) -> None:
    """Runs what a call gives, a coroutine, to its end in a thread of its own.

    A notebook has an event loop running already, and Ctrl-C, which reaches the main thread alone, finds none there that
    it could leave half-made.
    """

    async def run() -> None:
        await call()

    with _interrupted_afterwards(), concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(run())).result()


@contextlib.contextmanager
def _interrupted_afterwards() -> Iterator[None]:
    """Ctrl-C takes effect after the block, and at once if pressed again.

    It may come when a thread has started that nobody can wait for yet.
    """
    before = signal.getsignal(signal.SIGINT)
    if (
        before is None or threading.current_thread() is not threading.main_thread()
    ):  # not Python's to handle, or not here
        yield
        return
    pressed = False

    def hold(number: int, frame: Any) -> None:
        nonlocal pressed
        if pressed and callable(before):
            before(number, frame)
        pressed = True

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            signal.raise_signal(signal.SIGINT)
