"""Workers' addresses, and whether one answers, asked without TensorFlow Federated, whose import takes seconds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Optional

from tffcl.errors import InputError

# `GetExecutorRequest(cardinalities=[Cardinality(placement=Placement(uri="clients"))])`: an executor for no clients.
_GET_EXECUTOR = b"\x0a\x0b\x0a\x09\x0a\x07clients"
_SERVICE = "/tensorflow_federated.v0.ExecutorGroup/"

CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),  # a proxy for the web knows nothing of workers
)

# A name or an IPv4 address, or an IPv6 address in brackets. gRPC takes more, in ways of its own: "host" is port 443
# there, and ":99999" is port 34463.
_ADDRESS = re.compile(r"([\w.-]+|\[[\da-f:.]+(%\w+)?\]):(\d{1,5})", re.ASCII | re.IGNORECASE)


def check_addresses(addresses: Sequence[str], name: str = "addresses") -> Sequence[str]:
    """The addresses, if they are at least one `host:port`, each once.

    Args:
      addresses: Of workers.
      name: What they were given as, for the error.

    Raises:
      InputError: They are not.
    """
    if isinstance(addresses, str) or not addresses:
        raise InputError(f"{name}: expected a list of host:port, found {addresses!r}")
    for address in addresses:
        found = _ADDRESS.fullmatch(str(address))
        if found is None or not 0 < int(found[3]) < 65536:
            raise InputError(
                f"{name}: expected host:port (an IPv6 address in brackets, a port from 1 to 65535), found {address!r}"
            )
    if len(set(addresses)) < len(addresses):
        raise InputError(f"{name}: expected each worker once, found {', '.join(addresses)}")
    return addresses


class Probe:
    """Asks one worker for an executor, and gives it back; no computation runs.

    A worker answers while it computes. One that is stopped does not, although the kernel still accepts connections.
    """

    def __init__(self, address: str) -> None:
        """Connects when first asked.

        Args:
          address: `host:port` of a worker.
        """
        import grpc

        self._error = grpc.RpcError
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._get = self._channel.unary_unary(_SERVICE + "GetExecutor")
        self._dispose = self._channel.unary_unary(_SERVICE + "DisposeExecutor")

    def ask(self, timeout: float, wait: bool = False) -> Optional[str]:
        """None where the worker answers; else why it does not, in a few words.

        Args:
          timeout: Seconds until it is given up.
          wait: Whether a port where nobody listens is asked again until then.
        """
        try:
            executor = self._get(_GET_EXECUTOR, timeout=timeout, wait_for_ready=wait)
            self._dispose(executor, timeout=timeout)  # its response has the form of this request
        except self._error as error:
            return _reason(error, timeout)
        except ValueError:
            return "the connection is closed"
        return None

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()


def check(address: str, timeout: float, wait: bool = False) -> Optional[str]:
    """As `Probe.ask`, over a connection of its own."""
    probe = Probe(address)
    try:
        return probe.ask(timeout, wait)
    finally:
        probe.close()


def _reason(error: Any, timeout: float) -> str:
    code = error.code().name
    if code == "DEADLINE_EXCEEDED":
        return f"no answer within {timeout:g} s"
    if code == "UNIMPLEMENTED":
        return "what listens there is no TFF worker"
    detail = " ".join(str(error.details()).split())
    return f"{code}: {detail[:120]}"
