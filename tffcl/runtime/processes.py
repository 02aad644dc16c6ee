"""Child processes that the kernel ends together with this one, and process statistics from /proc.

`PR_SET_PDEATHSIG` asks the kernel to kill a child when its parent dies, SIGKILL and `os._exit` included. Two details
make it reliable. A small Python launcher sets it and then becomes the child program, because code that runs between
fork and exec is unsafe once TensorFlow has started threads. And the kernel's "parent" is the *thread* that started the
child, so one thread, which lives as long as this process, starts them all.
"""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any, Optional

# argv: parent's pid, program, arguments. A parent that was gone before prctl would never be noticed.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class _Starter:
    """A daemon thread that starts child processes until this process ends."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._requests: queue.SimpleQueue[tuple[list[str], dict, concurrent.futures.Future]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="tffcl-start-processes", daemon=True).start()

    def _run(self) -> None:
        while True:
            command, options, started = self._requests.get()
            try:
                started.set_result(subprocess.Popen(command, **options))
            except BaseException as error:  # handed to the caller, who waits for it
                started.set_exception(error)

    def start(self, command: list[str], options: dict[str, Any]) -> subprocess.Popen:
        started: concurrent.futures.Future[subprocess.Popen] = concurrent.futures.Future()
        self._requests.put((command, options, started))
        return started.result()


_starter: Optional[_Starter] = None
_starter_lock = threading.Lock()


def start_bound_process(args: Sequence[str], **popen_options: Any) -> subprocess.Popen:
    """Starts a program, given by its path and arguments, that the kernel kills when this process ends.

    Returns:
      The running process; its pid is the program's own.
    """
    global _starter
    with _starter_lock:
        if _starter is None or _starter.pid != os.getpid():  # threads do not survive a fork
            _starter = _Starter()
    return _starter.start([sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *args], popen_options)


def stat(pid: int) -> list[str]:
    """Fields of `/proc/PID/stat` from the state on (state, parent, ...; see proc(5)); empty once it has ended."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name before may hold anything


def parents() -> dict[int, int]:
    """The parent of every process; empty where there is no /proc."""
    pids = [int(path.name) for path in pathlib.Path("/proc").glob("[0-9]*")]
    return {pid: int(fields[1]) for pid, fields in zip(pids, map(stat, pids)) if fields}


def seconds_of(fields: list[str]) -> float:
    """CPU seconds of a process so far, all cores together, from its fields."""
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> Optional[float]:
    """CPU seconds of a process so far; None if it has ended."""
    fields = stat(pid)
    return None if not fields or fields[0] in "ZX" else seconds_of(fields)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, in bytes; 0 once it has ended."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0
