"""`tffcl worker`: TFF's worker behind a TCP proxy that listens at one address, until SIGTERM or SIGINT.

TFF's worker binds `[::]:PORT`, on all interfaces, and has no flag for anything narrower. So it starts in a Linux
network namespace, in which "all interfaces" is one loopback. A socket stays in the namespace in which it was made: the
proxy's, made before, goes on listening outside.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import os
import pathlib
import signal
import socket
import struct
import sys
import threading
import time
from typing import Optional

import click
import psutil

from tffcl import errors
from tffcl.runtime import worker as worker_lib

_CHECK_SECONDS = 10.0
_ALL_ADDRESSES = ("0.0.0.0", "::")

# The log: a line for each time that the worker was busy, which ends with a pause.
_SAMPLE_SECONDS, _PAUSE_SECONDS = 0.25, 1.0
_BUSY_SHARE = 0.05  # of a core, from which the worker counts as busy
_MIN_LOGGED_BYTES, _MIN_LOGGED_CPU_SECONDS = 64 * 1024, 0.5  # a probe takes less than this

_CHUNK_BYTES = 1 << 20

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def check(address: str) -> int:
    """Whether a worker answers at `host:port`: 0, or 1 with the reason on stderr. InputError if it is no address."""
    worker_lib.check_addresses([address], "--check")
    reason = worker_lib.probe(address, _CHECK_SECONDS)
    _print(f"{address}: the worker answers" if reason is None else f"{address}: {reason}")
    return 0 if reason is None else 1


def serve(host: str, port: int, threads: Optional[int]) -> None:
    """Runs a worker until SIGTERM or SIGINT, behind one address of this machine or all (0.0.0.0, ::).

    Port 0 is a free one; without `threads` their number is left to TensorFlow.

    Raises:
      RunError: The address is taken or none of this machine's; the worker cannot be contained; the worker has ended.
    """
    with contextlib.ExitStack() as resources:
        try:
            family, _, _, _, resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = resources.enter_context(socket.create_server(resolved[:2], family=family))
        except OSError as error:
            raise errors.RunError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        contained = _contain(host)
        worker = resources.enter_context(worker_lib.Worker(threads))
        proxy = Proxy(listener, worker.port)
        resources.callback(proxy.close)
        ended = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):  # also where the parent has left them ignored
            resources.callback(signal.signal, number, signal.signal(number, lambda *_: ended.set()))
        address = _shown(listener.getsockname())
        _print(
            f"warning: a TFF worker runs any graph that it is sent, with the rights of this user, by anybody who "
            f"reaches {address}; it asks for no password and encrypts nothing"
        )
        if contained:
            _print(
                "the worker is in a network namespace of its own: it is reached through this proxy alone, and reaches "
                "no other machine"
            )
        else:
            _print(f"warning: the worker itself listens on port {worker.port} of all interfaces, too")
        _print(f"ready: a TFF worker listens on {address} (pid {worker.pid})")
        _log_work(worker, proxy, ended)
        _print("ended: the worker is gone")


def main() -> None:
    """The program of a `ContainedWorker`, whose options are in its environment."""
    try:
        serve("127.0.0.1", 0, None)
    except errors.RunError as error:
        _print(str(error))
        sys.exit(worker_lib.NOT_CONTAINED if isinstance(error, worker_lib.NotContained) else 1)


def _contain(host: str) -> bool:
    """Enters a network namespace; False where there is none and the worker may listen everywhere."""
    try:
        enter_network_namespace()
    except OSError as error:
        if host in _ALL_ADDRESSES:
            return False
        raise worker_lib.NotContained(
            f"cannot keep the worker to {host}: TFF's worker binds all interfaces, and this system allows no network "
            f"namespace that would contain it ({error.strerror or error}); run it as root or in a container, or say "
            "--host 0.0.0.0 where everybody who reaches this machine may run anything on it"
        ) from error
    return True


def enter_network_namespace() -> None:
    """Takes the calling thread, and all that it starts from now on, into a new namespace with nothing but a loopback.

    Call it before any other thread exists. Root may do it; others where the kernel gives users namespaces, else it is
    an OSError.
    """
    if not sys.platform.startswith("linux"):
        raise OSError("only Linux has network namespaces")
    user, group = os.geteuid(), os.getegid()
    try:
        _unshare(_CLONE_NEWNET)
    except PermissionError:  # in a user namespace, as the same user, it may be allowed
        _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
        own = pathlib.Path("/proc/self")
        (own / "setgroups").write_text("deny")
        (own / "uid_map").write_text(f"{user} {user} 1")
        (own / "gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, struct.pack("16sh14x", b"lo", 0))
        (flags,) = struct.unpack_from("h", answer, 16)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _log_work(worker: worker_lib.Worker, proxy: Proxy, ended: threading.Event) -> None:
    """Logs each time that the worker was busy; TFF's protocol knows no rounds, but pauses lie between them."""
    process = psutil.Process(worker.pid)
    logged = last = _cpu_seconds(process)
    busy_since: Optional[float] = None
    busy_until = 0.0
    while not ended.wait(_SAMPLE_SECONDS):
        if worker.ended:
            raise errors.RunError(worker.describe())
        now, cpu = time.monotonic(), _cpu_seconds(process)
        if cpu - last > _BUSY_SHARE * _SAMPLE_SECONDS or now - proxy.traffic.last < _SAMPLE_SECONDS:
            busy_since, busy_until = busy_since or now, now
        last = cpu
        if busy_since is not None and now - busy_until > _PAUSE_SECONDS:
            traffic = proxy.take_traffic()
            if traffic.received + traffic.sent > _MIN_LOGGED_BYTES or cpu - logged > _MIN_LOGGED_CPU_SECONDS:
                _print(
                    f"{time.strftime('%H:%M:%S')} busy for {busy_until - busy_since:.1f} s: {cpu - logged:.1f} s of "
                    f"CPU, {traffic.received / 1e6:.1f} MB in, {traffic.sent / 1e6:.1f} MB out, "
                    f"{process.memory_info().rss / 1e6:.0f} MB in memory"
                )
            logged, busy_since = cpu, None


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


