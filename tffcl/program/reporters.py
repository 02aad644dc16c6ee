"""Observers of a run: progress, TensorBoard, a table of all numbers, trackers, any TFF release manager."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import csv
import functools
import io
import os
import pathlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional, Protocol, Union

import tensorflow as tf
import tensorflow_federated as tff

from tffcl import storage
from tffcl.errors import RunError
from tffcl.program import events, frames, trackers
from tffcl.program.events import Event
from tffcl.program.progress import ProgressBar


class Reporter(Protocol):
    """Gets the events of a run, in order, each after its checkpoint.

    Shown in docs/runs.md.
    """

    def start(self, num_tasks: int, num_rounds: int, past: Sequence[Event]) -> None:
        """The run starts, or goes on after `past` events."""

    def report(self, event: Event) -> None:
        """Something happened; see `tffcl.program.events` for the form."""

    def close(self) -> None:
        """The run has ended, or failed."""


class Released:
    """Hands the numbers of each round to a `tff.program.ReleaseManager`; its key is the round, over all tasks.

    The scores at the end of a task stand with the task's last round.

    Shown in docs/runs.md.

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


class MetricsTable:
    """`metrics.csv` of a run directory: every number of the history in a row of its own.

    A run that goes on writes it anew from its history, so that each number stands there once.

    Args:
      path: of the file.
      config: of the run; "method" and "seed" stand in each row.
    """

    def __init__(self, path: pathlib.Path, config: Mapping[str, Any]):
        self._path, self._run = path, [config.get("method", ""), config.get("seed", "")]

    def start(self, num_tasks: int, num_rounds: int, past: Sequence[Event]) -> None:
        del num_tasks
        self._num_rounds = num_rounds
        lines = [row for event in past for row in self._rows(event)]
        storage.write_whole(self._path, _as_csv([frames.TIDY, *lines]))

    def report(self, event: Event) -> None:
        storage.append(self._path, _as_csv(self._rows(event)))

    def _rows(self, event: Event) -> list[list[Any]]:
        return [[*self._run, *row] for row in events.tidy_rows(event, self._num_rounds)]

    def close(self) -> None:
        """Every row is in the file."""


def _as_csv(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def default_reporters(
    output_dir: Optional[Union[str, os.PathLike[str]]],
    config: Optional[Mapping[str, Any]] = None,
    *,
    progress: Optional[str] = "normal",
    track: Optional[str] = None,
) -> list[Reporter]:
    """Progress; with a run directory also `tensorboard/` and `metrics.csv` in it.

    Args:
      output_dir: the run directory.
      config: of the run.
      progress: "normal", "verbose" (a line for each round), or "quiet" for none.
      track: a tracker that gets the headline too, see `tffcl.program.trackers`.

    Raises:
      InputError: a tracker that is unknown, or whose package is not installed.
    """
    config = config or {}
    reporters: list[Reporter] = [] if progress == "quiet" else [ProgressBar(verbose=progress == "verbose")]
    if output_dir is not None:
        folder = pathlib.Path(output_dir)
        reporters += [trackers.Board(folder / "tensorboard"), MetricsTable(folder / "metrics.csv", config)]
    if track is not None:
        reporters.append(trackers.tracker(track, config, output_dir))
    return reporters


def numbers_of(event: Event) -> Iterator[tuple[str, float]]:
    """The numbers in an event by name: `loss/client_0`, `accuracy/client_0/task_1`, `seconds`."""
    for client, task, metric, value in events.numbers(event):
        parts = [metric] + ([f"client_{client}"] if client != "" else []) + ([f"task_{task}"] if task != "" else [])
        yield "/".join(parts), value


@contextlib.contextmanager
def _write_errors(manager: Any) -> Iterator[None]:
    """Turns errors of a release manager's files into one that names what was written."""
    try:
        yield
    except OSError as error:
        raise storage.cannot_write(error.filename or type(manager).__name__, error) from error
    except tf.errors.OpError as error:
        raise RunError(f"cannot write to {manager}: {error.message}") from error


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
