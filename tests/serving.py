"""`tffcl worker` programs for tests, what may happen to them in the midst of a run, and what they leave behind."""

from __future__ import annotations

import contextlib
import functools
import json
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

PROGRAM = [sys.executable, "-c", "from tffcl.cli import main; main()"]
PATIENCE = 240.0  # seconds for anything that has to come: the machine may be busy with other tests
_CALLS_OF_A_WINDOW, _WINDOWS = 30, 10
_SOON = 60.0  # and for what the kernel does by itself


@functools.cache
def _may_have_a_network() -> bool:
    probe = "from tffcl.runtime.serve import enter_network_namespace; enter_network_namespace()"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode == 0


needs_network = pytest.mark.skipif(not _may_have_a_network(), reason="no network name spaces here")


def assert_settles(act: Callable[[], object], measure: Callable[[], float], most: float) -> None:
    """What is measured stops to grow, however long it has grown at first.

    A heap takes any number of calls to come to its size, which depends on the machine's allocator; what is kept of
    every call makes it grow for ever. So it has settled when two windows in a row bring at most `most`.

    Args:
      act: What is done again and again; a window of what may not be kept of it is clearly more than `most`.
      measure: Bytes or objects.
      most: What may come in a window without being kept, such as an allocator's pages.
    """
    grown, before = [], measure()
    for _ in range(_WINDOWS):
        for _ in range(_CALLS_OF_A_WINDOW):
            act()
        after = measure()
        grown.append(after - before)
        before = after
        if len(grown) > 1 and max(grown[-2:]) <= most:
            return
    pytest.fail(f"it does not settle: {_CALLS_OF_A_WINDOW} calls bring, window by window, {grown}")


def wait_until(condition: Callable[[], bool], what: Callable[[], str], seconds: float = PATIENCE) -> None:
    """Waits for an event; where it does not come, `what` tells how things stand."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


class Served:
    """A `tffcl worker` of our own, and what it has said so far."""

    def __init__(self, *args: object, before: tuple[str, ...] = ()):
        self.lines: list[str] = []
        command = [*before, *PROGRAM, "worker", "--threads", "1", *map(str, args)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            ready = self.wait_for(r"ready: a TFF worker listens on (\S+) \(pid (\d+)\)")
        except BaseException:
            self.close()
            raise
        self.address, self.worker_pid = ready[1], int(ready[2])

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, pattern: str) -> re.Match:
        """The first line so far, or to come, in which the pattern is found."""
        found: list[re.Match] = []

        def look() -> bool:
            ended = not self._reader.is_alive()
            found.extend(filter(None, (re.search(pattern, line) for line in list(self.lines))))
            assert found or not ended, f"no line {pattern!r} among {self.lines}, and the program has ended"
            return bool(found)

        wait_until(look, lambda: f"no line {pattern!r} among {self.lines}")
        return found[0]

    def kill(self) -> None:
        """kill -9 of the program, with which the worker ends."""
        self.process.kill()

    def end(self, number: int = signal.SIGTERM) -> int:
        """The exit code after a signal."""
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)  # the pipe ends with the last process that holds it
        self.process.stderr.close()


@contextlib.contextmanager
def serve(*args: object, **options: tuple[str, ...]) -> Iterator[Served]:
    """A `tffcl worker` that is gone at the end, and nothing of it is left."""
    served = Served(*args, **options)
    try:
        yield served
    finally:
        served.close()
    assert is_gone_soon(served.worker_pid)


def is_running(pid: int) -> bool:
    """Whether a process is there and not merely waiting for its parent to ask how it ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def is_gone_soon(pid: int) -> bool:
    """Whether a process has ended, or does so without being asked again."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not is_running(pid), str, _SOON)
    return not is_running(pid)


def children() -> set[int]:
    """The processes that this one has started, and that have not been waited for."""
    found: set[int] = set()
    for thread in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found |= set(map(int, (thread / "children").read_text().split()))
    return found


class Accident:
    """Something happens to a worker in the midst of a computation: when its results are first asked for.

    Args:
      address: The worker's.
      happen: What happens.
      history: The `history.jsonl` of a run; None for the computation that comes next.
      lines: How many lines have to stand there before.
    """

    def __init__(self, address: str, happen: Callable[[], object], history: pathlib.Path | None = None, lines: int = 0):
        self._address, self._happen, self._history, self._lines = address, happen, history, lines
        self._happened, self._lock = False, threading.Lock()

    def _may_happen(self, address: str) -> None:
        with self._lock:
            due = self._history is None or len(events(self._history)) >= self._lines
            if address != self._address or self._happened or not due:
                return
            self._happened = True
        self._happen()

    def __enter__(self) -> Accident:
        from tffcl.runtime.executor import WorkerExecutor

        plain = WorkerExecutor.fetch

        def fetch(executor: WorkerExecutor, value_ref: object) -> object:
            self._may_happen(executor._stub.address)
            return plain(executor, value_ref)

        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(WorkerExecutor, "fetch", fetch)
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        self._patch.undo()
        assert self._happened or kind is not None, "it has ended before anything happened"


def events(history: pathlib.Path) -> list[dict]:
    """The lines that stand in a run's history, if there is one."""
    if not history.exists():
        return []
    return [json.loads(line) for line in history.read_text().split("\n")[:-1]]


def _numbers(folder: pathlib.Path) -> list:
    """What a run has come to: its results, and what each round reported."""
    results = json.loads((folder / "results.json").read_text())
    assert results.pop("seconds")
    lines = events(folder / "history.jsonl")
    return [results, [[line.get(name) for name in ("loss", "validation_loss", "bytes_up")] for line in lines]]


def assert_same_results(found: pathlib.Path, expected: pathlib.Path) -> None:
    """Two run directories with the same results, and the same losses on the way; floats up to 1e-6."""
    _assert_same(_numbers(found), _numbers(expected))


def _assert_same(found: object, expected: object) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            _assert_same(one, other)
    else:
        assert found == (pytest.approx(expected, rel=1e-6) if isinstance(expected, float) else expected)
