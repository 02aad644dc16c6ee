"""Starting a child process that the kernel ends together with this one, however this one ends.

`PR_SET_PDEATHSIG` asks the kernel to kill a child when its parent dies, SIGKILL and `os._exit` included. Two
details make it reliable. It is set by a small Python launcher that then becomes the child program, because
code that runs between fork and exec is unsafe once TensorFlow has started threads. And the kernel's "parent"
is the *thread* that started the child, so one thread, which lives as long as this process, starts them all.
"""

from __future__ import annotations

import concurrent.futures
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any, Callable, Optional

# argv: parent's pid, program, arguments. A parent that was gone before prctl would never be noticed.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class _Keeper:
    """A daemon thread that runs what it is given, one by one, until the process ends."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], concurrent.futures.Future]] = queue.SimpleQueue()
        threading.Thread(target=self._loop, name="tffcl-worker-keeper", daemon=True).start()

    def _loop(self) -> None:
        while True:
            function, future = self._work.get()
            try:
                future.set_result(function())
            except BaseException as error:  # handed to the caller, who waits for it
                future.set_exception(error)

    def run(self, function: Callable[[], Any]) -> Any:
        """Runs `function` in the thread and returns, or raises, what it does."""
        future: concurrent.futures.Future = concurrent.futures.Future()
        self._work.put((function, future))
        return future.result()


_keeper: Optional[_Keeper] = None
_keeper_lock = threading.Lock()


def _get_keeper() -> _Keeper:
    global _keeper
    with _keeper_lock:
        if _keeper is None or _keeper.pid != os.getpid():  # threads do not survive a fork
            _keeper = _Keeper()
        return _keeper


def start_bound_process(args: Sequence[str], **popen_options: Any) -> subprocess.Popen:
    """Starts a program that the kernel kills when this process ends.

    Args:
      args: The program's path and its arguments.
      **popen_options: Passed to `subprocess.Popen`.

    Returns:
      The running process; its pid is the program's own.
    """
    command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *args]
    return _get_keeper().run(lambda: subprocess.Popen(command, **popen_options))
