"""A TFF worker process of our own: started on a free port, ended on every kind of exit.

Nothing here imports TensorFlow Federated, whose import takes seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
from typing import Optional

from tffcl import errors
from tffcl.runtime import launch

_POLL_SECONDS = 0.02
_END_SECONDS = 5.0
_LAST_BREATH_SECONDS = 1.0

_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",  # one arena per thread makes a worker grow to several times what it holds
    # Messages of many megabytes come and go: keeping their pages saves a quarter of the time to move them.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


def find_worker_binary() -> pathlib.Path:
    """The worker program that TFF's wheel carries, found without importing TFF.

    Raises:
      RunError: If TFF is not installed, or its wheel has no worker.
    """
    spec = importlib.util.find_spec("tensorflow_federated")
    if spec is None or spec.origin is None:
        raise errors.RunError("tensorflow_federated is not installed: see the README's section on installing")
    path = pathlib.Path(spec.origin).parent / "data" / "worker_binary"
    if not path.is_file():
        raise errors.RunError(f"the TFF worker is missing: expected a file at {path}; reinstall tensorflow-federated")
    return path


def worker_environment(num_threads: Optional[int] = None, repeatable: bool = True) -> dict[str, str]:
    """Environment of a worker: flat memory, quiet logs, repeatable sums; what the user has set wins.

    Args:
      num_threads: Threads within one operation, and across operations; None leaves it to TensorFlow.
      repeatable: Whether TensorFlow refuses what differs from run to run, random operations without a seed included.
    """
    environment = {**_ENVIRONMENT, "TF_DETERMINISTIC_OPS": str(int(repeatable)), **os.environ}
    if num_threads is not None:
        if num_threads < 1:
            raise errors.InputError(f"num_threads must be at least 1, or None for all cores; found {num_threads}")
        for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
            environment[name] = str(num_threads)
    return environment


def _reserve_port() -> socket.socket:
    """A bound, never listening socket: nobody else is given its port, but the worker can share it."""
    with contextlib.suppress(OSError):
        reserved = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        return _bind_shared(reserved, "::")
    return _bind_shared(socket.socket(socket.AF_INET, socket.SOCK_STREAM), "")


def _bind_shared(reserved: socket.socket, host: str) -> socket.socket:
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        reserved.bind((host, 0))
    except OSError:
        reserved.close()
        raise
    return reserved


class Worker:
    """One TFF worker process on this machine.

    The worker listens on all interfaces and runs any graph that it is sent: use it on machines and networks
    that you trust. Its output goes to a file without a name, so that nothing is left behind and nobody's pipe
    is held open.
    """

    def __init__(self, num_threads: Optional[int] = None, start_timeout: float = 60.0, repeatable: bool = True) -> None:
        """Starts the worker and waits until it accepts connections.

        Args:
          num_threads: See `worker_environment`.
          start_timeout: Seconds after which a worker that does not answer is given up.
          repeatable: See `worker_environment`.

        Raises:
          RunError: If the worker is missing, ends at once, or does not answer in time.
        """
        binary, environment = find_worker_binary(), worker_environment(num_threads, repeatable)
        self._reserved = _reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker)
        self._process: subprocess.Popen = launch.start_bound_process(
            [str(binary), f"--port={self.port}"],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is for this process, which may still want to write a checkpoint
            umask=0o077,  # what computations write, of clients' states and data, is for their owner alone
        )
        self._owner = os.getpid()
        atexit.register(self.close)
        try:
            self._wait_until_ready(start_timeout)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    @property
    def address(self) -> str:
        """Target for a gRPC channel."""
        return f"localhost:{self.port}"

    def describe(self) -> str:
        """One line that says how the worker stands: running, or how it ended and its last words."""
        try:
            code = self._process.wait(_LAST_BREATH_SECONDS)  # connections break before the kernel is done with it
        except subprocess.TimeoutExpired:
            return f"the TFF worker (pid {self.pid}) does not answer"
        end = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        last_words = self._last_line()
        return f"the TFF worker (pid {self.pid}) {end}{hint}" + (f": {last_words}" if last_words else "")

    def close(self) -> None:
        """Ends the worker and waits for it; a second call does nothing."""
        if os.getpid() != self._owner:  # a forked child has inherited this object, but not the worker
            return
        atexit.unregister(self.close)
        if self._process.poll() is None:
            self._process.kill()  # it holds nothing that is worth an orderly end
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        self._output.close()
        self._reserved.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _wait_until_ready(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self._accepts_connections():
            if self._process.poll() is not None:
                raise errors.RunError(f"cannot start a run: {self.describe()}")
            if time.monotonic() > deadline:
                raise errors.RunError(f"cannot start a run: the TFF worker did not answer within {timeout:g} s")
            time.sleep(_POLL_SECONDS)

    def _accepts_connections(self) -> bool:
        try:
            socket.create_connection(("localhost", self.port), timeout=1.0).close()
        except OSError:
            return False
        return True

    def _last_line(self) -> str:
        if self._output.closed:
            return ""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
