"""Observers of a run: progress, TensorBoard, a table of all numbers, trackers, any TFF release manager."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import csv
import functools
import io
import math
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional, Protocol, Union

import tensorflow as tf
import tensorflow_federated as tff
import tqdm.auto
import tqdm.notebook

from tffcl import metrics, storage
from tffcl.errors import RunError
from tffcl.program import events, results, trackers
from tffcl.program.events import Event


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
        storage.write_whole(self._path, _as_csv([results.TIDY, *lines]))

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


_END = -1  # the place of a task's end, behind its rounds


class ProgressBar:
    """How far a run is on stderr: a bar on a terminal and in a notebook; elsewhere a line now and then.

    Shown with `Reporter`.

    Args:
      file: written to; None for stderr.
      every: seconds between lines, at the least, where there is no terminal.
      verbose: a line for every round, with the losses of the clients.
    """

    def __init__(self, file: Any = None, *, every: float = 10.0, verbose: bool = False):
        self._file, self._every, self._verbose = file, every, verbose
        self._bar: Any = None
        self._score = ""

    def start(self, num_tasks: int, num_rounds: int, past: Sequence[Event]) -> None:
        self._file = self._file or sys.stderr
        self._estimate = Estimate(num_tasks, num_rounds)
        for event in past:
            self._estimate.add(event)
        self._num_tasks, self._done = num_tasks, sum(event["event"] == "round" for event in past)
        # Tasks that have ended had rounds of their own number, where a run is continued with another.
        ended = [event["task"] for event in past if event["event"] == "task_end"]
        had = sum(event["event"] == "round" and event["task"] in ended for event in past)
        self._total = had + (num_tasks - len(ended)) * num_rounds
        self._shown = self._started = time.monotonic()
        if self._done == self._total:
            return
        if self._file.isatty() or (self._file is sys.stderr and _in_notebook()):
            self._bar = tqdm.auto.tqdm(
                total=self._total, initial=self._done, file=self._file, dynamic_ncols=True, desc="compiling",
                bar_format="{desc} |{bar}| {n_fmt}/{total_fmt} rounds, {elapsed}{postfix}",
            )  # fmt: skip
        else:
            self._write(f"compiling, then round {self._done + 1} of {self._total} ...")

    def report(self, event: Event) -> None:
        is_round, now = event["event"] == "round", time.monotonic()
        self._done += is_round
        self._estimate.add(event)
        self._score = metrics.shown_score(event) or self._score
        left = self._estimate.left()
        about = [self._score] if self._score else []
        if left is not None and self._done < self._total:
            about.append(f"about {_clock(left)} left")
        where = f"task {event['task'] + 1} of {self._num_tasks}"
        if self._bar is not None:
            self._bar.set_description(where, refresh=False)
            self._bar.set_postfix_str(", ".join(about), refresh=not is_round)
            self._bar.update(is_round)
        last = self._done == self._total and not is_round
        if self._verbose and is_round:
            losses = ", ".join(f"{loss:.3g}" for loss in event.get("loss", {}).values())
            about = [*about, f"loss by client {losses}"] if losses else about
        if (self._verbose and is_round) or (self._bar is None and (last or now - self._shown >= self._every)):
            took = [f"{_clock(now - self._started)} so far"]
            self._write(f"round {self._done} of {self._total}, {where}: {', '.join([*about, *took])}")
            self._shown = now
        for line in _faults_of(event):
            self._write(line)

    def _write(self, line: str) -> None:
        if self._bar is not None:
            self._bar.write(line, file=self._file)
        else:
            print(line, file=self._file, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None


def _in_notebook() -> bool:
    """Whether tqdm has found a notebook that it can draw its bar in."""
    return issubclass(tqdm.auto.tqdm, tqdm.notebook.tqdm_notebook)


def _clock(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes.

    >>> _clock(9.4), _clock(83), _clock(7500)
    ('9 s', '1 min 23 s', '2 h 5 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


class Estimate:
    """How long the rest of a run takes, from what its rounds and ends of tasks have taken.

    A round is expected to take what that of the same place took in the last two tasks, for the first round of a task
    is dear (its start, its examples, all its epochs) and patience makes the last ones cheap. The run's first round and
    first end of a task contain compilation and count for no other; what stands in for them while there is nothing
    better is their geometric mean with a usual round.
    """

    def __init__(self, num_tasks: int, num_rounds: int):
        self._places = [(task, place) for task in range(num_tasks) for place in (*range(num_rounds), _END)]
        self._seconds: dict[tuple[int, int], float] = {}

    def add(self, event: Event) -> None:
        """Something has happened."""
        self._seconds[event["task"], event.get("round", _END)] = event.get("seconds", 0.0)

    def left(self) -> Optional[float]:
        """Seconds; None as long as nothing but the first round is known."""
        usual = [seconds for (_, place), seconds in self._seconds.items() if place > 0]
        if not usual:
            return None
        round_seconds = sum(usual) / len(usual)
        ended = {task for task, place in self._seconds if place == _END}
        left = [place for task, place in self._places if task not in ended and (task, place) not in self._seconds]
        return sum(self._expected(place, round_seconds) for place in left)

    def _expected(self, place: int, round_seconds: float) -> float:
        compiles = place in (0, _END)
        known = [s for (task, there), s in self._seconds.items() if there == place and (task > 0 or not compiles)][-2:]
        if known:
            return sum(known) / len(known)
        first = self._seconds.get((0, place)) if compiles else None
        return round_seconds if first is None else math.sqrt(first * round_seconds)


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
