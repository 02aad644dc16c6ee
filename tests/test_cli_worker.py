"""`tffcl worker`: it listens where it is told and nowhere else, answers, is logged, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tffcl.commands import worker as command
from tffcl.runtime import network

_PROGRAM = [sys.executable, "-c", "from tffcl.cli import main; main()"]


def _may_have_a_network():
    probe = "from tffcl.runtime.network import enter_private_network; enter_private_network()"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode == 0


needs_network = pytest.mark.skipif(not _may_have_a_network(), reason="no network name spaces here")


class Served:
    """A `tffcl worker` of our own, and what it has said so far."""

    def __init__(self, *args, before=()):
        self.lines = []
        self.process = subprocess.Popen(
            [*before, *_PROGRAM, "worker", "--threads", "1", *args], stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        ready = self.wait_for(r"ready: a TFF worker listens on (\S+) \(pid (\d+)\)")
        self.address, self.worker_pid = ready[1], int(ready[2])

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, pattern, seconds=30):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if found := re.search(pattern, line):
                    return found
            time.sleep(0.05)
        raise AssertionError(f"no line {pattern!r} among {self.lines}")

    def close(self):
        self._reader.join(10)  # the pipe ends with the last process that holds it
        self.process.stderr.close()

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(30)
        self._reader.join(10)
        return code


@contextlib.contextmanager
def serve(*args, **options):
    served = Served(*args, **options)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.process.kill()
        served.process.wait(10)
        served.close()


def is_gone_soon(pid, seconds=10.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def check(address):
    return subprocess.run(
        [*_PROGRAM, "worker", "--check", address], capture_output=True, text=True, timeout=60
    )


@needs_network
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ready_check_and_end(number):
    with serve("--port", "0") as served:
        assert served.address.startswith("127.0.0.1:")
        assert any("runs any graph" in line and served.address in line for line in served.lines)
        done = check(served.address)
        assert (done.returncode, done.stderr) == (0, f"{served.address}: the worker answers\n")
        served.wait_for("connection from 127.0.0.1:.* closed")
        assert served.end(number) == 0
        assert served.lines[-1] == "ended: the worker is gone"
        assert is_gone_soon(served.worker_pid)
        assert check(served.address).returncode == 1


@needs_network
def test_a_check_of_a_worker_that_stands_still(monkeypatch, capsys):
    monkeypatch.setattr(command, "_CHECK_SECONDS", 1.0)
    with serve("--port", "0") as served:
        os.kill(served.worker_pid, signal.SIGSTOP)
        assert command.check(served.address) == 1
        assert "no answer within 1 s" in capsys.readouterr().err


@needs_network
def test_the_worker_is_gone_when_the_program_is_killed():
    with serve("--port", "0") as served:
        served.process.kill()
        assert is_gone_soon(served.worker_pid)


@needs_network
def test_a_worker_that_ends_by_itself_is_an_error():
    with serve("--port", "0") as served:
        os.kill(served.worker_pid, signal.SIGKILL)
        assert served.process.wait(30) == 2
        served.wait_for(r"tffcl: error: the TFF worker \(pid \d+\) was ended by SIGKILL")


@needs_network
def test_nothing_listens_but_the_door():
    """No socket of this machine's network is the worker's, and the door is bound to one address."""
    with serve("--port", "0") as served:
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
                socket.create_connection((other, int(port)), timeout=5)


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

    monkeypatch.setattr(network, "enter_private_network", refuse)
    with pytest.raises(Exception, match=r"cannot keep the worker to 127.0.0.1: .*--host 0.0.0.0"):
        command.serve("127.0.0.1", 0, 1)
    monkeypatch.setattr(command, "_watch", lambda *_: None)
    command.serve("0.0.0.0", 0, 1)
    assert re.search(r"the worker itself listens on port \d+ of all interfaces", capsys.readouterr().err)


def test_an_address_that_is_taken_or_nobody_s():
    taken = pytest.raises(Exception, match="cannot listen on 127.0.0.1:.*in use")
    with socket.create_server(("127.0.0.1", 0)) as owner, taken:
        command.serve("127.0.0.1", owner.getsockname()[1], 1)
    with pytest.raises(Exception, match="cannot listen on 192.0.2.1:0"):
        command.serve("192.0.2.1", 0, 1)


def test_wrong_flags_are_one_line():
    for args in (
        ["worker"],
        ["run", "fedseit", "--runtime", "remote"],
        ["run", "fedseit", "--workers", "a:1"],
        ["run", "fedseit", "--on-lost-worker", "leave-out"],
    ):
        done = subprocess.run([*_PROGRAM, *args], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert done.stderr.startswith("tffcl: error: ")
        assert done.stderr.count("\n") == 1


_RUN = [
    "run", "fedseit", "--dataset", "sample", "--embeddings", "own", "--num-clients", "2", "--num-tasks", "2",
    "--num-rounds", "2", "--num-epochs", "2",
]  # fmt: skip


def _history(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


@needs_network
@pytest.mark.slow
def test_a_run_over_two_workers_of_which_one_is_killed(tmp_path):
    """The whole way: two programs, a run over both, the death of one, its line of history; nothing is left."""
    with serve("--port", "0") as one, serve("--port", "0") as other:
        workers = f"{one.address},{other.address}"
        run = subprocess.Popen(
            [*_PROGRAM, *_RUN, "--runtime", "remote", "--workers", workers, "--output-dir", tmp_path / "a"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        deadline = time.monotonic() + 300
        history = tmp_path / "a" / "history.jsonl"
        while not (history.exists() and history.read_text()) and time.monotonic() < deadline:
            time.sleep(0.1)
        other.process.kill()
        _, said = run.communicate(timeout=400)
        assert run.returncode == 0, said
        one.wait_for(r"busy for .* s: .* of CPU, .* MB in, .* MB out")
        assert one.end() == 0
    failures = [failure for event in _history(tmp_path / "a") for failure in event.get("worker_failures", [])]
    assert [failure["worker"] for failure in failures] == [other.address]
    scores = [event["accuracy"] for event in _history(tmp_path / "a") if event["event"] == "task_end"]
    assert [np.shape(one) for one in scores] == [(2, 1), (2, 2)]
    assert all(0 <= score <= 1 for one in scores for score in np.ravel(one))
    assert is_gone_soon(one.worker_pid)
    assert is_gone_soon(other.worker_pid)
