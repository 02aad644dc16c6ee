"""TFF worker processes: start and end one on this machine, and ask whether the one at an address answers.

The kernel ends a worker together with this process: `PR_SET_PDEATHSIG` asks it to kill a child when its parent dies,
SIGKILL and `os._exit` included. Two details make it reliable. A small Python launcher sets it and then becomes the
child program, because code that runs between fork and exec is unsafe once TensorFlow has started threads. And the
kernel's "parent" is the *thread* that started the child, so one thread, which lives as long as this process, starts
them all.

Nothing here imports TensorFlow Federated, whose import takes seconds.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import importlib.util
import logging
import os
import pathlib
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any, Optional

from tffcl import errors

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.02
_END_SECONDS = 5.0
_EXIT_SECONDS = 1.0  # connections break before the kernel is done with the process

_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",  # one arena per thread makes a worker grow to several times what it holds
    # Messages of many megabytes come and go: keeping their pages saves a quarter of the time to move them.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_NUM_INTRAOP_THREADS": "1",  # an operation; a core each for clients, as in the in-process runtime
}

CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),  # a web proxy does not know the workers
)

# A name or an IPv4 address, or an IPv6 address in brackets. gRPC takes more, in ways of its own: "host" is port 443
# there, and ":99999" is port 34463.
_ADDRESS = re.compile(r"([\w.-]+|\[[\da-f:.]+(%\w+)?\]):(\d{1,5})", re.ASCII | re.IGNORECASE)

# `GetExecutorRequest(cardinalities=[Cardinality(placement=Placement(uri="clients"))])`: an executor for no clients.
_GET_EXECUTOR = b"\x0a\x0b\x0a\x09\x0a\x07clients"
_SERVICE = "/tensorflow_federated.v0.ExecutorGroup/"


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


def find_worker_binary() -> pathlib.Path:
    """The worker program in TFF's wheel, found without importing TFF.

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
    """Environment of a worker: flat memory, quiet logs, repeatable sums; variables that the user has set win.

    Threads are those within one operation, and across operations. With `repeatable` TensorFlow refuses operations that
    differ from run to run, such as random ones without a seed.
    """
    environment = {**_ENVIRONMENT, "TF_DETERMINISTIC_OPS": str(int(repeatable)), **os.environ}
    if num_threads is not None:
        errors.check_whole("num_threads", num_threads, 1)
        for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
            environment[name] = str(num_threads)
    return environment


class NotContained(errors.RunError):
    """A worker that cannot be kept to one address: the system allows no network namespace."""


class Worker:
    """One TFF worker process on this machine, ended on every kind of exit of this process.

    The worker listens on all interfaces and runs any graph that it is sent: use it on machines and networks that you
    trust. Its output goes to a file without a name: it leaves no file behind and holds no pipe open.

    Shown with `local`.
    """

    _reserved: Optional[socket.socket] = None

    def __init__(self, num_threads: Optional[int] = None, start_timeout: float = 60.0, repeatable: bool = True) -> None:
        """Starts the worker and waits until it accepts connections, at most `start_timeout` seconds.

        Raises:
          RunError: If the worker is missing, ends at once, or does not answer in time.
        """
        binary = find_worker_binary()
        self._reserved = _reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        self._start([str(binary), f"--port={self.port}"], worker_environment(num_threads, repeatable), start_timeout)

    def _start(self, args: Sequence[str], environment: dict[str, str], start_timeout: float) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker)
        self._process = start_bound_process(
            args,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is for this process, which may still want to write a checkpoint
            umask=0o077,  # files that computations write, of clients' states and data, are for their owner alone
        )
        self._owner = os.getpid()
        atexit.register(self.close)
        try:
            deadline = time.monotonic() + start_timeout
            while not self._ready():
                if self.ended:
                    raise self._failed()
                if time.monotonic() > deadline:
                    raise errors.RunError(
                        f"cannot start a run: the TFF worker did not answer within {start_timeout:g} s"
                    )
                time.sleep(_POLL_SECONDS)
        except BaseException:
            self.close()
            raise

    def _failed(self) -> errors.RunError:
        """The error for a worker that has ended before it was ready."""
        return errors.RunError(f"cannot start a run: {self.describe()}")

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    @property
    def address(self) -> str:
        """Target for a gRPC channel."""
        return f"localhost:{self.port}"

    def describe(self) -> str:
        """One line on the state of the worker: running, or how it ended, with the last line of its output."""
        try:
            code = self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return f"the TFF worker (pid {self.pid}) does not answer"
        end = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"the TFF worker (pid {self.pid}) {end}{hint}" + "".join(f": {line}" for line in self._lines()[-1:])

    def _lines(self) -> list[str]:
        """What has been printed so far."""
        if self._output.closed:
            return []
        size = os.fstat(self._output.fileno()).st_size
        content = os.pread(self._output.fileno(), size, 0)  # which does not move where it is written
        return [line.strip() for line in content.decode(errors="replace").split("\n") if line.strip()]

    def close(self) -> None:
        """Ends the worker and waits for it; a second call does nothing."""
        if os.getpid() != self._owner:  # a forked child has inherited this object, but not the worker
            return
        atexit.unregister(self.close)
        if not self.ended:
            self._end()
        self._output.close()
        if self._reserved is not None:
            self._reserved.close()

    def _end(self) -> None:
        self._process.kill()  # it holds nothing that is worth an orderly end
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _ready(self) -> bool:
        try:
            socket.create_connection(("localhost", self.port), timeout=1.0).close()
        except OSError:
            return False
        return True


