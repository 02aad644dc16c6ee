"""A door to a worker: connections that come in at one socket go on to a port of this machine's loopback."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Callable

_CHUNK_BYTES = 1 << 20


@dataclasses.dataclass
class Traffic:
    """What has come in and gone out since it was last asked, and when the last of it moved."""

    received: int = 0
    sent: int = 0
    last: float = 0.0


class Forwarder:
    """Accepts connections and passes their bytes on, each way in a thread of its own, until it is closed."""

    def __init__(self, listener: socket.socket, port: int, say: Callable[[str], None]) -> None:
        """Starts to accept.

        Args:
          listener: A listening socket; closed with this object.
          port: Where the connections go on to, on the loopback that this thread sees.
          say: Told in one line of each connection that comes and goes.
        """
        self._listener, self._port, self._say = listener, port, say
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._traffic = Traffic()
        threading.Thread(target=self._accept, name="tffcl-door", daemon=True).start()

    def take_traffic(self) -> Traffic:
        """The traffic since this was last called."""
        with self._lock:
            taken, self._traffic = self._traffic, Traffic(last=self._traffic.last)
        return taken

    def last(self) -> float:
        """`time.monotonic()` of the last byte that moved; 0 before."""
        return self._traffic.last

    def close(self) -> None:
        """Ends all connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
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
            threading.Thread(target=self._serve, args=(outside, _name(peer)), daemon=True).start()

    def _serve(self, outside: socket.socket, peer: str) -> None:
        with contextlib.ExitStack() as ends:
            ends.enter_context(outside)
            try:
                inside = ends.enter_context(socket.create_connection(("localhost", self._port)))
            except OSError as error:
                self._say(f"refused {peer}: the worker does not accept connections ({error})")
                return
            with self._lock:
                self._open |= {outside, inside}
            self._say(f"connection from {peer}")
            for end in (outside, inside):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=self._copy, args=(inside, outside, False), daemon=True)
            back.start()
            self._copy(outside, inside, True)
            back.join()
            with self._lock:
                self._open -= {outside, inside}
            self._say(f"connection from {peer} closed")

    def _copy(self, source: socket.socket, target: socket.socket, inwards: bool) -> None:
        """Passes bytes on until one end closes; then neither is of use any more."""
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        with contextlib.suppress(OSError):
            while size := source.recv_into(buffer):
                target.sendall(buffer[:size])
                with self._lock:
                    self._traffic.received += size if inwards else 0
                    self._traffic.sent += 0 if inwards else size
                    self._traffic.last = time.monotonic()
        _shut(source)
        _shut(target)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _name(peer: tuple) -> str:
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
