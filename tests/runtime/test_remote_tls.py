"""Mutual TLS by stunnel, with the configuration files that docs/runtime.md shows; skips where there is no stunnel."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess

import numpy as np
import pytest
import tensorflow_federated as tff
from serving import PATIENCE, wait_until

from tffcl import runtime
from tffcl.runtime import worker as worker_lib
from tffcl.runtime.worker import Worker

_DOCS = pathlib.Path(__file__).parents[2] / "docs" / "runtime.md"
_STUNNEL = os.environ.get("TFFCL_STUNNEL") or shutil.which("stunnel") or shutil.which("stunnel4")

pytestmark = pytest.mark.skipif(
    not _STUNNEL or not shutil.which("openssl"), reason="no stunnel (TFFCL_STUNNEL names one) or openssl here"
)


def _openssl(folder, *args):
    subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)


def _authority(folder, name):
    subject = ["-subj", f"/CN={name}", "-days", "2", "-nodes", "-newkey", "rsa:2048"]
    _openssl(folder, "req", "-x509", *subject, "-keyout", f"{name}.key", "-out", f"{name}.pem")


def _certificate(folder, authority, name):
    _openssl(
        folder, "req", "-new", "-nodes", "-newkey", "rsa:2048", "-subj", f"/CN={name}",
        "-addext", f"subjectAltName=DNS:{name}", "-keyout", f"{name}.key", "-out", f"{name}.csr",
    )  # fmt: skip
    _openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
        "-CAcreateserial", "-copy_extensions", "copy", "-days", "2", "-out", f"{name}.pem",
    )  # fmt: skip


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    _authority(folder, "ca")
    _authority(folder, "foreign")
    _certificate(folder, "ca", "worker-a")
    _certificate(folder, "ca", "coordinator")
    _certificate(folder, "foreign", "stranger")
    return folder


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@contextlib.contextmanager
def stunnel(folder, name, port, **replaced):
    """stunnel with a file of the documentation, in which some words are replaced."""
    (text,) = re.findall(rf"```ini\n(; {name}\n.*?)```", _DOCS.read_text(), re.DOTALL)
    for old, new in replaced.values():
        assert old in text
        text = text.replace(old, new)
    path = folder / f"{port}-{name}"
    path.write_text(text)
    process = subprocess.Popen([_STUNNEL, path], cwd=folder, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _listens(port) or process.poll() is not None, lambda: text)
        assert process.poll() is None, text
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _listens(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


@pytest.fixture(name="door", scope="module")
def _door(folder):
    """The port at which a worker is reached through TLS."""
    port = _free_port()
    with Worker(1) as worker:
        inside = ("127.0.0.1:9000", worker.address)
        with stunnel(folder, "worker.conf", port, a=("0.0.0.0:9443", f"127.0.0.1:{port}"), b=inside):
            yield port


def _coordinator(folder, port, door, **more):
    ends = {"a": ("127.0.0.1:9001", f"127.0.0.1:{port}"), "b": ("worker-a:9443", f"127.0.0.1:{door}")}
    return stunnel(folder, "coordinator.conf", port, **ends, **more)


@pytest.mark.slow
def test_a_computation_through_mutual_tls(folder, door):
    total = tff.federated_computation(
        lambda x: tff.federated_sum(x), tff.FederatedType(tff.TensorType(np.float32, [200_000]), tff.CLIENTS)
    )
    port = _free_port()
    with _coordinator(folder, port, door), runtime.remote([f"127.0.0.1:{port}"]):
        clients = [np.full(200_000, n, np.float32) for n in range(3)]
        np.testing.assert_array_equal(total(clients), np.full(200_000, 3.0))


def test_a_certificate_of_another_authority_is_refused(folder, door):
    port = _free_port()
    with _coordinator(folder, port, door, c=("coordinator.pem", "stranger.pem"), d=("coordinator.key", "stranger.key")):
        assert worker_lib.probe(f"127.0.0.1:{port}", 3.0) is not None


def _speak_without_a_certificate(folder, door):
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    plain = socket.create_connection(("127.0.0.1", door), timeout=PATIENCE)
    with plain, context.wrap_socket(plain, server_hostname="worker-a") as secure:
        # What is sent to one that has refused may destroy its last word; an HTTP/2 server would speak first.
        secure.recv(1)


def test_a_peer_without_a_certificate_is_refused(folder, door):
    with pytest.raises(ssl.SSLError, match=r"CERTIFICATE_REQUIRED|certificate required"):
        _speak_without_a_certificate(folder, door)
    assert worker_lib.probe(f"127.0.0.1:{door}", 3.0) is not None  # without TLS at all


def test_a_server_with_another_name_is_not_believed(folder, door):
    port = _free_port()
    with _coordinator(folder, port, door, c=("checkHost = worker-a", "checkHost = worker-b")):
        assert worker_lib.probe(f"127.0.0.1:{port}", 3.0) is not None