@dataclasses.dataclass
class Traffic:
    """Bytes that were received and sent since they were last taken, and `time.monotonic()` of the last of them."""

    received: int = 0
    sent: int = 0
    last: float = 0.0


class Proxy:
    """TCP proxy between a listening socket and a port of this thread's loopback, until it is closed."""

    def __init__(self, listener: socket.socket, port: int) -> None:
        self.traffic = Traffic()
        self._listener, self._port = listener, port
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="tffcl-proxy", daemon=True).start()

    def take_traffic(self) -> Traffic:
        """The traffic since this was last called."""
        with self._lock:
            taken, self.traffic = self.traffic, Traffic(last=self.traffic.last)
        return taken

    def close(self) -> None:
        """Ends all connections."""
        _shut(self._listener)  # wakes the thread that accepts
        self._listener.close()
        with self._lock:
            ends = list(self._open)
        for end in ends:
            _shut(end)

    def _accept(self) -> None:
        while True:
            try:
                outside, peer = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(outside, _shown(peer)), daemon=True).start()

    def _serve(self, outside: socket.socket, peer: str) -> None:
        with contextlib.ExitStack() as ends:
            ends.enter_context(outside)
            try:
                inside = ends.enter_context(socket.create_connection(("localhost", self._port)))
            except OSError as error:
                _print(f"refused {peer}: the worker does not accept connections ({error})")
                return
            with self._lock:
                self._open |= {outside, inside}
            _print(f"connection from {peer}")
            for end in (outside, inside):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=self._copy, args=(inside, outside, False), daemon=True)
            back.start()
            self._copy(outside, inside, True)
            back.join()
            with self._lock:
                self._open -= {outside, inside}
            _print(f"connection from {peer} closed")

    def _copy(self, source: socket.socket, target: socket.socket, inwards: bool) -> None:
        """Copies bytes until one end closes, and then closes the other."""
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        with contextlib.suppress(OSError):
            while size := source.recv_into(buffer):
                target.sendall(buffer[:size])
                with self._lock:
                    self.traffic.received += size if inwards else 0
                    self.traffic.sent += 0 if inwards else size
                    self.traffic.last = time.monotonic()
        _shut(source)
        _shut(target)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _shown(address: tuple) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _print(line: str) -> None:
    click.echo(line, err=True)
