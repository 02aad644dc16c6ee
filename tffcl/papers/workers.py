"""Runs that a table needs, in processes that stay for the next one: imports cost more than many a run."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import logging
import os
import pathlib
import queue
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, Optional, cast

import click

from tffcl import storage
from tffcl.flags import exit_with, parse_run, run_and_show

logger = logging.getLogger(__name__)

_RUNS = 25  # in one process: what TensorFlow keeps of each run goes with it
_INTERRUPTED = 130


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory, and the flags of `tffcl run`, the method first; its log stands beside the folder.

    Without `shown` it prints no tables and draws no plots.
    """

    folder: pathlib.Path
    flags: tuple[str, ...]
    shown: bool = True

    @property
    def finished(self) -> bool:
        """Whether there are results."""
        return (self.folder / "results.json").exists()

    @property
    def log(self) -> pathlib.Path:
        """What the run prints."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def command(self) -> list[str]:
        """Arguments of `tffcl run`, with which it begins or goes on."""
        resume = ["--resume"] if (self.folder / "config.json").exists() else []
        return [*self.flags, "--output-dir", str(self.folder), *resume]

    def other_settings(self) -> Optional[str]:
        """What is wrong with a finished run if it had other settings than are asked for now."""
        there = storage.read_object(self.folder / "config.json", "the configuration of a run")
        asked = json.loads(json.dumps(parse_run(self.flags).config()))
        for name in set(asked) - {"enrollment", "num_clients", "num_tasks"}:  # of these the driver makes its own
            if name in there and asked[name] is not None and there[name] != asked[name]:
                return (
                    f"{self.folder} was run with --{name.replace('_', '-')} {there[name]}, not {asked[name]}: give "
                    "another --output-dir"
                )
        return None


def finish(runs: Sequence[Run], jobs: int) -> list[str]:
    """Runs or resumes what is not finished, `jobs` at a time; returns what went wrong, a line each.

    After Ctrl-C no other run begins.
    """
    idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
    for _ in range(jobs):
        idle.put(_Worker())
    stopping = False

    def one(run: Run) -> Optional[str]:
        if run.finished:
            return run.other_settings()
        worker = idle.get()
        try:
            return None if stopping else worker.run(run)
        finally:
            idle.put(worker)

    pool = concurrent.futures.ThreadPoolExecutor(jobs)
    try:
        return [failure for failure in pool.map(one, runs) if failure]
    finally:
        stopping = True
        pool.shutdown(wait=True)
        while not idle.empty():
            idle.get().close()


class _Worker:
    """A process that takes runs, one after the other."""

    def __init__(self) -> None:
        self._process: Optional[subprocess.Popen[str]] = None
        self._left = 0

    def run(self, run: Run) -> Optional[str]:
        """Runs or resumes it; what went wrong, in one line."""
        logger.info("running %s", run.folder.name)
        with storage.private(), run.log.open("ab") as log:
            process = self._started(log)
            orders, answers = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
            try:
                orders.write(json.dumps({"log": str(run.log), "command": run.command, "shown": run.shown}) + "\n")
                orders.flush()
                answer = answers.readline()
            except BrokenPipeError:
                answer = ""
        self._left -= 1
        code = int(answer) if answer.strip() else process.wait()
        if not answer.strip() or not self._left:
            self.close()
        return f"{run.folder.name} ended with exit code {code}, see {run.log}" if code else None

    def _started(self, log: IO[bytes]) -> subprocess.Popen[str]:
        if self._process is None:
            pipe = subprocess.PIPE
            command = [sys.executable, "-m", "tffcl.papers.workers"]
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True)
            self._left = _RUNS
        return self._process

    def close(self) -> None:
        """Ends the process; the next run has another one."""
        if self._process is not None:
            self._process.communicate()
            self._process = None


def _serve() -> None:
    """Takes runs from standard input, a line each, and answers with their exit codes."""
    orders, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for line in orders:
        order = json.loads(line)
        with storage.private(), open(order["log"], "ab") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
        code = 1
        try:
            exit_with(_command(order["command"], order["shown"]), args=[])
        except SystemExit as ended:
            code = int(ended.code or 0)
        except Exception:
            logger.exception("the run failed")
        sys.stdout.flush()
        answers.write(f"{code}\n")
        answers.flush()
        if code == _INTERRUPTED:
            break


def _command(args: Sequence[str], shown: bool) -> click.Command:
    def run() -> None:
        experiment = parse_run(args)
        if shown:
            run_and_show(experiment)
        else:
            experiment.run()

    return click.Command("run", callback=run)


if __name__ == "__main__":
    _serve()
