"""`tffcl worker`: TFF's worker behind a door that listens where it is told, with a log, until it is told to end."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Optional

import click

from tffcl import errors
from tffcl.runtime import forwarding, health, network, processes
from tffcl.runtime import worker as worker_lib

_LOOK_SECONDS = 0.25
_QUIET_SECONDS = 1.0  # after which what was done is told
_BUSY_SHARE = 0.05  # of a core, from which the worker is busy

# Less than this is somebody who asks whether the worker is there.
_TOLD_BYTES, _TOLD_CPU_SECONDS = 64 * 1024, 0.5

_EVERYWHERE = ("0.0.0.0", "::")
_CHECK_SECONDS = 10.0


def check(address: str) -> int:
    """Whether a worker answers at `host:port`: 0, or 1 with the reason on stderr.

    Raises:
      InputError: It is no address.
    """
    health.check_addresses([address], "--check")
    reason = health.check(address, _CHECK_SECONDS)
    _say(f"{address}: the worker answers" if reason is None else f"{address}: {reason}")
    return 0 if reason is None else 1


def serve(host: str, port: int, threads: Optional[int]) -> None:
    """Runs a worker until SIGTERM or SIGINT.

    Args:
      host: Where to listen, one address of this machine, or 0.0.0.0 or :: for all.
      port: Port to listen on; 0 for a free one.
      threads: Threads of the worker; None leaves it to TensorFlow.

    Raises:
      RunError: The address is taken or none of this machine's; the worker cannot be kept to it; the worker has ended.
    """
    with contextlib.ExitStack() as resources:
        listener = resources.enter_context(_listen(host, port))
        own_network = _enter_private_network(host)
        worker = resources.enter_context(worker_lib.Worker(threads))
        forwarder = forwarding.Forwarder(listener, worker.port, _say)
        resources.callback(forwarder.close)
        ended = resources.enter_context(_signals())
        address = _name(listener.getsockname())
        _warn(address, host, worker, own_network)
        _say(f"ready: a TFF worker listens on {address} (pid {worker.pid})")
        _watch(worker, forwarder, ended)
        _say("ended: the worker is gone")


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise errors.RunError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


def _enter_private_network(host: str) -> bool:
    """Whether the worker will be reached through the door alone.

    Raises:
      RunError: It would not, although it shall not listen everywhere.
    """
    try:
        network.enter_private_network()
    except OSError as error:
        if host in _EVERYWHERE:
            return False
        raise errors.RunError(
            f"cannot keep the worker to {host}: TFF's worker binds all interfaces, and this system allows no network "
            f"name space that would contain it ({error.strerror or error}); run it as root or in a container, or say "
            "--host 0.0.0.0 where everybody who reaches this machine may run anything on it"
        ) from error
    return True


def _warn(address: str, host: str, worker: worker_lib.Worker, own_network: bool) -> None:
    _say(
        f"warning: a TFF worker runs any graph that it is sent, with the rights of this user, by anybody who reaches "
        f"{address}; it asks for no password and encrypts nothing"
    )
    if own_network:
        _say(
            "the worker is in a network of its own: nothing but this door leads to it, and it reaches no other machine"
        )
    else:
        _say(f"warning: the worker itself listens on port {worker.port} of all interfaces, too")


@contextlib.contextmanager
def _signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set, also where the parent has left them ignored."""
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(worker: worker_lib.Worker, forwarder: forwarding.Forwarder, ended: threading.Event) -> None:
    """Tells of each time that the worker was busy; TFF's protocol knows no rounds, but pauses lie between them.

    Raises:
      RunError: The worker has ended by itself.
    """
    told = seen = processes.cpu_seconds(worker.pid)
    busy_since: Optional[float] = None
    busy_until = 0.0
    while not ended.wait(_LOOK_SECONDS):
        now, cpu = time.monotonic(), processes.cpu_seconds(worker.pid)
        if cpu is None or seen is None or told is None:
            raise errors.RunError(worker.describe())
        if cpu - seen > _BUSY_SHARE * _LOOK_SECONDS or now - forwarder.last() < _LOOK_SECONDS:
            busy_since, busy_until = busy_since or now, now
        seen = cpu
        if busy_since is not None and now - busy_until > _QUIET_SECONDS:
            traffic = forwarder.take_traffic()
            if traffic.received + traffic.sent > _TOLD_BYTES or cpu - told > _TOLD_CPU_SECONDS:
                _say(
                    f"{time.strftime('%H:%M:%S')} busy for {busy_until - busy_since:.1f} s: {cpu - told:.1f} s of CPU, "
                    f"{traffic.received / 1e6:.1f} MB in, {traffic.sent / 1e6:.1f} MB out, "
                    f"{processes.resident_bytes(worker.pid) / 1e6:.0f} MB in memory"
                )
            told, busy_since = cpu, None


def _name(address: tuple) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _say(line: str) -> None:
    click.echo(line, err=True)