class ContainedWorker(Worker):
    """A worker that only this machine reaches: `tffcl worker` on a free port of 127.0.0.1, as a child of this process.

    The worker itself is in a network namespace of its own, see `tffcl.runtime.serve`.
    """

    def __init__(self, num_threads: Optional[int] = None, start_timeout: float = 60.0, repeatable: bool = True) -> None:
        """Starts the worker. See `Worker`.

        Raises:
          NotContained: the system allows no network namespace.
        """
        find_worker_binary()
        program = [sys.executable, "-I", "-c", _SERVE, os.pathsep.join(sys.path)]
        self._pid: Optional[int] = None
        self._start(program, worker_environment(num_threads, repeatable), start_timeout)

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid if self._pid is None else self._pid

    @property
    def address(self) -> str:
        """Target for a gRPC channel."""
        return f"127.0.0.1:{self.port}"

    def describe(self) -> str:
        """See `Worker.describe`: the proxy describes the worker in its last line, and ends with it."""
        try:
            code = self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return f"the TFF worker (pid {self.pid}) does not answer"
        if code < 0:
            return f"the proxy of the TFF worker (pid {self.pid}) was ended by {signal.Signals(-code).name}"
        return "".join(self._lines()[-1:])

    def _ready(self) -> bool:
        found = [match for match in map(_READY.match, self._lines()) if match is not None]
        for match in found:
            self.port, self._pid = int(match[1]), int(match[2])
        return bool(found)

    def _failed(self) -> errors.RunError:
        kind = NotContained if self._process.returncode == NOT_CONTAINED else errors.RunError
        return kind(f"cannot start a run: {self.describe()}")

    def _end(self) -> None:
        self._process.terminate()  # which ends the worker before itself
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
            return
        super()._end()


NOT_CONTAINED = 3  # exit code of a `ContainedWorker` on a system that allows no network namespace
_SERVE = """
import os, sys
sys.path[:] = sys.argv[1].split(os.pathsep)
from tffcl.runtime import serve
serve.main()
"""
_contains = True  # as long as nothing else is known of this system
_READY = re.compile(r"ready: a TFF worker listens on 127\.0\.0\.1:(\d+) \(pid (\d+)\)")


def start(num_threads: Optional[int] = None, repeatable: bool = True) -> Worker:
    """A worker of this process, contained where the system allows it; see `Worker`."""
    global _contains
    if _contains:
        try:
            return ContainedWorker(num_threads, repeatable=repeatable)
        except NotContained as error:
            _contains = False
            logger.info("workers of this machine listen on all of its interfaces (%s)", error)
    return Worker(num_threads, repeatable=repeatable)


def _reserve_port() -> socket.socket:
    """A bound, never listening socket: the kernel gives its port to nobody else, but the worker can share it."""
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        with contextlib.suppress(OSError), contextlib.ExitStack() as failed:
            reserved = failed.enter_context(socket.socket(family, socket.SOCK_STREAM))
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserved.bind((host, 0))
            failed.pop_all()
            return reserved
    raise errors.RunError("cannot start a run: this machine has no free port for a TFF worker")


def check_addresses(addresses: Sequence[str], name: str = "addresses") -> Sequence[str]:
    """Returns the addresses; an InputError, of the argument or flag `name`, unless they are `host:port`, each once."""
    if isinstance(addresses, str) or not addresses:
        raise errors.InputError(f"{name}: expected a list of host:port, found {addresses!r}")
    for address in addresses:
        match = _ADDRESS.fullmatch(str(address))
        if match is None or not 0 < int(match[3]) < 65536:
            raise errors.InputError(
                f"{name}: expected host:port (an IPv6 address in brackets, a port from 1 to 65535), found {address!r}"
            )
    if len(set(addresses)) < len(addresses):
        raise errors.InputError(f"{name}: expected each worker once, found {', '.join(addresses)}")
    return addresses


class Probe:
    """Asks the worker at `host:port` for an executor, and gives it back; no computation runs.

    A worker answers while it computes. A stopped one does not, although the kernel still accepts connections.
    """

    def __init__(self, address: str) -> None:
        import grpc

        self._error = grpc.RpcError
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)  # connects when first asked
        self._get = self._channel.unary_unary(_SERVICE + "GetExecutor")
        self._dispose = self._channel.unary_unary(_SERVICE + "DisposeExecutor")

    def ask(self, timeout: float) -> Optional[str]:
        """None if the worker answers within `timeout` seconds; else why it does not, in a few words."""
        try:
            executor = self._get(_GET_EXECUTOR, timeout=timeout)
            self._dispose(executor, timeout=timeout)  # its response has the form of this request
        except (self._error, ValueError) as error:
            return describe_rpc_error(error, f"no answer within {timeout:g} s")
        return None

    def close(self) -> None:
        self._channel.close()


def probe(address: str, timeout: float) -> Optional[str]:
    """As `Probe.ask`, over a connection of its own."""
    with contextlib.closing(Probe(address)) as asked:
        return asked.ask(timeout)


def describe_rpc_error(error: Any, timed_out: str) -> str:
    """One line on a `grpc.RpcError`, or on the ValueError of a closed channel; `timed_out` describes a timeout."""
    if not hasattr(error, "code"):
        return "the connection is closed"
    code = error.code().name
    if code == "DEADLINE_EXCEEDED":
        return timed_out
    if code == "UNIMPLEMENTED":
        return "the server there is not a TFF worker"
    return f"{code}: {' '.join(str(error.details()).split())[:120]}"
