"""`tffcl worker`: it listens where it is told and nowhere else, answers, is logged, and leaves nothing behind."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket
import subprocess

import click
import pytest
from serving import PATIENCE, is_gone_soon, needs_network
from serving import serve as serving

from tffcl import cli, errors
from tffcl.runtime import serve


@needs_network
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ready_check_and_end(number, capsys):
    with serving("--port", "0") as served:
        assert served.address.startswith("127.0.0.1:")
        assert any("runs any graph" in line and served.address in line for line in served.lines)
        assert serve.check(served.address) == 0
        assert capsys.readouterr().err == f"{served.address}: the worker answers\n"
        served.wait_for("connection from 127.0.0.1:.* closed")
        assert served.end(number) == 0
        assert served.lines[-1] == "ended: the worker is gone"
        assert is_gone_soon(served.worker_pid)
        assert serve.check(served.address) == 1


@needs_network
def test_a_check_of_a_worker_that_stands_still(monkeypatch, capsys):
    monkeypatch.setattr(serve, "_CHECK_SECONDS", 1.0)
    with serving("--port", "0") as served:
        os.kill(served.worker_pid, signal.SIGSTOP)
        assert serve.check(served.address) == 1
        assert "no answer within 1 s" in capsys.readouterr().err


@needs_network
def test_the_worker_is_gone_when_the_program_is_killed():
    with serving("--port", "0") as served:
        served.process.kill()
        assert is_gone_soon(served.worker_pid)


@needs_network
def test_a_worker_that_ends_by_itself_is_an_error():
    with serving("--port", "0") as served:
        os.kill(served.worker_pid, signal.SIGKILL)
        assert served.process.wait(PATIENCE) == 2
        served.wait_for(r"tffcl: error: the TFF worker \(pid \d+\) was ended by SIGKILL")


@needs_network
def test_nothing_listens_but_the_proxy():
    """No socket of this machine's network is the worker's, and the proxy is bound to one address."""
    with serving("--port", "0") as served:
        host, port = served.address.rsplit(":", 1)
        mine = os.readlink("/proc/self/ns/net")
        assert os.readlink(f"/proc/{served.worker_pid}/ns/net") != mine
        own = _listening(served.worker_pid)
        ours = _listening("self")
        assert len(own) == 1
        assert not own & ours - {int(port)}
        assert int(port) in ours
        for other in _other_addresses():
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((other, int(port)), timeout=PATIENCE)


def _listening(pid):
    """Ports that are listened on in a process's network."""
    ports = set()
    for name in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


def _other_addresses():
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    return [address for address in found if "." in address]


def test_without_a_network_of_its_own_it_says_so(monkeypatch, capsys):
    def refuse():
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(serve, "enter_network_namespace", refuse)
    with pytest.raises(errors.RunError, match=r"cannot keep the worker to 127.0.0.1: .*--host 0.0.0.0"):
        serve.serve("127.0.0.1", 0, 1)
    monkeypatch.setattr(serve, "_log_work", lambda *_: None)
    serve.serve("0.0.0.0", 0, 1)
    assert re.search(r"the worker itself listens on port \d+ of all interfaces", capsys.readouterr().err)


def test_an_address_that_is_taken_or_nobody_s():
    taken = pytest.raises(errors.RunError, match="cannot listen on 127.0.0.1:.*in use")
    with socket.create_server(("127.0.0.1", 0)) as owner, taken:
        serve.serve("127.0.0.1", owner.getsockname()[1], 1)
    with pytest.raises(errors.RunError, match="cannot listen on 192.0.2.1:0"):
        serve.serve("192.0.2.1", 0, 1)


def test_neither_a_port_nor_a_check_is_a_usage_error():
    with pytest.raises(click.UsageError, match="give --port to run a worker, or --check"):
        cli.tffcl.main(["worker"], standalone_mode=False)
